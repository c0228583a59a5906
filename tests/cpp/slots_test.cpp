#include <fcntl.h>
#include <gtest/gtest.h>
#include <hash/xxhash/xxhash.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>

#include "model_fixture.h"
#include "slot_bytes.h"
#include "test_support.h"

// Streams on disk: what restore_slot brings back goes on as the stream that was saved, and whatever
// is wrong with a file or a disk leaves stream and file as they were.

namespace eliza::test {
namespace {
namespace fs = std::filesystem;

using Config = eliza_llm_stream_config_t;

struct Outcome {
  int status = 0;
  std::string message;
};

Outcome save(const Stream& stream, const fs::path& path) {
  OwnedMessage error;
  const int status = eliza_inference_llm_stream_save_slot(stream.get(), path.c_str(), error.out());
  EXPECT_EQ(status != ELIZA_OK, error.is_set());
  return {status, error.text()};
}

Outcome restore(const Stream& stream, const fs::path& path) {
  OwnedMessage error;
  const int status =
      eliza_inference_llm_stream_restore_slot(stream.get(), path.c_str(), error.out());
  EXPECT_EQ(status != ELIZA_OK, error.is_set());
  return {status, error.text()};
}

void expect_ok(const Outcome& outcome) { EXPECT_EQ(outcome.status, ELIZA_OK) << outcome.message; }

template <typename Number>
void set_number(std::string& bytes, size_t at, Number number) {
  std::memcpy(bytes.data() + at, &number, sizeof number);
}

// As somebody would who means harm, and knows the format.
void sign(std::string& bytes) {
  set_number<uint64_t>(bytes, at_checksum,
                       XXH64(bytes.data() + checked_from, bytes.size() - checked_from, 0));
}

class SlotTest : public DraftingFixture {
 protected:
  Stream open(const Config& config = {}) { return open_stream(ctx_, unkeyed(config)); }

  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_.path())) {
      names.push_back(entry.path().filename().string());
    }
    return names;
  }

  const TemporaryDirectory folder_;
  const fs::path slot_ = folder_.path() / "slot.bin";
};

// ------------------------------------------------------------------- round trips

struct ModelCase {
  const char* file;
  size_t prompt_length;
  const char* cache_type;  // nullptr: the default
};

void PrintTo(const ModelCase& model, std::ostream* out) {
  *out << model.file << " " << model.prompt_length << " "
       << (model.cache_type == nullptr ? "" : model.cache_type);
}

class RoundTripTest : public SlotTest, public testing::WithParamInterface<ModelCase> {
 protected:
  RoundTripTest() {
    load(GetParam().file);
    config_.cache_type_k = config_.cache_type_v = GetParam().cache_type;
  }

  // Into a context of its own, which has not seen the model before.
  Stream restored(const Config& config) {
    others_.push_back(create_context(bundle_->string()));
    Stream stream = open_stream(others_.back(), unkeyed(config));
    expect_ok(restore(stream, slot_));
    return stream;
  }

  const Tokens prompt_ = random_tokens(GetParam().prompt_length, 10, 250);
  const Tokens delta_ = random_tokens(21, 10, 250, 5);
  Config config_ = {};

 private:
  std::vector<Context> others_;
};

INSTANTIATE_TEST_SUITE_P(Models, RoundTripTest,
                         testing::Values(ModelCase{"tiny-bpe.gguf", 60, nullptr},
                                         ModelCase{"tiny-bpe.gguf", 1000, "f32"},
                                         ModelCase{"tiny-spm.gguf", 33, nullptr},
                                         ModelCase{"tiny-swa.gguf", 12, nullptr},
                                         ModelCase{"tiny-swa.gguf", 300, nullptr},
                                         ModelCase{"tiny-mtp.gguf", 60, nullptr},
                                         ModelCase{"chain-spm.gguf", 60, "q8_0"}));

TEST_P(RoundTripTest, PrefillOfADeltaGoesOnExactly) {
  for (const size_t generated : {0, 1, 10}) {
    const Stream saved = open(config_);
    prefill(saved, prompt_);
    if (generated > 0) generate(saved, generated);
    expect_ok(save(saved, slot_));
    const Stream other = restored(config_);
    for (const Stream* stream : {&saved, &other}) prefill(*stream, delta_);
    // The same bits, not only the same choice of tokens.
    const fs::path first = folder_.path() / "first";
    const fs::path second = folder_.path() / "second";
    expect_ok(save(saved, first));
    expect_ok(save(other, second));
    EXPECT_TRUE(read_file(first) == read_file(second));
    const Generation expected = generate(saved, 20);
    const Generation got = generate(other, 20);
    EXPECT_EQ(got.tokens, expected.tokens);
    EXPECT_EQ(got.final, expected.final);
  }
}

TEST_P(RoundTripTest, NextGoesOnRightAway) {
  for (const size_t generated : {0, 1, 10}) {
    const Stream saved = open(config_);
    prefill(saved, prompt_);
    if (generated > 0 && generate(saved, generated).final) continue;
    expect_ok(save(saved, slot_));
    const Stream other = restored(config_);
    EXPECT_EQ(generate(other, 20).tokens, generate(saved, 20).tokens) << generated;
  }
}

TEST_P(RoundTripTest, SavingDoesNotDisturbTheStream) {
  const Tokens expected = fresh(prompt_, 15, config_).tokens;
  const Stream stream = open(config_);
  prefill(stream, prompt_);
  Tokens got;
  for (size_t step = 0; step < expected.size(); ++step) {
    expect_ok(save(stream, slot_));
    got = concatenated(got, next(stream).tokens);
  }
  EXPECT_EQ(got, expected);
}

TEST_P(RoundTripTest, SampledStreamGoesOnAsSeeded) {
  Config config = sampled_config();
  config.cache_type_k = config.cache_type_v = GetParam().cache_type;
  const Stream saved = open(config);
  prefill(saved, prompt_);
  expect_ok(save(saved, slot_));
  const Tokens expected = generate(saved, 20).tokens;
  EXPECT_EQ(generate(restored(config), 20).tokens, expected);
  // On the same stream too: its random state starts again, as after a reset.
  expect_ok(restore(saved, slot_));
  EXPECT_EQ(generate(saved, 20).tokens, expected);
}

TEST_P(RoundTripTest, KeptTokensAreSavedWithTheStream) {
  for (const size_t kept : {size_t{1}, prompt_.size() / 2, prompt_.size() - 1, prompt_.size()}) {
    const Stream saved = open(config_);
    prefill(saved, prompt_);
    generate(saved, 5);
    const int count =
        eliza_inference_llm_stream_reset_keep(saved.get(), static_cast<int32_t>(kept));
    ASSERT_EQ(count, static_cast<int>(kept));
    expect_ok(save(saved, slot_));
    const Tokens expected =
        fresh(concatenated(first_of(prompt_, kept), delta_), 15, config_).tokens;
    const Stream other = restored(config_);
    for (const Stream* stream : {&saved, &other}) {
      prefill(*stream, delta_);
      EXPECT_EQ(generate(*stream, 15).tokens, expected) << kept;
    }
    EXPECT_EQ(generate(restored(config_), 15).tokens,
              fresh(first_of(prompt_, kept), 15, config_).tokens);
  }
}

TEST_P(RoundTripTest, EmptyStreamComesBackEmpty) {
  expect_ok(save(open(config_), slot_));
  const Stream stream = open(config_);
  prefill(stream, prompt_);
  generate(stream, 3);
  expect_ok(restore(stream, slot_));
  EXPECT_EQ(next(stream).status, ELIZA_ERR_INVALID_ARG) << "nothing to go on from";
  prefill(stream, delta_);
  EXPECT_EQ(generate(stream, 15).tokens, fresh(delta_, 15, config_).tokens);
}

TEST_P(RoundTripTest, ResetAndResetKeepWorkAfterwards) {
  const Stream saved = open(config_);
  prefill(saved, prompt_);
  generate(saved, 5);
  expect_ok(save(saved, slot_));
  const Stream other = restored(config_);
  const size_t kept = prompt_.size() / 2;
  EXPECT_EQ(eliza_inference_llm_stream_reset_keep(other.get(), static_cast<int32_t>(kept)),
            static_cast<int>(kept));
  prefill(other, delta_);
  EXPECT_EQ(generate(other, 15).tokens,
            fresh(concatenated(first_of(prompt_, kept), delta_), 15, config_).tokens);
  eliza_inference_llm_stream_reset(other.get());
  prefill(other, delta_);
  EXPECT_EQ(generate(other, 15).tokens, fresh(delta_, 15, config_).tokens);
}

TEST_P(RoundTripTest, DraftingStreamGoesOnExactly) {
  const Stream saved = open(config_);
  prefill(saved, prompt_);
  generate(saved, 10);
  expect_ok(save(saved, slot_));
  const Tokens expected = generate(saved, 30).tokens;
  const std::string path = test_model(GetParam().file).string();
  for (const char* drafter : {static_cast<const char*>(nullptr), path.c_str()}) {
    Config config = config_;
    config.draft_max = 8;
    config.mtp_drafter_path = drafter;
    const Stream other = restored(config);
    EXPECT_EQ(first_of(generate(other, 30).tokens, expected.size()), expected);
    // And into a stream that was somewhere else.
    prefill(other, delta_);
    generate(other, 20, 1, 64);
    expect_ok(restore(other, slot_));
    EXPECT_EQ(first_of(generate(other, 30).tokens, expected.size()), expected);
  }
}

TEST_P(RoundTripTest, FullContextComesBackFull) {
  const EnvironmentVariable context("ELIZA_LLM_N_CTX", "32");
  const Stream saved = open(config_);
  prefill(saved, random_tokens(32, 10, 250));
  EXPECT_EQ(next(saved).status, 1);
  expect_ok(save(saved, slot_));
  const Stream other = restored(config_);
  EXPECT_EQ(next(other).status, 1);
  EXPECT_EQ(try_prefill(other, {20}), ELIZA_ERR_INVALID_ARG);
}

TEST_P(RoundTripTest, BatchSizeOfTheSavingStreamDoesNotShow) {
  for (const char* size : {"1", "7", "64"}) {
    {
      const EnvironmentVariable batch("ELIZA_LLM_N_BATCH", size);
      const Stream saved = open(config_);
      prefill(saved, prompt_);
      expect_ok(save(saved, slot_));
    }
    const Stream other = open(config_);
    expect_ok(restore(other, slot_));
    const size_t kept = prompt_.size() - 1;
    ASSERT_EQ(eliza_inference_llm_stream_reset_keep(other.get(), static_cast<int32_t>(kept)),
              static_cast<int>(kept));
    // What follows a reset_keep is what a fresh stream gives, to the bit.
    prefill(other, delta_);
    const Stream fresh = open(config_);
    prefill(fresh, concatenated(first_of(prompt_, kept), delta_));
    const fs::path first = folder_.path() / "first";
    const fs::path second = folder_.path() / "second";
    expect_ok(save(other, first));
    expect_ok(save(fresh, second));
    EXPECT_TRUE(logits_in(read_file(first)) == logits_in(read_file(second)))
        << "batch size " << size;
  }
}

class ScriptedSlotTest : public SlotTest {
 protected:
  ScriptedSlotTest() { load("chain-spm.gguf"); }
  static constexpr int32_t loop_start_ = 274;
};

TEST_F(ScriptedSlotTest, AnotherProcessGoesOn) {
  EXPECT_EQ(outcome_in_child([&]() -> std::string {
              const Stream saved = open();
              prefill(saved, {loop_start_});
              if (generate(saved, 4).text != "abca") return "it says something else";
              return save(saved, slot_).message;
            }),
            "");
  const Stream stream = open();
  expect_ok(restore(stream, slot_));
  EXPECT_EQ(generate(stream, 5).text, "bcabc");
}

TEST_F(ScriptedSlotTest, MaxTokensAndGrammarStartAgain) {
  Config config = {};
  config.max_tokens = 4;
  config.gbnf_grammar = "root ::= [abc]+";
  const Stream stream = open(config);
  prefill(stream, {loop_start_});
  EXPECT_EQ(generate(stream, 3).text, "abc");
  expect_ok(save(stream, slot_));
  expect_ok(restore(stream, slot_));
  const Generation got = generate(stream);
  EXPECT_EQ(got.text, "abca");
  EXPECT_TRUE(got.final);
}

TEST_F(ScriptedSlotTest, RestoreDropsUndeliveredOutput) {
  const Stream stream = open();
  prefill(stream, {loop_start_});
  expect_ok(save(stream, slot_));
  eliza_inference_llm_stream_reset(stream.get());
  prefill(stream, {259});  // "smile"
  for (int call = 0; call < 4; ++call) next(stream, 1, 1);
  expect_ok(restore(stream, slot_));
  EXPECT_EQ(generate(stream, 4).text, "abca");
}

// Tokens that waited for a larger buffer: they come from the restored stream, as from the saved
// one.
TEST_F(ScriptedSlotTest, TokensThatWaitAreNotLost) {
  const std::string path = test_model("chain-spm.gguf").string();
  Config config = {};
  config.draft_max = 8;
  config.mtp_drafter_path = path.c_str();
  const Stream saved = open(config);
  prefill(saved, {loop_start_});
  Tokens delivered;
  while (delivered.size() < 5) delivered = concatenated(delivered, next(saved, 1, 64).tokens);
  expect_ok(save(saved, slot_));
  const Stream other = open();
  expect_ok(restore(other, slot_));
  EXPECT_EQ(first_of(generate(other, 9).tokens, 9), first_of(generate(saved, 9).tokens, 9));
}

TEST_F(ScriptedSlotTest, CancelledStreamIsSavedButNotRestoredInto) {
  const Stream stream = open();
  prefill(stream, {loop_start_});
  EXPECT_EQ(generate(stream, 2).text, "ab");
  eliza_inference_llm_stream_cancel(stream.get());
  expect_ok(save(stream, slot_));
  EXPECT_EQ(restore(stream, slot_).status, ELIZA_ERR_CANCELLED);
  eliza_inference_llm_stream_reset(stream.get());
  expect_ok(restore(stream, slot_));
  EXPECT_EQ(generate(stream, 3).text, "cab");
}

TEST_F(ScriptedSlotTest, OneFileServesManyStreams) {
  const Stream saved = open();
  prefill(saved, {loop_start_});
  expect_ok(save(saved, slot_));
  std::vector<Stream> streams;
  for (int i = 0; i < 3; ++i) {
    streams.push_back(open());
    expect_ok(restore(streams.back(), slot_));
  }
  for (const Stream& stream : streams) EXPECT_EQ(generate(stream, 4).text, "abca");
}

// ---------------------------------------------------------------------- refusals

// Each file is refused by a stream in the middle of a generation, which goes on as if nothing had
// been.
class RefusedSlotTest : public SlotTest {
 protected:
  RefusedSlotTest() {
    load("tiny-bpe.gguf");
    const Stream saved = open();
    prefill(saved, random_tokens(30, 10, 250));
    generate(saved, 3);
    expect_ok(save(saved, slot_));
    bytes_ = read_file(slot_);
    expected_ = fresh(prompt_, 40).tokens;
    start();
  }

  ~RefusedSlotTest() override { expect_going_on(); }

  void start() {
    stream_ = open();
    prefill(stream_, prompt_);
    got_ = generate(stream_, 5).tokens;
  }

  void expect_going_on() {
    got_ = concatenated(got_, generate(stream_, 10).tokens);
    EXPECT_EQ(got_, first_of(expected_, got_.size()));
  }

  void expect_refused(const fs::path& path, const std::string& reason) {
    const Outcome outcome = restore(stream_, path);
    EXPECT_EQ(outcome.status, ELIZA_ERR_INVALID_ARG);
    for (const auto& part : {std::string("restore_slot"), path.filename().string(), reason}) {
      EXPECT_NE(outcome.message.find(part), std::string::npos) << part << ": " << outcome.message;
    }
  }

  void expect_content_refused(const std::string& content, const std::string& reason = "") {
    write_file(slot_, content);
    expect_refused(slot_, reason);
  }

  const Tokens prompt_ = random_tokens(50, 10, 250, 2);
  std::string bytes_;
  Tokens expected_;
  Stream stream_;
  Tokens got_;
};

TEST_F(RefusedSlotTest, TheFileItselfIsGood) { expect_ok(restore(open(), slot_)); }

TEST_F(RefusedSlotTest, OtherModels) {
  const TemporaryDirectory bundle;
  for (const char* model : {"tiny-bpe-draft.gguf", "tiny-eagle3-target.gguf", "tiny-spm.gguf"}) {
    const auto other = make_bundle(model);
    const Context ctx = create_context(other->string());
    const Stream stream = open_stream(ctx, unkeyed());
    prefill(stream, {20});
    expect_ok(save(stream, slot_));
    expect_refused(slot_, "another model");
  }
}

TEST_F(RefusedSlotTest, ModelOfTheSameShapeWithOtherWeights) {
  std::string model = read_file(test_model("tiny-bpe.gguf"));
  model[model.size() - 1] = static_cast<char>(model[model.size() - 1] ^ 1);
  const TemporaryDirectory bundle;
  write_file(bundle.path() / "text" / "tiny-bpe.gguf", model);
  const Context ctx = create_context(bundle.string());
  const Stream stream = open_stream(ctx, unkeyed());
  prefill(stream, {20});
  expect_ok(save(stream, slot_));
  expect_refused(slot_, "another model");
}

TEST_F(RefusedSlotTest, OtherContextSize) {
  const EnvironmentVariable context("ELIZA_LLM_N_CTX", "512");
  const Stream stream = open();
  prefill(stream, {20});
  expect_ok(save(stream, slot_));
  expect_refused(slot_, "context size 512");
}

TEST_F(RefusedSlotTest, OtherCacheTypes) {
  for (const bool keys : {true, false}) {
    Config config = {};
    (keys ? config.cache_type_k : config.cache_type_v) = "f32";
    const Stream stream = open(config);
    prefill(stream, {20});
    expect_ok(save(stream, slot_));
    expect_refused(slot_, keys ? "KV type of keys" : "KV type of values");
  }
}

TEST_F(RefusedSlotTest, OtherLayoutOfTheCache) {
  const EnvironmentVariable attention("ELIZA_LLM_FLASH_ATTN", "off");
  const Stream stream = open();
  prefill(stream, {20});
  expect_ok(save(stream, slot_));
  expect_refused(slot_, "flash attention");
}

TEST_F(RefusedSlotTest, OtherVersions) {
  for (const uint32_t version : {0u, 2u, 0xFFFFFFFFu}) {
    std::string content = bytes_;
    set_number(content, at_version, version);
    expect_content_refused(content, "version " + std::to_string(version));
  }
}

TEST_F(RefusedSlotTest, EveryTruncation) {
  for (size_t length = 0; length < header_bytes + 8; ++length) {
    expect_content_refused(bytes_.substr(0, length));
  }
  for (size_t cut = 0; cut < 60; ++cut)
    expect_content_refused(bytes_.substr(0, bytes_.size() * cut / 60));
  expect_content_refused(bytes_.substr(0, bytes_.size() - 1), "damaged");
}

TEST_F(RefusedSlotTest, WhatIsBehindTheEnd) { expect_content_refused(bytes_ + '\0', "damaged"); }

TEST_F(RefusedSlotTest, EveryAlteredByte) {
  const auto expect_altered_refused = [&](size_t at) {
    for (const int flipped : {0x01, 0x80, 0xFF}) {
      std::string content = bytes_;
      content[at] = static_cast<char>(content[at] ^ flipped);
      write_file(slot_, content);
      EXPECT_EQ(restore(stream_, slot_).status, ELIZA_ERR_INVALID_ARG) << "byte " << at;
    }
  };
  for (size_t at = 0; at < header_bytes; ++at) expect_altered_refused(at);
  for (size_t at = header_bytes; at < bytes_.size(); at += 97) expect_altered_refused(at);
}

TEST_F(RefusedSlotTest, FilesThatAreNoSlots) {
  expect_content_refused("", "not a slot file");
  expect_content_refused("a text file\n", "not a slot file");
  expect_content_refused(std::string(5000, '\0'), "not a slot file");
  expect_content_refused(read_file(test_model("tiny-bpe.gguf")), "not a slot file");
}

TEST_F(RefusedSlotTest, PathsThatAreNoFiles) {
  expect_refused(folder_.path() / "missing", "does not exist");
  expect_refused(folder_.path() / "no" / "missing", "does not exist");
  expect_refused(slot_ / "below-a-file", "");
  expect_refused(folder_.path(), "not a file");
  expect_refused("/dev/null", "not a file");
  const fs::path pipe = folder_.path() / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  expect_refused(pipe, "not a file");
  const fs::path dangling = folder_.path() / "dangling";
  fs::create_symlink(folder_.path() / "missing", dangling);
  expect_refused(dangling, "does not exist");
  // Of which the message shows what can be shown.
  for (const fs::path& path :
       {folder_.path() / std::string(5000, 'x'), folder_.path() / "\xFF\xFE"}) {
    const Outcome outcome = restore(stream_, path);
    EXPECT_EQ(outcome.status, ELIZA_ERR_INVALID_ARG);
    EXPECT_NE(outcome.message.find(folder_.string()), std::string::npos) << outcome.message;
    EXPECT_TRUE(is_valid_utf8(outcome.message));
    EXPECT_LT(outcome.message.size(), 4096u);
  }
}

// Altered, and the checksum made to fit.
TEST_F(RefusedSlotTest, ForgedHeaders) {
  struct Forgery {
    const char* what;
    std::function<void(std::string&)> alter;
  };
  const auto tokens = number_at<uint32_t>(bytes_, at_tokens);
  const auto decoded = number_at<uint32_t>(bytes_, at_decoded);
  const auto cache_size = number_at<uint64_t>(bytes_, at_cache_bytes);
  const auto with_logits = [&](std::string& slot, uint32_t count) {
    slot.erase(logits_begin(slot), cache_begin(slot) - logits_begin(slot));
    slot.insert(logits_begin(slot), std::string(count * sizeof(float), '\0'));
    set_number(slot, at_logits, count);
  };
  const Forgery forgeries[] = {
      {"one logit", [&](std::string& slot) { with_logits(slot, 1); }},
      {"too many logits", [&](std::string& slot) { with_logits(slot, 100000); }},
      {"more decoded than the cache has",
       [&](std::string& slot) { set_number(slot, at_decoded, decoded + 1); }},
      {"fewer decoded than the cache has",
       [&](std::string& slot) { set_number(slot, at_decoded, decoded - 1); }},
      {"none decoded", [&](std::string& slot) { set_number(slot, at_decoded, 0u); }},
      {"more exact than decoded",
       [&](std::string& slot) { set_number(slot, at_exact, decoded + 1); }},
      {"a token outside the vocabulary",
       [&](std::string& slot) { set_number(slot, header_bytes, 1 << 20); }},
      {"a negative token", [&](std::string& slot) { set_number(slot, header_bytes, -1); }},
      {"no cache",
       [&](std::string& slot) {
         slot.resize(cache_begin(slot));
         set_number<uint64_t>(slot, at_cache_bytes, 0);
       }},
      {"half a cache",
       [&](std::string& slot) {
         slot.resize(cache_begin(slot) + cache_size / 2);
         set_number<uint64_t>(slot, at_cache_bytes, cache_size / 2);
       }},
      {"a huge cache",
       [&](std::string& slot) { set_number<uint64_t>(slot, at_cache_bytes, UINT64_MAX - 64); }},
      {"many tokens",
       [&](std::string& slot) { set_number<uint32_t>(slot, at_tokens, UINT32_MAX); }},
      {"tokens without a cache of theirs",
       [&](std::string& slot) {
         slot.insert(header_bytes, std::string(sizeof(int32_t) * 3000, '\7'));
         set_number<uint32_t>(slot, at_tokens, tokens + 3000);
       }},
  };
  for (const auto& [what, alter] : forgeries) {
    SCOPED_TRACE(what);
    std::string content = bytes_;
    alter(content);
    sign(content);
    write_file(slot_, content);
    EXPECT_EQ(outcome_in_child([&]() -> std::string {
                const Stream stream = open();
                if (restore(stream, slot_).status == ELIZA_OK) return "it was accepted";
                prefill(stream, prompt_);
                return generate(stream, 5).tokens == first_of(expected_, 5) ? "" : "other tokens";
              }),
              "");
  }
}

// The same for every byte of the cache: numbers in it could make llama.cpp write anywhere.
// Refused by llama.cpp, after everything of the file was found good.
TEST_F(RefusedSlotTest, CacheOfAnotherLlamaCpp) {
  std::string content = bytes_;
  const auto size = number_at<uint64_t>(content, at_cache_bytes);
  content.resize(cache_begin(content) + size / 2);
  set_number<uint64_t>(content, at_cache_bytes, size / 2);
  sign(content);
  expect_content_refused(content);
}

// What a forged file leaves in the cache reaches neither a reset stream nor the next one.
TEST_F(RefusedSlotTest, NotANumberInTheCacheStaysInItsStream) {
  for (const char* attention : {"auto", "off"}) {
    const EnvironmentVariable kind("ELIZA_LLM_FLASH_ATTN", attention);
    const Tokens expected = fresh(prompt_, 5).tokens;
    Stream stream = open();
    prefill(stream, random_tokens(30, 10, 250));
    expect_ok(save(stream, slot_));
    std::string content = read_file(slot_);
    for (size_t at = content.size() - 4000; at < content.size(); at += 2) {
      set_number<uint16_t>(content, at, 0x7e00);
    }
    sign(content);
    write_file(slot_, content);
    if (restore(stream, slot_).status == ELIZA_OK) next(stream);
    eliza_inference_llm_stream_reset(stream.get());
    prefill(stream, prompt_);
    EXPECT_EQ(generate(stream, 5).tokens, expected);
    if (restore(stream, slot_).status == ELIZA_OK) next(stream);
    stream.reset();
    EXPECT_EQ(fresh(prompt_, 5).tokens, expected);
  }
}

TEST_F(RefusedSlotTest, ForgedCachesNeverCrash) {
#ifndef NDEBUG
  GTEST_SKIP() << "with its debugging assertions llama.cpp ends the process at negative positions";
#endif
  const size_t begin = cache_begin(bytes_);
  std::vector<size_t> positions;
  for (size_t at = begin; at < std::min(begin + 420, bytes_.size()); ++at) positions.push_back(at);
  for (size_t at = begin + 420; at < bytes_.size(); at += 211) positions.push_back(at);
  const std::string values = {'\0', '\x7F', '\xFF'};
  const auto problems = problems_in_children(
      positions.size() * values.size(),
      [&](size_t number) -> std::string {
        std::string content = bytes_;
        content[positions[number / values.size()]] = values[number % values.size()];
        sign(content);
        write_file(slot_, content);
        const Stream stream = open();
        OwnedMessage error;
        const int status =
            eliza_inference_llm_stream_restore_slot(stream.get(), slot_.c_str(), error.out());
        if (status != ELIZA_OK) {
          if (!error.is_set()) return "no message";
          prefill(stream, prompt_);
          return generate(stream, 2).tokens == first_of(expected_, 2) ? "" : "other tokens";
        }
        try_prefill(stream, {20, 21, 22});
        for (int step = 0; step < 2; ++step) next(stream);
        return "";
      },
      [&](size_t number) {
        return "byte " + std::to_string(positions[number / values.size()] - begin) +
               " of the cache set to " +
               std::to_string(static_cast<unsigned char>(values[number % values.size()]));
      });
  EXPECT_EQ(problems, std::vector<std::string>());
}

// --------------------------------------------------------------------- atomicity

class SaveTest : public SlotTest {
 protected:
  SaveTest() {
    load("tiny-bpe.gguf");
    stream_ = open();
    prefill(stream_, random_tokens(60, 10, 250));
    expected_ = fresh(random_tokens(60, 10, 250), 20).tokens;
  }

  // Says why, goes on as if nothing had been, and leaves what was there.
  void expect_refused(const fs::path& path, const std::string& reason = "") {
    const auto before = files();
    const Outcome outcome = save(stream_, path);
    EXPECT_EQ(outcome.status, ELIZA_ERR_INVALID_ARG);
    for (const auto& part : {std::string("save_slot"), path.filename().string(), reason}) {
      EXPECT_NE(outcome.message.find(part), std::string::npos) << part << ": " << outcome.message;
    }
    EXPECT_EQ(files(), before);
    expect_ok(save(stream_, folder_.path() / "good"));
    fs::remove(folder_.path() / "good");
  }

  void expect_restorable(const fs::path& path) {
    const Stream other = open();
    expect_ok(restore(other, path));
    EXPECT_EQ(generate(other, 20).tokens, expected_);
  }

  // Becomes slot_, as a file of an earlier time.
  std::string write_old_slot() {
    const Stream other = open();
    prefill(other, {20, 21});
    expect_ok(save(other, slot_));
    return read_file(slot_);
  }

  Stream stream_;
  Tokens expected_;
};

TEST_F(SaveTest, LeavesOneFile) {
  for (int round = 0; round < 3; ++round) expect_ok(save(stream_, slot_));
  EXPECT_EQ(files(), std::vector<std::string>{"slot.bin"});
  expect_restorable(slot_);
}

TEST_F(SaveTest, ReplacesAnOldFileWhateverItWas) {
  write_file(slot_, std::string(500000, 'x'));
  expect_ok(save(stream_, slot_));
  expect_restorable(slot_);
}

TEST_F(SaveTest, MissingFolderIsRefused) {
  expect_refused(folder_.path() / "missing" / "slot.bin", "folder");
  expect_refused(folder_.path() / "missing" / "and" / "missing" / "slot.bin");
  write_file(slot_, "a file");
  expect_refused(slot_ / "slot.bin");
  EXPECT_EQ(read_file(slot_), "a file");
}

TEST_F(SaveTest, FolderIsRefused) {
  fs::create_directory(folder_.path() / "folder");
  expect_refused(folder_.path() / "folder", "not a file");
  EXPECT_TRUE(fs::is_empty(folder_.path() / "folder"));
  expect_refused(folder_.path() / "folder" / "..", "");
}

TEST_F(SaveTest, PipeAndDeviceAreRefused) {
  const fs::path pipe = folder_.path() / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  expect_refused(pipe, "not a file");
  expect_refused("/dev/null", "not a file");
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

TEST_F(SaveTest, ReadOnlyFileIsRefusedAndStaysWhole) {
  const std::string old = write_old_slot();
  ASSERT_EQ(chmod(slot_.c_str(), 0444), 0);
  expect_refused(slot_, "read-only");
  EXPECT_EQ(read_file(slot_), old);
}

TEST_F(SaveTest, NameThatIsTooLongIsRefused) {
  EXPECT_EQ(save(stream_, folder_.path() / std::string(5000, 'x')).status, ELIZA_ERR_INVALID_ARG);
  // The longest that the file system takes: there may be no room for a name beside it.
  const fs::path longest = folder_.path() / std::string(255, 'x');
  if (save(stream_, longest).status == ELIZA_OK) expect_restorable(longest);
}

TEST_F(SaveTest, FullDiskLeavesTheOldFileWhole) {
  const std::string old = write_old_slot();
  EXPECT_EQ(outcome_in_child([&]() -> std::string {
              signal(SIGXFSZ, SIG_IGN);
              // Somewhere in the header, in the tokens, in the cache and in its last byte.
              for (const rlim_t size : {0, 1, 79, 80, 100, 1000, 4096, 10000, 15000}) {
                const rlimit limit = {size, RLIM_INFINITY};
                setrlimit(RLIMIT_FSIZE, &limit);
                const Outcome outcome = save(stream_, slot_);
                if (outcome.status != ELIZA_ERR_INVALID_ARG) return "it was not refused";
                if (outcome.message.find("slot.bin") == std::string::npos) return outcome.message;
                if (read_file(slot_) != old) return "the old file has changed";
                if (files() != std::vector<std::string>{"slot.bin"}) return "a file was left";
              }
              const rlimit no_limit = {RLIM_INFINITY, RLIM_INFINITY};
              setrlimit(RLIMIT_FSIZE, &no_limit);
              if (generate(stream_, 20).tokens != expected_) return "the stream has changed";
              return "";
            }),
            "");
}

TEST_F(SaveTest, FileSystemWithoutRoomLeavesTheOldFileWhole) {
  const fs::path disk = folder_.path() / "disk";
  fs::create_directory(disk);
  if (mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=16k") != 0) {
    GTEST_SKIP() << "no file system can be mounted";
  }
  const fs::path slot = disk / "slot.bin";
  {
    const Stream small = open();
    prefill(small, {20});
    expect_ok(save(small, slot));
  }
  const std::string old = read_file(slot);
  const Outcome outcome = save(stream_, slot);
  EXPECT_EQ(outcome.status, ELIZA_ERR_INVALID_ARG);
  EXPECT_NE(outcome.message.find("space"), std::string::npos) << outcome.message;
  EXPECT_EQ(read_file(slot), old);
  EXPECT_EQ(std::distance(fs::directory_iterator(disk), fs::directory_iterator()), 1);
  umount(disk.c_str());
  EXPECT_EQ(generate(stream_, 20).tokens, expected_);
}

TEST_F(SaveTest, LinkStaysAndItsTargetIsReplaced) {
  const fs::path target = folder_.path() / "target";
  write_file(target, "old");
  fs::create_symlink("target", slot_);
  expect_ok(save(stream_, slot_));
  EXPECT_TRUE(fs::is_symlink(slot_));
  EXPECT_FALSE(fs::is_symlink(target));
  expect_restorable(target);
  expect_restorable(slot_);
}

TEST_F(SaveTest, LinkToNowhereStaysAndItsTargetIsMade) {
  fs::create_symlink("target", slot_);
  expect_ok(save(stream_, slot_));
  EXPECT_TRUE(fs::is_symlink(slot_));
  expect_restorable(slot_);
}

TEST_F(SaveTest, LinkToItselfIsRefused) {
  fs::create_symlink("slot.bin", slot_);
  expect_refused(slot_);
}

TEST_F(SaveTest, PathsWithOtherAlphabetsWork) {
  const fs::path path = folder_.path() / "na\u00efve \u65e5\u672c\u8a9e \U0001f600";
  expect_ok(save(stream_, path));
  expect_restorable(path);
  EXPECT_TRUE(fs::exists(path));
}

TEST_F(SaveTest, RelativePathsWork) {
  EXPECT_EQ(outcome_in_child([&]() -> std::string {
              fs::current_path(folder_.path());
              for (const char* path : {"slot.bin", "./slot2.bin", "../eliza/slot3.bin"}) {
                const Outcome outcome = save(stream_, path);
                if (outcome.status != ELIZA_OK) return outcome.message;
                const Stream other = open();
                if (restore(other, path).status != ELIZA_OK) return "not restored";
              }
              return "";
            }),
            "");
  expect_restorable(slot_);
}

// Killed at any moment, with a save running: the file is there and whole.
TEST_F(SaveTest, CrashLeavesAWholeFile) {
  write_old_slot();
  for (int round = 0; round < 5; ++round) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      for (;;) save(stream_, slot_);
    }
    // A save renames a new file over the old one.
    struct stat status = {};
    stat(slot_.c_str(), &status);
    ino_t last = status.st_ino;
    for (int saves = 0; saves < 3 + round;) {
      if (stat(slot_.c_str(), &status) == 0 && status.st_ino != last) {
        last = status.st_ino;
        ++saves;
      }
    }
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    expect_restorable(slot_);
  }
}

}  // namespace
}  // namespace eliza::test
