#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <set>

#include "ffi/handles.h"
#include "test_support.h"

// What the C ABI answers to arguments that are wrong: a code, a message that names the function and
// the argument, and nothing else.

namespace eliza::test {
namespace {

// Everything a call may need; each call of a table gets a whole one.
struct Fixture {
  Fixture() : bundle(make_bundle("tiny-bpe.gguf")), ctx(create_context(bundle->string())) {
    stream = open_stream(ctx, config);
    vocabulary_size = ctx->text_model.acquire_any()->vocabulary().size();
  }

  CleanEnvironment environment;
  std::unique_ptr<TemporaryDirectory> bundle;
  eliza_llm_stream_config_t config = {};
  Context ctx;
  Stream stream;
  int32_t vocabulary_size = 0;
  int32_t ids[4] = {10, 11, 12, 13};
  int32_t tokens[4] = {};
  size_t count = 0;
  char text[64] = {};
  int* id_array = nullptr;
};

class FixtureTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { fixture_ = std::make_unique<Fixture>().release(); }
  static void TearDownTestSuite() {
    delete fixture_;
    fixture_ = nullptr;
  }
  static Fixture& f() { return *fixture_; }

 private:
  static inline Fixture* fixture_ = nullptr;
};

void expect_message(const OwnedMessage& error, const std::vector<std::string>& fragments) {
  ASSERT_TRUE(error.is_set());
  for (const auto& fragment : fragments) {
    EXPECT_NE(error.text().find(fragment), std::string::npos)
        << fragment << " is not in: " << error.text();
  }
  EXPECT_TRUE(is_valid_utf8(error.text()));
  EXPECT_LT(error.text().size(), 4096u);
}

// A call of an int function and what its refusal must say.
struct BadCall {
  const char* function;
  const char* what;  // a fragment of the message: the argument, or a value
  int (*call)(Fixture&, char** out_error);
  int code = ELIZA_ERR_INVALID_ARG;
};

void PrintTo(const BadCall& call, std::ostream* out) { *out << call.function << " " << call.what; }

class BadCallTest : public FixtureTest, public testing::WithParamInterface<BadCall> {};

TEST_P(BadCallTest, IsRefusedWithCodeAndMessage) {
  const auto& [function, what, call, code] = GetParam();
  OwnedMessage error;
  EXPECT_EQ(call(f(), error.out()), code);
  expect_message(error, {function, what});
  EXPECT_EQ(call(f(), nullptr), code) << "with a NULL out_error";
}

TEST_P(BadCallTest, LeavesTheStreamUsable) {
  GetParam().call(f(), nullptr);
  ASSERT_EQ(eliza_inference_llm_stream_reset(f().stream.get()), ELIZA_OK);
  EXPECT_EQ(try_prefill(f().stream, {20, 21}), ELIZA_OK);
  EXPECT_EQ(next(f().stream).status, 0);
}

// A function that returns a handle, as one that returns a code: NULL is a failure.
template <typename Handle>
int as_status(Handle* handle) {
  return handle == nullptr ? ELIZA_ERR_INVALID_ARG : ELIZA_OK;
}

#define FN(name) "eliza_inference_" #name
#define CALL(expression)            \
  [](Fixture& f, char** e) -> int { \
    (void)f;                        \
    return (expression);            \
  }
#define PREFILL(...) CALL(eliza_inference_llm_stream_prefill(__VA_ARGS__, e))
#define NEXT(...) CALL(eliza_inference_llm_stream_next(__VA_ARGS__, nullptr, nullptr, e))
#define TOKENIZE(...) CALL(eliza_inference_tokenize(__VA_ARGS__, e))
#define DETOKENIZE(...) CALL(eliza_inference_detokenize(__VA_ARGS__, e))

INSTANTIATE_TEST_SUITE_P(
    Core, BadCallTest,
    testing::Values(
        BadCall{FN(create), "bundle_dir is NULL",
                CALL(as_status(eliza_inference_create(nullptr, e)))},
        BadCall{FN(create), "''", CALL(as_status(eliza_inference_create("", e)))},
        BadCall{FN(create), "/no/such/bundle",
                CALL(as_status(eliza_inference_create("/no/such/bundle", e)))},
        BadCall{FN(mmap_acquire), "ctx is NULL",
                CALL(eliza_inference_mmap_acquire(nullptr, "text", e))},
        BadCall{FN(mmap_acquire), "region_name is NULL",
                CALL(eliza_inference_mmap_acquire(f.ctx.get(), nullptr, e))},
        BadCall{FN(mmap_acquire), "'tts'",
                CALL(eliza_inference_mmap_acquire(f.ctx.get(), "tts", e)),
                ELIZA_ERR_NOT_IMPLEMENTED},
        BadCall{FN(mmap_acquire), "''", CALL(eliza_inference_mmap_acquire(f.ctx.get(), "", e)),
                ELIZA_ERR_NOT_IMPLEMENTED},
        BadCall{FN(mmap_evict), "ctx is NULL",
                CALL(eliza_inference_mmap_evict(nullptr, "text", e))},
        BadCall{FN(mmap_evict), "region_name is NULL",
                CALL(eliza_inference_mmap_evict(f.ctx.get(), nullptr, e))},
        BadCall{FN(mmap_evict), "'asr'", CALL(eliza_inference_mmap_evict(f.ctx.get(), "asr", e)),
                ELIZA_ERR_NOT_IMPLEMENTED},
        BadCall{FN(set_verifier_callback), "ctx is NULL",
                CALL(eliza_inference_set_verifier_callback(nullptr, nullptr, nullptr, e))},
        BadCall{FN(llm_stream_open), "ctx is NULL",
                CALL(as_status(eliza_inference_llm_stream_open(nullptr, &f.config, e)))},
        BadCall{FN(llm_stream_open), "cfg is NULL",
                CALL(as_status(eliza_inference_llm_stream_open(f.ctx.get(), nullptr, e)))}));

INSTANTIATE_TEST_SUITE_P(
    Prefill, BadCallTest,
    testing::Values(
        BadCall{FN(llm_stream_prefill), "stream is NULL", PREFILL(nullptr, f.ids, 4)},
        BadCall{FN(llm_stream_prefill), "token_ids is NULL", PREFILL(f.stream.get(), nullptr, 4)},
        BadCall{FN(llm_stream_prefill), "num_tokens is 0", PREFILL(f.stream.get(), f.ids, 0)},
        BadCall{
            FN(llm_stream_prefill), "id -1 at index 0",
            CALL((f.ids[0] = -1, eliza_inference_llm_stream_prefill(f.stream.get(), f.ids, 1, e)))},
        BadCall{FN(llm_stream_prefill), "is outside the vocabulary",
                CALL((f.ids[0] = f.vocabulary_size,
                      eliza_inference_llm_stream_prefill(f.stream.get(), f.ids, 1, e)))},
        BadCall{FN(llm_stream_prefill), "id 2147483647 at index 1",
                CALL((f.ids[0] = 7, f.ids[1] = INT32_MAX,
                      eliza_inference_llm_stream_prefill(f.stream.get(), f.ids, 2, e)))},
        BadCall{FN(llm_stream_prefill), "id -2147483648 at index 3",
                CALL((f.ids[0] = f.ids[1] = f.ids[2] = 7, f.ids[3] = INT32_MIN,
                      eliza_inference_llm_stream_prefill(f.stream.get(), f.ids, 4, e)))}));

INSTANTIATE_TEST_SUITE_P(
    Next, BadCallTest,
    testing::Values(BadCall{FN(llm_stream_next), "stream is NULL",
                            NEXT(nullptr, f.tokens, 4, &f.count, f.text, 64)},
                    BadCall{FN(llm_stream_next), "tokens_out is NULL",
                            NEXT(f.stream.get(), nullptr, 4, &f.count, f.text, 64)},
                    BadCall{FN(llm_stream_next), "tokens_cap is 0",
                            NEXT(f.stream.get(), f.tokens, 0, &f.count, f.text, 64)},
                    BadCall{FN(llm_stream_next), "num_tokens_out is NULL",
                            NEXT(f.stream.get(), f.tokens, 4, nullptr, f.text, 64)},
                    BadCall{FN(llm_stream_next), "text_out is NULL",
                            NEXT(f.stream.get(), f.tokens, 4, &f.count, nullptr, 64)},
                    BadCall{FN(llm_stream_next), "text_cap is 0",
                            NEXT(f.stream.get(), f.tokens, 4, &f.count, f.text, 0)},
                    BadCall{
                        FN(llm_stream_next), "prefill",
                        CALL((eliza_inference_llm_stream_reset(f.stream.get()),
                              eliza_inference_llm_stream_next(f.stream.get(), f.tokens, 4, &f.count,
                                                              f.text, 64, nullptr, nullptr, e)))}));

INSTANTIATE_TEST_SUITE_P(
    Slots, BadCallTest,
    testing::Values(BadCall{FN(llm_stream_save_slot), "stream is NULL",
                            CALL(eliza_inference_llm_stream_save_slot(nullptr, "x", e))},
                    BadCall{FN(llm_stream_save_slot), "filename is NULL",
                            CALL(eliza_inference_llm_stream_save_slot(f.stream.get(), nullptr, e))},
                    BadCall{FN(llm_stream_save_slot), "filename is empty",
                            CALL(eliza_inference_llm_stream_save_slot(f.stream.get(), "", e))},
                    BadCall{FN(llm_stream_restore_slot), "stream is NULL",
                            CALL(eliza_inference_llm_stream_restore_slot(nullptr, "x", e))},
                    BadCall{
                        FN(llm_stream_restore_slot), "filename is NULL",
                        CALL(eliza_inference_llm_stream_restore_slot(f.stream.get(), nullptr, e))},
                    BadCall{FN(llm_stream_restore_slot), "filename is empty",
                            CALL(eliza_inference_llm_stream_restore_slot(f.stream.get(), "", e))}));

INSTANTIATE_TEST_SUITE_P(
    Tokenizer, BadCallTest,
    testing::Values(
        BadCall{FN(tokenize), "ctx is NULL",
                TOKENIZE(nullptr, "x", 1, 0, 0, &f.id_array, &f.count)},
        BadCall{FN(tokenize), "text is NULL",
                TOKENIZE(f.ctx.get(), nullptr, 1, 0, 0, &f.id_array, &f.count)},
        BadCall{FN(tokenize), "out_tokens is NULL",
                TOKENIZE(f.ctx.get(), "x", 1, 0, 0, nullptr, &f.count)},
        BadCall{FN(tokenize), "out_n is NULL",
                TOKENIZE(f.ctx.get(), "x", 1, 0, 0, &f.id_array, nullptr)},
        BadCall{FN(tokenize), "too long",
                TOKENIZE(f.ctx.get(), "x", SIZE_MAX, 0, 0, &f.id_array, &f.count)},
        BadCall{FN(detokenize), "ctx is NULL", DETOKENIZE(nullptr, f.tokens, 1, 0, 0, f.text, 64)},
        BadCall{FN(detokenize), "tokens is NULL",
                DETOKENIZE(f.ctx.get(), nullptr, 1, 0, 0, f.text, 64)},
        BadCall{FN(detokenize), "out_text is NULL",
                DETOKENIZE(f.ctx.get(), f.tokens, 1, 0, 0, nullptr, 64)},
        BadCall{FN(detokenize), "max_text_bytes is 0",
                DETOKENIZE(f.ctx.get(), f.tokens, 1, 0, 0, f.text, 0)},
        BadCall{FN(detokenize), "id -1 at index 0",
                CALL((f.tokens[0] = -1,
                      eliza_inference_detokenize(f.ctx.get(), f.tokens, 1, 0, 0, f.text, 64, e)))},
        BadCall{FN(detokenize), "is outside the vocabulary",
                CALL((f.tokens[0] = f.vocabulary_size,
                      eliza_inference_detokenize(f.ctx.get(), f.tokens, 1, 0, 0, f.text, 64, e)))},
        BadCall{FN(detokenize), "id 2147483647 at index 0",
                CALL((f.tokens[0] = INT32_MAX,
                      eliza_inference_detokenize(f.ctx.get(), f.tokens, 1, 0, 0, f.text, 64, e)))},
        BadCall{FN(detokenize), "id -2147483648 at index 0",
                CALL((f.tokens[0] = INT32_MIN, eliza_inference_detokenize(f.ctx.get(), f.tokens, 1,
                                                                          0, 0, f.text, 64, e)))}));

TEST(StreamWithoutMessageTest, NullIsAnInvalidArgument) {
  EXPECT_EQ(eliza_inference_llm_stream_cancel(nullptr), ELIZA_ERR_INVALID_ARG);
  EXPECT_EQ(eliza_inference_llm_stream_reset(nullptr), ELIZA_ERR_INVALID_ARG);
  EXPECT_EQ(eliza_inference_llm_stream_reset_keep(nullptr, 3), ELIZA_ERR_INVALID_ARG);
}

// ------------------------------------------------------- functions of other builds

template <typename Handle>
int absent_handle(Handle* handle) {
  return handle == nullptr ? ELIZA_ERR_NOT_IMPLEMENTED : ELIZA_OK;
}

const BadCall absent_functions[] = {
    {FN(tts_synthesize), "speech synthesis",
     CALL(eliza_inference_tts_synthesize(nullptr, nullptr, 0, nullptr, nullptr, 0, e))},
    {FN(tts_synthesize_stream), "speech synthesis",
     CALL(
         eliza_inference_tts_synthesize_stream(nullptr, nullptr, 0, nullptr, nullptr, nullptr, e))},
    {FN(cancel_tts), "speech synthesis", CALL(eliza_inference_cancel_tts(nullptr, e))},
    {FN(encode_reference), "speech synthesis",
     CALL(eliza_inference_encode_reference(nullptr, nullptr, 0, 0, nullptr, nullptr, nullptr, e))},
    {FN(asr_transcribe), "speech recognition",
     CALL(eliza_inference_asr_transcribe(nullptr, nullptr, 0, 0, nullptr, 0, e))},
    {FN(asr_stream_open), "speech recognition",
     CALL(absent_handle(eliza_inference_asr_stream_open(nullptr, 0, e)))},
    {FN(asr_stream_feed), "speech recognition",
     CALL(eliza_inference_asr_stream_feed(nullptr, nullptr, 0, e))},
    {FN(asr_stream_partial), "speech recognition",
     CALL(eliza_inference_asr_stream_partial(nullptr, nullptr, 0, nullptr, nullptr, e))},
    {FN(asr_stream_finish), "speech recognition",
     CALL(eliza_inference_asr_stream_finish(nullptr, nullptr, 0, nullptr, nullptr, e))},
    {FN(vad_open), "voice activity", CALL(absent_handle(eliza_inference_vad_open(nullptr, 0, e)))},
    {FN(vad_process), "voice activity",
     CALL(eliza_inference_vad_process(nullptr, nullptr, 0, nullptr, e))},
    {FN(vad_reset), "voice activity", CALL(eliza_inference_vad_reset(nullptr, e))},
    {FN(wakeword_open), "wake-word",
     CALL(absent_handle(eliza_inference_wakeword_open(nullptr, 0, nullptr, e)))},
    {FN(wakeword_score), "wake-word",
     CALL(eliza_inference_wakeword_score(nullptr, nullptr, 0, nullptr, e))},
    {FN(wakeword_reset), "wake-word", CALL(eliza_inference_wakeword_reset(nullptr, e))},
    {FN(speaker_open), "speaker",
     CALL(absent_handle(eliza_inference_speaker_open(nullptr, nullptr, e)))},
    {FN(speaker_embed), "speaker",
     CALL(eliza_inference_speaker_embed(nullptr, nullptr, 0, nullptr, e))},
    {FN(diariz_open), "diarisation",
     CALL(absent_handle(eliza_inference_diariz_open(nullptr, nullptr, e)))},
    {FN(diariz_segment), "diarisation",
     CALL(eliza_inference_diariz_segment(nullptr, nullptr, 0, nullptr, nullptr, e))},
};

class AbsentFunctionTest : public FixtureTest, public testing::WithParamInterface<BadCall> {};

TEST_P(AbsentFunctionTest, SaysThatItIsNotInThisBuild) {
  const auto& [function, feature, call, unused] = GetParam();
  (void)unused;
  OwnedMessage error;
  EXPECT_EQ(call(f(), error.out()), ELIZA_ERR_NOT_IMPLEMENTED);
  expect_message(error, {std::string(function) + ": ", feature, "not in this build"});
  EXPECT_EQ(call(f(), nullptr), ELIZA_ERR_NOT_IMPLEMENTED);
}

INSTANTIATE_TEST_SUITE_P(Functions, AbsentFunctionTest, testing::ValuesIn(absent_functions));

TEST(AbiFactsTest, VersionIsEight) { EXPECT_STREQ(eliza_inference_abi_version(), "8"); }

TEST(AbiFactsTest, SupportedFunctionsTellWhatThisBuildHas) {
  EXPECT_EQ(eliza_inference_llm_stream_supported(), 1);
  EXPECT_EQ(eliza_inference_llm_kv_quant_supported(), 1);
  EXPECT_EQ(eliza_inference_tokenize_supported(), 1);
  EXPECT_EQ(eliza_inference_llm_mtp_supported(), 1);
  EXPECT_EQ(eliza_inference_tts_stream_supported(), 0);
  EXPECT_EQ(eliza_inference_asr_stream_supported(), 0);
  EXPECT_EQ(eliza_inference_vad_supported(), 0);
  EXPECT_EQ(eliza_inference_wakeword_supported(), 0);
  EXPECT_EQ(eliza_inference_speaker_supported(), 0);
  EXPECT_EQ(eliza_inference_diariz_supported(), 0);
}

TEST(AbiFactsTest, ReleasingNullIsFine) {
  eliza_inference_destroy(nullptr);
  eliza_inference_free_string(nullptr);
  eliza_inference_free_tokens(nullptr);
  eliza_inference_llm_stream_close(nullptr);
  eliza_inference_asr_stream_close(nullptr);
  eliza_inference_vad_close(nullptr);
  eliza_inference_wakeword_close(nullptr);
  eliza_inference_speaker_free(nullptr);
  eliza_inference_speaker_close(nullptr);
  eliza_inference_diariz_close(nullptr);
}

TEST_F(FixtureTest, MessagesAndTokensMayBeFreedWithPlainFree) {
  char* error = nullptr;
  eliza_inference_create(nullptr, &error);
  std::free(error);
  ASSERT_EQ(
      eliza_inference_tokenize(f().ctx.get(), "dog", 3, 0, 0, &f().id_array, &f().count, nullptr),
      ELIZA_OK);
  std::free(f().id_array);
}

TEST_F(FixtureTest, SuccessLeavesTheMessageAlone) {
  char sentinel = 'x';
  char* error = &sentinel;
  EliInferenceContext* ctx = eliza_inference_create(f().bundle->string().c_str(), &error);
  ASSERT_NE(ctx, nullptr);
  EXPECT_EQ(eliza_inference_mmap_acquire(ctx, "text", &error), ELIZA_OK);
  EliLlmStream* stream = eliza_inference_llm_stream_open(ctx, &f().config, &error);
  ASSERT_NE(stream, nullptr);
  const int32_t ids[] = {10, 11};
  EXPECT_EQ(eliza_inference_llm_stream_prefill(stream, ids, 2, &error), ELIZA_OK);
  EXPECT_EQ(eliza_inference_llm_stream_next(stream, f().tokens, 4, &f().count, f().text, 64,
                                            nullptr, nullptr, &error),
            0);
  int* tokens = nullptr;
  EXPECT_EQ(eliza_inference_tokenize(ctx, "dog", 3, 0, 0, &tokens, &f().count, &error), ELIZA_OK);
  EXPECT_EQ(eliza_inference_detokenize(ctx, tokens, f().count, 0, 0, f().text, 64, &error), 3);
  EXPECT_EQ(eliza_inference_set_verifier_callback(ctx, nullptr, nullptr, &error), ELIZA_OK);
  EXPECT_EQ(eliza_inference_mmap_evict(ctx, "text", &error), ELIZA_OK);
  EXPECT_EQ(error, &sentinel);
  eliza_inference_free_tokens(tokens);
  eliza_inference_llm_stream_close(stream);
  eliza_inference_destroy(ctx);
}

TEST_F(FixtureTest, LastIdOfTheVocabularyIsInside) {
  const int32_t last = f().vocabulary_size - 1;
  ASSERT_EQ(eliza_inference_llm_stream_reset(f().stream.get()), ELIZA_OK);
  EXPECT_EQ(try_prefill(f().stream, {0, last}), ELIZA_OK);
  EXPECT_GE(eliza_inference_detokenize(f().ctx.get(), &last, 1, 0, 0, f().text, 64, nullptr), 0);
}

TEST_F(FixtureTest, RefusedNextClearsItsOutputs) {
  f().count = 99;
  std::strcpy(f().text, "junk");
  int32_t drafted = 99;
  int32_t accepted = 99;
  ASSERT_EQ(eliza_inference_llm_stream_reset(f().stream.get()), ELIZA_OK);
  EXPECT_EQ(eliza_inference_llm_stream_next(f().stream.get(), f().tokens, 4, &f().count, f().text,
                                            64, &drafted, &accepted, nullptr),
            ELIZA_ERR_INVALID_ARG);
  EXPECT_EQ(f().count, 0u);
  EXPECT_STREQ(f().text, "");
  EXPECT_EQ(drafted, 0);
  EXPECT_EQ(accepted, 0);
}

// ------------------------------------------------------------------- the config

using Config = eliza_llm_stream_config_t;
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();
constexpr float infinite = std::numeric_limits<float>::infinity();

struct BadConfig {
  const char* field;
  const char* fragment;
  void (*set)(Config&);
};

void PrintTo(const BadConfig& config, std::ostream* out) {
  *out << config.field << " " << config.fragment;
}

class BadConfigTest : public FixtureTest, public testing::WithParamInterface<BadConfig> {};

TEST_P(BadConfigTest, IsRefusedByField) {
  Config config = {};
  GetParam().set(config);
  OwnedMessage error;
  EXPECT_EQ(eliza_inference_llm_stream_open(f().ctx.get(), &config, error.out()), nullptr);
  expect_message(error, {FN(llm_stream_open), GetParam().field, GetParam().fragment});
  EXPECT_EQ(eliza_inference_llm_stream_open(f().ctx.get(), &config, nullptr), nullptr);
}

constexpr char type_list[] = "f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, iq4_nl";
const std::string long_name(100000, 'q');

INSTANTIATE_TEST_SUITE_P(
    Fields, BadConfigTest,
    testing::Values(
        BadConfig{"temperature", "nan", [](Config& c) { c.temperature = not_a_number; }},
        BadConfig{"temperature", "inf", [](Config& c) { c.temperature = infinite; }},
        BadConfig{"temperature", "-inf", [](Config& c) { c.temperature = -infinite; }},
        BadConfig{"top_p", "nan", [](Config& c) { c.top_p = not_a_number; }},
        BadConfig{"repeat_penalty", "nan", [](Config& c) { c.repeat_penalty = not_a_number; }},
        BadConfig{"repeat_penalty", "inf", [](Config& c) { c.repeat_penalty = infinite; }},
        BadConfig{"repeat_penalty", "-1", [](Config& c) { c.repeat_penalty = -1; }},
        BadConfig{"draft_min", "-1", [](Config& c) { c.draft_min = -1; }},
        BadConfig{"draft_min", "-2147483648", [](Config& c) { c.draft_min = INT32_MIN; }},
        BadConfig{"draft_max", "-1", [](Config& c) { c.draft_max = -1; }},
        BadConfig{"draft_max", "1025", [](Config& c) { c.draft_max = 1025; }},
        BadConfig{"draft_max", "2147483647", [](Config& c) { c.draft_max = INT32_MAX; }},
        BadConfig{"draft_min", "draft_max",
                  [](Config& c) {
                    c.draft_min = 5;
                    c.draft_max = 4;
                  }},
        BadConfig{"prompt_cache_key", "empty", [](Config& c) { c.prompt_cache_key = ""; }},
        BadConfig{"prompt_cache_key", "100000 bytes",
                  [](Config& c) { c.prompt_cache_key = long_name.c_str(); }},
        BadConfig{"prompt_cache_key", "1025 bytes",
                  [](Config& c) { c.prompt_cache_key = long_name.c_str() + 100000 - 1025; }},
        BadConfig{"prompt_cache_key", "control characters",
                  [](Config& c) { c.prompt_cache_key = "a\nb"; }},
        BadConfig{"prompt_cache_key", "control characters",
                  [](Config& c) { c.prompt_cache_key = "\x7F"; }},
        BadConfig{"prompt_cache_key", "control characters",
                  [](Config& c) {
                    c.slot_id = 3;
                    c.prompt_cache_key = "\t";
                  }},
        BadConfig{"mtp_drafter_path", "empty", [](Config& c) { c.mtp_drafter_path = ""; }},
        BadConfig{"mtp_drafter_path", "/no/such/drafter.gguf",
                  [](Config& c) {
                    c.mtp_drafter_path = "/no/such/drafter.gguf";
                    c.draft_max = 4;
                  }},
        BadConfig{"mtp_drafter_path", "/tmp", [](Config& c) { c.mtp_drafter_path = "/tmp"; }},
        BadConfig{"gbnf_grammar", "empty", [](Config& c) { c.gbnf_grammar = ""; }},
        BadConfig{"cache_type_k", type_list, [](Config& c) { c.cache_type_k = ""; }},
        BadConfig{"cache_type_k", type_list, [](Config& c) { c.cache_type_k = "q8"; }},
        BadConfig{"cache_type_k", type_list, [](Config& c) { c.cache_type_k = "q8_0 "; }},
        BadConfig{"cache_type_k", type_list, [](Config& c) { c.cache_type_k = "q6_K"; }},
        BadConfig{"cache_type_k", type_list, [](Config& c) { c.cache_type_k = "\xFF\xFE"; }},
        BadConfig{"cache_type_v", type_list, [](Config& c) { c.cache_type_v = "fp16"; }},
        BadConfig{"cache_type_v", type_list,
                  [](Config& c) { c.cache_type_v = long_name.c_str(); }}));

struct GoodConfig {
  const char* what;
  void (*set)(Config&);
};

void PrintTo(const GoodConfig& config, std::ostream* out) { *out << config.what; }

class GoodConfigTest : public FixtureTest, public testing::WithParamInterface<GoodConfig> {};

TEST_P(GoodConfigTest, IsAcceptedAndGenerates) {
  Config config = {};
  GetParam().set(config);
  const Stream stream = open_stream(f().ctx, config);
  prefill(stream, {20, 21, 22});
  const auto generation = generate(stream, 3);
  EXPECT_GE(generation.tokens.size(), 1u);
}

INSTANTIATE_TEST_SUITE_P(
    Fields, GoodConfigTest,
    testing::Values(
        GoodConfig{"all zero", [](Config&) {}},
        GoodConfig{"lowest integers",
                   [](Config& c) {
                     c.max_tokens = c.top_k = c.slot_id = c.n_gpu_layers = INT32_MIN;
                     c.disable_thinking = INT32_MIN;
                   }},
        GoodConfig{"highest integers",
                   [](Config& c) {
                     c.max_tokens = c.top_k = c.slot_id = c.n_gpu_layers = INT32_MAX;
                     c.disable_thinking = INT32_MAX;
                   }},
        GoodConfig{"most drafted", [](Config& c) { c.draft_min = c.draft_max = 1024; }},
        GoodConfig{"draft_min without drafting", [](Config& c) { c.draft_min = 16; }},
        GoodConfig{"negative temperature", [](Config& c) { c.temperature = -1e38f; }},
        GoodConfig{"huge temperature", [](Config& c) { c.temperature = 3e38f; }},
        GoodConfig{"smallest temperature", [](Config& c) { c.temperature = 1e-45f; }},
        GoodConfig{"top_p below its range",
                   [](Config& c) {
                     c.temperature = 1;
                     c.top_p = -1e38f;
                   }},
        GoodConfig{"top_p above its range",
                   [](Config& c) {
                     c.temperature = 1;
                     c.top_p = 1e38f;
                   }},
        GoodConfig{"smallest top_p",
                   [](Config& c) {
                     c.temperature = 1;
                     c.top_p = 1e-45f;
                   }},
        GoodConfig{"huge repeat_penalty", [](Config& c) { c.repeat_penalty = 3e38f; }},
        GoodConfig{"smallest repeat_penalty",
                   [](Config& c) {
                     c.temperature = 1;
                     c.top_p = 0.9f;
                     c.repeat_penalty = 1e-45f;
                   }},
        GoodConfig{"prompt_cache_key", [](Config& c) { c.prompt_cache_key = "a chat"; }},
        GoodConfig{"longest prompt_cache_key",
                   [](Config& c) { c.prompt_cache_key = long_name.c_str() + 100000 - 1024; }},
        GoodConfig{"prompt_cache_key in any alphabet",
                   [](Config& c) { c.prompt_cache_key = "\u65e5\u672c \U0001f600"; }},
        GoodConfig{"prompt_cache_key that is not UTF-8",
                   [](Config& c) { c.prompt_cache_key = "\xFF\xFE"; }},
        GoodConfig{"F32 in capitals", [](Config& c) { c.cache_type_k = c.cache_type_v = "F32"; }},
        GoodConfig{"bF16 in mixed case",
                   [](Config& c) { c.cache_type_k = c.cache_type_v = "bF16"; }},
        GoodConfig{"f16", [](Config& c) { c.cache_type_k = c.cache_type_v = "f16"; }}));

// tiny-bpe's heads are 16 wide: no quantised block fits.
TEST_F(FixtureTest, CacheTypeThatDoesNotFitTheModelIsRefusedWithAReason) {
  for (const char* type : {"q8_0", "Q4_0", "q4_1", "Q5_0", "q5_1", "IQ4_NL", "iq4_Nl"}) {
    Config config = {};
    config.cache_type_k = type;
    OwnedMessage error;
    const Stream stream(eliza_inference_llm_stream_open(f().ctx.get(), &config, error.out()));
    if (stream) continue;  // or it fits after all
    expect_message(error, {FN(llm_stream_open)});
    EXPECT_EQ(error.text().find("one of"), std::string::npos) << "the name is known";
  }
}

TEST_F(FixtureTest, QuantisedValuesNeedFlashAttention) {
  const EnvironmentVariable variable("ELIZA_LLM_FLASH_ATTN", "off");
  Config config = {};
  config.cache_type_v = "Q8_0";
  OwnedMessage error;
  EXPECT_EQ(eliza_inference_llm_stream_open(f().ctx.get(), &config, error.out()), nullptr);
  expect_message(error, {"cache_type_v", "Q8_0", "ELIZA_LLM_FLASH_ATTN"});
}

TEST_F(FixtureTest, LargerConfigOfALaterAbiIsAccepted) {
  struct {
    Config config;
    int32_t context_size;
    int32_t padding;
  } later = {{}, 4096, -1};
  static_assert(sizeof(later) == 88);
  const Stream stream(eliza_inference_llm_stream_open(f().ctx.get(), &later.config, nullptr));
  EXPECT_NE(stream, nullptr);
}

TEST_F(FixtureTest, FirstStepAfterAPromptDraftsNothing) {
  Config config = {};
  config.draft_max = 8;
  const Stream stream = open_stream(f().ctx, config);
  prefill(stream, {20, 21, 22});
  const Step step = next(stream);
  EXPECT_EQ(step.tokens.size(), 1u);
  EXPECT_EQ(step.drafted, 0);
  EXPECT_EQ(step.accepted, 0);
}

// ---------------------------------------------------------------------- grammars

std::string chain_of_rules(int count) {
  std::string text = "root ::= r0\n";
  for (int i = 0; i < count; ++i) {
    text += "r" + std::to_string(i) + " ::= \"a\" r" + std::to_string(i + 1) + "\n";
  }
  return text + "r" + std::to_string(count) + " ::= \"z\"\n";
}

struct BadGrammar {
  const char* what;
  std::string text;
};

void PrintTo(const BadGrammar& grammar, std::ostream* out) { *out << grammar.what; }

void limit_memory() {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  const rlimit limit = {rlim_t{4} << 30, rlim_t{4} << 30};
  setrlimit(RLIMIT_AS, &limit);
#endif
}

class BadGrammarTest : public testing::TestWithParam<BadGrammar> {};

// In a child process: a hostile grammar aims at the stack, the memory and the time of its process.
TEST_P(BadGrammarTest, IsRefusedInReasonableTimeAndSpace) {
  const CleanEnvironment environment;
  const EnvironmentVariable one_thread("ELIZA_LLM_THREADS", "1");
  const auto bundle = make_bundle("tiny-bpe.gguf");
  EXPECT_EQ(
      outcome_in_child(
          [&]() -> std::string {
            limit_memory();
            const Context ctx = create_context(bundle->string());
            Config config = {};
            config.gbnf_grammar = GetParam().text.c_str();
            OwnedMessage error;
            const Stream stream(eliza_inference_llm_stream_open(ctx.get(), &config, error.out()));
            if (stream) return "it was accepted";
            const std::string message = error.text();
            if (message.find("gbnf_grammar") == std::string::npos) return message;
            if (message.size() > 4096) return "the message is too long";
            return is_valid_utf8(message) ? "" : "the message is not UTF-8";
          },
          20),
      "");
}

const std::string many_parentheses(100000, '(');

INSTANTIATE_TEST_SUITE_P(
    Grammars, BadGrammarTest,
    testing::Values(
        BadGrammar{"blank", "  \n\t "}, BadGrammar{"comment only", "# nothing\n"},
        BadGrammar{"prose", "please answer in JSON"}, BadGrammar{"JSON", "{\"type\": \"object\"}"},
        BadGrammar{"no root", "start ::= \"a\""}, BadGrammar{"root in capitals", "Root ::= \"a\""},
        BadGrammar{"undefined rule", "root ::= missing"},
        BadGrammar{"undefined rule, deep", "root ::= (\"a\" | (b c)*)\nb ::= \"b\"\n"},
        BadGrammar{"no body separator", "root \"a\""}, BadGrammar{"one colon", "root := \"a\""},
        BadGrammar{"unclosed literal", "root ::= \"abc"},
        BadGrammar{"literal that ends in a backslash", "root ::= \"abc\\"},
        BadGrammar{"unclosed class", "root ::= [a-z"},
        BadGrammar{"class that ends in a dash", "root ::= [a-"},
        BadGrammar{"class that ends in a backslash", "root ::= [\\"},
        BadGrammar{"unclosed group", "root ::= (\"a\" | \"b\""},
        BadGrammar{"closed too often", "root ::= \"a\")"},
        BadGrammar{"unknown escape", "root ::= \"\\q\""},
        BadGrammar{"short escape", "root ::= \"\\u12\""},
        BadGrammar{"nothing to repeat", "root ::= *"},
        BadGrammar{"nothing to repeat in a group", "root ::= (+)"},
        BadGrammar{"repetition without a number", "root ::= \"a\"{x}"},
        BadGrammar{"unclosed repetition", "root ::= \"a\"{2"},
        BadGrammar{"negative repetition", "root ::= \"a\"{-1}"},
        BadGrammar{"huge repetition", "root ::= \"a\"{1000000000}"},
        BadGrammar{"overflowing repetition", "root ::= \"a\"{99999999999999999999999}"},
        BadGrammar{"repetition backwards", "root ::= \"a\"{5,2}"},
        BadGrammar{"repetition backwards with blanks", "root ::= (\"a\"{ 5 , # c\n 2 })"},
        BadGrammar{"nested repetition", "root ::= ((((\"a\"{900}){900}){900}){900}){900}"},
        BadGrammar{"direct left recursion", "root ::= root \"a\" | \"a\""},
        BadGrammar{"indirect left recursion", "root ::= a\na ::= b \"x\"\nb ::= a | \"y\""},
        BadGrammar{"left recursion behind an empty rule",
                   "root ::= e root \"a\"\ne ::= \"\" | \"b\""},
        BadGrammar{"token that does not exist", "root ::= <no-such-token>"},
        BadGrammar{"unclosed token", "root ::= <think"},
        BadGrammar{"100,000 parentheses", "root ::= " + many_parentheses},
        BadGrammar{"100,000 parentheses, closed",
                   "root ::= " + many_parentheses + "\"a\"" + std::string(100000, ')')},
        BadGrammar{"parentheses behind a comment that ends in a carriage return",
                   "root ::= # c\r" + many_parentheses},
        BadGrammar{"parentheses behind a literal with an unfinished character",
                   "root ::= \"\xC3\" \"" + many_parentheses},
        BadGrammar{"parentheses behind a class with an unfinished character",
                   "root ::= [\xF0] ] [" + many_parentheses},
        BadGrammar{"parentheses behind a quote in a token", "root ::= <\"> " + many_parentheses},
        BadGrammar{"100,000 rules", chain_of_rules(100000)},
        BadGrammar{"bytes that are not UTF-8", "root ::= \xFF\xFE"}));

TEST(GoodGrammarTest, IsNotRefusedByTheGuards) {
  const CleanEnvironment environment;
  const auto bundle = make_bundle("tiny-bpe.gguf");
  const Context ctx = create_context(bundle->string());
  for (const std::string& grammar :
       {std::string("root ::= \"a\"{2,5}"), std::string("root ::= \"a\"{3}"),
        std::string("root ::= \"a\"{2,} \"b\"{0,1}"), std::string("root ::= \"{5,2}\""),
        std::string("root ::= [{5,2}]"), std::string("root ::= \"a\" # {5,2}\n"),
        std::string("root ::= \"") + many_parentheses.substr(0, 1000) + "\"",
        std::string("root ::= [\"(] [\\]\"] \"[\\\"(\" # \"((\n\n# [((\nother ::= [^\"]"),
        std::string("# c\r\nroot ::= \"a\" # c\r\n"), std::string("root ::= <think> [a]"),
        std::string("root ::= \"\u00e9\U0001f600\" [\u4e16-\u754c]"), chain_of_rules(5000),
        "root ::= " + std::string(100, '(') + "\"a\"" + std::string(100, ')')}) {
    Config config = {};
    config.gbnf_grammar = grammar.c_str();
    OwnedMessage error;
    const Stream stream(eliza_inference_llm_stream_open(ctx.get(), &config, error.out()));
    EXPECT_NE(stream, nullptr) << grammar.substr(0, 80) << ": " << error.text();
  }
}

// Every rule names the next one twice: a walk that forgets where it has been doubles at each.
TEST(GoodGrammarTest, RulesThatShareRulesOpenOrFailQuickly) {
  const CleanEnvironment environment;
  const EnvironmentVariable one_thread("ELIZA_LLM_THREADS", "1");
  const auto bundle = make_bundle("tiny-bpe.gguf");
  std::string grammar = "root ::= r0\n";
  for (int i = 0; i < 60; ++i) {
    const std::string following = "r" + std::to_string(i + 1);
    grammar += "r" + std::to_string(i) + " ::= " + following + " | " + following + " \"b\"\n";
  }
  grammar += "r60 ::= \"a\"\n";
  EXPECT_EQ(
      outcome_in_child(
          [&]() -> std::string {
            limit_memory();
            const Context ctx = create_context(bundle->string());
            Config config = {};
            config.gbnf_grammar = grammar.c_str();
            OwnedMessage error;
            const Stream stream(eliza_inference_llm_stream_open(ctx.get(), &config, error.out()));
            return stream || error.is_set() ? "" : "no stream and no message";
          },
          20),
      "");
}

// ------------------------------------------------------------------- environment

struct BadVariable {
  const char* name;
  std::vector<std::string> values;
};

void PrintTo(const BadVariable& variable, std::ostream* out) { *out << variable.name; }

class BadVariableTest : public FixtureTest, public testing::WithParamInterface<BadVariable> {};

TEST_P(BadVariableTest, IsRefusedByNameAtOpen) {
  for (const auto& value : GetParam().values) {
    const EnvironmentVariable variable(GetParam().name, value);
    OwnedMessage error;
    EXPECT_EQ(eliza_inference_llm_stream_open(f().ctx.get(), &f().config, error.out()), nullptr)
        << value;
    expect_message(error, {FN(llm_stream_open), GetParam().name, value});
  }
}

TEST_P(BadVariableTest, EmptyMeansUnset) {
  const EnvironmentVariable variable(GetParam().name, "");
  EXPECT_NE(open_stream(f().ctx), nullptr);
}

const std::vector<std::string> no_positive_number = {"x",   "-1",  "1.5", "0x10", "1e3",
                                                     " 12", "12 ", "1k",  "0",    "9999999999999"};

INSTANTIATE_TEST_SUITE_P(
    Variables, BadVariableTest,
    testing::Values(BadVariable{"ELIZA_LLM_N_CTX", no_positive_number},
                    BadVariable{"ELIZA_LLM_N_BATCH", no_positive_number},
                    BadVariable{"ELIZA_LLM_THREADS", no_positive_number},
                    BadVariable{"ELIZA_LLM_SEED", {"x", "-1", "1.5", "4294967296", "0x1"}},
                    BadVariable{"ELIZA_LLM_USE_GPU", {"x", "-1", "2", "yes", "true"}},
                    BadVariable{"ELIZA_LLM_FLASH_ATTN", {"x", "1", "enabled", "autox"}},
                    BadVariable{"ELIZA_LLM_DRAFT", {"x", "1", "on", "never", "auto "}},
                    BadVariable{"ELIZA_LLM_CACHE_SLOTS", {"x", "-1", "1.5", "65537"}},
                    BadVariable{"ELIZA_LLM_CACHE_MB", {"x", "-1", "0x10", "9999999999999"}},
                    BadVariable{"ELIZA_LLM_LOG", {"x", "1", "verbose", "debug "}},
                    BadVariable{"ELIZA_LLM_BACKEND", {"x", "llama", "litert", "llama.cpp "}}));

TEST_F(FixtureTest, GoodVariablesAreAccepted) {
  const std::pair<const char*, std::vector<std::string>> variables[] = {
      {"ELIZA_LLM_N_CTX", {"1", "64", "2147483647"}},
      {"ELIZA_LLM_N_BATCH", {"1", "7", "65536"}},
      {"ELIZA_LLM_THREADS", {"1", "3"}},
      {"ELIZA_LLM_SEED", {"0", "4294967295"}},
      {"ELIZA_LLM_USE_GPU", {"0"}},
      {"ELIZA_LLM_FLASH_ATTN", {"auto", "ON", "Off"}},
      {"ELIZA_LLM_DRAFT", {"auto", "Always"}},
      {"ELIZA_LLM_CACHE_SLOTS", {"0", "65536"}},
      {"ELIZA_LLM_CACHE_MB", {"0", "1", "2147483647"}},
      {"ELIZA_LLM_LOG", {"off", "OFF"}},
      {"ELIZA_LLM_BACKEND", {"llama.cpp", "LLAMACPP"}}};
  for (const auto& [name, values] : variables) {
    for (const auto& value : values) {
      const EnvironmentVariable variable(name, value);
      EXPECT_NE(open_stream(f().ctx), nullptr) << name << "=" << value;
    }
  }
}

TEST(LogVariableTest, IsCheckedAtCreateToo) {
  const TemporaryDirectory bundle;
  std::filesystem::create_directory(bundle.path() / "text");
  const EnvironmentVariable variable("ELIZA_LLM_LOG", "loud");
  OwnedMessage error;
  EXPECT_EQ(eliza_inference_create(bundle.string().c_str(), error.out()), nullptr);
  expect_message(error, {FN(create), "ELIZA_LLM_LOG", "loud"});
}

// ----------------------------------------------------------------------- silence

// Success and many kinds of failure, those of llama.cpp itself included.
void use_and_misuse() {
  Fixture fixture;
  prefill(fixture.stream, {20, 21, 22});
  generate(fixture.stream, 3);
  eliza_inference_create("/no/such/bundle", nullptr);
  for (const auto& call : absent_functions) call.call(fixture, nullptr);
  for (const char* grammar : {"root ::= ", "root ::= \"a", "root ::= missing", "root ::= root"}) {
    Config config = {};
    config.gbnf_grammar = grammar;
    Stream(eliza_inference_llm_stream_open(fixture.ctx.get(), &config, nullptr));
  }
  Config config = {};
  config.cache_type_k = "q4_0";
  Stream(eliza_inference_llm_stream_open(fixture.ctx.get(), &config, nullptr));
  const TemporaryDirectory broken;
  write_file(broken.path() / "text" / "broken.gguf", "GGUF, but not really");
  const Context ctx = create_context(broken.string());
  eliza_inference_mmap_acquire(ctx.get(), "text", nullptr);
}

TEST(SilenceTest, NothingIsWrittenToStdoutOrStderr) {
  const CleanEnvironment environment;
  const Output output = output_of(use_and_misuse);
  EXPECT_EQ(output.out, "");
  EXPECT_EQ(output.err, "");
}

TEST(SilenceTest, LogVariableSendsTheLogToStderrOnly) {
  const CleanEnvironment environment;
  const auto bundle = make_bundle("tiny-bpe.gguf");
  const auto load = [&] {
    const Context ctx = create_context(bundle->string());
    open_stream(ctx);
  };
  const auto log_at = [&](const char* level) {
    const EnvironmentVariable variable("ELIZA_LLM_LOG", level);
    const Output output = output_of(load);
    EXPECT_EQ(output.out, "");
    return output.err.size();
  };
  EXPECT_GT(log_at("debug"), log_at("info"));
  EXPECT_GT(log_at("Info"), 0u);
  EXPECT_EQ(log_at("off"), 0u);
}

}  // namespace
}  // namespace eliza::test
