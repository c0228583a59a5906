#include <dlfcn.h>
#include <gguf.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <random>
#include <thread>

#include "backends/builtin_backends.h"
#include "backends/litert/litert_engine.h"
#include "test_support.h"

// What is LiteRT-LM's own, beside the session contract of contract_test.cpp: the files it must not
// be given, the runtime that may be absent, the accelerators, stop sequences, stock files.

namespace eliza::test {
namespace {

namespace fs = std::filesystem;
using Config = eliza_llm_stream_config_t;

fs::path given(const char* variable) {
  const char* value = std::getenv(variable);
  if (value == nullptr || *value == '\0') {
    throw std::runtime_error(std::string(variable) + " is not set; scripts/test sets it");
  }
  return value;
}

// A bundle with exact ids, and the stock file that it was made of.
fs::path exact_bundle() { return given("ELIZA_TEST_LITERT_BUNDLE"); }
fs::path stock_file() { return given("ELIZA_TEST_LITERT_MODEL"); }

const Tokens abcd = {69, 278, 273, 279};
const Tokens alphabet = {274, 269, 297, 280, 298, 281, 299, 282, 300, 275, 283,
                         301, 284, 302, 270, 265, 303, 304, 276, 305, 285, 306};
const Tokens smile = {87, 81, 77, 286};

class LitertTest : public testing::Test {
 protected:
  // A bundle of links to a model and, where there is one, its tokenizer.
  void use(const fs::path& model, const fs::path& tokenizer = {}) {
    bundle_ = std::make_unique<TemporaryDirectory>();
    fs::create_directories(text());
    fs::create_symlink(model, text() / "model.litertlm");
    if (!tokenizer.empty()) fs::create_symlink(tokenizer, text() / "model.tokenizer");
    ctx_ = create_context(bundle_->string());
  }
  void use_exact() {
    use(exact_bundle() / "text/tiny.litertlm", exact_bundle() / "text/tiny.tokenizer");
  }
  void use_stock() { use(stock_file()); }

  fs::path text() const { return bundle_->path() / "text"; }

  std::string open_error(const Config& config = {}) {
    OwnedMessage message;
    const Stream stream(eliza_inference_llm_stream_open(ctx_.get(), &config, message.out()));
    return stream ? "" : message.text();
  }

  Generation fresh(const Tokens& prompt, size_t limit = 1000, const Config& config = {}) {
    const Stream stream = open_stream(ctx_, config);
    prefill(stream, prompt);
    return generate(stream, limit);
  }

  CleanEnvironment environment_;
  EnvironmentVariable runtime_{"ELIZA_LITERT_LM_LIBRARY", given("ELIZA_TEST_LITERT_LIBRARY")};
  EnvironmentVariable accelerator_{"ELIZA_LITERT_ACCELERATOR", std::nullopt};
  EnvironmentVariable cache_{"ELIZA_LITERT_CACHE_DIR", std::nullopt};
  EnvironmentVariable forced_{"ELIZA_LLM_BACKEND", "litert-lm"};
  EnvironmentVariable one_thread_{"ELIZA_LLM_THREADS", "1"};
  std::unique_ptr<TemporaryDirectory> bundle_;
  Context ctx_;
};

void expect_contains(const std::string& text, const std::vector<std::string>& parts) {
  for (const auto& part : parts) EXPECT_NE(text.find(part), std::string::npos) << text;
}

// -------------------------------------------------------------------- known texts

TEST_F(LitertTest, ContinuesTheAlphabetTokenByToken) {
  use_exact();
  const Stream stream = open_stream(ctx_);
  prefill(stream, abcd);
  for (const int32_t token : alphabet) {
    const Step step = next(stream);
    EXPECT_EQ(step.status, 0);
    EXPECT_EQ(step.tokens, Tokens{token});
  }
  EXPECT_EQ(next(stream).status, 1);
}

TEST_F(LitertTest, JoinsCharactersThatAreSplitOverTokens) {
  use_exact();
  EXPECT_EQ(fresh(smile).text, " \U0001f600 and wave \U0001f44b to the \u4e16\u754c.");
}

TEST_F(LitertTest, TokenizesWithTheBundlesTokenizer) {
  use_exact();
  EXPECT_EQ(tokenize(ctx_, "a b c d"), abcd);
  EXPECT_EQ(tokenize(ctx_, "smile"), smile);
}

TEST_F(LitertTest, PrintsNothing) {
  const Output output = output_of([&] {
    use_exact();
    fresh(abcd);
    open_error(Config{});
  });
  EXPECT_EQ(output.out, "");
  EXPECT_EQ(output.err, "");
}

TEST_F(LitertTest, WritesNothingBesideTheModel) {
  bundle_ = std::make_unique<TemporaryDirectory>();
  fs::create_directories(text());
  fs::copy_file(exact_bundle() / "text/tiny.litertlm", text() / "model.litertlm");
  fs::copy_file(exact_bundle() / "text/tiny.tokenizer", text() / "model.tokenizer");
  ctx_ = create_context(bundle_->string());
  fresh(abcd);
  EXPECT_EQ(std::distance(fs::directory_iterator(text()), {}), 2);
}

TEST_F(LitertTest, WritesItsCacheWhereItIsToldTo) {
  const TemporaryDirectory directory;
  const EnvironmentVariable cache("ELIZA_LITERT_CACHE_DIR", directory.string());
  use_exact();
  EXPECT_EQ(fresh(abcd).tokens, alphabet);
  EXPECT_GT(std::distance(fs::directory_iterator(directory.path()), {}), 0);
  EXPECT_EQ(fresh(abcd).tokens, alphabet);
}

// --------------------------------------------------------------- rewinding the runtime

// The runtime skips what it remembers of before a cut, and counts wrongly where a prefill goes on
// behind it: what shows depends on the lengths.
class RewindTest : public LitertTest {
 protected:
  static constexpr int trials = 60;

  RewindTest() { use_exact(); }

  Tokens prompt(size_t longest) {
    Tokens tokens(1 + random_() % longest);
    for (auto& token : tokens) token = static_cast<int32_t>(5 + random_() % 300);
    return tokens;
  }
  static Tokens joined(Tokens one, const Tokens& other) {
    one.insert(one.end(), other.begin(), other.end());
    return one;
  }

  std::mt19937 random_{7};
};

TEST_F(RewindTest, APromptInPartsIsAsGoodAsWhole) {
  for (int trial = 0; trial < trials; ++trial) {
    const Tokens first = prompt(110);
    const Tokens second = prompt(40);
    const Stream stream = open_stream(ctx_);
    prefill(stream, first);
    prefill(stream, second);
    EXPECT_EQ(generate(stream, 6).tokens, fresh(joined(first, second), 6).tokens) << trial;
  }
}

TEST_F(RewindTest, WhatComesAgainAfterAResetIsReadAgain) {
  const Stream stream = open_stream(ctx_);
  for (int trial = 0; trial < trials; ++trial) {
    const Tokens tokens = prompt(150);
    for (int time = 0; time < 2; ++time) {
      ASSERT_EQ(eliza_inference_llm_stream_reset(stream.get()), ELIZA_OK);
      prefill(stream, tokens);
      EXPECT_EQ(generate(stream, 6).tokens, fresh(tokens, 6).tokens) << trial;
    }
  }
}

TEST_F(RewindTest, EveryCutContinuesAsAFreshStream) {
  const Stream stream = open_stream(ctx_);
  for (int trial = 0; trial < trials; ++trial) {
    Tokens sequence = prompt(150);
    ASSERT_EQ(eliza_inference_llm_stream_reset(stream.get()), ELIZA_OK);
    prefill(stream, sequence);
    sequence = joined(sequence, generate(stream, 6).tokens);
    const auto kept = static_cast<size_t>(eliza_inference_llm_stream_reset_keep(
        stream.get(), static_cast<int32_t>(random_() % (sequence.size() + 1))));
    // What was cut off comes again in part, and then something else.
    const size_t again = kept + random_() % (sequence.size() - kept + 1);
    const Tokens more = joined({sequence.begin() + static_cast<std::ptrdiff_t>(kept),
                                sequence.begin() + static_cast<std::ptrdiff_t>(again)},
                               prompt(40));
    sequence.resize(kept);
    prefill(stream, more);
    EXPECT_EQ(generate(stream, 6).tokens, fresh(joined(sequence, more), 6).tokens) << trial;
  }
}

TEST_F(RewindTest, WhatWasCutOffTwiceIsCountedOnce) {
  Tokens text(91);
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<int32_t>(5 + i * 37 % 250);
  Tokens other(10);
  for (size_t i = 0; i < other.size(); ++i) other[i] = static_cast<int32_t>(5 + i * 53 % 250);
  const auto part = [](const Tokens& of, size_t begin, size_t end) {
    return Tokens(of.begin() + static_cast<std::ptrdiff_t>(begin),
                  of.begin() + static_cast<std::ptrdiff_t>(end));
  };
  const Stream stream = open_stream(ctx_);
  prefill(stream, text);
  eliza_inference_llm_stream_reset_keep(stream.get(), 10);
  prefill(stream, other);
  eliza_inference_llm_stream_reset_keep(stream.get(), 12);
  prefill(stream, part(other, 2, 5));
  prefill(stream, joined(part(other, 5, 10), part(text, 60, 65)));
  const Tokens whole = joined(joined(part(text, 0, 10), other), part(text, 60, 65));
  EXPECT_EQ(generate(stream, 4).tokens, fresh(whole, 4).tokens);
}

// Prompts in parts, steps, cuts, and what was cut off coming again with something else behind it.
TEST_F(RewindTest, AnyWalkEqualsFreshStreams) {
  for (int walk = 0; walk < trials; ++walk) {
    const Stream stream = open_stream(ctx_);
    Tokens sequence;
    Tokens before;  // the sequence at its last cut
    for (int move = 0; move < 8; ++move) {
      Tokens more = prompt(60);
      if (random_() % 2 == 0 && before.size() > sequence.size() + 1) {
        const auto end = static_cast<std::ptrdiff_t>(
            sequence.size() + 1 + random_() % (before.size() - sequence.size() - 1));
        const auto begin = static_cast<std::ptrdiff_t>(sequence.size());
        more = joined({before.begin() + begin, before.begin() + end}, prompt(20));
      }
      if (sequence.size() + more.size() > 230) break;
      const auto middle = static_cast<std::ptrdiff_t>(random_() % more.size());
      if (middle > 0) prefill(stream, {more.begin(), more.begin() + middle});
      prefill(stream, {more.begin() + middle, more.end()});
      sequence = joined(sequence, more);
      const Tokens answer = generate(stream, 1 + random_() % 4).tokens;
      EXPECT_EQ(answer, fresh(sequence, answer.size()).tokens) << walk << ", " << move;
      sequence = joined(sequence, answer);
      if (random_() % 2 == 0) continue;
      before = sequence;
      sequence.resize(random_() % (sequence.size() + 1));
      eliza_inference_llm_stream_reset_keep(stream.get(), static_cast<int32_t>(sequence.size()));
    }
  }
}

TEST_F(RewindTest, TheNextTurnMayBeginWithTheStopToken) {
  const Stream stream = open_stream(ctx_);
  prefill(stream, abcd);
  EXPECT_EQ(generate(stream).tokens, alphabet);
  const Tokens turn = joined({2}, smile);
  prefill(stream, turn);
  EXPECT_EQ(generate(stream).tokens, fresh(joined(joined(abcd, alphabet), turn)).tokens);
}

TEST_F(RewindTest, ACancelOfAnIdleStreamTouchesNoClosedSession) {
  Config config = {};
  config.temperature = 1.0f;
  const Stream stream = open_stream(ctx_, config);
  for (int round = 0; round < 100; ++round) {
    prefill(stream, abcd);
    std::thread canceller([&] { eliza_inference_llm_stream_cancel(stream.get()); });
    while (next(stream).status >= 0) {
    }
    canceller.join();
    ASSERT_EQ(eliza_inference_llm_stream_reset(stream.get()), ELIZA_OK);
    ASSERT_EQ(eliza_inference_llm_stream_cancel(stream.get()), ELIZA_OK);
    ASSERT_EQ(eliza_inference_llm_stream_reset(stream.get()), ELIZA_OK);
  }
}

// ------------------------------------------------------------------- stock files

TEST_F(LitertTest, StockFileGivesItsTextAndWholePiecesExactly) {
  use_stock();
  const Generation generation = fresh(abcd);
  EXPECT_EQ(generation.tokens, alphabet);
  EXPECT_EQ(generation.text, " e f g h i j k l m n o p q r s t u v w x y z");
  EXPECT_TRUE(generation.final);
}

TEST_F(LitertTest, StockFileIsTokenizedByTheRuntime) {
  use_stock();
  EXPECT_EQ(tokenize(ctx_, "a b c d"), abcd);
  char text[64];
  ASSERT_GT(eliza_inference_detokenize(ctx_.get(), abcd.data(), abcd.size(), 0, 0, text,
                                       sizeof text, nullptr),
            0);
  EXPECT_STREQ(text, "a b c d");
}

TEST_F(LitertTest, InvalidUtf8NeverReachesTheRuntime) {
  use_stock();
  const std::string problem = outcome_in_child([&]() -> std::string {
    for (const std::string bytes : {"\xff", "a\xf0\x9f", "\x80\x80", "\xc0\x80"}) {
      tokenize(ctx_, bytes);
    }
    // Tokens that are single bytes, which never make a character.
    const Tokens emoji = tokenize(ctx_, "\U0001f600");
    for (const int32_t token : emoji) fresh({token}, 3);
    fresh({emoji.front(), abcd.front(), emoji.back()}, 3);
    return "";
  });
  EXPECT_EQ(problem, "");
}

TEST_F(LitertTest, SplitCharactersOfAPromptReachTheStockFileWhole) {
  use_stock();
  Tokens prompt = smile;
  const Tokens emoji = tokenize(ctx_, " \U0001f600");
  prompt.insert(prompt.end(), emoji.begin(), emoji.end());
  EXPECT_EQ(fresh(prompt, 5).text, " and wave");
}

TEST_F(LitertTest, AStockFileAnswersEveryTokenOfItsVocabulary) {
  use_stock();
  const Stream stream = open_stream(ctx_);
  EXPECT_EQ(try_prefill(stream, {320}), ELIZA_ERR_INVALID_ARG);
  EXPECT_EQ(try_prefill(stream, {319}), ELIZA_OK);
}

TEST_F(LitertTest, TheNextTurnOnAStockFileEqualsAFreshStream) {
  use_stock();
  const Stream stream = open_stream(ctx_);
  prefill(stream, abcd);
  Tokens sequence = abcd;
  const Tokens answer = generate(stream).tokens;
  sequence.insert(sequence.end(), answer.begin(), answer.end());
  prefill(stream, smile);
  sequence.insert(sequence.end(), smile.begin(), smile.end());
  EXPECT_EQ(generate(stream, 5).tokens, fresh(sequence, 5).tokens);
}

// Each takes three of the runtime's positions: U+FFFD, in bytes.
TEST_F(LitertTest, AStockPromptThatIsLongerAsTextIsMeasuredAsText) {
  use_stock();
  const int32_t byte = tokenize(ctx_, "\U0001f600").back();
  const Stream stream = open_stream(ctx_);
  const Tokens too_many(100, byte);
  OwnedMessage message;
  EXPECT_EQ(eliza_inference_llm_stream_prefill(stream.get(), too_many.data(), too_many.size(),
                                               message.out()),
            ELIZA_ERR_INVALID_ARG);
  expect_contains(message.text(), {"does not fit the context", "256"});
  prefill(stream, Tokens(84, byte));
  const Generation generation = generate(stream);
  EXPECT_TRUE(generation.final);
  EXPECT_LE(generation.tokens.size(), 12u) << "behind the end of the context";
}

// The runtime's tokenizer of a stock file is not thread-safe.
TEST_F(LitertTest, StockStreamsAndTokenizersRunInParallel) {
  use_stock();
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int number = 0; number < 4; ++number) {
    threads.emplace_back([&] {
      for (int round = 0; round < 20; ++round) {
        wrong += tokenize(ctx_, "a b c d") != abcd;
        wrong += fresh(abcd).tokens != alphabet;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

// ---------------------------------------------------------------- stop sequences

// A copy of the bundle's tokenizer with other stop sequences.
void write_tokenizer(const fs::path& path, const std::vector<int32_t>& stops) {
  const std::string original = (exact_bundle() / "text/tiny.tokenizer").string();
  gguf_context* file = gguf_init_from_file(original.c_str(), {true, nullptr});
  ASSERT_NE(file, nullptr);
  gguf_set_arr_data(file, "eliza.stop_sequences", GGUF_TYPE_INT32, stops.data(), stops.size());
  EXPECT_TRUE(gguf_write_to_file(file, path.c_str(), /*only_meta=*/true));
  gguf_free(file);
}

class StopTest : public LitertTest {
 protected:
  Generation stopped_by(const std::vector<int32_t>& stops, const Config& config = {}) {
    const fs::path tokenizer = directory_.path() / "stops.tokenizer";
    fs::remove(tokenizer);
    write_tokenizer(tokenizer, stops);
    use(exact_bundle() / "text/tiny.litertlm", tokenizer);
    return fresh(abcd, 1000, config);
  }

  static Tokens beginning(size_t count) { return {alphabet.begin(), alphabet.begin() + count}; }

  TemporaryDirectory directory_;
};

TEST_F(StopTest, ASequenceEndsTheGenerationAndIsNotReported) {
  const Generation generation = stopped_by({281, 299, 282, -1});
  EXPECT_EQ(generation.tokens, beginning(5));
  EXPECT_EQ(generation.text, " e f g h i");
  EXPECT_TRUE(generation.final);
}

TEST_F(StopTest, OneTokenIsASequenceToo) {
  EXPECT_EQ(stopped_by({297, -1}).tokens, beginning(2));
  EXPECT_EQ(stopped_by({274, -1}).tokens, Tokens());
}

TEST_F(StopTest, TheFirstThatIsCompleteCounts) {
  EXPECT_EQ(stopped_by({301, 284, -1, 283, 301, 284, 302, -1, 282, 300, -1}).tokens, beginning(7));
  EXPECT_EQ(stopped_by({297, 280, 298, 281, -1, 280, -1}).tokens, beginning(3));
}

TEST_F(StopTest, WhatOnlyBeginsLikeASequenceIsReported) {
  const Generation generation = stopped_by({274, 269, 300, -1, 305, 285, 306, 7, -1});
  EXPECT_EQ(generation.tokens, alphabet);
  EXPECT_EQ(generation.text, " e f g h i j k l m n o p q r s t u v w x y z");
}

TEST_F(StopTest, MaxTokensLetsOutWhatWasHeldBack) {
  Config config = {};
  config.max_tokens = 2;
  const Generation generation = stopped_by({274, 269, 297, -1}, config);
  EXPECT_EQ(generation.tokens, beginning(2));
  EXPECT_TRUE(generation.final);
}

TEST_F(StopTest, TheNextTurnGoesOnBeforeTheStop) {
  stopped_by({281, 299, 282, -1});
  const Stream stream = open_stream(ctx_);
  prefill(stream, abcd);
  EXPECT_EQ(generate(stream).tokens, beginning(5));
  prefill(stream, {281});
  Tokens whole = abcd;
  whole.insert(whole.end(), alphabet.begin(), alphabet.begin() + 6);
  EXPECT_EQ(generate(stream, 3).tokens, fresh(whole, 3).tokens);
}

// ------------------------------------------------------- bundles and the selection

TEST_F(LitertTest, OutranksTheInTreePathAndIsForcedEitherWay) {
  const fs::path gguf = test_model("tiny-bpe.gguf");
  use_exact();
  fs::create_symlink(gguf, text() / "model.gguf");
  const EnvironmentVariable free("ELIZA_LLM_BACKEND", std::nullopt);
  EXPECT_EQ(fresh(abcd).tokens, alphabet);
  {
    const EnvironmentVariable in_tree("ELIZA_LLM_BACKEND", "llama.cpp");
    EXPECT_NE(fresh(abcd, 5).tokens, Tokens(alphabet.begin(), alphabet.begin() + 5));
  }
  const EnvironmentVariable litert("ELIZA_LLM_BACKEND", "LiteRT-LM");
  EXPECT_EQ(fresh(abcd).tokens, alphabet);
}

TEST_F(LitertTest, ExactIdsNeedATokenizer) {
  use(exact_bundle() / "text/tiny.litertlm");
  expect_contains(open_error(), {"has no tokenizer", "add-litert"});
}

TEST_F(LitertTest, ATokenizerWithMoreTokensThanTheModelIsRefused) {
  use(exact_bundle() / "text/tiny.litertlm", test_model("tiny-spm.gguf"));
  expect_contains(open_error(), {"fewer than the", "do not belong together"});
}

TEST_F(LitertTest, SeveralModelsAreRefusedByName) {
  use_exact();
  fs::create_symlink(stock_file(), text() / "other.litertlm");
  expect_contains(open_error(), {"cannot serve", "several", "model.litertlm", "other.litertlm"});
}

TEST_F(LitertTest, ServesLitertlmFilesOnly) {
  const auto* backend = builtin_backends().front();
  ASSERT_STREQ(backend->name(), "litert-lm");
  const TemporaryDirectory bundle;
  const auto serves = [&] { return backend->can_serve(bundle.string().c_str()); };
  EXPECT_FALSE(serves()) << "no text/";
  fs::create_directories(bundle.path() / "text/directory.litertlm");
  fs::create_symlink(stock_file(), bundle.path() / "model.litertlm");
  write_file(bundle.path() / "text/model.gguf", "x");
  EXPECT_FALSE(serves());
  fs::remove_all(bundle.path() / "text/directory.litertlm");
  EXPECT_FALSE(serves());
  fs::create_symlink(stock_file(), bundle.path() / "text/model.litertlm");
  EXPECT_TRUE(serves());
}

// -------------------------------------------------------------- the runtime's library

class AbsentTest : public LitertTest, public testing::WithParamInterface<const char*> {};

INSTANTIATE_TEST_SUITE_P(Libraries, AbsentTest,
                         testing::Values("/nonexistent/liblitert-lm.so", "liblitert-lm.so",
                                         "./liblitert-lm.so", "/dev/null", "/", "/etc/passwd"));

TEST_P(AbsentTest, SelectionFallsThroughAndForcingFails) {
  use_exact();
  const EnvironmentVariable library("ELIZA_LITERT_LM_LIBRARY", GetParam());
  expect_contains(open_error(), {"not available on this host", GetParam()});
  const EnvironmentVariable free("ELIZA_LLM_BACKEND", std::nullopt);
  expect_contains(open_error(), {"no text/*.gguf", "litert-lm (rank 100)", GetParam()});
}

TEST_F(LitertTest, APipeIsNotWaitedFor) {
  use_exact();
  const TemporaryDirectory directory;
  const std::string pipe = (directory.path() / "pipe.so").string();
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const EnvironmentVariable library("ELIZA_LITERT_LM_LIBRARY", pipe);
  expect_contains(open_error(), {"not available on this host", "is not a file"});
}

TEST_F(LitertTest, AnotherLibraryIsNotTheRuntime) {
  use_exact();
  Dl_info other = {};
  ASSERT_NE(dladdr(reinterpret_cast<void*>(&std::malloc), &other), 0);
  const EnvironmentVariable library("ELIZA_LITERT_LM_LIBRARY", other.dli_fname);
  expect_contains(open_error(), {"not available on this host", "version (none)", "0.18.1"});
}

TEST_F(LitertTest, TheWorkingDirectoryIsNotSearched) {
  use_exact();
  const TemporaryDirectory directory;
  fs::create_symlink(given("ELIZA_TEST_LITERT_LIBRARY"), directory.path() / "liblitert-lm.so");
  const std::string problem = outcome_in_child([&]() -> std::string {
    fs::current_path(directory.path());
    const EnvironmentVariable library("ELIZA_LITERT_LM_LIBRARY", std::nullopt);
    return open_error().find("not available") != std::string::npos ? "" : "it was found";
  });
  EXPECT_EQ(problem, "");
}

TEST_F(LitertTest, AvailabilityFollowsTheHost) {
  use_exact();
  for (int round = 0; round < 3; ++round) {
    {
      const EnvironmentVariable library("ELIZA_LITERT_LM_LIBRARY", "/nonexistent.so");
      EXPECT_NE(open_error(), "");
    }
    EXPECT_EQ(open_error(), "");
  }
}

// ----------------------------------------------------------------- accelerators

TEST_F(LitertTest, AnAcceleratorThatIsForcedAndCannotBeIsAnError) {
  use_exact();
  const Output output = output_of([&] {
    for (const char* accelerator : {"npu", "GPU"}) {
      const EnvironmentVariable forced("ELIZA_LITERT_ACCELERATOR", accelerator);
      expect_contains(open_error(),
                      {"ELIZA_LITERT_ACCELERATOR", accelerator[0] == 'n' ? "npu: " : "gpu: "});
    }
  });
  EXPECT_EQ(output.err, "");
}

TEST_F(LitertTest, TheCpuCanBeForced) {
  use_exact();
  const EnvironmentVariable forced("ELIZA_LITERT_ACCELERATOR", "cpu");
  EXPECT_EQ(fresh(abcd).tokens, alphabet);
}

TEST_F(LitertTest, AnUnknownAcceleratorIsRefused) {
  use_exact();
  const EnvironmentVariable forced("ELIZA_LITERT_ACCELERATOR", "tpu");
  expect_contains(open_error(), {"ELIZA_LITERT_ACCELERATOR", "'tpu'", "npu, gpu, cpu"});
}

TEST_F(LitertTest, SelectionTellsWhereItWouldRun) {
  use_exact();
  const EnvironmentVariable unknown("ELIZA_LLM_BACKEND", "none-such");
  expect_contains(open_error(), {"litert-lm (rank 100)", "would run on cpu, token ids exact"});
  use_stock();
  expect_contains(open_error(), {"would run on cpu, token ids approximate"});
}

// ---------------------------------------------------------------- files not to be run

class DamagedFileTest : public LitertTest {
 protected:
  DamagedFileTest() : original_(read_file(stock_file())) {
    std::memcpy(&header_end_, original_.data() + 24, sizeof header_end_);
  }

  // "" where a stream opens and generates, or is refused with a message that names the file.
  std::string outcome_of(const std::string& content) {
    const fs::path file = directory_.path() / "damaged.litertlm";
    write_file(file, content);
    use(file);
    const Config config = {};
    OwnedMessage message;
    const Stream stream(eliza_inference_llm_stream_open(ctx_.get(), &config, message.out()));
    if (!stream) {
      return message.text().find("model.litertlm") != std::string::npos ? "" : message.text();
    }
    if (try_prefill(stream, abcd) == ELIZA_OK) next(stream);
    return "";
  }

  const std::string original_;
  uint64_t header_end_ = 0;
  TemporaryDirectory directory_;
};

TEST_F(DamagedFileTest, EveryTruncationIsRefusedOrRuns) {
  std::vector<size_t> lengths = {0, 1, 7, 8, 9, 20, 24, 31, 32, 33, 40, 100};
  for (const size_t edge : {size_t{header_end_}, size_t{16384}, size_t{16407}, size_t{32768},
                            size_t{49152}, size_t{51281}, size_t{65536}, original_.size()}) {
    for (const int off : {-100, -1, 0, 1, 100}) {
      const size_t length = edge + static_cast<size_t>(off);
      if (length <= original_.size()) lengths.push_back(length);
    }
  }
  const auto problems = problems_in_children(
      lengths.size(),
      [&](size_t number) { return outcome_of(original_.substr(0, lengths[number])); },
      [&](size_t number) { return "cut to " + std::to_string(lengths[number]); });
  EXPECT_EQ(problems, std::vector<std::string>());
  // Whatever is missing at the end belongs to a section.
  use_stock();
  write_file(directory_.path() / "cut.litertlm", original_.substr(0, original_.size() - 1));
  use(directory_.path() / "cut.litertlm");
  expect_contains(open_error(), {"cannot serve", "truncated"});
}

TEST_F(DamagedFileTest, AHeaderWithFlippedBytesDoesNotEndTheProcess) {
  constexpr size_t files = 300;
  const auto problems = problems_in_children(
      files,
      [&](size_t number) {
        std::mt19937 random(static_cast<unsigned>(number));
        std::string content = original_;
        for (int flips = 1 + static_cast<int>(random() % 4); flips > 0; --flips) {
          content[random() % header_end_] = static_cast<char>(random());
        }
        return outcome_of(content);
      },
      [](size_t number) { return "seed " + std::to_string(number); });
  EXPECT_EQ(problems, std::vector<std::string>());
}

// The section behind the header holds the description of the model, in 23 bytes.
TEST_F(DamagedFileTest, NoByteOfTheDescriptionEndsTheProcess) {
  constexpr size_t begin = 16384;
  constexpr size_t size = 23;
  const auto problems = problems_in_children(
      size * 16,
      [&](size_t number) {
        std::string content = original_;
        content[begin + number / 16] = static_cast<char>(number % 16 * 17 + number / 16);
        return outcome_of(content);
      },
      [](size_t number) { return "byte " + std::to_string(number / 16); });
  EXPECT_EQ(problems, std::vector<std::string>());
}

TEST_F(DamagedFileTest, SaysWhatIsWrong) {
  std::string content = original_;
  content[0] = 'X';
  write_file(directory_.path() / "a.litertlm", content);
  use(directory_.path() / "a.litertlm");
  expect_contains(open_error(), {"is not a LiteRT-LM file"});
  content = original_;
  content[8] = 9;
  write_file(directory_.path() / "b.litertlm", content);
  use(directory_.path() / "b.litertlm");
  expect_contains(open_error(), {"version 9"});
}

// ------------------------------------------------------------- engines and memory

TEST_F(LitertTest, StreamsOfAContextShareAnEngineUntilItIsEvicted) {
  use_exact();
  const auto* backend = builtin_backends().front();
  const auto engine_of = [&] {
    return llm_backend_context_kept(ctx_.get(), backend, [] { return nullptr; });
  };
  EXPECT_EQ(engine_of(), nullptr);
  ASSERT_EQ(eliza_inference_mmap_acquire(ctx_.get(), "text", nullptr), ELIZA_OK);
  const void* const loaded = engine_of().get();
  EXPECT_NE(loaded, nullptr);
  const Stream stream = open_stream(ctx_);
  EXPECT_EQ(engine_of().get(), loaded);
  ASSERT_EQ(eliza_inference_mmap_evict(ctx_.get(), "text", nullptr), ELIZA_OK);
  EXPECT_EQ(engine_of(), nullptr);
  prefill(stream, abcd);
  EXPECT_EQ(generate(stream).tokens, alphabet) << "the stream holds its engine";
  EXPECT_EQ(fresh(abcd).tokens, alphabet);
}

TEST_F(LitertTest, AShelfLoadsAnEngineOnce) {
  use_exact();
  const auto runtime = litert::open_runtime();
  const auto file = litert::find_model_file(bundle_->string());
  litert::EngineShelf shelf;
  auto options = litert::read_engine_options();
  std::vector<std::shared_ptr<const litert::LoadedEngine>> engines(4);
  std::vector<std::thread> threads;
  for (auto& engine : engines) {
    threads.emplace_back([&] { engine = shelf.acquire(runtime, file, options); });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& engine : engines) EXPECT_EQ(engine, engines.front());
  options.context_size = 100;
  const auto other = shelf.acquire(runtime, file, options);
  EXPECT_NE(other, engines.front());
  EXPECT_EQ(other->context_size(), 100);
  EXPECT_EQ(other->prefill_length(), 32) << "the largest signature of the file";
}

TEST_F(LitertTest, AFileThatIsReplacedIsLoadedAnew) {
  const TemporaryDirectory directory;
  const fs::path file = directory.path() / "model.litertlm";
  fs::copy_file(stock_file(), file);
  use(file);
  EXPECT_EQ(fresh(abcd, 3).text, " e f g");
  fs::copy_file(exact_bundle() / "text/tiny.litertlm", directory.path() / "new");
  fs::rename(directory.path() / "new", file);
  expect_contains(open_error(), {"has no tokenizer"});
}

// Of this process, in KiB.
long resident() {
  std::ifstream status("/proc/self/statm");
  long size = 0;
  long pages = 0;
  status >> size >> pages;
  return pages * 4;
}

TEST_F(LitertTest, MemoryStaysFlatOver500Cycles) {
  use_exact();
  const auto cycles = [&](int count) {
    for (int i = 0; i < count; ++i) fresh(abcd, 3);
  };
  cycles(100);
  const long before = resident();
  cycles(500);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LE(resident() - before, 2048);
#endif
}

TEST_F(LitertTest, ContextsComeAndGoInParallel) {
  use_exact();
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int number = 0; number < 4; ++number) {
    threads.emplace_back([&] {
      for (int round = 0; round < 5; ++round) {
        const Context ctx = create_context(bundle_->string());
        const Stream stream = open_stream(ctx);
        prefill(stream, abcd);
        wrong += generate(stream).tokens != alphabet;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace eliza::test
