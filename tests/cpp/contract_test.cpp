#include <cstring>
#include <limits>
#include <set>

#include "contract_fixture.h"

// What a stream promises, alone and beside others.

namespace eliza::test {
namespace {

INSTANTIATE_TEST_SUITE_P(Runtimes, SessionContract, testing::ValuesIn(contract_runtimes()),
                         name_of);

// ------------------------------------------------------------------------ one generation

TEST_P(SessionContract, GreedyStreamsSayTheSame) {
  for (const Tokens& prompt : runtime_.prompts) {
    const Generation first = fresh(prompt, 16);
    EXPECT_FALSE(first.tokens.empty());
    expect_same(fresh(prompt, 16), first);
    expect_same(fresh(prompt, 16), first);
  }
  EXPECT_EQ(fresh(prompt(), 16).tokens.size(), 16u);
}

TEST_P(SessionContract, EveryStepIsOneTokenAndValidUtf8) {
  for (const Config& config : {Config{}, sampled()}) {
    for (const Tokens& prompt : beginnings()) {
      const Stream stream = prompted(prompt, capped(some, config));
      Step step;
      while (step.status == 0) {
        step = next(stream, 100, 100);
        ASSERT_GE(step.status, 0) << step.message;
        EXPECT_LE(step.tokens.size(), 1u);
        EXPECT_TRUE(is_valid_utf8(step.text)) << step.text;
        EXPECT_EQ(step.drafted, 0);
        EXPECT_EQ(step.accepted, 0);
      }
    }
  }
}

TEST_P(SessionContract, IdsBelongToTheVocabulary) {
  for (const int32_t token : fresh(prompt(), enough, capped(100, sampled())).tokens) {
    EXPECT_GE(token, 0);
    EXPECT_LT(token, runtime_.vocabulary_size);
  }
}

TEST_P(SessionContract, PromptMayComeInParts) {
  const Generation expected = fresh(prompt(), 12);
  for (size_t cut = 1; cut < prompt().size(); ++cut) {
    const Stream stream = prompted(first_of(prompt(), cut));
    prefill(stream, rest_of(prompt(), cut));
    expect_same(generate(stream, 12), expected);
  }
  const Stream stream = open();
  for (const int32_t token : prompt()) prefill(stream, {token});
  expect_same(generate(stream, 12), expected);
}

TEST_P(SessionContract, PrefillInsideAGenerationContinuesTheSequence) {
  const Stream stream = prompted(prompt());
  const Tokens sequence = concatenated(prompt(), generate(stream, 3).tokens);
  prefill(stream, question());
  EXPECT_EQ(generate(stream, 12).tokens, fresh(concatenated(sequence, question()), 12).tokens);
}

TEST_P(SessionContract, LargerConfigOfALaterAbiIsAccepted) {
  struct {
    Config config;
    int32_t context_size;
    int32_t padding;
  } later = {{}, 4096, -1};
  static_assert(sizeof(later) == 88);
  const Stream stream(eliza_inference_llm_stream_open(ctx_.get(), &later.config, nullptr));
  EXPECT_NE(stream, nullptr);
}

// ------------------------------------------------------------------------------ buffers

TEST_P(SessionContract, EveryPairOfBuffersDeliversTheSame) {
  for (const Tokens& prompt : beginnings()) {
    const Generation expected = generate(prompted(prompt, capped(some)), enough, 100, 1000);
    for (const size_t tokens_cap : {1, 2, 100}) {
      for (const size_t text_cap : {5, 6, 7, 8, 16, 100}) {
        const Stream stream = prompted(prompt, capped(some));
        SCOPED_TRACE(std::to_string(tokens_cap) + " tokens, " + std::to_string(text_cap) +
                     " bytes");
        expect_same(generate(stream, enough, tokens_cap, text_cap), expected);
      }
    }
  }
}

TEST_P(SessionContract, TextBufferThatIsTooSmallIsRefusedAndLosesNothing) {
  for (const Tokens& prompt : beginnings()) {
    const Generation expected = fresh(prompt, enough, capped(some));
    for (const size_t text_cap : {1, 2, 3, 4}) {
      const Stream stream = prompted(prompt, capped(some));
      Generation got;
      int refusals = 0;
      for (int calls = 0; !got.final; ++calls) {
        ASSERT_LT(calls, 1000);
        Step step = next(stream, 1, text_cap);
        if (step.status == ELIZA_ERR_INVALID_ARG) {
          ++refusals;
          expect_nothing(step, ELIZA_ERR_INVALID_ARG);
          expect_message(step.message, "next", {"text_cap", std::to_string(text_cap)});
          step = next(stream, 1, 5);  // holds any character
          EXPECT_GE(step.text.size(), text_cap) << "it would have fitted";
        }
        ASSERT_GE(step.status, 0) << step.message;
        EXPECT_TRUE(is_valid_utf8(step.text));
        got.tokens = concatenated(got.tokens, step.tokens);
        got.text += step.text;
        got.final = step.status == 1;
      }
      expect_same(got, expected);
      if (text_cap == 1 && !expected.text.empty()) {
        EXPECT_GT(refusals, 0);
      }
    }
  }
}

TEST_P(SessionContract, NoByteIsWrittenBehindTheBuffers) {
  for (const Tokens& prompt : beginnings()) {
    const Stream stream = prompted(prompt, capped(some));
    for (int status = 0; status == 0;) {
      int32_t tokens[2] = {-5, -5};
      char text[16];
      std::memset(text, 'Z', sizeof text);
      size_t count = 0;
      status = eliza_inference_llm_stream_next(stream.get(), tokens, 1, &count, text, 6, nullptr,
                                               nullptr, nullptr);
      ASSERT_GE(status, 0);
      EXPECT_LE(count, 1u);
      EXPECT_EQ(tokens[1], -5);
      EXPECT_NE(std::memchr(text, '\0', 6), nullptr) << "no terminator";
      EXPECT_EQ(std::string(text + 6, 10), std::string(10, 'Z'));
    }
  }
}

TEST_P(SessionContract, FinalComesOnlyWhenEverythingIsDelivered) {
  for (const Tokens& prompt : beginnings()) {
    const Generation expected = fresh(prompt, enough, capped(some));
    const Stream stream = prompted(prompt, capped(some));
    Generation got;
    while (!got.final) {
      const Step step = next(stream, 1, 5);
      ASSERT_GE(step.status, 0) << step.message;
      got.tokens = concatenated(got.tokens, step.tokens);
      got.text += step.text;
      got.final = step.status == 1;
    }
    expect_same(got, expected);
    for (int i = 0; i < 3; ++i) expect_nothing(next(stream), 1);
  }
}

// Output that waits survives a prefill: behind each of the first tokens, with no room for its text.
TEST_P(SessionContract, PrefillKeepsUndeliveredText) {
  for (const Tokens& prompt : beginnings()) {
    const size_t length = std::min<size_t>(6, fresh(prompt, 6).tokens.size());
    for (size_t before = 0; before < length; ++before) {
      Generation said[2];
      for (const size_t text_cap : {64, 1}) {
        Generation& got = said[text_cap == 1 ? 1 : 0];
        const Stream stream = prompted(prompt, capped(some));
        if (before > 0) got = generate(stream, before);
        const Step step = next(stream, 1, text_cap);
        ASSERT_GE(step.status, 0) << step.message;
        got.tokens = concatenated(got.tokens, step.tokens);
        got.text += step.text;
        prefill(stream, question());
        const Generation rest = generate(stream);
        got.tokens = concatenated(got.tokens, rest.tokens);
        got.text += rest.text;
      }
      expect_same(said[1], said[0]);
    }
  }
}

// ---------------------------------------------------------------------------- the end

TEST_P(SessionContract, MaxTokensEndsTheGenerationWithItsLastToken) {
  const Tokens expected = fresh(prompt(), 7).tokens;
  for (const int32_t most : {1, 2, 7}) {
    const Stream stream = prompted(prompt(), capped(most));
    for (int32_t number = 1; number <= most; ++number) {
      const Step step = next(stream);
      EXPECT_EQ(step.tokens, Tokens{expected[static_cast<size_t>(number) - 1]});
      EXPECT_EQ(step.status, number == most ? 1 : 0);
    }
    expect_nothing(next(stream), 1);
  }
}

TEST_P(SessionContract, WithoutACapTheContextEndsTheGeneration) {
  const EnvironmentVariable context("ELIZA_LLM_N_CTX", std::to_string(runtime_.small_context));
  for (const int32_t most : {0, -1, INT32_MIN}) {
    const Generation generation = fresh(prompt(), enough, capped(most));
    EXPECT_TRUE(generation.final);
    EXPECT_EQ(prompt().size() + generation.tokens.size(), runtime_.small_context);
  }
}

TEST_P(SessionContract, PrefillAfterFinalOpensTheNextGenerationWithAFreshCount) {
  const Stream stream = prompted(prompt(), capped(4));
  Tokens sequence = prompt();
  for (int turn = 0; turn < 4; ++turn) {
    const Generation got = generate(stream);
    expect_same(got, fresh(sequence, enough, capped(4)));
    sequence = concatenated(concatenated(sequence, got.tokens), question());
    prefill(stream, question());
  }
}

TEST_P(SessionContract, PrefillInsideAGenerationGoesOnCounting) {
  const Stream stream = prompted(prompt(), capped(5));
  const Tokens sequence = concatenated(prompt(), generate(stream, 2).tokens);
  prefill(stream, question());
  const Generation rest = generate(stream);
  EXPECT_EQ(rest.tokens, fresh(concatenated(sequence, question()), enough, capped(3)).tokens);
  EXPECT_TRUE(rest.final);
}

// ----------------------------------------------------------------------------- the context

TEST_P(SessionContract, PromptThatFillsTheContextIsFinalAtOnce) {
  const EnvironmentVariable context("ELIZA_LLM_N_CTX", std::to_string(runtime_.small_context));
  const Stream stream = prompted(filling(runtime_.small_context));
  expect_nothing(next(stream), 1);
}

TEST_P(SessionContract, PromptThatIsTooLongIsRefusedWithTheNumbers) {
  const size_t size = runtime_.small_context;
  const EnvironmentVariable context("ELIZA_LLM_N_CTX", std::to_string(size));
  const Tokens expected = fresh(prompt(), 4).tokens;
  const Stream stream = open();
  expect_prefill_refused(stream, filling(size + 1),
                         {std::to_string(size + 1), std::to_string(size)});
  expect_prefill_refused(stream, filling(100000), {"100000", std::to_string(size)});
  prefill(stream, prompt());
  EXPECT_EQ(generate(stream, 2).tokens, first_of(expected, 2)) << "a refused prompt left a trace";
  const size_t room = size - prompt().size() - 2;
  expect_prefill_refused(stream, filling(room + 1),
                         {std::to_string(room + 1), std::to_string(size)});
  EXPECT_EQ(generate(stream, 2).tokens, rest_of(expected, 2)) << "a refused prompt left a trace";
  EXPECT_EQ(try_prefill(stream, filling(room - 2)), ELIZA_OK);
}

TEST_P(SessionContract, ContextIsNeverLargerThanTheModels) {
  const EnvironmentVariable context("ELIZA_LLM_N_CTX", "1000000");
  const Stream stream = open();
  EXPECT_EQ(try_prefill(stream, filling(runtime_.context_size + 1)), ELIZA_ERR_INVALID_ARG);
  EXPECT_EQ(try_prefill(stream, filling(runtime_.context_size)), ELIZA_OK);
  EXPECT_EQ(next(stream).status, 1);
}

TEST_P(SessionContract, FullContextRefusesAPrefillUntilReset) {
  const EnvironmentVariable context("ELIZA_LLM_N_CTX", std::to_string(runtime_.small_context));
  const Stream stream = prompted(prompt());
  generate(stream);
  expect_prefill_refused(stream, {prompt()[0]}, {std::to_string(runtime_.small_context)});
  expect_nothing(next(stream), 1);
  reset(stream);
  prefill(stream, prompt());
  expect_same(generate(stream, 4), fresh(prompt(), 4));
}

// ------------------------------------------------------------------------ wrong arguments

TEST_P(SessionContract, IdOutsideTheVocabularyIsRefusedAndLeavesTheStreamAsItWas) {
  const Tokens expected = fresh(prompt(), 8).tokens;
  const Stream stream = open();
  for (const int32_t id : {-1, runtime_.vocabulary_size, INT32_MAX, INT32_MIN}) {
    expect_prefill_refused(stream, {id}, {std::to_string(id)});
    expect_prefill_refused(stream, concatenated(prompt(), {id, 5}), {std::to_string(id)});
  }
  expect_nothing(next(stream), ELIZA_ERR_INVALID_ARG);
  prefill(stream, prompt());
  for (size_t token = 0; token < 8; ++token) {
    EXPECT_EQ(generate(stream, 1).tokens, Tokens{expected[token]});
    EXPECT_EQ(try_prefill(stream, {question()[0], -1}), ELIZA_ERR_INVALID_ARG);
  }
}

TEST_P(SessionContract, EveryIdOfTheVocabularyMayBePrefilled) {
  const Stream stream = open();
  for (int32_t begin = 0; begin < runtime_.vocabulary_size; begin += 50) {
    Tokens ids;
    for (int32_t id = begin; id < std::min(begin + 50, runtime_.vocabulary_size); ++id) {
      ids.push_back(id);
    }
    reset(stream);
    prefill(stream, ids);
    EXPECT_GE(next(stream).status, 0);
  }
}

TEST_P(SessionContract, NextNeedsAPrompt) {
  const Stream stream = open();
  for (int round = 0; round < 2; ++round) {
    const Step step = next(stream);
    expect_nothing(step, ELIZA_ERR_INVALID_ARG);
    expect_message(step.message, "next", {"prefill"});
    prefill(stream, prompt());
    expect_same(generate(stream, 4), fresh(prompt(), 4));
    reset(stream);
  }
}

// What a call is given; a test spoils one thing.
struct Arguments {
  int32_t tokens[4] = {};
  size_t tokens_cap = 4;
  size_t count = 0;
  char text[64] = {};
  size_t text_cap = 64;
};

TEST_P(SessionContract, NullAndZeroAreRefusedByNameAndLeaveTheStreamAsItWas) {
  const Tokens expected = fresh(prompt(), 8).tokens;
  const Stream stream = prompted(prompt());
  Arguments a;
  const struct {
    const char* function;
    const char* argument;
    std::function<int(char**)> call;
  } calls[] = {
      {"prefill", "token_ids",
       [&](char** e) { return eliza_inference_llm_stream_prefill(stream.get(), nullptr, 4, e); }},
      {"prefill", "num_tokens",
       [&](char** e) { return eliza_inference_llm_stream_prefill(stream.get(), a.tokens, 0, e); }},
      {"next", "tokens_out",
       [&](char** e) {
         return eliza_inference_llm_stream_next(stream.get(), nullptr, 4, &a.count, a.text, 64,
                                                nullptr, nullptr, e);
       }},
      {"next", "tokens_cap",
       [&](char** e) {
         return eliza_inference_llm_stream_next(stream.get(), a.tokens, 0, &a.count, a.text, 64,
                                                nullptr, nullptr, e);
       }},
      {"next", "num_tokens_out",
       [&](char** e) {
         return eliza_inference_llm_stream_next(stream.get(), a.tokens, 4, nullptr, a.text, 64,
                                                nullptr, nullptr, e);
       }},
      {"next", "text_out",
       [&](char** e) {
         return eliza_inference_llm_stream_next(stream.get(), a.tokens, 4, &a.count, nullptr, 64,
                                                nullptr, nullptr, e);
       }},
      {"next", "text_cap",
       [&](char** e) {
         return eliza_inference_llm_stream_next(stream.get(), a.tokens, 4, &a.count, a.text, 0,
                                                nullptr, nullptr, e);
       }},
  };
  Tokens got;
  for (const auto& [function, argument, call] : calls) {
    OwnedMessage error;
    EXPECT_EQ(call(error.out()), ELIZA_ERR_INVALID_ARG) << function << " " << argument;
    expect_message(error.text(), function, {argument});
    EXPECT_EQ(call(nullptr), ELIZA_ERR_INVALID_ARG) << function << " " << argument;
    got = concatenated(got, next(stream).tokens);
  }
  EXPECT_EQ(got, first_of(expected, got.size()));
}

TEST_P(SessionContract, SuccessLeavesTheMessageAlone) {
  char sentinel = 'x';
  char* error = &sentinel;
  const Config config = capped(2, unkeyed());
  const Stream stream(eliza_inference_llm_stream_open(ctx_.get(), &config, &error));
  ASSERT_NE(stream, nullptr);
  ASSERT_EQ(
      eliza_inference_llm_stream_prefill(stream.get(), prompt().data(), prompt().size(), &error),
      ELIZA_OK);
  Arguments a;
  for (int status = 0; status == 0;) {
    status = eliza_inference_llm_stream_next(stream.get(), a.tokens, 4, &a.count, a.text, 64,
                                             nullptr, nullptr, &error);
    ASSERT_GE(status, 0);
  }
  EXPECT_EQ(error, &sentinel);
}

// ---------------------------------------------------------------------------- the config

// Values that no runtime takes, in fields that it may not honour at all.
TEST_P(SessionContract, WrongValueIsRefusedByField) {
  constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();
  constexpr float infinite = std::numeric_limits<float>::infinity();
  const struct {
    const char* field;
    void (*set)(Config&);
  } wrong[] = {
      {"temperature", [](Config& c) { c.temperature = not_a_number; }},
      {"temperature", [](Config& c) { c.temperature = infinite; }},
      {"temperature", [](Config& c) { c.temperature = -infinite; }},
      {"top_p", [](Config& c) { c.top_p = not_a_number; }},
      {"repeat_penalty", [](Config& c) { c.repeat_penalty = not_a_number; }},
      {"repeat_penalty", [](Config& c) { c.repeat_penalty = infinite; }},
      {"repeat_penalty", [](Config& c) { c.repeat_penalty = -1; }},
      {"draft_min", [](Config& c) { c.draft_min = -1; }},
      {"draft_max", [](Config& c) { c.draft_max = -1; }},
      {"draft_max", [](Config& c) { c.draft_max = 1025; }},
      {"mtp_drafter_path", [](Config& c) { c.mtp_drafter_path = ""; }},
      {"mtp_drafter_path", [](Config& c) { c.mtp_drafter_path = "/no/such/drafter"; }},
      {"prompt_cache_key", [](Config& c) { c.prompt_cache_key = ""; }},
      {"prompt_cache_key", [](Config& c) { c.prompt_cache_key = "a\nb"; }},
      {"gbnf_grammar", [](Config& c) { c.gbnf_grammar = ""; }},
      {"gbnf_grammar", [](Config& c) { c.gbnf_grammar = "root ::= missing"; }},
      {"cache_type_k", [](Config& c) { c.cache_type_k = ""; }},
      {"cache_type_k", [](Config& c) { c.cache_type_k = "q6_K"; }},
      {"cache_type_v", [](Config& c) { c.cache_type_v = "\xFF\xFE"; }},
  };
  for (const auto& [field, set] : wrong) {
    Config config = unkeyed();
    set(config);
    expect_open_refused(ctx_, config, {field});
  }
}

TEST_P(SessionContract, FieldThatCannotBeHonouredIsRefusedByNameAndAnyOtherIsNot) {
  const struct {
    const char* field;
    void (*set)(Config&);
  } optional[] = {
      {"gbnf_grammar", [](Config& c) { c.gbnf_grammar = "root ::= \"ab\""; }},
      {"repeat_penalty", [](Config& c) { c.repeat_penalty = 1.2f; }},
      {"draft_max", [](Config& c) { c.draft_max = 4; }},
      {"disable_thinking", [](Config& c) { c.disable_thinking = 1; }},
  };
  for (const auto& [field, set] : optional) {
    Config config = capped(3, unkeyed());
    set(config);
    if (refuses(field)) {
      expect_open_refused(ctx_, config, {field});
    } else {
      EXPECT_FALSE(fresh(prompt(), enough, config).tokens.empty()) << field;
    }
  }
}

TEST_P(SessionContract, CacheTypesAreHonouredOrRefusedByName) {
  for (const std::string& type : runtime_.cache_types) {
    Config config = capped(3);
    config.cache_type_k = config.cache_type_v = type.c_str();
    EXPECT_FALSE(fresh(prompt(), enough, config).tokens.empty()) << type;
  }
  if (!runtime_.cache_types.empty()) return;
  for (const char* type : {"q8_0", "f32"}) {
    Config keys = unkeyed();
    keys.cache_type_k = type;
    expect_open_refused(ctx_, keys, {"cache_type_k", type});
    Config values = unkeyed();
    values.cache_type_v = type;
    expect_open_refused(ctx_, values, {"cache_type_v", type});
  }
}

// Hints, and fields that are off: a runtime takes them whether or not it has what they are for.
TEST_P(SessionContract, FieldThatAsksForNothingChangesNothing) {
  const struct {
    const char* what;
    void (*set)(Config&);
  } harmless[] = {
      {"repeat_penalty 1", [](Config& c) { c.repeat_penalty = 1; }},
      {"draft_min without drafting", [](Config& c) { c.draft_min = 4; }},
      {"no layers to offload", [](Config& c) { c.n_gpu_layers = INT32_MAX; }},
      {"all layers to offload", [](Config& c) { c.n_gpu_layers = INT32_MIN; }},
      {"slot_id", [](Config& c) { c.slot_id = 3; }},
      {"prompt_cache_key", [](Config& c) { c.prompt_cache_key = "\u65e5\u672c \U0001f600"; }},
      {"top_k without temperature", [](Config& c) { c.top_k = 5; }},
  };
  const Generation expected = fresh(prompt(), enough, capped(8));
  for (const auto& [what, set] : harmless) {
    SCOPED_TRACE(what);
    Config config = capped(8, unkeyed());
    set(config);
    const Stream stream = open_stream(ctx_, config);
    prefill(stream, prompt());
    expect_same(generate(stream), expected);
  }
}

// A stream that opens with the key of one that was closed may go on with what that one left.
TEST_P(SessionContract, ConversationUnderAKeySaysWhatItSaysWithout) {
  Config keyed = unkeyed(capped(6));
  keyed.prompt_cache_key = "chat";
  Tokens history = prompt();
  for (int turn = 0; turn < 5; ++turn) {
    const Stream stream = open_stream(ctx_, keyed);
    prefill(stream, history);
    const Generation got = generate(stream);
    expect_same(got, fresh(history, enough, capped(6)));
    history = concatenated(concatenated(history, got.tokens), question());
    if (turn == 3) history = prompt();  // and back to the beginning
  }
}

TEST_P(SessionContract, EnvironmentThatDoesNotParseIsRefusedByName) {
  for (const char* name : {"ELIZA_LLM_N_CTX", "ELIZA_LLM_THREADS", "ELIZA_LLM_SEED"}) {
    for (const char* value : {"x", "-1", "1.5"}) {
      const EnvironmentVariable variable(name, value);
      expect_open_refused(ctx_, unkeyed(), {name, value});
    }
  }
}

TEST_P(SessionContract, GrammarDecidesTheTextOfEveryGeneration) {
  if (refuses("gbnf_grammar")) GTEST_SKIP() << "no grammars, as its entry says";
  Config config = sampled();
  config.gbnf_grammar = "root ::= \"ab\"";
  const Stream stream = prompted(prompt(), config);
  for (int turn = 0; turn < 3; ++turn) {
    const Generation got = generate(stream);
    EXPECT_EQ(got.text, "ab");
    EXPECT_TRUE(got.final);
    prefill(stream, question());
  }
}

TEST_P(SessionContract, DraftsChangeNothing) {
  if (refuses("draft_max")) GTEST_SKIP() << "no drafts, as its entry says";
  for (const Config& config : {capped(24), capped(24, sampled())}) {
    Config drafting = config;
    drafting.draft_max = 8;
    expect_same(fresh(prompt(), enough, drafting), fresh(prompt(), enough, config));
  }
}

// ---------------------------------------------------------------------------- sampling

TEST_P(SessionContract, TemperatureOfZeroOrLessIsGreedy) {
  const Generation expected = fresh(prompt(), 12);
  for (const float temperature : {0.0f, -1.0f, -1e38f}) {
    Config config = sampled();
    config.temperature = temperature;
    config.repeat_penalty = 0;
    const EnvironmentVariable seed("ELIZA_LLM_SEED", "8");
    expect_same(fresh(prompt(), 12, config), expected);
  }
}

TEST_P(SessionContract, OneCandidateIsGreedy) {
  const Generation expected = fresh(prompt(), 12);
  Config by_count = heated();
  by_count.top_k = 1;
  expect_same(fresh(prompt(), 12, by_count), expected);
  Config by_mass = heated();
  by_mass.top_p = 1e-30f;
  expect_same(fresh(prompt(), 12, by_mass), expected);
}

TEST_P(SessionContract, SamplerOutsideItsRangeIsOff) {
  const Config plain = heated();
  const Generation expected = fresh(prompt(), enough, capped(12, plain));
  for (const int32_t top_k : {-1, INT32_MIN, INT32_MAX}) {
    Config config = plain;
    config.top_k = top_k;
    expect_same(fresh(prompt(), enough, capped(12, config)), expected);
  }
  for (const float top_p : {1.0f, -0.5f, 1e38f, -1e38f}) {
    Config config = plain;
    config.top_p = top_p;
    expect_same(fresh(prompt(), enough, capped(12, config)), expected);
  }
  Config config = plain;
  config.repeat_penalty = 1;
  expect_same(fresh(prompt(), enough, capped(12, config)), expected);
}

TEST_P(SessionContract, SeedDecidesSampledText) {
  const Config config = capped(12, heated());
  std::set<Tokens> texts;
  for (int seed = 0; seed < 8; ++seed) {
    const EnvironmentVariable variable("ELIZA_LLM_SEED", std::to_string(seed));
    const Generation once = fresh(prompt(), enough, config);
    expect_same(fresh(prompt(), enough, config), once);
    texts.insert(once.tokens);
  }
  EXPECT_GT(texts.size(), 1u);
}

TEST_P(SessionContract, WithoutASeedSampledTextVaries) {
  const EnvironmentVariable none("ELIZA_LLM_SEED", std::nullopt);
  const Config config = capped(12, heated());
  std::set<Tokens> texts;
  for (int i = 0; i < 8; ++i) texts.insert(fresh(prompt(), enough, config).tokens);
  EXPECT_GT(texts.size(), 1u);
}

TEST_P(SessionContract, ResetRepeatsWhatAFreshStreamSays) {
  for (const Config& config : {Config{}, sampled()}) {
    const Generation expected = fresh(prompt(), 16, config);
    const Stream stream = open(config);
    for (int round = 0; round < 3; ++round) {
      prefill(stream, prompt());
      expect_same(generate(stream, 16), expected);
      reset(stream);
    }
  }
}

// ------------------------------------------------------------------- reset and reset_keep

TEST_P(SessionContract, ResetDropsUndeliveredOutput) {
  const Stream stream = prompted(question());
  for (int i = 0; i < 5; ++i) next(stream, 1, 1);
  reset(stream);
  prefill(stream, prompt());
  expect_same(generate(stream, 4), fresh(prompt(), 4));
}

class ResetKeepContract : public SessionContract {
 protected:
  // Keeps `count` tokens of a stream whose sequence is known to be `sequence`, and then says what a
  // fresh stream says that is given those and a question.
  void expect_exact(const Stream& stream, const Tokens& sequence, int32_t count,
                    const Config& config = {}) {
    SCOPED_TRACE("reset_keep of " + std::to_string(count));
    const int32_t kept = reset_keep(stream, count);
    const int32_t most = std::clamp(count, 0, static_cast<int32_t>(sequence.size()));
    ASSERT_GE(kept, 0);
    ASSERT_LE(kept, most);
    if (runtime_.keeps_every_count) {
      EXPECT_EQ(kept, most);
    }
    const Tokens whole = concatenated(first_of(sequence, static_cast<size_t>(most)), question());
    prefill(stream, rest_of(whole, static_cast<size_t>(kept)));
    expect_same(generate(stream, 10), fresh(whole, 10, config));
  }

  void expect_exact_for_every_count(const Config& config) {
    const Stream stream = open(config);
    Tokens sequence;
    const auto converse = [&] {
      reset(stream);
      prefill(stream, prompt());
      sequence = concatenated(prompt(), generate(stream, 8).tokens);
    };
    converse();
    const auto length = static_cast<int32_t>(sequence.size());
    std::vector<int32_t> counts = {INT32_MIN, -1, length + 1, INT32_MAX};
    for (int32_t count = 0; count <= length; ++count) counts.push_back(count);
    for (const int32_t count : counts) {
      converse();
      expect_exact(stream, sequence, count, config);
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Runtimes, ResetKeepContract, testing::ValuesIn(contract_runtimes()),
                         name_of);

TEST_P(ResetKeepContract, EveryCountEqualsAFreshStream) { expect_exact_for_every_count({}); }

TEST_P(ResetKeepContract, EveryCountOfASampledStreamEqualsAFreshStream) {
  expect_exact_for_every_count(sampled());
}

TEST_P(ResetKeepContract, NextMayFollowAtOnce) {
  const Stream stream = open();
  for (size_t count = 0; count <= prompt().size(); ++count) {
    reset(stream);
    prefill(stream, prompt());
    generate(stream, 8);
    const int32_t kept = reset_keep(stream, static_cast<int32_t>(count));
    ASSERT_LE(kept, static_cast<int32_t>(count));
    if (kept == 0) {
      expect_nothing(next(stream), ELIZA_ERR_INVALID_ARG);
      continue;
    }
    SCOPED_TRACE(kept);
    expect_same(generate(stream, 10), fresh(first_of(prompt(), static_cast<size_t>(kept)), 10));
  }
}

TEST_P(ResetKeepContract, MayBeRepeated) {
  const Stream stream = prompted(prompt());
  Tokens sequence = prompt();
  for (size_t turn = 0; turn < 6; ++turn) {
    sequence = concatenated(sequence, generate(stream, 6).tokens);
    const size_t count = sequence.size() - std::min(sequence.size(), 2 + turn);
    const int32_t kept = reset_keep(stream, static_cast<int32_t>(count));
    sequence = concatenated(first_of(sequence, count), question());
    prefill(stream, rest_of(sequence, static_cast<size_t>(kept)));
    const Generation got = generate(stream, 4);
    expect_same(got, fresh(sequence, 4));
    sequence = concatenated(sequence, got.tokens);
  }
}

TEST_P(ResetKeepContract, NothingIsKeptOfAnEmptyStream) {
  const Stream stream = open();
  EXPECT_EQ(reset_keep(stream, 3), 0);
  expect_exact(stream, {}, 5);
}

TEST_P(ResetKeepContract, WorksAfterWhateverStoppedTheStream) {
  const struct {
    const char* what;
    std::function<void(const Stream&)> happen;
  } events[] = {
      {"the end", [](const Stream& stream) { generate(stream); }},
      {"a cancel", [](const Stream& stream) { cancel(stream); }},
      {"a cancel that was noticed",
       [](const Stream& stream) {
         cancel(stream);
         EXPECT_EQ(next(stream).status, ELIZA_ERR_CANCELLED);
         EXPECT_EQ(try_prefill(stream, {1}), ELIZA_ERR_CANCELLED);
       }},
      {"a refused id",
       [](const Stream& stream) { EXPECT_EQ(try_prefill(stream, {-1}), ELIZA_ERR_INVALID_ARG); }},
      {"a refused prompt",
       [this](const Stream& stream) {
         EXPECT_EQ(try_prefill(stream, filling(100000)), ELIZA_ERR_INVALID_ARG);
       }},
      {"a refused buffer",
       [](const Stream& stream) {
         EXPECT_EQ(eliza_inference_llm_stream_next(stream.get(), nullptr, 0, nullptr, nullptr, 0,
                                                   nullptr, nullptr, nullptr),
                   ELIZA_ERR_INVALID_ARG);
       }},
  };
  const auto count = static_cast<int32_t>(prompt().size());
  for (const auto& [what, happen] : events) {
    SCOPED_TRACE(what);
    const Stream stream = prompted(prompt(), capped(12));
    generate(stream, 5);
    happen(stream);
    expect_exact(stream, prompt(), count, capped(12));
  }
}

// ----------------------------------------------------------------------------- cancel

TEST_P(SessionContract, CancelIsStickyUntilAReset) {
  const struct {
    const char* when;
    std::function<void(const Stream&)> before;
  } moments[] = {
      {"before a prompt", [](const Stream&) {}},
      {"behind a prompt", [this](const Stream& stream) { prefill(stream, prompt()); }},
      {"inside a generation",
       [this](const Stream& stream) {
         prefill(stream, prompt());
         generate(stream, 3);
       }},
      {"behind a generation",
       [this](const Stream& stream) {
         prefill(stream, prompt());
         generate(stream);
       }},
  };
  const Generation expected = fresh(prompt(), enough, capped(6));
  for (const auto& [when, before] : moments) {
    for (const bool keeping : {false, true}) {
      SCOPED_TRACE(when);
      const Stream stream = open(capped(6));
      before(stream);
      cancel(stream);
      for (int i = 0; i < 2; ++i) {
        const Step step = next(stream);
        expect_nothing(step, ELIZA_ERR_CANCELLED);
        expect_message(step.message, "next", {"cancel"});
        OwnedMessage error;
        EXPECT_EQ(eliza_inference_llm_stream_prefill(stream.get(), prompt().data(), prompt().size(),
                                                     error.out()),
                  ELIZA_ERR_CANCELLED);
        expect_message(error.text(), "prefill", {"cancel"});
      }
      if (keeping) {
        EXPECT_EQ(reset_keep(stream, 0), 0);
      } else {
        reset(stream);
      }
      prefill(stream, prompt());
      expect_same(generate(stream), expected);
    }
  }
}

// ------------------------------------------------------------------------- many streams

TEST_P(SessionContract, StreamsThatTakeTurnsAnswerAsAlone) {
  for (const Config& config : {Config{}, sampled()}) {
    std::vector<Stream> streams;
    for (const Tokens& prompt : runtime_.prompts) {
      streams.push_back(prompted(prompt, capped(12, config)));
    }
    std::vector<Generation> said(streams.size());
    for (int round = 0; round < 40; ++round) {
      for (size_t number = 0; number < streams.size(); ++number) {
        const Step step = next(streams[number]);
        ASSERT_GE(step.status, 0) << step.message;
        said[number].tokens = concatenated(said[number].tokens, step.tokens);
        said[number].text += step.text;
        said[number].final = step.status == 1;
      }
    }
    for (size_t number = 0; number < streams.size(); ++number) {
      expect_same(said[number], fresh(runtime_.prompts[number], enough, capped(12, config)));
    }
  }
}

TEST_P(SessionContract, CancelAndResetOfOneStreamLeaveTheOthersAlone) {
  const Stream cancelled = prompted(prompt());
  const Stream restarted = prompted(prompt());
  const Stream other = prompted(prompt());
  const Generation begun = generate(other, 4);
  cancel(cancelled);
  reset(restarted);
  prefill(restarted, question());
  const Generation rest = generate(other, 8);
  EXPECT_EQ(concatenated(begun.tokens, rest.tokens), fresh(prompt(), 12).tokens);
  expect_same(generate(restarted, 8), fresh(question(), 8));
  expect_nothing(next(cancelled), ELIZA_ERR_CANCELLED);
}

TEST_P(SessionContract, StreamOutlivesItsContext) {
  const Generation first = fresh(prompt(), 8);
  const Generation second = fresh(question(), 8);
  const Stream stream = prompted(prompt());
  ctx_.reset();
  expect_same(generate(stream, 8), first);
  reset(stream);
  prefill(stream, question());
  expect_same(generate(stream, 8), second);
}

TEST_P(SessionContract, StreamsCloseInAnyOrder) {
  const Tokens expected = fresh(prompt(), 9).tokens;
  for (int first = 0; first < 3; ++first) {
    Stream streams[3];
    for (Stream& stream : streams) stream = prompted(prompt());
    Tokens said[3];
    for (int closed = 0; closed < 3; ++closed) {
      for (int number = 0; number < 3; ++number) {
        if (!streams[number]) continue;
        said[number] = concatenated(said[number], generate(streams[number], 3).tokens);
      }
      streams[(first + closed) % 3].reset();
      EXPECT_EQ(said[(first + closed) % 3],
                first_of(expected, 3 * (static_cast<size_t>(closed) + 1)));
    }
  }
}

TEST_P(SessionContract, ContextMayBeCreatedAnew) {
  const Generation expected = fresh(prompt(), 8);
  const TemporaryDirectory folder;
  const std::string bundle = runtime_.make_bundle(folder.path()).string();
  for (int round = 0; round < 3; ++round) {
    ctx_ = create_context(bundle);
    expect_same(fresh(prompt(), 8), expected);
  }
}

TEST_P(SessionContract, ThirtyStreamsOpenAndCloseInWhateverState) {
  const Generation expected = fresh(prompt(), 4);
  for (int round = 0; round < 30; ++round) {
    const Stream stream = open(round % 2 == 0 ? Config{} : sampled());
    if (round % 3 > 0) prefill(stream, prompt());
    if (round % 3 > 1) next(stream, 1, 1);
    if (round % 5 == 0) cancel(stream);
  }
  expect_same(fresh(prompt(), 4), expected);
}

// --------------------------------------------------------------------------------- slots

TEST_P(SessionContract, SlotsWorkOrAreRefused) {
  const TemporaryDirectory folder;
  const std::string slot = (folder.path() / "slot").string();
  const Stream saving = prompted(prompt());
  const Tokens sequence = concatenated(prompt(), generate(saving, 5).tokens);
  OwnedMessage error;
  const int saved = eliza_inference_llm_stream_save_slot(saving.get(), slot.c_str(), error.out());
  const Stream restoring = open();
  const auto restore = [&] {
    return eliza_inference_llm_stream_restore_slot(restoring.get(), slot.c_str(), error.out());
  };
  if (!runtime_.saves_slots) {
    const auto expect_refused = [&](int status) {
      EXPECT_EQ(status, ELIZA_ERR_INVALID_ARG);
      EXPECT_NE(error.text().find("slot"), std::string::npos) << error.text();
    };
    expect_refused(saved);
    expect_refused(restore());
    EXPECT_FALSE(std::filesystem::exists(slot));
  } else {
    ASSERT_EQ(saved, ELIZA_OK) << error.text();
    ASSERT_EQ(restore(), ELIZA_OK) << error.text();
    EXPECT_EQ(generate(restoring, 8).tokens, fresh(sequence, 8).tokens);
    ASSERT_EQ(restore(), ELIZA_OK) << error.text();
    prefill(restoring, question());
    EXPECT_EQ(generate(restoring, 8).tokens, fresh(concatenated(sequence, question()), 8).tokens);
  }
  EXPECT_EQ(generate(saving, 8).tokens, fresh(sequence, 8).tokens) << "it disturbed the stream";
}

// ------------------------------------------------------------------------------- silence

TEST_P(SessionContract, NothingIsPrinted) {
  const TemporaryDirectory folder;
  const std::string bundle = runtime_.make_bundle(folder.path()).string();
  const Output output = output_of([&] {
    const Context ctx = create_context(bundle);
    const Stream stream = open_stream(ctx, unkeyed());
    prefill(stream, prompt());
    generate(stream, 8);
    try_prefill(stream, {-1});
    try_prefill(stream, filling(100000));
    eliza_inference_llm_stream_next(stream.get(), nullptr, 0, nullptr, nullptr, 0, nullptr, nullptr,
                                    nullptr);
    eliza_inference_llm_stream_restore_slot(stream.get(), "/no/such/slot", nullptr);
    cancel(stream);
    next(stream);
    reset_keep(stream, 2);
    Config wrong = {};
    wrong.gbnf_grammar = "root ::= missing";
    wrong.cache_type_k = "q6_K";
    Stream(eliza_inference_llm_stream_open(ctx.get(), &wrong, nullptr));
  });
  EXPECT_EQ(output.out, "");
  EXPECT_EQ(output.err, "");
}

// ------------------------------------------------------------------------- known answers

struct KnownAnswer {
  Runtime runtime;
  Answer answer;
};

void PrintTo(const KnownAnswer& known, std::ostream* out) {
  *out << known.runtime.name << " " << known.answer.name;
}

std::vector<KnownAnswer> known_answers() {
  std::vector<KnownAnswer> known;
  for (const Runtime& runtime : contract_runtimes()) {
    for (const Answer& answer : runtime.answers) known.push_back({runtime, answer});
  }
  return known;
}

class AnswerContract : public ContractFixture, public testing::WithParamInterface<KnownAnswer> {
 protected:
  AnswerContract() : ContractFixture(GetParam().runtime) {}
  const Answer& answer_ = GetParam().answer;
};

INSTANTIATE_TEST_SUITE_P(Answers, AnswerContract, testing::ValuesIn(known_answers()),
                         [](const auto& test) {
                           return test.param.runtime.name + "_" + test.param.answer.name;
                         });

// So the token that ended it is not among them.
TEST_P(AnswerContract, IsGivenToTheTokenAndByte) {
  const Generation got = fresh(answer_.prompt, enough);
  EXPECT_EQ(got.tokens, answer_.tokens);
  EXPECT_EQ(got.text, answer_.text);
  EXPECT_TRUE(got.final);
}

TEST_P(AnswerContract, CapOfItsLengthEndsItToo) {
  const auto length = static_cast<int32_t>(answer_.tokens.size());
  for (const int32_t most : {length, length + 1}) {
    const Generation got = fresh(answer_.prompt, enough, capped(most));
    EXPECT_EQ(got.tokens, answer_.tokens);
    EXPECT_EQ(got.text, answer_.text);
  }
}

// max_tokens may cut inside a character; that is visible, and nothing else is.
TEST_P(AnswerContract, CutCharacterIsOneReplacement) {
  for (size_t length = 1; length < answer_.tokens.size(); ++length) {
    const Generation got = fresh(answer_.prompt, enough, capped(static_cast<int32_t>(length)));
    EXPECT_EQ(got.tokens, first_of(answer_.tokens, length));
    std::string text = got.text;
    const std::string replacement = "\uFFFD";
    if (answer_.text.compare(0, text.size(), text) != 0) {
      ASSERT_GE(text.size(), replacement.size());
      EXPECT_EQ(text.substr(text.size() - replacement.size()), replacement);
      text.resize(text.size() - replacement.size());
    }
    EXPECT_EQ(answer_.text.substr(0, text.size()), text);
  }
}

// The end-of-generation token is no part of the sequence.
TEST_P(AnswerContract, NextTurnContinuesBehindIt) {
  const Stream stream = prompted(answer_.prompt);
  generate(stream);
  prefill(stream, question());
  const Tokens sequence = concatenated(answer_.prompt, answer_.tokens);
  expect_same(generate(stream, 12), fresh(concatenated(sequence, question()), 12));
}

}  // namespace
}  // namespace eliza::test
