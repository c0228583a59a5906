#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "model_fixture.h"
#include "test_support.h"

// Streams that draft, through the C ABI: what they deliver is what plain decoding delivers.

namespace eliza::test {
namespace {

using Config = eliza_llm_stream_config_t;

constexpr int32_t loop_start = 274;  // chain-spm.gguf: "abc" over and over

class SpeculationTest : public DraftingFixture {
 protected:
  // No stream of these tests takes up what another one left.
  Stream open(const Config& config) { return open_stream(ctx_, unkeyed(config)); }

  Generation plain(const Tokens& prompt, size_t limit, Config config = {}) {
    config.draft_max = config.draft_min = 0;
    config.mtp_drafter_path = nullptr;
    return fresh(prompt, limit, config);
  }
};

class DrafterTest : public SpeculationTest, public testing::WithParamInterface<DraftCase> {
 protected:
  DrafterTest() {
    load(GetParam().target);
    if (GetParam().drafter != nullptr) drafter_ = test_model(GetParam().drafter).string();
  }

  Config drafting(Config config = {}, int32_t draft_max = 8) const {
    config.draft_max = draft_max;
    if (!drafter_.empty()) config.mtp_drafter_path = drafter_.c_str();
    return config;
  }

  // Prompts of which some repeat, so that every kind of drafter has something to go by.
  static std::vector<Tokens> prompts() {
    const Tokens phrase = random_tokens(7, 10, 250, 3);
    return {{20}, random_tokens(40, 10, 250), repeated(phrase, 5), concatenated({30, 31}, phrase)};
  }

  // Greedy, wild, and cool enough to repeat itself.
  static std::vector<Config> samplers() {
    Config cool = {};
    cool.temperature = 0.6f;
    cool.top_k = 2;
    return {{}, sampled_config(), cool};
  }

  // Returns how many tokens were drafted.
  int32_t expect_as_plain(const Tokens& prompt, const Config& config, size_t limit = 50) {
    const Generation expected = plain(prompt, limit, config);
    const Generation got = fresh(prompt, limit, config);
    // A batch may go over the limit.
    EXPECT_EQ(first_of(got.tokens, std::min(limit, got.tokens.size())), expected.tokens);
    EXPECT_EQ(got.final, expected.final);
    EXPECT_LE(got.accepted, got.drafted);
    return got.drafted;
  }

  std::string drafter_;
};

INSTANTIATE_TEST_SUITE_P(
    Drafters, DrafterTest,
    testing::Values(DraftCase{"ngram", "tiny-bpe.gguf", nullptr},
                    DraftCase{"self", "tiny-bpe.gguf", "tiny-bpe.gguf"},
                    DraftCase{"small", "tiny-bpe.gguf", "tiny-bpe-draft.gguf"},
                    DraftCase{"head", "tiny-mtp.gguf", nullptr},
                    DraftCase{"eagle3", "tiny-eagle3-target.gguf", "tiny-eagle3.gguf"},
                    DraftCase{"sliding_ngram", "tiny-swa.gguf", nullptr},
                    DraftCase{"sliding_self", "tiny-swa.gguf", "tiny-swa.gguf"}));

TEST_P(DrafterTest, DeliversWhatPlainDecodingDelivers) {
  int32_t drafted = 0;
  for (const Tokens& prompt : prompts()) {
    for (const Config& config : samplers()) {
      for (const int32_t draft_max : {1, 2, 8, 64}) {
        SCOPED_TRACE(draft_max);
        drafted += expect_as_plain(prompt, drafting(config, draft_max), 50);
      }
    }
  }
  // Greedy text ends in a loop, which is where n-grams begin to find something.
  if (drafted == 0) drafted += expect_as_plain(prompts()[2], drafting(), 1500);
  EXPECT_GT(drafted, 0) << "nothing was put to the test";
}

TEST_P(DrafterTest, DraftMinDropsShortDraftsOnly) {
  for (const int32_t draft_min : {1, 3, 8}) {
    Config config = drafting();
    config.draft_min = draft_min;
    expect_as_plain(prompts()[2], config);
    const Stream stream = open(config);
    prefill(stream, prompts()[2]);
    for (int step = 0; step < 30; ++step) {
      const Step got = next(stream, 64, 512);
      EXPECT_TRUE(got.drafted == 0 || got.drafted >= draft_min) << got.drafted;
    }
  }
}

TEST_P(DrafterTest, MaxTokensIsMetExactly) {
  for (const int32_t max_tokens : {1, 2, 3, 4, 5, 9, 17}) {
    Config config = drafting();
    config.max_tokens = max_tokens;
    const Generation got = fresh(prompts()[2], 1000, config);
    EXPECT_EQ(got.tokens, plain(prompts()[2], 1000, config).tokens);
    EXPECT_EQ(got.tokens.size(), static_cast<size_t>(max_tokens));
    EXPECT_TRUE(got.final);
  }
}

TEST_P(DrafterTest, PenaltiesHold) {
  for (Config config : samplers()) {
    config.repeat_penalty = 1.4f;
    for (const Tokens& prompt : prompts()) expect_as_plain(prompt, drafting(config));
  }
}

TEST_P(DrafterTest, GrammarsHold) {
  // Every three letters in a row have come before, so n-grams find drafts at once.
  const Tokens letters = tokenize(ctx_, "aaababbbaaabbabab");
  int32_t drafted = 0;
  for (const char* grammar : {"root ::= [ab]+", R"(root ::= "{\"a\": [" [0-9]+ ("," [0-9]+)* "]}")",
                              "root ::= \"abcabcabcabc\""}) {
    for (Config config : samplers()) {
      config.gbnf_grammar = grammar;
      for (const Tokens& prompt : prompts()) drafted += expect_as_plain(prompt, drafting(config));
      drafted += expect_as_plain(letters, drafting(config));
    }
  }
  EXPECT_GT(drafted, 10) << "nothing was put to the test";
}

TEST_P(DrafterTest, CacheTypesMayBeChosen) {
  for (const char* type : {"f32", "bf16"}) {
    Config config = drafting();
    config.cache_type_k = config.cache_type_v = type;
    for (const Tokens& prompt : prompts()) expect_as_plain(prompt, config);
  }
}

TEST_P(DrafterTest, SmallBuffersLoseNothing) {
  for (const Config& sampler : samplers()) {
    const Config config = drafting(sampler);
    const Generation expected = plain(prompts()[2], 60, config);
    for (const size_t tokens_cap : {1, 2, 5}) {
      for (const size_t text_cap : {5, 6, 64}) {
        const Stream stream = open(config);
        prefill(stream, prompts()[2]);
        const Generation got = generate(stream, 60, tokens_cap, text_cap);
        EXPECT_EQ(first_of(got.tokens, 60), expected.tokens);
      }
    }
  }
}

TEST_P(DrafterTest, SmallBuffersLoseNoText) {
  Config config = drafting();
  config.max_tokens = 40;
  const Generation expected = plain(prompts()[2], 1000, config);
  for (const size_t tokens_cap : {1, 3, 100}) {
    for (const size_t text_cap : {5, 7, 500}) {
      const Stream stream = open(config);
      prefill(stream, prompts()[2]);
      const Generation got = generate(stream, 1000, tokens_cap, text_cap);
      EXPECT_EQ(got.text, expected.text);
      EXPECT_EQ(got.tokens, expected.tokens);
    }
  }
}

TEST_P(DrafterTest, CountersSumUp) {
  for (const int32_t draft_max : {1, 2, 8, 64}) {
    const Stream stream = open(drafting({}, draft_max));
    prefill(stream, prompts()[2]);
    for (int step = 0; step < 30; ++step) {
      const Step got = next(stream, 128, 2048);
      ASSERT_EQ(got.status, 0) << got.message;
      EXPECT_GE(got.accepted, 0);
      EXPECT_LE(got.accepted, got.drafted);
      EXPECT_LE(got.drafted, draft_max);
      EXPECT_EQ(got.tokens.size(), static_cast<size_t>(got.accepted) + 1);
    }
  }
}

TEST_P(DrafterTest, CountersAreZeroInCallsWithoutAModelStep) {
  const Stream stream = open(drafting());
  prefill(stream, prompts()[2]);
  int32_t waiting = 0;  // accepted tokens that did not fit
  for (int call = 0; call < 60; ++call) {
    const Step got = next(stream, 1, 1024);
    ASSERT_EQ(got.status, 0) << got.message;
    EXPECT_EQ(got.tokens.size(), 1u);
    if (waiting > 0) {
      EXPECT_EQ(got.drafted, 0);
      EXPECT_EQ(got.accepted, 0);
      --waiting;
    } else {
      waiting = got.accepted;
    }
  }
}

TEST_P(DrafterTest, FullContextEndsTheGenerationAtTheSameToken) {
  for (const int size : {17, 32, 33, 64}) {
    const EnvironmentVariable context("ELIZA_LLM_N_CTX", std::to_string(size));
    for (const size_t prompt_size : {size_t{1}, size_t{8}, static_cast<size_t>(size) - 1}) {
      const Tokens prompt = first_of(repeated(prompts()[3], 20), prompt_size);
      const Generation got = fresh(prompt, 1000, drafting());
      EXPECT_EQ(got.tokens, plain(prompt, 1000).tokens);
      EXPECT_EQ(got.tokens.size(), static_cast<size_t>(size) - prompt_size);
      EXPECT_TRUE(got.final);
    }
  }
}

TEST_P(DrafterTest, BatchSizeDoesNotMatter) {
  for (const char* size : {"2", "7", "16", "17", "100"}) {
    const EnvironmentVariable batch("ELIZA_LLM_N_BATCH", size);
    SCOPED_TRACE(size);
    for (const Tokens& prompt : prompts()) expect_as_plain(prompt, drafting());
  }
}

TEST_P(DrafterTest, ThreadsDoNotMatter) {
  const Generation expected = plain(prompts()[2], 40);
  for (const char* count : {"1", "2", "3"}) {
    const EnvironmentVariable threads("ELIZA_LLM_THREADS", count);
    EXPECT_EQ(first_of(fresh(prompts()[2], 40, drafting()).tokens, 40), expected.tokens);
  }
}

TEST_P(DrafterTest, PromptMayComeInPartsAndInsideAGeneration) {
  const Tokens prompt = prompts()[2];
  const auto run = [&](const Config& config) {
    const Stream stream = open(config);
    prefill(stream, first_of(prompt, 5));
    prefill(stream, rest_of(prompt, 5));
    Tokens all = generate(stream, 9, 1, 64).tokens;  // a token at a time, so exactly 9
    // Accepted tokens may wait now; they belong in front of the new ones.
    while (all.size() % 16 != 0) all = concatenated(all, generate(stream, 1, 1, 64).tokens);
    return all;
  };
  EXPECT_EQ(run(drafting()), run({}));
}

TEST_P(DrafterTest, NextGenerationGoesOnExactly) {
  for (const int32_t max_tokens : {1, 4, 6, 11}) {
    Config config = {};
    config.max_tokens = max_tokens;
    const auto run = [&](const Config& any) {
      const Stream stream = open(any);
      Tokens all;
      for (const Tokens& prompt : prompts()) {
        prefill(stream, prompt);
        all = concatenated(all, generate(stream, 1000, 3, 16).tokens);
      }
      return all;
    };
    EXPECT_EQ(run(drafting(config)), run(config)) << max_tokens;
  }
}

TEST_P(DrafterTest, ResetStartsOver) {
  const Stream stream = open(drafting());
  for (const Tokens& prompt : prompts()) {
    prefill(stream, prompt);
    EXPECT_EQ(first_of(generate(stream, 30).tokens, 30), plain(prompt, 30).tokens);
    next(stream, 1, 5);  // and leaves accepted tokens behind
    ASSERT_EQ(eliza_inference_llm_stream_reset(stream.get()), ELIZA_OK);
  }
}

TEST_P(DrafterTest, ResetKeepEqualsAFreshStream) {
  const Tokens prompt = prompts()[2];
  Config config = {};
  config.max_tokens = 12;
  const Tokens sequence = concatenated(prompt, plain(prompt, 1000, config).tokens);
  const Tokens question = random_tokens(5, 10, 250, 99);
  for (const size_t cut :
       {size_t{0}, size_t{1}, size_t{16}, prompt.size() - 1, prompt.size(), prompt.size() + 1,
        prompt.size() + 7, sequence.size() - 1, sequence.size()}) {
    const Stream stream = open(drafting(config));
    prefill(stream, prompt);
    generate(stream);
    const int kept = eliza_inference_llm_stream_reset_keep(stream.get(), static_cast<int32_t>(cut));
    ASSERT_GE(kept, 0);
    ASSERT_LE(static_cast<size_t>(kept), cut);
    const Tokens whole = concatenated(first_of(sequence, cut), question);
    prefill(stream, rest_of(whole, static_cast<size_t>(kept)));
    EXPECT_EQ(generate(stream).tokens, plain(whole, 1000, config).tokens) << "cut " << cut;
  }
}

// Tokens that wait for a larger buffer are none the caller knows of: they are not kept.
TEST_P(DrafterTest, ResetKeepKeepsNoTokenThatWasNotDelivered) {
  const Tokens prompt = prompts()[2];
  const Stream stream = open(drafting());
  prefill(stream, prompt);
  size_t delivered = 0;
  int32_t waiting = 0;
  for (int call = 0; call < 60 && waiting == 0; ++call) {
    const Step step = next(stream, 1, 1024);
    delivered += step.tokens.size();
    waiting = step.accepted;
  }
  // Where no draft was accepted, nothing waits, and what is kept is all the same known.
  const int kept = eliza_inference_llm_stream_reset_keep(stream.get(), INT32_MAX);
  EXPECT_LE(static_cast<size_t>(kept), prompt.size() + delivered) << waiting << " waited";
}

TEST_P(DrafterTest, CancelIsStickyUntilReset) {
  const Stream stream = open(drafting());
  for (const int steps : {0, 1, 5}) {
    prefill(stream, prompts()[2]);
    for (int step = 0; step < steps; ++step) next(stream, 1, 5);
    eliza_inference_llm_stream_cancel(stream.get());
    const Step step = next(stream);
    EXPECT_EQ(step.status, ELIZA_ERR_CANCELLED);
    EXPECT_TRUE(step.tokens.empty());
    EXPECT_EQ(step.drafted, 0);
    EXPECT_EQ(try_prefill(stream, {20}), ELIZA_ERR_CANCELLED);
    eliza_inference_llm_stream_reset(stream.get());
  }
  prefill(stream, prompts()[2]);
  EXPECT_EQ(first_of(generate(stream, 30).tokens, 30), plain(prompts()[2], 30).tokens);
}

TEST_P(DrafterTest, StreamsOfOneContextDoNotMix) {
  std::vector<Stream> streams;
  std::vector<Tokens> got(prompts().size());
  for (const Tokens& prompt : prompts()) {
    streams.push_back(open(drafting()));
    prefill(streams.back(), prompt);
  }
  for (int round = 0; round < 30; ++round) {
    for (size_t i = 0; i < streams.size(); ++i) {
      got[i] = concatenated(got[i], next(streams[i], 64, 1024).tokens);
    }
  }
  for (size_t i = 0; i < streams.size(); ++i) {
    EXPECT_EQ(first_of(got[i], 30), plain(prompts()[i], 30).tokens);
  }
}

// Its decoder serves streams that do not draft afterwards, and the other way round.
TEST_P(DrafterTest, CloseInTheMiddleLeavesNothingBehind) {
  for (int round = 0; round < 3; ++round) {
    for (const Tokens& prompt : prompts()) {
      const Stream stream = open(drafting());
      prefill(stream, prompt);
      for (int step = 0; step < 5; ++step) next(stream, 1, 5);
    }
    expect_as_plain(prompts()[2], drafting());
  }
}

TEST_P(DrafterTest, StreamOutlivesItsContext) {
  const Tokens expected = plain(prompts()[2], 30).tokens;
  const Stream stream = open(drafting());
  prefill(stream, prompts()[2]);
  const Tokens first = next(stream, 64, 1024).tokens;
  ctx_.reset();
  EXPECT_EQ(first_of(concatenated(first, generate(stream, 30).tokens), 30), expected);
}

TEST_P(DrafterTest, BudgetedDraftsChangeNothingEither) {
  const EnvironmentVariable budget("ELIZA_LLM_DRAFT", "auto");
  for (const Tokens& prompt : prompts()) {
    for (const Config& config : samplers()) expect_as_plain(prompt, drafting(config), 80);
  }
}

// Without flash attention other kernels work, and they change with the length of the cache.
TEST_P(DrafterTest, FlashAttentionDoesNotMatter) {
  for (const char* choice : {"off", "on"}) {
    const EnvironmentVariable attention("ELIZA_LLM_FLASH_ATTN", choice);
    for (const size_t length : {1, 17, 250, 500}) {
      const Tokens prompt = first_of(repeated(prompts()[2], 20), length);
      for (const Config& config : samplers()) expect_as_plain(prompt, drafting(config), 25);
    }
  }
}

// ------------------------------------------------------------------- acceptance

TEST_F(SpeculationTest, DrafterEqualToTheTargetIsAccepted) {
  for (const char* model : {"tiny-bpe.gguf", "chain-spm.gguf", "tiny-swa.gguf"}) {
    load(model);
    // The same file, and a copy that is loaded as a model of its own.
    const TemporaryDirectory folder;
    const auto copy = folder.path() / "copy.gguf";
    write_file(copy, read_file(test_model(model)));
    for (const std::string& path : {test_model(model).string(), copy.string()}) {
      Config config = {};
      config.mtp_drafter_path = path.c_str();
      config.draft_max = 8;
      int32_t drafted = 0;
      int32_t accepted = 0;
      for (uint32_t seed = 0; seed < 6; ++seed) {
        // chain-spm.gguf would end at once after most tokens.
        const bool scripted = std::string(model) == "chain-spm.gguf";
        const Tokens prompt = scripted ? Tokens{loop_start} : random_tokens(20, 10, 250, seed);
        const Generation got = fresh(prompt, 60, config);
        drafted += got.drafted;
        accepted += got.accepted;
      }
      EXPECT_GT(drafted, 20) << model;
      EXPECT_GE(accepted, 0.98 * drafted) << model;
    }
  }
}

TEST_F(SpeculationTest, NgramsAreAcceptedWhereTheTextRepeats) {
  load("chain-spm.gguf");
  Config config = {};
  config.draft_max = 8;
  config.max_tokens = 120;
  const auto got = fresh({loop_start}, 1000, config);
  EXPECT_EQ(got.text,
            "abcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabc"
            "abcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabc");
  EXPECT_GE(got.accepted, 80);
  EXPECT_EQ(got.tokens.size(), 120u);
}

// A small model that has got stuck says a word, a line or a paragraph over and over.
TEST_F(SpeculationTest, NgramsFollowLoopsOfEveryLength) {
  load("tiny-bpe.gguf");
  for (size_t length = 1; length <= 20; ++length) {
    const std::string loop = std::string("0123456789ABCDEFGHIJ").substr(0, length);
    const std::string grammar = "root ::= \"" + loop + "\" root";
    Config config = {};
    config.draft_max = 8;
    config.max_tokens = 120;
    config.gbnf_grammar = grammar.c_str();
    const Generation got = fresh({20}, 1000, config);
    EXPECT_EQ(got.tokens, plain({20}, 1000, config).tokens);
    ASSERT_EQ(got.tokens.size(), 120u);
    // Once it has been said two times, most of the rest can come from drafts.
    EXPECT_GE(got.accepted, 0.7 * (120.0 - 2.0 * static_cast<double>(length) - 10)) << loop;
  }
}

TEST_F(SpeculationTest, DraftMaxZeroWithADrafterMeansEight) {
  load("chain-spm.gguf");
  const std::string path = test_model("chain-spm.gguf").string();
  Config config = {};
  config.mtp_drafter_path = path.c_str();
  const Stream stream = open(config);
  prefill(stream, {loop_start});
  int32_t most = 0;
  for (int step = 0; step < 10; ++step) most = std::max(most, next(stream, 64, 256).drafted);
  EXPECT_EQ(most, 8);
}

// The grammar asks for a token that is banned: no token can follow. A draft is under way then, and
// what the stream is afterwards is what it is without one.
TEST_F(SpeculationTest, FailedStepLeavesWhatAPlainOneLeaves) {
  load("tiny-bpe.gguf");
  Config config = {};
  config.gbnf_grammar = "root ::= \"aaaab\" <think>";
  config.disable_thinking = 1;
  const Tokens prompt = tokenize(ctx_, "12aab3456789aaac3456789#");
  const TemporaryDirectory folder;
  std::vector<Tokens> afterwards;
  int32_t drafted = 0;
  for (const int32_t draft_max : {0, 4}) {
    config.draft_max = draft_max;
    const Stream stream = open(config);
    prefill(stream, prompt);
    Step step;
    std::string text;
    for (int call = 0; call < 20 && step.status == 0; ++call) {
      step = next(stream, 64, 64);
      text += step.text;
      drafted += step.drafted;
    }
    EXPECT_EQ(text, "aaaab");
    EXPECT_EQ(step.status, ELIZA_ERR_FFI_FAULT) << step.message;
    EXPECT_LT(next(stream).status, 0) << "it does not go away by itself";
    const std::string slot = (folder.path() / std::to_string(draft_max)).string();
    ASSERT_EQ(eliza_inference_llm_stream_save_slot(stream.get(), slot.c_str(), nullptr), ELIZA_OK);
    const Stream other = open({});
    OwnedMessage error;
    EXPECT_EQ(eliza_inference_llm_stream_restore_slot(other.get(), slot.c_str(), error.out()),
              ELIZA_OK)
        << error.text();
    prefill(other, {30, 31});
    afterwards.push_back(generate(other, 20).tokens);
  }
  EXPECT_GT(drafted, 0);
  EXPECT_EQ(afterwards[1], afterwards[0]);
}

// ------------------------------------------------------------- end of generation

// chain-spm.gguf ends by itself: the end-of-generation token falls at every place of a batch.
class EndInABatchTest : public SpeculationTest,
                        public testing::WithParamInterface<std::tuple<bool, const char*>> {
 protected:
  EndInABatchTest() : path_(test_model("chain-spm.gguf").string()) {
    load("chain-spm.gguf");
    const auto json = nlohmann::json::parse(read_file(test_model("chains.json")));
    start_ = json["smile"]["start"].get<int32_t>();
    tokens_ = json["smile"]["tokens"].get<Tokens>();
    config_.cache_type_k = config_.cache_type_v = std::get<1>(GetParam());
    if (std::get<0>(GetParam())) config_.mtp_drafter_path = path_.c_str();
  }

  const std::string path_;
  Config config_ = {};
  int32_t start_ = 0;
  Tokens tokens_;
};

INSTANTIATE_TEST_SUITE_P(Kinds, EndInABatchTest,
                         testing::Combine(testing::Bool(),
                                          testing::Values<const char*>(nullptr, "q8_0")));

TEST_P(EndInABatchTest, IsFoundAtEveryPlace) {
  constexpr int32_t end = 2;
  int32_t drafted = 0;
  for (int32_t draft_max = 1; draft_max <= 15; ++draft_max) {
    config_.draft_max = draft_max;
    // What follows the copied text in the prompt: other text, or the end itself.
    for (const Tokens& tail : {Tokens{40, 41, 42, 43, 44, 45, 46, 47}, Tokens{end, 41, 42, 43}}) {
      const Tokens prompt =
          concatenated(concatenated(concatenated({start_}, tokens_), tail), {start_});
      for (const size_t tokens_cap : {1, 64}) {
        const Stream stream = open(config_);
        for (int turn = 0; turn < 2; ++turn) {
          prefill(stream, prompt);
          const Generation got = generate(stream, 1000, tokens_cap, 64);
          EXPECT_EQ(got.tokens, tokens_) << draft_max;
          EXPECT_EQ(got.text, " \U0001f600 and wave \U0001f44b to the \u4e16\u754c.");
          EXPECT_TRUE(got.final);
          drafted += got.drafted;
          EXPECT_EQ(next(stream).status, 1);
        }
      }
    }
  }
  EXPECT_GT(drafted, 100);
}

TEST_P(EndInABatchTest, MaxTokensInABatchComesFirst) {
  config_.draft_max = 8;
  for (size_t cap = 1; cap <= tokens_.size(); ++cap) {
    config_.max_tokens = static_cast<int32_t>(cap);
    const Tokens prompt = concatenated(concatenated({start_}, tokens_), {40, 41, 42, start_});
    const Stream stream = open(config_);
    prefill(stream, prompt);
    EXPECT_EQ(generate(stream, 1000, 2, 16).tokens, first_of(tokens_, cap));
    prefill(stream, prompt);
    EXPECT_EQ(generate(stream, 1000, 2, 16).tokens, first_of(tokens_, cap));
  }
}

// ------------------------------------------------------------------ distribution

// The text of five tokens of two letters, counted over many seeds.
class DistributionTest : public DrafterTest {
 protected:
  static constexpr int samples = 800;
  static constexpr int letters = 5;

  std::map<std::string, double> counted(const Config& config, int first_seed, int32_t& drafted) {
    const Tokens prompt = tokenize(ctx_, "aaababbbaaabbabab");
    std::map<std::string, double> counts;
    for (int i = 0; i < samples; ++i) {
      const EnvironmentVariable seed("ELIZA_LLM_SEED", std::to_string(first_seed + i));
      const Generation got = fresh(prompt, 1000, config);
      EXPECT_EQ(got.text.size(), static_cast<size_t>(letters));
      ++counts[got.text];
      drafted += got.drafted;
    }
    return counts;
  }
};

// Other seeds than those of the drafting streams, for which the texts themselves would be equal.
TEST_P(DistributionTest, OfDraftedTextIsThatOfPlainText) {
  Config config = {};
  config.temperature = 6;
  config.max_tokens = letters;
  config.gbnf_grammar = "root ::= [ab] [ab] [ab] [ab] [ab]";
  int32_t drafted = 0;
  auto plainly = counted(config, 0, drafted);
  ASSERT_EQ(drafted, 0);
  auto with_drafts = counted(drafting(config, 4), 500000, drafted);
  std::map<std::string, double> both = plainly;
  for (const auto& [text, count] : with_drafts) both[text] += count;
  EXPECT_GT(both.size(), 8u) << "too little chance for a test";
  double statistic = 0;
  double cells = 0;
  double rare = 0;
  double rare_drafted = 0;
  const auto add = [&](double total, double part) {
    statistic += 2 * (part - total / 2) * (part - total / 2) / (total / 2);
    ++cells;
  };
  for (const auto& [text, total] : both) {
    if (total >= 20) {
      add(total, with_drafts[text]);
    } else {
      rare += total;
      rare_drafted += with_drafts[text];
    }
  }
  if (rare >= 20) add(rare, rare_drafted);
  const double freedom = std::max(1.0, cells - 1);
  EXPECT_LT(statistic, freedom + 5 * std::sqrt(2 * freedom) + 12);
  if (std::string(GetParam().name) == "ngram") {
    EXPECT_GT(drafted, samples);
  }
}

INSTANTIATE_TEST_SUITE_P(Drafters, DistributionTest,
                         testing::Values(DraftCase{"ngram", "tiny-bpe.gguf", nullptr},
                                         DraftCase{"head", "tiny-mtp.gguf", nullptr}));

// ------------------------------------------------------------------ bad drafters

class BadDrafterTest : public SpeculationTest {
 protected:
  BadDrafterTest() { load("tiny-bpe.gguf"); }

  // Opens with the drafter; the refusal's message.
  std::string refusal(const std::string& path, int32_t draft_max = 4) {
    Config config = unkeyed();
    config.mtp_drafter_path = path.c_str();
    config.draft_max = draft_max;
    OwnedMessage error;
    const Stream stream(eliza_inference_llm_stream_open(ctx_.get(), &config, error.out()));
    EXPECT_EQ(stream, nullptr);
    EXPECT_TRUE(is_valid_utf8(error.text()));
    EXPECT_NE(error.text().find("mtp_drafter_path"), std::string::npos) << error.text();
    return error.text();
  }

  void expect_refused(const std::string& path, const std::string& reason) {
    for (const int32_t draft_max : {0, 4}) {
      const std::string message = refusal(path, draft_max);
      EXPECT_NE(message.find(reason), std::string::npos) << message;
    }
  }

  // Drafts with the file and decodes; empty where it is refused with a message, or works.
  std::string use_drafter(const std::string& path) {
    Config config = unkeyed();
    config.mtp_drafter_path = path.c_str();
    OwnedMessage error;
    const Stream stream(eliza_inference_llm_stream_open(ctx_.get(), &config, error.out()));
    if (!stream) {
      if (!error.is_set()) return "open failed without a message";
      return is_valid_utf8(error.text()) ? "" : "the message is not UTF-8";
    }
    return use(stream);
  }

  static std::string use(const Stream& stream) {
    if (try_prefill(stream, {20, 21, 22, 23}) != ELIZA_OK) return "";
    for (int step = 0; step < 6; ++step) {
      const Step got = next(stream, 64, 512);
      if (got.status < 0) return got.message.empty() ? "next failed without a message" : "";
      if (!is_valid_utf8(got.text)) return "the text is not UTF-8";
    }
    return "";
  }

  const TemporaryDirectory folder_;
  const std::string file_ = (folder_.path() / "drafter.gguf").string();
};

TEST_F(BadDrafterTest, MissingFileIsRefused) {
  expect_refused((folder_.path() / "none.gguf").string(), "none.gguf");
  expect_refused((folder_.path() / "none" / "none.gguf").string(), "none.gguf");
}

TEST_F(BadDrafterTest, FolderIsRefused) { expect_refused(folder_.string(), folder_.string()); }

TEST_F(BadDrafterTest, PipeIsRefusedAndNotWaitedFor) {
  const auto pipe = (folder_.path() / "pipe").string();
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  expect_refused(pipe, "pipe");
}

TEST_F(BadDrafterTest, FilesThatAreNoModelsAreRefused) {
  for (const char* content : {"", "a text file\n", "GGUF", "GGUF, but no more"}) {
    write_file(file_, content);
    expect_refused(file_, "drafter.gguf");
  }
}

TEST_F(BadDrafterTest, ModelsWithoutTensorsOrVocabularyAreRefused) {
  expect_refused(test_model("vocab-only.gguf").string(), "vocab-only.gguf");
  expect_refused(test_model("no-vocab.gguf").string(), "no-vocab.gguf");
  expect_refused(test_model("bad-norm.gguf").string(), "bad-norm.gguf");
}

TEST_F(BadDrafterTest, OtherVocabularyIsRefused) {
  expect_refused(test_model("tiny-spm.gguf").string(), "vocabulary");
  expect_refused(test_model("tiny-swa.gguf").string(), "vocabulary");
  expect_refused(test_model("chain-spm.gguf").string(), "vocabulary");
}

TEST_F(BadDrafterTest, VocabularyThatDiffersInOneTokenIsRefusedByTheToken) {
  std::string bytes = read_file(test_model("tiny-bpe-draft.gguf"));
  const size_t at = bytes.find("<think>");
  ASSERT_NE(at, std::string::npos);
  bytes.replace(at, 7, "<thunk>");
  write_file(file_, bytes);
  expect_refused(file_, "<thunk>");
}

TEST_F(BadDrafterTest, HeadOfAnotherModelIsRefused) {
  const std::string head = test_model("tiny-eagle3.gguf").string();
  expect_refused(head, "layer");  // tiny-bpe has two layers, it reads three
  load("tiny-swa.gguf");
  expect_refused(head, "vocabulary");
  load("tiny-mtp.gguf");  // of an architecture that llama.cpp does not show the layers of
  expect_refused(head, "hy_v3");
}

TEST_F(BadDrafterTest, HeadIsNoTextModel) {
  bundle_ = make_bundle("tiny-eagle3.gguf");
  ctx_ = create_context(bundle_->string());
  const Config config = {};
  OwnedMessage error;
  EXPECT_EQ(eliza_inference_llm_stream_open(ctx_.get(), &config, error.out()), nullptr);
  EXPECT_NE(error.text().find("drafter"), std::string::npos) << error.text();
  EXPECT_EQ(eliza_inference_mmap_acquire(ctx_.get(), "text", nullptr), ELIZA_ERR_BUNDLE_INVALID);
}

TEST_F(BadDrafterTest, FileThatWasReplacedIsLoadedAnew) {
  const auto replace_by = [&](const char* model) {
    const auto beside = folder_.path() / "new.gguf";
    write_file(beside, read_file(test_model(model)));
    std::filesystem::rename(beside, file_);
  };
  Config config = {};
  config.mtp_drafter_path = file_.c_str();
  replace_by("tiny-bpe-draft.gguf");
  const Tokens expected = plain({20, 21}, 20).tokens;
  const Stream before = open(config);
  prefill(before, {20, 21});
  replace_by("tiny-spm.gguf");
  expect_refused(file_, "vocabulary");
  replace_by("tiny-bpe.gguf");
  const Generation now = fresh({20, 21}, 60, config);
  EXPECT_GE(now.accepted, 0.98 * now.drafted) << "the old one would not be right";
  EXPECT_GT(now.drafted, 0);
  EXPECT_EQ(first_of(now.tokens, 20), expected);
  EXPECT_EQ(first_of(generate(before, 20).tokens, 20), expected);
}

TEST_F(BadDrafterTest, StreamsMayDraftWithDifferentFiles) {
  const std::string paths[] = {test_model("tiny-bpe-draft.gguf").string(),
                               test_model("tiny-bpe.gguf").string()};
  write_file(file_, read_file(test_model("tiny-bpe.gguf")));
  const Tokens prompt = random_tokens(30, 10, 250);
  const Tokens expected = plain(prompt, 30).tokens;
  std::vector<Stream> streams;
  for (const std::string& path : {paths[0], file_, paths[1], paths[0]}) {
    Config config = {};
    config.mtp_drafter_path = path.c_str();
    streams.push_back(open(config));
    prefill(streams.back(), prompt);
  }
  for (const Stream& stream : streams) {
    EXPECT_EQ(first_of(generate(stream, 30).tokens, 30), expected);
  }
}

// Too little room for a batch, whatever the model could do.
TEST_F(BadDrafterTest, SmallestBatchAndContextAreNoCrash) {
  const std::string path = test_model("tiny-bpe-draft.gguf").string();
  Config config = {};
  config.mtp_drafter_path = path.c_str();
  for (const char* name : {"ELIZA_LLM_N_BATCH", "ELIZA_LLM_N_CTX"}) {
    const EnvironmentVariable one(name, "1");
    OwnedMessage error;
    const Config unkeyed_config = unkeyed(config);
    const Stream stream(eliza_inference_llm_stream_open(ctx_.get(), &unkeyed_config, error.out()));
    EXPECT_NE(stream != nullptr, error.is_set());
    Config ngram = {};
    ngram.draft_max = 8;
    const Tokens prompt(std::string(name) == "ELIZA_LLM_N_CTX" ? 1 : 20, 20);
    EXPECT_EQ(fresh(prompt, 20, ngram).tokens, plain(prompt, 20).tokens);
  }
}

TEST_F(BadDrafterTest, RefusalLeavesOtherStreamsAlone) {
  const Tokens expected = plain({20, 21}, 30).tokens;
  const std::string good = test_model("tiny-bpe-draft.gguf").string();
  Config config = {};
  config.mtp_drafter_path = good.c_str();
  const Stream drafting = open(config);
  const Stream plainly = open({});
  prefill(drafting, {20, 21});
  prefill(plainly, {20, 21});
  write_file(file_, "no model");
  Tokens from_drafting;
  Tokens from_plain;
  for (int step = 0; step < 30; ++step) {
    refusal(step % 2 == 0 ? file_ : test_model("tiny-spm.gguf").string());
    from_drafting = concatenated(from_drafting, next(drafting, 64, 512).tokens);
    from_plain = concatenated(from_plain, next(plainly).tokens);
  }
  EXPECT_EQ(first_of(from_drafting, 30), expected);
  EXPECT_EQ(from_plain, expected);
}

TEST_F(BadDrafterTest, EveryTruncationIsRefused) {
  const std::pair<const char*, const char*> pairs[] = {
      {"tiny-bpe.gguf", "tiny-bpe-draft.gguf"}, {"tiny-eagle3-target.gguf", "tiny-eagle3.gguf"}};
  for (const auto& [target, drafter] : pairs) {
    load(target);
    const std::string whole = read_file(test_model(drafter));
    constexpr size_t cuts = 40;
    const auto length = [&](size_t number) {
      return number < cuts / 2 ? number * 700 : whole.size() * (number - cuts / 2) / (cuts / 2);
    };
    const auto problems = problems_in_children(
        cuts,
        [&](size_t number) -> std::string {
          write_file(file_, whole.substr(0, length(number)));
          Config config = unkeyed();
          config.mtp_drafter_path = file_.c_str();
          OwnedMessage error;
          const Stream stream(eliza_inference_llm_stream_open(ctx_.get(), &config, error.out()));
          if (stream) return "it was accepted";
          return error.is_set() ? "" : "no message";
        },
        [&](size_t number) {
          return std::string(drafter) + " cut at " + std::to_string(length(number));
        });
    EXPECT_EQ(problems, std::vector<std::string>());
  }
}

// Every variant is used in the place its file has: a drafter, or a text model with its own head.
class FlippedDrafterTest : public BadDrafterTest, public testing::WithParamInterface<DraftCase> {};

INSTANTIATE_TEST_SUITE_P(
    Drafters, FlippedDrafterTest,
    testing::Values(DraftCase{"head", "tiny-mtp.gguf", nullptr},
                    DraftCase{"eagle3", "tiny-eagle3-target.gguf", "tiny-eagle3.gguf"},
                    DraftCase{"small", "tiny-bpe.gguf", "tiny-bpe-draft.gguf"}));

TEST_P(FlippedDrafterTest, CorruptedHeaderBytesNeverCrash) {
  const auto& [name, target, drafter] = GetParam();
  const std::string whole = read_file(test_model(drafter == nullptr ? target : drafter));
  constexpr size_t stride = 11;
  const std::string values = {'\0', '\1', '\x7F', '\xFF'};
  // The metadata of tokenizers are the same for all models, and stream_test has them.
  const size_t before = whole.find("tokenizer.ggml.tokens");
  const size_t tensors = whole.find("output_norm.weight");
  ASSERT_LT(before, tensors);
  std::vector<size_t> positions;
  for (size_t at = 0; at < before; at += stride) positions.push_back(at);
  // Up to the last tensor's type and offset; what comes then are weights.
  for (size_t at = tensors; at < whole.rfind(".weight") + 40; at += stride) {
    positions.push_back(at);
  }
  load(target);
  if (drafter != nullptr) eliza_inference_mmap_acquire(ctx_.get(), "text", nullptr);
  const auto position = [&](size_t number) { return positions[number / values.size()]; };
  const auto value = [&](size_t number) { return values[number % values.size()]; };
  const auto problems = problems_in_children(
      positions.size() * values.size(),
      [&](size_t number) -> std::string {
        std::string flipped = whole;
        flipped[position(number)] = value(number);
        if (drafter != nullptr) {
          write_file(file_, flipped);
          return use_drafter(file_);
        }
        const auto text = folder_.path() / "text" / "model.gguf";
        write_file(text, flipped);
        const Context ctx = create_context(folder_.string());
        Config config = unkeyed();
        config.draft_max = 8;
        OwnedMessage error;
        const Stream stream(eliza_inference_llm_stream_open(ctx.get(), &config, error.out()));
        if (!stream) return error.is_set() ? "" : "open failed without a message";
        return use(stream);
      },
      [&](size_t number) {
        return "byte " + std::to_string(position(number)) + " set to " +
               std::to_string(static_cast<unsigned char>(value(number)));
      });
  EXPECT_EQ(problems, std::vector<std::string>());
}

}  // namespace
}  // namespace eliza::test
