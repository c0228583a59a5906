#include <gtest/gtest.h>

#include "ffi/handles.h"
#include "model_fixture.h"
#include "slot_bytes.h"
#include "test_support.h"

// Streams with a slot_id or a prompt_cache_key take up what the last one of that key left. Nobody
// may see it in what they say.

namespace eliza::test {
namespace {

using Config = eliza_llm_stream_config_t;

Config keyed(const char* key, int32_t slot_id = -1, Config config = {}) {
  config.prompt_cache_key = key;
  config.slot_id = slot_id;
  return config;
}

// The bits that decide the next token: the logits in a slot file; empty where it has none.
std::string logits_of(const Stream& stream) {
  const TemporaryDirectory folder;
  const auto path = folder.path() / "slot";
  OwnedMessage error;
  if (eliza_inference_llm_stream_save_slot(stream.get(), path.c_str(), error.out()) != ELIZA_OK) {
    throw std::runtime_error(error.text());
  }
  return logits_in(read_file(path));
}

bool has_logits(const Stream& stream) { return !logits_of(stream).empty(); }

class ReuseTest : public DraftingFixture {
 protected:
  Stream open(const Config& config) { return open_stream(ctx_, config); }

  Generation generated(const Tokens& prompt, size_t limit, const Config& config) {
    const Stream stream = open(config);
    prefill(stream, prompt);
    return generate(stream, limit);
  }

  Tokens fresh(const Tokens& prompt, size_t limit, const Config& config = {}) {
    return DraftingFixture::fresh(prompt, limit, config).tokens;
  }

  std::string fresh_logits(const Tokens& prompt, const Config& config = {}) {
    const Stream stream = open(unkeyed(config));
    prefill(stream, prompt);
    return logits_of(stream);
  }

  // Opens with the key, decodes and closes.
  void use(const Config& config, const Tokens& prompt, size_t limit = 5) {
    generated(prompt, limit, config);
  }

  // What is parked under `key`, as the pool names it: "SLOT_ID\nKEY", or KEY without a slot.
  Tokens parked(const std::string& key) {
    llama::Decoder::Shape shape;
    shape.context_size = 8192;
    shape.batch_size = 512;
    shape.threads = 1;
    shape.outputs = 1;
    shape.cache_type_k = shape.cache_type_v = 1;
    shape.flash_attention = -1;
    auto decoder = ctx_->decoders->take(ctx_->text_model.acquire_any(), shape, key);
    Tokens tokens = decoder->tokens();
    ctx_->decoders->give_back(std::move(decoder), key, {100, size_t{1} << 30});
    return tokens;
  }
};

struct ModelCase {
  const char* file;
  size_t system_prompt;
};

void PrintTo(const ModelCase& model, std::ostream* out) {
  *out << model.file << " " << model.system_prompt;
}

class ModelReuseTest : public ReuseTest, public testing::WithParamInterface<ModelCase> {
 protected:
  ModelReuseTest() { load(GetParam().file); }

  const Tokens prompt_ = random_tokens(GetParam().system_prompt, 10, 250);
};

INSTANTIATE_TEST_SUITE_P(Models, ModelReuseTest,
                         testing::Values(ModelCase{"tiny-bpe.gguf", 120},
                                         ModelCase{"tiny-spm.gguf", 33},
                                         ModelCase{"tiny-swa.gguf", 10},
                                         ModelCase{"tiny-swa.gguf", 200},
                                         ModelCase{"tiny-mtp.gguf", 60}));

// A consumer that opens and closes a stream for each turn.
TEST_P(ModelReuseTest, TenGrowingTurnsSayWhatTheySayWithoutReuse) {
  const std::string drafter = test_model(GetParam().file).string();
  Config ngram = {};
  ngram.draft_max = 8;
  Config model = sampled_config();
  model.mtp_drafter_path = drafter.c_str();
  for (const Config& config : {Config{}, sampled_config(), ngram, model}) {
    for (const Config& with_key :
         {keyed("chat", -1, config), keyed(nullptr, 4, config), keyed("chat", 0, config)}) {
      Tokens history = prompt_;
      for (uint32_t turn = 0; turn < 10; ++turn) {
        const Tokens plainly = first_of(fresh(history, 12, config), 12);
        const Tokens got = first_of(generated(history, 12, with_key).tokens, 12);
        ASSERT_EQ(got, plainly) << "turn " << turn;
        history =
            concatenated(concatenated(history, got), random_tokens(3 + 2 * turn, 10, 250, turn));
      }
      use(with_key, {20});  // so that the next kind begins without the history
    }
  }
}

TEST_P(ModelReuseTest, ReuseIsExactToTheBit) {
  const Tokens other = random_tokens(80, 10, 250, 11);
  const size_t size = prompt_.size();
  for (const size_t common :
       {size_t{0}, size_t{1}, size_t{7}, size / 2, size - 5, size - 1, size}) {
    if (common > size) continue;
    for (const size_t added : {0, 1, 15, 17, 50}) {
      if (common + added == 0) continue;
      use(keyed("chat"), prompt_);
      const Tokens prompt = concatenated(first_of(prompt_, common), first_of(other, added));
      SCOPED_TRACE(std::to_string(common) + " tokens in common and " + std::to_string(added));
      EXPECT_EQ(generated(prompt, 10, keyed("chat")).tokens, fresh(prompt, 10));
      use(keyed("chat"), prompt_);
      const Stream stream = open(keyed("chat"));
      prefill(stream, prompt);
      if (!has_logits(stream)) continue;  // all of it is there, and the first step decodes
      EXPECT_TRUE(logits_of(stream) == fresh_logits(prompt));
    }
  }
}

TEST_P(ModelReuseTest, PromptMayComeInParts) {
  for (const size_t cut : {size_t{1}, prompt_.size() / 2, prompt_.size() - 1}) {
    use(keyed("chat"), prompt_);
    const Stream stream = open(keyed("chat"));
    prefill(stream, first_of(prompt_, cut));
    prefill(stream, rest_of(prompt_, cut));
    prefill(stream, {30, 31});
    EXPECT_EQ(generate(stream, 15).tokens, fresh(concatenated(prompt_, {30, 31}), 15)) << cut;
  }
  // Also where the first part is all of it, and a step comes in between.
  use(keyed("chat"), prompt_);
  const Stream stream = open(keyed("chat"));
  prefill(stream, first_of(prompt_, 5));
  EXPECT_EQ(generate(stream, 15).tokens, fresh(first_of(prompt_, 5), 15));
}

// A part of a few tokens alone would go through other kernels than as the end of a long prompt.
TEST_P(ModelReuseTest, ShortPartsAreAsGoodAsAWholePrompt) {
  const Tokens whole = concatenated(prompt_, random_tokens(40, 10, 250, 5));
  const auto in_parts = [&](const Config& config) {
    const Stream stream = open(config);
    for (size_t begin = 0, size = prompt_.size(); begin < whole.size(); begin += size, size = 5) {
      prefill(stream, first_of(rest_of(whole, begin), size));
    }
    return has_logits(stream) ? logits_of(stream) : std::string();
  };
  const std::string expected = fresh_logits(whole);
  EXPECT_TRUE(in_parts(unkeyed()) == expected);
  EXPECT_TRUE(in_parts(keyed("chat")) == expected);
}

TEST_P(ModelReuseTest, TwoStreamsWithOneKeyDoNotShare) {
  use(keyed("chat"), prompt_);
  const Stream first = open(keyed("chat"));
  const Stream second = open(keyed("chat"));
  const Tokens one = concatenated(prompt_, {30, 31});
  const Tokens two = concatenated(prompt_, {40});
  prefill(first, one);
  prefill(second, two);
  Tokens said_first;
  Tokens said_second;
  for (int step = 0; step < 15; ++step) {
    said_first = concatenated(said_first, next(first).tokens);
    said_second = concatenated(said_second, next(second).tokens);
  }
  EXPECT_EQ(said_first, fresh(one, 15));
  EXPECT_EQ(said_second, fresh(two, 15));
}

TEST_P(ModelReuseTest, CloseOfACancelledOrHalfFinishedStreamIsHarmless) {
  for (int kind = 0; kind < 4; ++kind) {
    {
      const Stream stream = open(keyed("chat"));
      prefill(stream, prompt_);
      for (int step = 0; step < 3; ++step) next(stream, 1, 1);
      if (kind == 1) eliza_inference_llm_stream_cancel(stream.get());
      if (kind == 2) eliza_inference_llm_stream_reset(stream.get());
      if (kind == 3) eliza_inference_llm_stream_reset_keep(stream.get(), 5);
    }
    EXPECT_EQ(generated(concatenated(prompt_, {30}), 15, keyed("chat")).tokens,
              fresh(concatenated(prompt_, {30}), 15))
        << kind;
  }
}

TEST_P(ModelReuseTest, OtherSettingsGetNothing) {
  const std::pair<const char*, const char*> variables[] = {{"ELIZA_LLM_N_CTX", "512"},
                                                           {"ELIZA_LLM_N_BATCH", "7"},
                                                           {"ELIZA_LLM_N_BATCH", "64"},
                                                           {"ELIZA_LLM_THREADS", "2"},
                                                           {"ELIZA_LLM_FLASH_ATTN", "off"}};
  Config floats = {};
  floats.cache_type_k = floats.cache_type_v = "f32";
  for (const auto& [name, value] : variables) {
    use(keyed("chat"), prompt_);
    const EnvironmentVariable variable(name, value);
    const Tokens longer = concatenated(prompt_, {30});
    EXPECT_EQ(generated(longer, 15, keyed("chat")).tokens, fresh(longer, 15)) << name << value;
  }
  for (const Config& config : {floats, Config{}}) {
    const Tokens longer = concatenated(prompt_, {30});
    EXPECT_EQ(generated(longer, 15, keyed("chat", -1, config)).tokens, fresh(longer, 15, config));
  }
}

TEST_P(ModelReuseTest, DraftingStreamsTakeUpPlainOnesAndBack) {
  const std::string drafter = test_model(GetParam().file).string();
  Config drafting = {};
  drafting.draft_max = 8;
  drafting.mtp_drafter_path = drafter.c_str();
  Tokens history = prompt_;
  for (int turn = 0; turn < 6; ++turn) {
    const Config& config = turn % 2 == 0 ? drafting : Config{};
    const Tokens got = first_of(generated(history, 12, keyed("chat", -1, config)).tokens, 12);
    EXPECT_EQ(got, fresh(history, 12)) << turn;
    history = concatenated(concatenated(history, got), {30, 31, 32});
  }
}

// ------------------------------------------------------------------ cuts and batches

class BatchTest : public ReuseTest, public testing::WithParamInterface<const char*> {
 protected:
  EnvironmentVariable batch_{"ELIZA_LLM_N_BATCH", GetParam()};
};

INSTANTIATE_TEST_SUITE_P(Sizes, BatchTest, testing::Values("1", "7", "16", "17", "100", "512"));

TEST_P(BatchTest, ResetKeepEqualsAFreshStreamToTheBit) {
  for (const char* model : {"tiny-bpe.gguf", "tiny-swa.gguf"}) {
    load(model);
    const Tokens prompt = random_tokens(130, 10, 250);
    const Stream stream = open(unkeyed());
    for (const size_t cut : {1,   3,   4,   7,   15,  16,  17,  33,  64,  99,  100,
                             101, 112, 113, 115, 119, 127, 128, 129, 130, 131, 134}) {
      for (const size_t added : {1, 19}) {
        eliza_inference_llm_stream_reset(stream.get());
        prefill(stream, prompt);
        const Tokens all = concatenated(prompt, generate(stream, 5).tokens);
        ASSERT_EQ(eliza_inference_llm_stream_reset_keep(stream.get(), static_cast<int32_t>(cut)),
                  static_cast<int32_t>(cut));
        const Tokens delta = random_tokens(added, 10, 250, 3);
        prefill(stream, delta);
        const bool same =
            logits_of(stream) == fresh_logits(concatenated(first_of(all, cut), delta));
        EXPECT_TRUE(same) << model << " cut " << cut << " added " << added;
      }
    }
  }
}

TEST_P(BatchTest, ReopenedStreamEqualsAFreshOneToTheBit) {
  for (const char* model : {"tiny-bpe.gguf", "tiny-swa.gguf"}) {
    load(model);
    Tokens history = random_tokens(90, 10, 250);
    for (uint32_t turn = 0; turn < 12; ++turn) {
      const Stream stream = open(keyed("chat"));
      prefill(stream, history);
      next(stream);
      const Tokens longer = concatenated(history, random_tokens(1 + turn * 3, 10, 250, turn));
      eliza_inference_llm_stream_reset(stream.get());
      prefill(stream, longer);
      EXPECT_TRUE(logits_of(stream) == fresh_logits(longer)) << model << " turn " << turn;
      history = longer;
      // Every third turn forgets the end.
      if (turn % 3 == 2) history.resize(history.size() - 10);
    }
  }
}

// ------------------------------------------------------------------------- keys

class KeyTest : public ReuseTest {
 protected:
  KeyTest() { load("tiny-bpe.gguf"); }
  const Tokens prompt_ = random_tokens(40, 10, 250);
};

TEST_F(KeyTest, CloseParksThePromptAndOpenTakesIt) {
  EXPECT_EQ(parked("chat"), Tokens());
  use(keyed("chat"), prompt_);
  EXPECT_EQ(parked("chat"), prompt_);
  const Stream stream = open(keyed("chat"));
  EXPECT_EQ(parked("chat"), Tokens()) << "it belongs to the stream now";
}

TEST_F(KeyTest, StreamsWithoutAKeyLeaveNothing) {
  use(unkeyed(), prompt_);
  EXPECT_EQ(parked(""), Tokens());
  EXPECT_EQ(parked("-1\n"), Tokens());
}

TEST_F(KeyTest, SlotAndKeyAreOneNameTogether) {
  use(keyed("a", 1), first_of(prompt_, 20));
  use(keyed("a", 2), first_of(prompt_, 24));
  use(keyed("a"), first_of(prompt_, 28));
  use(keyed(nullptr, 1), first_of(prompt_, 32));
  use(keyed("1"), first_of(prompt_, 36));
  EXPECT_EQ(parked("1\na").size(), 20u);
  EXPECT_EQ(parked("2\na").size(), 24u);
  EXPECT_EQ(parked("a").size(), 28u);
  EXPECT_EQ(parked("1\n").size(), 32u);
  EXPECT_EQ(parked("1").size(), 36u);
  EXPECT_EQ(parked("2\n").size(), 0u);
}

TEST_F(KeyTest, LastOneClosedCounts) {
  {
    const Stream first = open(keyed("chat"));
    const Stream second = open(keyed("chat"));
    prefill(first, first_of(prompt_, 20));
    prefill(second, first_of(prompt_, 32));
  }  // closes the second one first
  EXPECT_EQ(parked("chat").size(), 20u);
}

TEST_F(KeyTest, ContextsDoNotShareKeys) {
  const Context other = create_context(bundle_->string());
  {
    const Stream stream = open_stream(other, keyed("chat"));
    prefill(stream, prompt_);
  }
  EXPECT_EQ(parked("chat"), Tokens());
}

TEST_F(KeyTest, CountIsBoundedAndTheLeastRecentlyUsedGoes) {
  const EnvironmentVariable slots("ELIZA_LLM_CACHE_SLOTS", "2");
  use(keyed("a"), prompt_);
  use(keyed("b"), prompt_);
  use(keyed("a"), prompt_);
  use(keyed("c"), prompt_);
  EXPECT_EQ(parked("b"), Tokens());
  EXPECT_EQ(parked("a"), prompt_);
  EXPECT_EQ(parked("c"), prompt_);
}

TEST_F(KeyTest, LimitsOfZeroKeepNothingAndChangeNothing) {
  for (const char* name : {"ELIZA_LLM_CACHE_SLOTS", "ELIZA_LLM_CACHE_MB"}) {
    const EnvironmentVariable variable(name, "0");
    Tokens history = prompt_;
    for (int turn = 0; turn < 3; ++turn) {
      const Tokens got = generated(history, 10, keyed("chat")).tokens;
      EXPECT_EQ(parked("chat"), Tokens()) << name;
      EXPECT_EQ(got, fresh(history, 10));
      history = concatenated(history, got);
    }
  }
}

TEST_F(KeyTest, RestoredStreamParksWhatItRestored) {
  const TemporaryDirectory folder;
  const std::string slot = (folder.path() / "slot").string();
  {
    const Stream stream = open(keyed("chat"));
    prefill(stream, prompt_);
    ASSERT_EQ(eliza_inference_llm_stream_save_slot(stream.get(), slot.c_str(), nullptr), ELIZA_OK);
  }
  {
    const Stream stream = open(keyed("other"));
    ASSERT_EQ(eliza_inference_llm_stream_restore_slot(stream.get(), slot.c_str(), nullptr),
              ELIZA_OK);
    generate(stream, 5);
  }
  EXPECT_EQ(parked("other"), prompt_);
  const Tokens longer = concatenated(prompt_, {30, 31});
  EXPECT_EQ(generated(longer, 15, keyed("other")).tokens, fresh(longer, 15));
}

TEST_F(KeyTest, StreamThatWasOnlyOpenedIsEmpty) {
  use(keyed("chat"), prompt_);
  const TemporaryDirectory folder;
  const std::string slot = (folder.path() / "slot").string();
  const Stream stream = open(keyed("chat"));
  EXPECT_EQ(next(stream).status, ELIZA_ERR_INVALID_ARG) << "the parked prompt is not its own";
  EXPECT_EQ(eliza_inference_llm_stream_reset_keep(stream.get(), 40), 0);
  ASSERT_EQ(eliza_inference_llm_stream_save_slot(stream.get(), slot.c_str(), nullptr), ELIZA_OK);
  const Stream other = open(unkeyed());
  ASSERT_EQ(eliza_inference_llm_stream_restore_slot(other.get(), slot.c_str(), nullptr), ELIZA_OK);
  EXPECT_EQ(next(other).status, ELIZA_ERR_INVALID_ARG);
}

TEST_F(KeyTest, OpenedAndClosedUnusedKeepsWhatWasParked) {
  use(keyed("chat"), prompt_);
  open(keyed("chat"));
  EXPECT_EQ(parked("chat"), prompt_);
}

TEST_F(KeyTest, StreamsMayOutliveTheirContext) {
  const Tokens expected = fresh(prompt_, 10);
  Stream used = open(keyed("a"));
  Stream unused = open(keyed("b"));
  prefill(used, prompt_);
  ctx_.reset();
  EXPECT_EQ(generate(used, 10).tokens, expected);
  unused.reset();
  used.reset();
}

// ------------------------------------------------------------------------ memory

std::weak_ptr<const llama::Model> model_of(const Context& ctx) {
  return ctx->text_model.acquire_any();
}

TEST_F(KeyTest, EvictFreesTheModelThatParkedStreamsUsed) {
  use(keyed("chat"), prompt_);
  const auto model = model_of(ctx_);
  ASSERT_EQ(eliza_inference_mmap_evict(ctx_.get(), "text", nullptr), ELIZA_OK);
  EXPECT_TRUE(model.expired());
  EXPECT_EQ(generated(prompt_, 10, keyed("chat")).tokens, fresh(prompt_, 10));
}

TEST_F(KeyTest, EvictedModelIsFreedWithItsLastStream) {
  Stream stream = open(keyed("chat"));
  prefill(stream, prompt_);
  const auto model = model_of(ctx_);
  ASSERT_EQ(eliza_inference_mmap_evict(ctx_.get(), "text", nullptr), ELIZA_OK);
  EXPECT_FALSE(model.expired());
  stream.reset();
  EXPECT_TRUE(model.expired()) << "the context still holds what the stream left";
}

TEST_F(KeyTest, ContextFreesWhatItKept) {
  use(keyed("chat"), prompt_);
  use(unkeyed(), prompt_);
  const auto model = model_of(ctx_);
  ctx_.reset();
  EXPECT_TRUE(model.expired());
}

TEST_F(KeyTest, LastStreamFreesTheModelOfADestroyedContext) {
  Stream stream = open(keyed("chat"));
  prefill(stream, prompt_);
  const auto model = model_of(ctx_);
  ctx_.reset();
  EXPECT_FALSE(model.expired());
  stream.reset();
  EXPECT_TRUE(model.expired());
}

TEST_F(KeyTest, EvictFreesTheDrafterToo) {
  const std::string path = test_model("tiny-bpe-draft.gguf").string();
  Config config = {};
  config.mtp_drafter_path = path.c_str();
  use(config, prompt_);
  const std::weak_ptr<const llama::Model> drafter =
      ctx_->drafter.acquire(path, ctx_->text_model.acquire_any());
  EXPECT_FALSE(drafter.expired());
  ASSERT_EQ(eliza_inference_mmap_evict(ctx_.get(), "text", nullptr), ELIZA_OK);
  EXPECT_TRUE(drafter.expired());
}

// ---------------------------------------------------------------------- the pool

class PoolTest : public testing::Test {
 protected:
  using Pool = llama::DecoderPool;
  using Decoder = llama::Decoder;

  static std::shared_ptr<const llama::Model> model_at(const char* file) {
    return std::make_shared<const llama::Model>(test_model(file).string(), 0);
  }

  static Decoder::Shape shape_of(int32_t context_size) {
    Decoder::Shape shape;
    shape.context_size = context_size;
    shape.batch_size = 64;
    shape.threads = 1;
    shape.outputs = 1;
    shape.cache_type_k = shape.cache_type_v = 1;
    shape.flash_attention = -1;
    return shape;
  }

  std::unique_ptr<Decoder> take(const std::string& key) { return pool_.take(model_, shape_, key); }

  // Parks the first `count` tokens under `key`.
  void park(const std::string& key, size_t count, const Pool::Limits& limits) {
    auto decoder = take(key);
    decoder->clear();
    const Tokens tokens = first_of(tokens_, count);
    while (decoder->tokens().size() < count) decoder->decode_some_of(tokens);
    pool_.give_back(std::move(decoder), key, limits);
  }

  bool has(const std::string& key) {
    auto decoder = take(key);
    const bool found = !decoder->tokens().empty();
    pool_.give_back(std::move(decoder), key, no_limits_);
    return found;
  }

  const Pool::Limits no_limits_{1000, size_t{1} << 30};
  const std::shared_ptr<const llama::Model> model_ = model_at("tiny-bpe.gguf");
  const Decoder::Shape shape_ = shape_of(512);
  const Tokens tokens_ = random_tokens(256, 10, 250);
  Pool pool_;
};

TEST_F(PoolTest, SpareDecoderServesTheNextAndIsEmpty) {
  auto decoder = take("");
  const Decoder* const first = decoder.get();
  decoder->decode_some_of({20, 21});
  pool_.give_back(std::move(decoder), "", no_limits_);
  decoder = take("");
  EXPECT_EQ(decoder.get(), first);
  EXPECT_TRUE(decoder->tokens().empty());
  EXPECT_NE(take("").get(), first) << "it is taken";
}

TEST_F(PoolTest, DecoderOfAnotherShapeOrModelIsNotTaken) {
  auto decoder = take("");
  const Decoder* const first = decoder.get();
  pool_.give_back(std::move(decoder), "", no_limits_);
  for (int field = 0; field < 7; ++field) {
    auto shape = shape_;
    if (field == 0) shape.context_size = 256;
    if (field == 1) shape.batch_size = 32;
    if (field == 2) shape.threads = 2;
    if (field == 3) shape.outputs = 16;
    if (field == 4) shape.cache_type_k = 0;
    if (field == 5) shape.cache_type_v = 0;
    if (field == 6) shape.flash_attention = 0;
    const auto other = pool_.take(model_, shape, "");
    EXPECT_NE(other.get(), first) << field;
    EXPECT_TRUE(other->shape() == shape) << field;
  }
  EXPECT_NE(pool_.take(model_at("tiny-bpe.gguf"), shape_, "").get(), first);
  EXPECT_EQ(take("").get(), first);
}

TEST_F(PoolTest, StateIsTakenOnceAndByItsKeyOnly) {
  park("a", 64, no_limits_);
  EXPECT_TRUE(take("b")->tokens().empty());
  EXPECT_TRUE(take("")->tokens().empty());
  const auto decoder = take("a");
  EXPECT_EQ(decoder->tokens(), first_of(tokens_, 64));
  EXPECT_TRUE(take("a")->tokens().empty());
}

TEST_F(PoolTest, StateGoesToAnyDecoderThatComputesTheSame) {
  park("a", 64, no_limits_);
  auto shape = shape_;
  shape.threads = 2;
  shape.outputs = 16;
  EXPECT_EQ(pool_.take(model_, shape, "a")->tokens().size(), 64u);
  for (int field = 0; field < 5; ++field) {
    park("a", 64, no_limits_);
    shape = shape_;
    if (field == 0) shape.context_size = 256;
    if (field == 1) shape.batch_size = 32;
    if (field == 2) shape.cache_type_k = 0;
    if (field == 3) shape.cache_type_v = 0;
    if (field == 4) shape.flash_attention = 0;
    EXPECT_TRUE(pool_.take(model_, shape, "a")->tokens().empty()) << field;
  }
  park("a", 64, no_limits_);
  EXPECT_TRUE(pool_.take(model_at("tiny-bpe.gguf"), shape_, "a")->tokens().empty());
}

TEST_F(PoolTest, KeyHasOneState) {
  park("a", 64, no_limits_);
  {
    auto decoder = pool_.take(model_, shape_, "");  // and not what "a" has
    decoder->decode_some_of(first_of(tokens_, 32));
    pool_.give_back(std::move(decoder), "a", no_limits_);
  }
  EXPECT_EQ(take("a")->tokens().size(), 32u);
  EXPECT_TRUE(take("a")->tokens().empty());
}

TEST_F(PoolTest, CountIsBounded) {
  const Pool::Limits three{3, size_t{1} << 30};
  for (const char* key : {"a", "b", "c", "d"}) park(key, 32, three);
  EXPECT_FALSE(has("a"));
  park("b", 32, three);  // used again
  park("e", 32, three);
  EXPECT_FALSE(has("c"));
  for (const char* key : {"b", "d", "e"}) EXPECT_TRUE(has(key)) << key;
}

TEST_F(PoolTest, LowerLimitCountsFromTheNextCloseOn) {
  for (const char* key : {"a", "b", "c", "d"}) park(key, 32, no_limits_);
  park("e", 32, {2, size_t{1} << 30});
  for (const char* key : {"a", "b", "c"}) EXPECT_FALSE(has(key)) << key;
  for (const char* key : {"d", "e"}) EXPECT_TRUE(has(key)) << key;
}

TEST_F(PoolTest, BytesAreBounded) {
  const size_t decoder = take("")->bytes();
  ASSERT_GT(decoder, 0u);
  size_t state = 0;
  {
    auto measured = take("");
    while (measured->tokens().size() < 256) measured->decode_some_of(tokens_);
    state = measured->save().bytes();
  }
  // Room for the decoder and two states, but not for three.
  const Pool::Limits limits{1000, decoder + 2 * state + state / 2};
  for (const char* key : {"a", "b", "c"}) park(key, 256, limits);
  EXPECT_FALSE(has("a"));
  for (const char* key : {"b", "c"}) EXPECT_TRUE(has(key)) << key;
}

TEST_F(PoolTest, NothingIsKeptWhereNothingMayBe) {
  park("a", 64, {0, size_t{1} << 30});
  EXPECT_FALSE(has("a"));
  auto decoder = take("");
  std::weak_ptr<const llama::Model> other;
  {
    auto model = model_at("tiny-bpe.gguf");
    other = model;
    auto of_other = pool_.take(model, shape_, "a");
    of_other->decode_some_of({20, 21, 22, 23});
    pool_.give_back(std::move(of_other), "a", {1000, 0});
  }
  EXPECT_TRUE(other.expired());
}

TEST_F(PoolTest, ClearDropsEverything) {
  std::weak_ptr<const llama::Model> other;
  {
    auto model = model_at("tiny-bpe.gguf");
    other = model;
    auto decoder = pool_.take(model, shape_, "a");
    decoder->decode_some_of(first_of(tokens_, 32));
    pool_.give_back(std::move(decoder), "a", no_limits_);
  }
  EXPECT_FALSE(other.expired());
  pool_.clear();
  EXPECT_TRUE(other.expired());
}

TEST_F(PoolTest, EmptyCacheParksNothing) {
  park("a", 64, no_limits_);
  auto decoder = take("a");
  decoder->clear();
  pool_.give_back(std::move(decoder), "a", no_limits_);
  EXPECT_FALSE(has("a"));
}

}  // namespace
}  // namespace eliza::test
