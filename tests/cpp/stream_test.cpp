#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "model_fixture.h"
#include "test_support.h"

// Streams and the tokenizer on the tiny models, through the C ABI.

namespace eliza::test {
namespace {

using Config = eliza_llm_stream_config_t;

class StreamTest : public ModelFixture {
 protected:
  Stream open(const Config& config = {}) { return open_stream(ctx_, config); }
};

// ------------------------------------------------------- scripted continuations

// chains.json: what chain-spm.gguf says after a start token.
struct Chain {
  int32_t start;
  Tokens tokens;
};

Chain read_chain(const std::string& name) {
  const auto json = nlohmann::json::parse(read_file(test_model("chains.json")));
  return {json[name]["start"].get<int32_t>(), json[name]["tokens"].get<Tokens>()};
}

const std::map<std::string, std::string> chain_texts = {
    {"smile", " \U0001f600 and wave \U0001f44b to the \u4e16\u754c."},
    // As bytes.decode("utf-8", "replace") of Python.
    {"broken", "\uFFFD(\uFFFDz\uFFFD"},
    {"half", "ok\uFFFD"},
    {"null", "x\uFFFDy"},
};

class ChainTest : public StreamTest, public testing::WithParamInterface<const char*> {
 protected:
  ChainTest() : chain_(read_chain(GetParam())), text_(chain_texts.at(GetParam())) {
    load("chain-spm.gguf");
  }

  const Chain chain_;
  const std::string text_;
};

INSTANTIATE_TEST_SUITE_P(Chains, ChainTest, testing::Values("smile", "broken", "half", "null"));

TEST_P(ChainTest, IsDeliveredExactly) {
  const Generation generation = fresh({chain_.start}, 1000);
  EXPECT_EQ(generation.tokens, chain_.tokens);
  EXPECT_EQ(generation.text, text_);
  EXPECT_TRUE(generation.final);
}

TEST_P(ChainTest, IsDeliveredWholeThroughEveryPairOfBuffers) {
  for (const size_t tokens_cap : {1, 2, 100}) {
    for (const size_t text_cap : {5, 6, 7, 8, 16, 100}) {
      const Stream stream = open();
      prefill(stream, {chain_.start});
      const Generation generation = generate(stream, 1000, tokens_cap, text_cap);
      EXPECT_EQ(generation.tokens, chain_.tokens);
      EXPECT_EQ(generation.text, text_);
    }
  }
}

TEST_P(ChainTest, EveryStepIsValidUtf8AndOneModelStep) {
  const Stream stream = open();
  prefill(stream, {chain_.start});
  Step step;
  do {
    step = next(stream, 100, 100);
    ASSERT_GE(step.status, 0) << step.message;
    EXPECT_TRUE(is_valid_utf8(step.text));
    EXPECT_LE(step.tokens.size(), 1u);
    EXPECT_EQ(step.drafted, 0);
    EXPECT_EQ(step.accepted, 0);
  } while (step.status == 0);
}

TEST_P(ChainTest, TooSmallTextBuffersAreRefusedAndLoseNothing) {
  for (const size_t text_cap : {1, 2, 3, 4}) {
    const Stream stream = open();
    prefill(stream, {chain_.start});
    Generation generation;
    int refusals = 0;
    for (int calls = 0; !generation.final; ++calls) {
      ASSERT_LT(calls, 1000);
      Step step = next(stream, 1, text_cap);
      if (step.status == ELIZA_ERR_INVALID_ARG) {
        ++refusals;
        EXPECT_NE(step.message.find("text_cap " + std::to_string(text_cap)), std::string::npos)
            << step.message;
        EXPECT_TRUE(step.tokens.empty());
        EXPECT_EQ(step.text, "");
        step = next(stream, 1, 5);
        EXPECT_GE(step.text.size(), text_cap) << "the character would have fitted";
      }
      ASSERT_GE(step.status, 0) << step.message;
      EXPECT_TRUE(is_valid_utf8(step.text));
      generation.tokens.insert(generation.tokens.end(), step.tokens.begin(), step.tokens.end());
      generation.text += step.text;
      generation.final = step.status == 1;
    }
    EXPECT_EQ(generation.tokens, chain_.tokens);
    EXPECT_EQ(generation.text, text_);
    if (text_cap == 1) {
      EXPECT_GT(refusals, 0);
    }
  }
}

TEST_P(ChainTest, WritesNoByteBehindItsBuffers) {
  const Stream stream = open();
  prefill(stream, {chain_.start});
  int status = 0;
  while (status == 0) {
    int32_t tokens[2] = {-5, -5};
    char text[16];
    std::memset(text, 'Z', sizeof text);
    size_t count = 0;
    status = eliza_inference_llm_stream_next(stream.get(), tokens, 1, &count, text, 6, nullptr,
                                             nullptr, nullptr);
    ASSERT_GE(status, 0);
    EXPECT_EQ(tokens[1], -5);
    EXPECT_EQ(std::string(text + 6, 10), std::string(10, 'Z'));
  }
}

TEST_P(ChainTest, FinalIsRepeatedWithNothing) {
  const Stream stream = open();
  prefill(stream, {chain_.start});
  generate(stream);
  for (int i = 0; i < 3; ++i) {
    const Step step = next(stream);
    EXPECT_EQ(step.status, 1);
    EXPECT_TRUE(step.tokens.empty());
    EXPECT_EQ(step.text, "");
  }
}

TEST_P(ChainTest, FinalComesOnlyWhenEverythingIsDelivered) {
  Config config = {};
  config.max_tokens = static_cast<int32_t>(chain_.tokens.size());
  const Stream stream = open(config);
  prefill(stream, {chain_.start});
  std::string text;
  for (;;) {
    const Step step = next(stream, 8, 5);
    ASSERT_GE(step.status, 0);
    text += step.text;
    if (step.status == 1) break;
  }
  EXPECT_EQ(text, text_);
}

class ScriptedStreamTest : public StreamTest {
 protected:
  ScriptedStreamTest() { load("chain-spm.gguf"); }
  const Chain loop_ = read_chain("loop");
  const Chain smile_ = read_chain("smile");
};

TEST_F(ScriptedStreamTest, EndOfGenerationTokenIsNotReported) {
  const Generation generation = fresh({smile_.start}, 1000);
  EXPECT_EQ(std::count(generation.tokens.begin(), generation.tokens.end(), 2), 0);
}

TEST_F(ScriptedStreamTest, MaxTokensEndsTheGenerationWithItsLastToken) {
  for (const int32_t cap : {1, 2, 7}) {
    Config config = {};
    config.max_tokens = cap;
    const Stream stream = open(config);
    prefill(stream, {loop_.start});
    for (int32_t step = 1; step <= cap; ++step) {
      const Step got = next(stream);
      EXPECT_EQ(got.tokens.size(), 1u);
      EXPECT_EQ(got.status, step == cap ? 1 : 0);
    }
  }
}

TEST_F(ScriptedStreamTest, MaxTokensCutsACharacterVisibly) {
  Config config = {};
  config.max_tokens = 3;  // a blank and half of an emoji
  EXPECT_EQ(fresh({smile_.start}, 100, config).text, " \uFFFD");
}

TEST_F(ScriptedStreamTest, WithoutACapTheContextEndsTheGeneration) {
  const EnvironmentVariable context("ELIZA_LLM_N_CTX", "32");
  for (const int32_t cap : {0, -1, INT32_MIN}) {
    Config config = {};
    config.max_tokens = cap;
    const Generation generation = fresh({loop_.start}, 1000, config);
    EXPECT_TRUE(generation.final);
    EXPECT_EQ(generation.tokens.size(), 31u);
  }
}

TEST_F(ScriptedStreamTest, PrefillAfterFinalOpensTheNextGenerationWithAFreshCount) {
  Config config = {};
  config.max_tokens = 4;
  const Stream stream = open(config);
  for (int generation = 0; generation < 3; ++generation) {
    prefill(stream, {loop_.start});
    const Generation got = generate(stream);
    EXPECT_EQ(got.text, "abca");
    EXPECT_TRUE(got.final);
  }
}

TEST_F(ScriptedStreamTest, PrefillInsideAGenerationGoesOnCounting) {
  Config config = {};
  config.max_tokens = 5;
  const Stream stream = open(config);
  prefill(stream, {loop_.start});
  EXPECT_EQ(generate(stream, 2).text, "ab");
  prefill(stream, {loop_.start});
  const Generation rest = generate(stream);
  EXPECT_EQ(rest.text, "abc");
  EXPECT_TRUE(rest.final);
}

TEST_F(ScriptedStreamTest, PrefillKeepsUndeliveredText) {
  const Stream stream = open();
  prefill(stream, {smile_.start});
  std::string text;
  for (int i = 0; i < 6; ++i) text += next(stream, 1, 1).text;  // no text fits
  prefill(stream, {loop_.start});
  EXPECT_EQ(generate(stream, 3).text.substr(0, 1), " ");
}

TEST_F(ScriptedStreamTest, TextOfAnUnfinishedCharacterSurvivesAPrefill) {
  const Stream stream = open();
  prefill(stream, {smile_.start});
  EXPECT_EQ(generate(stream, 3).text, " ");  // two bytes of the emoji wait
  prefill(stream, {smile_.tokens[2]});       // the same place again
  EXPECT_EQ(generate(stream, 2).text, "\U0001f600");
}

TEST_F(ScriptedStreamTest, PromptThatFillsTheContextExactlyFits) {
  const EnvironmentVariable context("ELIZA_LLM_N_CTX", "32");
  const Stream stream = open();
  prefill(stream, Tokens(32, loop_.start));
  const Step step = next(stream);
  EXPECT_EQ(step.status, 1);
  EXPECT_TRUE(step.tokens.empty());
}

TEST_F(ScriptedStreamTest, PromptOneTokenTooLongIsRefusedWithTheNumbers) {
  const EnvironmentVariable context("ELIZA_LLM_N_CTX", "32");
  const Stream stream = open();
  const Tokens prompt(33, loop_.start);
  OwnedMessage error;
  EXPECT_EQ(
      eliza_inference_llm_stream_prefill(stream.get(), prompt.data(), prompt.size(), error.out()),
      ELIZA_ERR_INVALID_ARG);
  for (const char* number : {"33", "32", "0 of 32", "ELIZA_LLM_N_CTX"}) {
    EXPECT_NE(error.text().find(number), std::string::npos) << error.text();
  }
  prefill(stream, {loop_.start});
  EXPECT_EQ(generate(stream, 4).text, "abca");
  EXPECT_EQ(try_prefill(stream, Tokens(28, loop_.start)), ELIZA_ERR_INVALID_ARG);
  EXPECT_EQ(generate(stream, 2).text, "bc") << "the refused prompt left a trace";
  EXPECT_EQ(try_prefill(stream, Tokens(25, loop_.start)), ELIZA_OK);
}

TEST_F(ScriptedStreamTest, PromptOf100000TokensIsRefused) {
  const Stream stream = open();
  EXPECT_EQ(try_prefill(stream, Tokens(100000, loop_.start)), ELIZA_ERR_INVALID_ARG);
  prefill(stream, {loop_.start});
  EXPECT_EQ(generate(stream, 3).text, "abc");
}

TEST_F(ScriptedStreamTest, ContextIsNeverLargerThanTheModels) {
  const EnvironmentVariable context("ELIZA_LLM_N_CTX", "1000000");
  const Stream stream = open();
  EXPECT_EQ(try_prefill(stream, Tokens(2049, loop_.start)), ELIZA_ERR_INVALID_ARG);
  EXPECT_EQ(try_prefill(stream, Tokens(2048, loop_.start)), ELIZA_OK);
}

TEST_F(ScriptedStreamTest, SmallestContextHoldsOneToken) {
  const EnvironmentVariable context("ELIZA_LLM_N_CTX", "1");
  const Stream stream = open();
  EXPECT_EQ(try_prefill(stream, {5, 6}), ELIZA_ERR_INVALID_ARG);
  prefill(stream, {loop_.start});
  EXPECT_EQ(next(stream).status, 1);
}

TEST_F(ScriptedStreamTest, FullContextRefusesAPrefillUntilReset) {
  const EnvironmentVariable context("ELIZA_LLM_N_CTX", "32");
  const Stream stream = open();
  prefill(stream, {loop_.start});
  generate(stream);
  EXPECT_EQ(try_prefill(stream, {loop_.start}), ELIZA_ERR_INVALID_ARG);
  EXPECT_EQ(next(stream).status, 1);
  eliza_inference_llm_stream_reset(stream.get());
  prefill(stream, {loop_.start});
  EXPECT_EQ(generate(stream, 3).text, "abc");
}

TEST_F(ScriptedStreamTest, RefusedIdsLeaveTheStreamAsItWas) {
  const Stream stream = open();
  prefill(stream, {loop_.start});
  EXPECT_EQ(generate(stream, 1).text, "a");
  EXPECT_EQ(try_prefill(stream, {loop_.start, -1}), ELIZA_ERR_INVALID_ARG);
  EXPECT_EQ(generate(stream, 2).text, "bc");
}

TEST_F(ScriptedStreamTest, CancelIsStickyUntilReset) {
  const Stream stream = open();
  prefill(stream, {loop_.start});
  next(stream);
  ASSERT_EQ(eliza_inference_llm_stream_cancel(stream.get()), ELIZA_OK);
  for (int i = 0; i < 2; ++i) {
    const Step step = next(stream);
    EXPECT_EQ(step.status, ELIZA_ERR_CANCELLED);
    EXPECT_NE(step.message.find("cancel"), std::string::npos) << step.message;
    EXPECT_TRUE(step.tokens.empty());
    EXPECT_EQ(step.text, "");
    EXPECT_EQ(try_prefill(stream, {loop_.start}), ELIZA_ERR_CANCELLED);
  }
  ASSERT_EQ(eliza_inference_llm_stream_reset(stream.get()), ELIZA_OK);
  prefill(stream, {loop_.start});
  EXPECT_EQ(generate(stream, 3).text, "abc");
}

TEST_F(ScriptedStreamTest, ResetKeepClearsACancelToo) {
  const Stream stream = open();
  prefill(stream, {smile_.start, loop_.start});
  eliza_inference_llm_stream_cancel(stream.get());
  EXPECT_EQ(eliza_inference_llm_stream_reset_keep(stream.get(), 1), 1);
  EXPECT_EQ(next(stream).tokens, Tokens{smile_.tokens[0]});
}

TEST_F(ScriptedStreamTest, CancelAfterFinalIsReportedToo) {
  Config config = {};
  config.max_tokens = 1;
  const Stream stream = open(config);
  prefill(stream, {loop_.start});
  EXPECT_EQ(next(stream).status, 1);
  eliza_inference_llm_stream_cancel(stream.get());
  EXPECT_EQ(next(stream).status, ELIZA_ERR_CANCELLED);
}

TEST_F(ScriptedStreamTest, ResetDropsUndeliveredOutput) {
  const Stream stream = open();
  prefill(stream, {smile_.start});
  for (int i = 0; i < 5; ++i) next(stream, 1, 1);
  eliza_inference_llm_stream_reset(stream.get());
  prefill(stream, {loop_.start});
  EXPECT_EQ(generate(stream, 3).text, "abc");
}

TEST_F(ScriptedStreamTest, NextAfterResetNeedsAPrompt) {
  const Stream stream = open();
  EXPECT_EQ(next(stream).status, ELIZA_ERR_INVALID_ARG);
  prefill(stream, {loop_.start});
  next(stream);
  eliza_inference_llm_stream_reset(stream.get());
  const Step step = next(stream);
  EXPECT_EQ(step.status, ELIZA_ERR_INVALID_ARG);
  EXPECT_NE(step.message.find("prefill"), std::string::npos) << step.message;
}

TEST_F(ScriptedStreamTest, StringsOfTheConfigMayBeFreedAfterOpen) {
  std::string grammar = "root ::= \"a\" \"b\"";
  std::string type = "f32";
  Config config = {};
  config.gbnf_grammar = grammar.c_str();
  config.cache_type_k = config.cache_type_v = type.c_str();
  const Stream stream = open(config);
  std::fill(grammar.begin(), grammar.end(), 'x');
  std::fill(type.begin(), type.end(), 'x');
  for (int round = 0; round < 2; ++round) {
    prefill(stream, {loop_.start});
    EXPECT_EQ(generate(stream).text, "ab");
    eliza_inference_llm_stream_reset(stream.get());
  }
}

TEST_F(ScriptedStreamTest, GrammarStartsAgainWithTheNextGeneration) {
  Config config = {};
  config.gbnf_grammar = "root ::= \"ab\"";
  const Stream stream = open(config);
  for (int generation = 0; generation < 3; ++generation) {
    prefill(stream, {loop_.start});
    const Generation got = generate(stream);
    EXPECT_EQ(got.text, "ab");
    EXPECT_TRUE(got.final);
  }
}

TEST_F(ScriptedStreamTest, StreamOutlivesItsContext) {
  const Stream stream = open();
  prefill(stream, {loop_.start});
  ctx_.reset();
  EXPECT_EQ(generate(stream, 6).text, "abcabc");
  eliza_inference_llm_stream_reset(stream.get());
  prefill(stream, {smile_.start});
  EXPECT_EQ(generate(stream).text, chain_texts.at("smile"));
}

// ---------------------------------------------------------------- random models

struct ModelCase {
  const char* file;
  size_t prompt_length;
  bool slides;  // has a window shorter than the prompt
};

void PrintTo(const ModelCase& model, std::ostream* out) { *out << model.file; }

class ModelTest : public StreamTest, public testing::WithParamInterface<ModelCase> {
 protected:
  ModelTest() { load(GetParam().file); }

  Tokens prompt() const { return random_tokens(GetParam().prompt_length, 10, 250); }

  EnvironmentVariable seed_{"ELIZA_LLM_SEED", "7"};
  // The plain kernels give a token the same state in every batch. See AttentionTest.
  EnvironmentVariable attention_{"ELIZA_LLM_FLASH_ATTN", "off"};
};

INSTANTIATE_TEST_SUITE_P(Models, ModelTest,
                         testing::Values(ModelCase{"tiny-bpe.gguf", 60, false},
                                         ModelCase{"tiny-spm.gguf", 60, false},
                                         ModelCase{"tiny-swa.gguf", 12, false},
                                         ModelCase{"tiny-swa.gguf", 300, true}));

TEST_P(ModelTest, ResetRepeatsGreedyAndSeededOutput) {
  for (const Config& config : {Config{}, sampled_config()}) {
    const Generation expected = fresh(prompt(), 25, config);
    const Stream stream = open(config);
    for (int round = 0; round < 3; ++round) {
      prefill(stream, prompt());
      const Generation got = generate(stream, 25);
      EXPECT_EQ(got.tokens, expected.tokens);
      EXPECT_EQ(got.text, expected.text);
      eliza_inference_llm_stream_reset(stream.get());
    }
  }
}

TEST_P(ModelTest, PromptMayComeInParts) {
  const Tokens whole = prompt();
  const Generation expected = fresh(whole, 20);
  for (const size_t cut : {size_t{1}, whole.size() / 2, whole.size() - 1}) {
    const Stream stream = open();
    prefill(stream, Tokens(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(cut)));
    prefill(stream, Tokens(whole.begin() + static_cast<std::ptrdiff_t>(cut), whole.end()));
    EXPECT_EQ(generate(stream, 20).tokens, expected.tokens) << cut;
  }
}

TEST_P(ModelTest, BatchSizeAndThreadsDoNotMatter) {
  const Generation expected = fresh(prompt(), 20);
  for (const char* size : {"1", "7", "64", "2048"}) {
    const EnvironmentVariable batch("ELIZA_LLM_N_BATCH", size);
    EXPECT_EQ(fresh(prompt(), 20).tokens, expected.tokens) << size;
  }
  for (const char* count : {"1", "3"}) {
    const EnvironmentVariable threads("ELIZA_LLM_THREADS", count);
    EXPECT_EQ(fresh(prompt(), 20).tokens, expected.tokens) << count;
  }
}

TEST_P(ModelTest, DeliveryIsIndependentOfBufferSizes) {
  const Generation expected = fresh(prompt(), 40);
  for (const size_t text_cap : {5, 8, 200}) {
    const Stream stream = open();
    prefill(stream, prompt());
    const Generation got = generate(stream, 40, 1, text_cap);
    EXPECT_EQ(got.tokens, expected.tokens);
  }
}

// For each cut: the kept tokens and what follows must be what a fresh stream gives.
TEST_P(ModelTest, ResetKeepEqualsAFreshStream) {
  const Tokens start = prompt();
  Tokens sequence = start;
  for (const int32_t token : fresh(start, 10).tokens) sequence.push_back(token);
  const auto length = static_cast<int32_t>(sequence.size());
  const Tokens question = random_tokens(5, 10, 250, 99);

  for (const int32_t cut :
       {-1, 0, 1, 2, 5, length / 2, length - 40, length - 17, length - 12, length - 11, length - 10,
        length - 5, length - 2, length - 1, length, length + 1, INT32_MAX, INT32_MIN}) {
    const Stream stream = open();  // greedy, so that the sequence is known
    prefill(stream, start);
    ASSERT_EQ(generate(stream, 10).tokens, Tokens(sequence.end() - 10, sequence.end()));
    const int32_t kept = eliza_inference_llm_stream_reset_keep(stream.get(), cut);
    const int32_t wanted = std::clamp(cut, 0, length);
    ASSERT_GE(kept, 0);
    ASSERT_LE(kept, wanted);
    if (!GetParam().slides) {
      EXPECT_GE(kept, std::min(wanted, length - 1)) << "cut " << cut;
    }
    Tokens whole(sequence.begin(), sequence.begin() + wanted);
    whole.insert(whole.end(), question.begin(), question.end());
    prefill(stream, Tokens(whole.begin() + kept, whole.end()));
    EXPECT_EQ(generate(stream, 15).tokens, fresh(whole, 15).tokens) << "cut " << cut;
  }
}

TEST_P(ModelTest, ResetKeepOfASampledStreamEqualsAFreshStream) {
  const Tokens start = prompt();
  const Config config = sampled_config();
  const Tokens question = random_tokens(5, 10, 250, 99);
  for (const size_t cut : {size_t{1}, start.size() / 2, start.size() - 1, start.size()}) {
    const Stream stream = open(config);
    prefill(stream, start);
    generate(stream, 10);
    const auto kept = static_cast<std::ptrdiff_t>(
        eliza_inference_llm_stream_reset_keep(stream.get(), static_cast<int32_t>(cut)));
    Tokens whole(start.begin(), start.begin() + static_cast<std::ptrdiff_t>(cut));
    whole.insert(whole.end(), question.begin(), question.end());
    prefill(stream, Tokens(whole.begin() + kept, whole.end()));
    EXPECT_EQ(generate(stream, 15).tokens, fresh(whole, 15, config).tokens) << "cut " << cut;
  }
}

TEST_P(ModelTest, NextRightAfterResetKeepEqualsAFreshStream) {
  const Tokens start = prompt();
  for (const size_t cut : {size_t{1}, start.size() / 2, start.size() - 1, start.size()}) {
    const Stream stream = open();
    prefill(stream, start);
    generate(stream, 10);
    const int32_t kept =
        eliza_inference_llm_stream_reset_keep(stream.get(), static_cast<int32_t>(cut));
    ASSERT_LE(kept, static_cast<int32_t>(cut));
    if (kept == 0) {
      EXPECT_EQ(next(stream).status, ELIZA_ERR_INVALID_ARG);
      continue;
    }
    const Tokens whole(start.begin(), start.begin() + kept);
    EXPECT_EQ(generate(stream, 15).tokens, fresh(whole, 15).tokens) << "cut " << cut;
  }
}

TEST_P(ModelTest, RepeatedResetKeepEqualsAFreshStream) {
  const Tokens start = prompt();
  const Stream stream = open();
  prefill(stream, start);
  Tokens sequence = start;
  for (uint32_t turn = 0; turn < 6; ++turn) {
    for (const int32_t token : generate(stream, 8).tokens) sequence.push_back(token);
    const auto cut = sequence.size() - 2 - turn;
    const int32_t kept =
        eliza_inference_llm_stream_reset_keep(stream.get(), static_cast<int32_t>(cut));
    sequence.resize(cut);
    for (const int32_t token : random_tokens(3, 10, 250, turn)) sequence.push_back(token);
    prefill(stream, Tokens(sequence.begin() + kept, sequence.end()));
    const Generation expected = fresh(sequence, 4);
    const Generation got = generate(stream, 4);
    EXPECT_EQ(got.tokens, expected.tokens) << "turn " << turn;
    sequence.insert(sequence.end(), got.tokens.begin(), got.tokens.end());
  }
}

TEST_P(ModelTest, NextGenerationContinuesTheSequence) {
  Config config = {};
  config.max_tokens = 6;
  const Stream stream = open(config);
  prefill(stream, prompt());
  Tokens sequence = prompt();
  for (const int32_t token : generate(stream).tokens) sequence.push_back(token);
  const Tokens question = random_tokens(4, 10, 250, 3);
  prefill(stream, question);
  sequence.insert(sequence.end(), question.begin(), question.end());
  EXPECT_EQ(generate(stream).tokens, fresh(sequence, 6).tokens);
}

TEST_P(ModelTest, SeedDecidesASampledStream) {
  Config config = sampled_config();
  config.top_k = 0;
  const Tokens expected = fresh(prompt(), 30, config).tokens;
  EXPECT_EQ(fresh(prompt(), 30, config).tokens, expected);
  {
    const EnvironmentVariable other("ELIZA_LLM_SEED", "8");
    EXPECT_NE(fresh(prompt(), 30, config).tokens, expected);
  }
  const EnvironmentVariable none("ELIZA_LLM_SEED", std::nullopt);
  EXPECT_NE(fresh(prompt(), 30, config).tokens, fresh(prompt(), 30, config).tokens);
}

TEST_P(ModelTest, GrammarForcesTheText) {
  Config config = sampled_config();
  config.gbnf_grammar = R"(root ::= "{\"dog\": " [0-9] [0-9]? "}")";
  const std::string text = fresh(prompt(), 100, config).text;
  ASSERT_GE(text.size(), 10u);
  EXPECT_EQ(text.substr(0, 8), "{\"dog\": ") << text;
  EXPECT_EQ(text.back(), '}');
}

// -------------------------------------------------------------------- attention

class AttentionTest : public StreamTest, public testing::WithParamInterface<const char*> {
 protected:
  AttentionTest() { load("tiny-bpe.gguf"); }

  EnvironmentVariable seed_{"ELIZA_LLM_SEED", "7"};
  EnvironmentVariable attention_{"ELIZA_LLM_FLASH_ATTN", GetParam()};
};

// What is kept was decoded in another batch than the fresh stream decodes it in: that must not
// show.
TEST_P(AttentionTest, ResetKeepEqualsAFreshStreamForManyPrompts) {
  for (const Config& config : {Config{}, sampled_config()}) {
    for (uint32_t seed = 0; seed < 40; ++seed) {
      const Tokens prompt = random_tokens(64, 10, 250, seed);
      const Stream stream = open(config);
      prefill(stream, Tokens(prompt.begin(), prompt.begin() + 60));
      generate(stream, 10);
      const int32_t kept = eliza_inference_llm_stream_reset_keep(stream.get(), 59);
      prefill(stream, Tokens(prompt.begin() + kept, prompt.end()));
      EXPECT_EQ(generate(stream, 15).tokens, fresh(prompt, 15, config).tokens)
          << "temperature " << config.temperature << ", prompt " << seed;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, AttentionTest, testing::Values("auto", "off"));

// --------------------------------------------------------------------- thinking

TEST_F(StreamTest, DisableThinkingBansTheThinkToken) {
  load("tiny-bpe.gguf");
  const Tokens think = tokenize(ctx_, "<think>", false, true);
  ASSERT_EQ(think.size(), 1u);
  Config config = {};
  config.gbnf_grammar = "root ::= <think> [a-z]* | \"no\"";
  config.max_tokens = 3;
  config.temperature = 1000;  // all that the grammar admits is about as likely
  const Tokens prompt = random_tokens(20, 10, 250);
  bool thought = false;
  for (int seed = 0; seed < 40 && !thought; ++seed) {
    const EnvironmentVariable variable("ELIZA_LLM_SEED", std::to_string(seed));
    thought = fresh(prompt, 1, config).tokens == think;
  }
  EXPECT_TRUE(thought) << "the grammar lets it through where it is not banned";
  config.disable_thinking = 1;
  for (int seed = 0; seed < 40; ++seed) {
    const EnvironmentVariable variable("ELIZA_LLM_SEED", std::to_string(seed));
    EXPECT_EQ(fresh(prompt, 100, config).text, "no");
  }
}

// -------------------------------------------------------------------- tokenizer

class TokenizerTest : public StreamTest {
 protected:
  // Detokenizes into a buffer that is large enough; fails the test otherwise.
  std::string detokenized(const Tokens& tokens, bool remove_special = false,
                          bool unparse_special = true) {
    std::string text(64 + tokens.size() * 32, 'Z');
    OwnedMessage error;
    const int length =
        eliza_inference_detokenize(ctx_.get(), tokens.data(), tokens.size(), remove_special,
                                   unparse_special, text.data(), text.size(), error.out());
    EXPECT_GE(length, 0) << error.text();
    EXPECT_EQ(std::strlen(text.c_str()), static_cast<size_t>(std::max(0, length)));
    return text.c_str();
  }
};

const char* const texts[] = {
    "",
    "the quick brown fox",
    " leading and trailing  ",
    "digits 0123, punctuation: {\"a\": [1, 2.5]}!",
    "lines\nand\ttabs\r\n",
    "\u00e9\u00df\u0416 \u4e16\u754c \U0001f600\U0001f44b e\u0301",
};

TEST_F(TokenizerTest, RoundTripsWithByteLevelBpe) {
  load("tiny-bpe.gguf");
  for (const char* text : texts) EXPECT_EQ(detokenized(tokenize(ctx_, text)), text);
}

TEST_F(TokenizerTest, RoundTripsWithByteFallback) {
  load("tiny-spm.gguf");
  for (const char* text : texts) {
    std::string back = detokenized(tokenize(ctx_, text));
    // SentencePiece may put a blank in front of the text.
    if (!back.empty() && back != text && back[0] == ' ') back.erase(0, 1);
    EXPECT_EQ(back, text);
  }
}

TEST_F(TokenizerTest, EmptyTextHasNoTokensAndAnArrayAllTheSame) {
  load("tiny-bpe.gguf");
  int* tokens = nullptr;
  size_t count = 99;
  ASSERT_EQ(eliza_inference_tokenize(ctx_.get(), "", 0, 0, 0, &tokens, &count, nullptr), ELIZA_OK);
  EXPECT_EQ(count, 0u);
  EXPECT_NE(tokens, nullptr);
  eliza_inference_free_tokens(tokens);
  EXPECT_EQ(detokenized({}), "");
  char text[4] = "xyz";
  EXPECT_EQ(eliza_inference_detokenize(ctx_.get(), nullptr, 0, 0, 0, text, 4, nullptr), 0);
  EXPECT_STREQ(text, "");
}

TEST_F(TokenizerTest, LengthCountsNotATerminator) {
  load("tiny-bpe.gguf");
  EXPECT_EQ(tokenize(ctx_, std::string_view("dogs and more", 3)), tokenize(ctx_, "dog"));
  const Tokens with_null = tokenize(ctx_, std::string_view("a\0b", 3));
  EXPECT_EQ(with_null.size(), 3u);
  EXPECT_EQ(detokenized(with_null), "a\uFFFDb");
  EXPECT_FALSE(tokenize(ctx_, std::string_view("\0\0\0", 3)).empty());
}

TEST_F(TokenizerTest, BytesThatAreNotUtf8DoNotHurt) {
  for (const char* model : {"tiny-bpe.gguf", "tiny-spm.gguf"}) {
    load(model);
    for (const char* text : {"\xFF", "\x80\x80", "a\xC3", "\xF0\x9F\x98", "\xED\xA0\x80",
                             "\xC0\x80", "\xF4\x90\x80\x80", "abc\xE2\x82 def"}) {
      const Tokens tokens = tokenize(ctx_, text);
      EXPECT_FALSE(tokens.empty());
      EXPECT_TRUE(is_valid_utf8(detokenized(tokens)));
    }
  }
}

TEST_F(TokenizerTest, SingleBytesOfACharacterBecomeReplacements) {
  load("tiny-spm.gguf");
  const int32_t byte_0 = 3;
  EXPECT_EQ(detokenized({byte_0 + 'a', byte_0 + 0xC3, byte_0 + '('}), "a\uFFFD(");
  EXPECT_EQ(detokenized({byte_0 + 'x', byte_0, byte_0 + 'y'}), "x\uFFFDy");
  EXPECT_EQ(detokenized({byte_0 + 'o', byte_0 + 0xF0, byte_0 + 0x9F}), "o\uFFFD");
}

TEST_F(TokenizerTest, SpecialTokensAreParsedOnlyWhenAsked) {
  load("tiny-bpe.gguf");
  EXPECT_EQ(tokenize(ctx_, "<|im_end|>", false, true), Tokens{3});
  const Tokens spelled = tokenize(ctx_, "<|im_end|>", false, false);
  EXPECT_GT(spelled.size(), 1u);
  EXPECT_EQ(detokenized(spelled), "<|im_end|>");
}

TEST_F(TokenizerTest, SpecialTokensAreSpelledOutOnlyWhenAsked) {
  load("tiny-bpe.gguf");
  Tokens tokens = tokenize(ctx_, "dog");
  tokens.insert(tokens.begin(), 2);
  tokens.push_back(3);
  EXPECT_EQ(detokenized(tokens, false, true), "<|im_start|>dog<|im_end|>");
  EXPECT_EQ(detokenized(tokens, false, false), "dog");
}

TEST_F(TokenizerTest, StartTokenIsAddedAndRemovedWhenAsked) {
  load("tiny-spm.gguf");
  const Tokens plain = tokenize(ctx_, "dog", false);
  const Tokens special = tokenize(ctx_, "dog", true);
  ASSERT_EQ(special.size(), plain.size() + 1);
  EXPECT_EQ(special[0], 1);
  EXPECT_NE(detokenized(special, false, true).find("<s>"), std::string::npos);
  EXPECT_EQ(detokenized(special, true, true).find("<s>"), std::string::npos);
}

TEST_F(TokenizerTest, BufferThatIsTooSmallIsRefusedWithTheSize) {
  load("tiny-bpe.gguf");
  const Tokens tokens = tokenize(ctx_, "the quick brown fox");
  for (const size_t capacity : {size_t{1}, size_t{5}, size_t{19}}) {
    char text[32] = "unchanged so far";
    OwnedMessage error;
    EXPECT_EQ(eliza_inference_detokenize(ctx_.get(), tokens.data(), tokens.size(), 0, 0, text,
                                         capacity, error.out()),
              ELIZA_ERR_INVALID_ARG);
    EXPECT_NE(error.text().find("20"), std::string::npos) << error.text();
    EXPECT_NE(error.text().find("max_text_bytes " + std::to_string(capacity)), std::string::npos)
        << error.text();
    EXPECT_STREQ(text, "");
  }
  char text[20];
  EXPECT_EQ(
      eliza_inference_detokenize(ctx_.get(), tokens.data(), tokens.size(), 0, 0, text, 20, nullptr),
      19);
}

TEST_F(TokenizerTest, LongTextsAreFine) {
  load("tiny-bpe.gguf");
  std::string text;
  while (text.size() < 200000) text += "the lazy dog \u4e16 ";
  EXPECT_EQ(detokenized(tokenize(ctx_, text)), text);
}

// ------------------------------------------------------------------ model memory

TEST_F(StreamTest, ModelMayBeAcquiredAndEvictedAnyNumberOfTimes) {
  load("chain-spm.gguf");
  const Chain loop = read_chain("loop");
  EXPECT_EQ(eliza_inference_mmap_evict(ctx_.get(), "text", nullptr), ELIZA_OK) << "nothing loaded";
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(eliza_inference_mmap_acquire(ctx_.get(), "text", nullptr), ELIZA_OK);
  }
  const Stream stream = open();
  prefill(stream, {loop.start});
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(eliza_inference_mmap_evict(ctx_.get(), "text", nullptr), ELIZA_OK);
  }
  EXPECT_EQ(generate(stream, 3).text, "abc");
  EXPECT_EQ(fresh({loop.start}, 3).text, "abc");
}

TEST_F(StreamTest, CreateLoadsNoModel) {
  bundle_ = std::make_unique<TemporaryDirectory>();
  write_file(bundle_->path() / "text" / "broken.gguf", "no model at all");
  ctx_ = create_context(bundle_->string());
  OwnedMessage error;
  EXPECT_EQ(eliza_inference_mmap_acquire(ctx_.get(), "text", error.out()),
            ELIZA_ERR_BUNDLE_INVALID);
  EXPECT_NE(error.text().find("broken.gguf"), std::string::npos) << error.text();
}

TEST_F(StreamTest, ModelThatAppearsAfterCreateIsFound) {
  bundle_ = std::make_unique<TemporaryDirectory>();
  std::filesystem::create_directory(bundle_->path() / "text");
  ctx_ = create_context(bundle_->string());
  EXPECT_EQ(eliza_inference_mmap_acquire(ctx_.get(), "text", nullptr), ELIZA_ERR_BUNDLE_INVALID);
  std::filesystem::create_symlink(test_model("tiny-bpe.gguf"), bundle_->path() / "text" / "m.gguf");
  EXPECT_EQ(eliza_inference_mmap_acquire(ctx_.get(), "text", nullptr), ELIZA_OK);
}

TEST_F(StreamTest, PathsWithOtherAlphabetsLoad) {
  const TemporaryDirectory bundle("na\u00efve \u65e5\u672c\u8a9e \U0001f600");
  write_file(bundle.path() / "text" / "m\u00f6del.gguf", read_file(test_model("tiny-bpe.gguf")));
  ctx_ = create_context(bundle.string());
  EXPECT_EQ(fresh({20, 21}, 2).tokens.size(), 2u);
}

// -------------------------------------------------------------------- bad models

// Loads and uses what the file is. Empty: it failed with a message, or a stream worked.
std::string use_model(const std::string& bundle_dir) {
  OwnedMessage error;
  const Context ctx(eliza_inference_create(bundle_dir.c_str(), error.out()));
  if (!ctx) return error.is_set() ? "" : "create failed without a message";
  const Config config = {};
  const Stream stream(eliza_inference_llm_stream_open(ctx.get(), &config, error.out()));
  if (!stream) {
    if (!error.is_set()) return "open failed without a message";
    return is_valid_utf8(error.text()) ? "" : "the message is not UTF-8";
  }
  const int32_t ids[] = {10, 11, 12};
  if (eliza_inference_llm_stream_prefill(stream.get(), ids, 3, error.out()) != ELIZA_OK) {
    return error.is_set() ? "" : "prefill failed without a message";
  }
  for (int i = 0; i < 3; ++i) {
    const Step step = next(stream);
    if (step.status < 0 && step.message.empty()) return "next failed without a message";
    if (!is_valid_utf8(step.text)) return "the text is not UTF-8";
  }
  int* tokens = nullptr;
  size_t count = 0;
  if (eliza_inference_tokenize(ctx.get(), "the dog", 7, 1, 1, &tokens, &count, error.out()) < 0) {
    return error.is_set() ? "" : "tokenize failed without a message";
  }
  eliza_inference_free_tokens(tokens);
  return "";
}

class BadModelTest : public testing::Test {
 protected:
  // Writes each of `count` variants of a model file and uses it. Returns what went wrong.
  std::vector<std::string> problems_with(size_t count,
                                         const std::function<std::string(size_t)>& variant,
                                         const std::function<std::string(size_t)>& description) {
    return problems_in_children(
        count,
        [&](size_t number) {
          write_file(bundle_.path() / "text" / "model.gguf", variant(number));
          return use_model(bundle_.string());
        },
        description);
  }

  // The failure that a file must give.
  void expect_refused(const std::string& content) {
    write_file(bundle_.path() / "text" / "model.gguf", content);
    const Context ctx = create_context(bundle_.string());
    const Config config = {};
    OwnedMessage error;
    EXPECT_EQ(eliza_inference_llm_stream_open(ctx.get(), &config, error.out()), nullptr);
    EXPECT_NE(error.text().find("model.gguf"), std::string::npos) << error.text();
    EXPECT_EQ(eliza_inference_mmap_acquire(ctx.get(), "text", nullptr), ELIZA_ERR_BUNDLE_INVALID);
  }

  CleanEnvironment environment_;
  EnvironmentVariable one_thread_{"ELIZA_LLM_THREADS", "1"};
  EnvironmentVariable context_{"ELIZA_LLM_N_CTX", "64"};
  TemporaryDirectory bundle_;
};

TEST_F(BadModelTest, EmptyFileIsRefused) { expect_refused(""); }

TEST_F(BadModelTest, RandomBytesAreRefused) {
  std::string bytes(100000, '\0');
  const Tokens random = random_tokens(bytes.size(), 0, 255);
  std::copy(random.begin(), random.end(), bytes.begin());
  expect_refused(bytes);
  expect_refused("GGUF" + bytes);
}

TEST_F(BadModelTest, MagicAloneIsRefused) {
  expect_refused("GGUF");
  expect_refused(std::string("GGUF\3\0\0\0", 8));
}

TEST_F(BadModelTest, ModelsWithoutTensorsOrVocabularyAreRefused) {
  for (const char* model : {"vocab-only.gguf", "no-vocab.gguf"}) {
    expect_refused(read_file(test_model(model)));
  }
}

// Its kernels fail an assertion, which nothing could catch on a compute thread.
TEST_F(BadModelTest, ModelThatCannotBeDecodedIsRefused) {
  const EnvironmentVariable threads("ELIZA_LLM_THREADS", "4");
  expect_refused(read_file(test_model("bad-norm.gguf")));
}

TEST_F(BadModelTest, RefusalDoesNotSpoilOtherContexts) {
  const auto good = make_bundle("tiny-bpe.gguf");
  const Context ctx = create_context(good->string());
  const Stream stream = open_stream(ctx);
  prefill(stream, {20, 21});
  expect_refused("GGUF, but no more");
  EXPECT_EQ(generate(stream, 3).tokens.size(), 3u);
}

TEST_F(BadModelTest, EveryTruncationIsRefused) {
  const std::string whole = read_file(test_model("tiny-swa.gguf"));
  constexpr size_t cuts = 40;
  const auto length = [&](size_t number) {
    // Half of them in the header, half in the tensors.
    return number < cuts / 2 ? number * 700 : whole.size() * (number - cuts / 2) / (cuts / 2);
  };
  const auto problems = problems_with(
      cuts, [&](size_t number) { return whole.substr(0, length(number)); },
      [&](size_t number) { return "cut at " + std::to_string(length(number)); });
  EXPECT_EQ(problems, std::vector<std::string>());
  expect_refused(whole.substr(0, whole.size() - 1));
  expect_refused(whole.substr(0, whole.size() / 2));
}

class FlippedModelTest : public BadModelTest, public testing::WithParamInterface<const char*> {};

TEST_P(FlippedModelTest, CorruptedHeaderBytesNeverCrash) {
  const std::string whole = read_file(test_model(GetParam()));
  constexpr size_t stride = 7;
  const std::string values = {'\0', '\1', '\x7F', '\xFF'};
  const size_t positions = std::min<size_t>(whole.size(), 4096) / stride;
  const auto position = [&](size_t number) { return number / values.size() * stride; };
  const auto value = [&](size_t number) { return values[number % values.size()]; };
  const auto problems = problems_with(
      positions * values.size(),
      [&](size_t number) {
        std::string flipped = whole;
        flipped[position(number)] = value(number);
        return flipped;
      },
      [&](size_t number) {
        return "byte " + std::to_string(position(number)) + " set to " +
               std::to_string(static_cast<unsigned char>(value(number)));
      });
  EXPECT_EQ(problems, std::vector<std::string>());
}

INSTANTIATE_TEST_SUITE_P(Models, FlippedModelTest,
                         testing::Values("tiny-bpe.gguf", "tiny-spm.gguf", "tiny-swa.gguf"));

}  // namespace
}  // namespace eliza::test
