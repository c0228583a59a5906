#include "llama/decoder.h"

#include <gtest/gtest.h>

#include <cstring>

#include "support/error.h"
#include "test_support.h"

// What a Decoder promises of its results' bits. Everything that is exact above it rests on these.

namespace eliza::llama {
namespace {

using test::concatenated;
using test::first_of;
using test::random_tokens;
using test::Tokens;

using Logits = std::vector<float>;

struct KindCase {
  const char* model;
  int cache_type;       // as ggml_type
  int flash_attention;  // as llama_flash_attn_type
};

void PrintTo(const KindCase& kind, std::ostream* out) {
  *out << kind.model << " cache " << kind.cache_type << " flash " << kind.flash_attention;
}

constexpr int f32 = 0;
constexpr int f16 = 1;
constexpr int q8_0 = 8;
constexpr int bf16 = 30;

class DecoderTest : public testing::TestWithParam<KindCase> {
 protected:
  DecoderTest()
      : model_(std::make_shared<const Model>(test::test_model(GetParam().model).string(), 0)) {}

  Decoder::Shape shape(int32_t batch_size = 64, int32_t threads = 1) const {
    Decoder::Shape shape;
    shape.context_size = 1024;
    shape.batch_size = batch_size;
    shape.threads = threads;
    shape.outputs = Decoder::many_rows;
    shape.cache_type_k = shape.cache_type_v = GetParam().cache_type;
    shape.flash_attention = GetParam().flash_attention;
    return shape;
  }

  std::unique_ptr<Decoder> make(int32_t batch_size = 64, int32_t threads = 1) const {
    return std::make_unique<Decoder>(model_, shape(batch_size, threads));
  }

  static void decode_all(Decoder& decoder, const Tokens& sequence) {
    while (decoder.tokens().size() < sequence.size()) decoder.decode_some_of(sequence);
  }

  Logits copied(const float* logits) const {
    return {logits, logits + model_->vocabulary().size()};
  }

  static bool same(const Logits& a, const Logits& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  }

  const test::CleanEnvironment environment_;
  const std::shared_ptr<const Model> model_;
  const Tokens tokens_ = random_tokens(900, 10, 250);
};

INSTANTIATE_TEST_SUITE_P(
    Kinds, DecoderTest,
    testing::Values(KindCase{"tiny-bpe.gguf", f16, -1}, KindCase{"tiny-bpe.gguf", f16, 0},
                    KindCase{"tiny-bpe.gguf", f32, 1}, KindCase{"tiny-bpe.gguf", bf16, 1},
                    KindCase{"tiny-swa.gguf", f16, -1}, KindCase{"tiny-mtp.gguf", f16, -1},
                    KindCase{"chain-spm.gguf", q8_0, -1}));

// At many lengths of the cache, with more and fewer rows, and what comes after them.
TEST_P(DecoderTest, DraftingRowsGiveWhatSingleOnesGive) {
  for (const int32_t threads : {1, 2}) {
    const auto singles = make(64, threads);
    const auto batches = make(64, threads);
    const size_t most = batches->drafting_rows();
    ASSERT_LT(most, Decoder::many_rows);
    if (most == 1) GTEST_SKIP() << "this kind does not draft";
    for (const size_t length : {1, 63, 250, 256, 520}) {
      const Tokens prompt = first_of(tokens_, length);
      for (const size_t rows : {size_t{2}, size_t{5}, most}) {
        if (rows > most) continue;
        const Tokens drafted = random_tokens(rows, 10, 250, static_cast<uint32_t>(length));
        for (Decoder* decoder : {singles.get(), batches.get()}) {
          decoder->clear();
          decode_all(*decoder, prompt);
        }
        batches->decode_rows(drafted);
        for (size_t row = 0; row < rows; ++row) {
          singles->decode_rows({drafted[row]});
          EXPECT_TRUE(same(copied(batches->row_logits(row)), copied(singles->row_logits(0))))
              << "row " << row << " of " << rows << " behind " << length << ", threads " << threads;
        }
        // The cache has the same in it too.
        singles->decode_rows({20});
        batches->decode_rows({20});
        EXPECT_TRUE(same(copied(batches->row_logits(0)), copied(singles->row_logits(0))));
      }
    }
  }
}

TEST_P(DecoderTest, RejectedRowsLeaveNothingBehind) {
  const auto batches = make();
  const size_t most = batches->drafting_rows();
  if (most == 1) GTEST_SKIP() << "this kind does not draft";
  const auto singles = make();
  const Tokens prompt = first_of(tokens_, 100);
  for (size_t accepted = 1; accepted <= most; ++accepted) {
    const Tokens rows = random_tokens(most, 10, 250, 5);
    batches->clear();
    decode_all(*batches, prompt);
    batches->decode_rows(rows);
    batches->accept_rows(accepted);
    EXPECT_EQ(batches->tokens(), concatenated(prompt, first_of(rows, accepted)));
    singles->clear();
    decode_all(*singles, prompt);
    for (size_t row = 0; row < accepted; ++row) singles->decode_rows({rows[row]});
    EXPECT_TRUE(same(copied(batches->last_logits()), copied(singles->last_logits())));
    for (const int32_t token : {30, 31, 32}) {
      batches->decode_rows({token});
      singles->decode_rows({token});
      EXPECT_TRUE(same(copied(batches->last_logits()), copied(singles->last_logits()))) << accepted;
    }
  }
}

TEST_P(DecoderTest, ThreadsAndEarlierContentsDoNotMatter) {
  const Tokens prompt = first_of(tokens_, 150);
  const auto first = make();
  decode_all(*first, prompt);
  first->decode_rows({20});
  const Logits expected = copied(first->last_logits());
  for (const int32_t threads : {1, 2, 3, 5}) {
    const auto decoder = make(64, threads);
    decode_all(*decoder, random_tokens(700, 10, 250, 9));
    for (const bool cleared : {true, false}) {
      if (cleared) {
        decoder->clear();
      } else {
        decoder->rewind(decoder->reusable(prompt));
      }
      decode_all(*decoder, prompt);
      decoder->decode_rows({20});
      EXPECT_TRUE(same(copied(decoder->last_logits()), expected)) << threads;
    }
  }
}

TEST_P(DecoderTest, ReusableTokensChangeNoBit) {
  for (const int32_t batch_size : {1, 7, 20, 64}) {
    const auto decoder = make(batch_size);
    const auto fresh = make(batch_size);
    for (const size_t before : {5, 40, 150}) {
      for (const size_t common : {size_t{0}, size_t{3}, before / 2, before - 1, before}) {
        for (const size_t size : {common + 1, common + 17, common + 70}) {
          decoder->clear();
          decode_all(*decoder, first_of(tokens_, before));
          decoder->decode_rows({40});  // generated ones are no part of what is exact
          const Tokens sequence =
              concatenated(first_of(tokens_, common), random_tokens(size - common, 10, 250, 17));
          const size_t reusable = decoder->reusable(sequence);
          ASSERT_LE(reusable, common);
          ASSERT_LT(reusable, sequence.size());
          decoder->rewind(reusable);
          ASSERT_EQ(decoder->tokens().size(), reusable);
          decode_all(*decoder, sequence);
          fresh->clear();
          decode_all(*fresh, sequence);
          EXPECT_TRUE(same(copied(decoder->last_logits()), copied(fresh->last_logits())))
              << "batch " << batch_size << ", " << before << " before, " << common << " common of "
              << size;
        }
      }
    }
  }
}

TEST_P(DecoderTest, MuchOfALongPromptIsReusable) {
  const auto decoder = make();
  const Tokens prompt = first_of(tokens_, 800);
  decode_all(*decoder, prompt);
  const size_t reusable = decoder->reusable(concatenated(prompt, random_tokens(20, 10, 250)));
  EXPECT_GE(reusable, 780u) << "also behind a sliding window";
}

TEST_P(DecoderTest, SavedStateGoesOnToTheBit) {
  for (const size_t length : {1, 4, 17, 100, 700}) {
    const auto saved = make();
    decode_all(*saved, first_of(tokens_, length));
    const DecoderState state = saved->save();
    const auto restored = make();
    decode_all(*restored, random_tokens(60, 10, 250, 3));
    restored->restore(state);
    EXPECT_EQ(restored->tokens(), saved->tokens());
    EXPECT_EQ(restored->exact(), saved->exact());
    ASSERT_NE(restored->last_logits(), nullptr);
    EXPECT_TRUE(same(copied(restored->last_logits()), copied(saved->last_logits())));
    const Tokens longer = first_of(tokens_, length + 60);
    for (Decoder* decoder : {saved.get(), restored.get()}) decode_all(*decoder, longer);
    EXPECT_TRUE(same(copied(restored->last_logits()), copied(saved->last_logits()))) << length;
  }
}

TEST_P(DecoderTest, RewindKeepsTheTokensOrNone) {
  const auto decoder = make();
  const auto fresh = make();
  for (const size_t count : {0, 1, 50, 198, 199, 200, 300}) {
    decoder->clear();
    decode_all(*decoder, first_of(tokens_, 200));
    const bool possible = decoder->can_rewind(count);
    decoder->rewind(count);
    const size_t kept = decoder->tokens().size();
    EXPECT_EQ(kept, possible ? std::min<size_t>(count, 200) : 0);
    if (kept < 200) {
      EXPECT_EQ(decoder->last_logits(), nullptr);
    }
    // A cut between batches goes on as batches that ended there.
    fresh->clear();
    decode_all(*fresh, first_of(tokens_, kept));
    fresh->decode_rows({30});
    decoder->decode_rows({30});
    if (kept == 200 || kept == 0) {
      EXPECT_TRUE(same(copied(decoder->last_logits()), copied(fresh->last_logits()))) << count;
    }
  }
}

TEST_P(DecoderTest, DamagedStateIsRefusedAndLeavesAnEmptyCache) {
  const auto decoder = make();
  decode_all(*decoder, first_of(tokens_, 40));
  DecoderState state = decoder->save();
  const DecoderState good = state;
  state.cache.resize(state.cache.size() / 2);
  EXPECT_THROW(decoder->restore(state), Error);
  EXPECT_TRUE(decoder->tokens().empty());
  state = good;
  state.tokens.pop_back();
  EXPECT_THROW(decoder->restore(state), Error);
  EXPECT_TRUE(decoder->tokens().empty());
  decode_all(*decoder, first_of(tokens_, 40));
  EXPECT_TRUE(same(copied(decoder->last_logits()), good.logits));
}

}  // namespace
}  // namespace eliza::llama
