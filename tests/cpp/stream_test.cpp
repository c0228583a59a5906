#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "model_fixture.h"
#include "test_support.h"

// What is particular to streams and the tokenizer of the in-tree llama.cpp path, through the C ABI.
// What they share with every runtime is in contract_test.cpp.

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

class ScriptedStreamTest : public StreamTest {
 protected:
  ScriptedStreamTest() { load("chain-spm.gguf"); }
  const Chain loop_ = read_chain("loop");
  const Chain smile_ = read_chain("smile");
};

TEST_F(ScriptedStreamTest, TextOfAnUnfinishedCharacterSurvivesAPrefill) {
  const Stream stream = open();
  prefill(stream, {smile_.start});
  EXPECT_EQ(generate(stream, 3).text, " ");  // two bytes of the emoji wait
  prefill(stream, {smile_.tokens[2]});       // the same place again
  EXPECT_EQ(generate(stream, 2).text, "\U0001f600");
}

TEST_F(ScriptedStreamTest, SmallestContextHoldsOneToken) {
  const EnvironmentVariable context("ELIZA_LLM_N_CTX", "1");
  const Stream stream = open();
  EXPECT_EQ(try_prefill(stream, {5, 6}), ELIZA_ERR_INVALID_ARG);
  prefill(stream, {loop_.start});
  EXPECT_EQ(next(stream).status, 1);
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

// ---------------------------------------------------------------- random models

struct ModelCase {
  const char* file;
  size_t prompt_length;
};

void PrintTo(const ModelCase& model, std::ostream* out) { *out << model.file; }

class ModelTest : public StreamTest, public testing::WithParamInterface<ModelCase> {
 protected:
  ModelTest() { load(GetParam().file); }

  Tokens prompt() const { return random_tokens(GetParam().prompt_length, 10, 250); }

  // The plain kernels give a token the same state in every batch. See AttentionTest.
  EnvironmentVariable attention_{"ELIZA_LLM_FLASH_ATTN", "off"};
};

INSTANTIATE_TEST_SUITE_P(Models, ModelTest,
                         testing::Values(ModelCase{"tiny-bpe.gguf", 60},
                                         ModelCase{"tiny-spm.gguf", 60},
                                         ModelCase{"tiny-swa.gguf", 12},
                                         ModelCase{"tiny-swa.gguf", 300}));

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

// --------------------------------------------------------- a vocabulary in its own file

class TokenizerFileTest : public StreamTest {
 protected:
  void add_tokenizer(const std::string& name, const std::string& model) {
    std::filesystem::create_symlink(test_model(model), bundle_->path() / "text" / name);
  }
};

TEST_F(TokenizerFileTest, ServesABundleWithoutAGguf) {
  load("tiny-bpe.gguf");
  const Tokens expected = tokenize(ctx_, "Hello world");
  bundle_ = std::make_unique<TemporaryDirectory>();
  std::filesystem::create_directories(bundle_->path() / "text");
  add_tokenizer("model.tokenizer", "tiny-bpe.gguf");
  ctx_ = create_context(bundle_->string());
  EXPECT_EQ(tokenize(ctx_, "Hello world"), expected);
  EXPECT_THROW(open(), std::runtime_error);
}

TEST_F(TokenizerFileTest, IsNotLookedAtWhereTheGgufAnswers) {
  load("tiny-bpe.gguf");
  const Tokens expected = tokenize(ctx_, "Hello world");
  add_tokenizer("other.tokenizer", "tiny-spm.gguf");
  EXPECT_EQ(tokenize(ctx_, "Hello world"), expected);
  write_file(bundle_->path() / "text/junk.tokenizer", "junk");
  EXPECT_EQ(tokenize(ctx_, "Hello world"), expected);
  EXPECT_EQ(tokenize(create_context(bundle_->string()), "Hello world"), expected);
}

TEST_F(TokenizerFileTest, IsRefusedByNameWhereItIsNoneOrOneOfSeveral) {
  bundle_ = std::make_unique<TemporaryDirectory>();
  write_file(bundle_->path() / "text/junk.tokenizer", "junk");
  ctx_ = create_context(bundle_->string());
  const auto problem = [&]() -> std::string {
    try {
      tokenize(ctx_, "a");
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(problem().find("junk.tokenizer"), std::string::npos) << problem();
  add_tokenizer("other.tokenizer", "tiny-spm.gguf");
  EXPECT_NE(problem().find("several tokenizers"), std::string::npos) << problem();
}

TEST_F(TokenizerFileTest, IsLoadedAnewWhereItWasReplaced) {
  bundle_ = std::make_unique<TemporaryDirectory>();
  std::filesystem::create_directories(bundle_->path() / "text");
  add_tokenizer("model.tokenizer", "tiny-spm.gguf");
  ctx_ = create_context(bundle_->string());
  const Tokens before = tokenize(ctx_, "Hello world");
  std::filesystem::remove(bundle_->path() / "text/model.tokenizer");
  std::filesystem::copy_file(test_model("tiny-bpe.gguf"), bundle_->path() / "text/model.tokenizer");
  EXPECT_NE(tokenize(ctx_, "Hello world"), before);
}

}  // namespace
}  // namespace eliza::test
