#include <cstring>

#include "contract_fixture.h"

// The tokenizer functions answer for the model that the streams run.

namespace eliza::test {
namespace {

class TokenizerContract : public SessionContract {
 protected:
  std::string detokenized(const Tokens& tokens, bool unparse_special = true) {
    std::string text(64 + tokens.size() * 32, 'Z');
    OwnedMessage error;
    const int length =
        eliza_inference_detokenize(ctx_.get(), tokens.data(), tokens.size(), 0, unparse_special,
                                   text.data(), text.size(), error.out());
    EXPECT_GE(length, 0) << error.text();
    EXPECT_EQ(std::strlen(text.c_str()), static_cast<size_t>(std::max(0, length)));
    return text.c_str();
  }

  // `text` there and back.
  std::string round_trip(std::string_view text) {
    std::string back = detokenized(tokenize(ctx_, text));
    // SentencePiece may put a blank in front of the text.
    if (!back.empty() && back != text && back[0] == ' ') back.erase(0, 1);
    return back;
  }
};

INSTANTIATE_TEST_SUITE_P(Runtimes, TokenizerContract, testing::ValuesIn(contract_runtimes()),
                         name_of);

TEST_P(TokenizerContract, TextsComeBack) {
  for (const char* text : {
           "",
           "the quick brown fox",
           " leading and trailing  ",
           "digits 0123, punctuation: {\"a\": [1, 2.5]}!",
           "lines\nand\ttabs\r\n",
           "\u00e9\u00df\u0416 \u4e16\u754c \U0001f600\U0001f44b e\u0301",
       }) {
    EXPECT_EQ(round_trip(text), text);
  }
}

TEST_P(TokenizerContract, StreamSaysWhatDetokenizeMakesOfItsTokens) {
  for (const Tokens& prompt : runtime_.prompts) {
    for (const Config& config : {capped(16), capped(16, sampled())}) {
      const Generation got = fresh(prompt, enough, config);
      std::string text = got.text;
      const std::string back = detokenized(got.tokens, false);
      if (back != text && !text.empty() && text[0] == ' ') text.erase(0, 1);
      EXPECT_EQ(back, text);
    }
  }
}

TEST_P(TokenizerContract, TokensMayBePrefilled) {
  const Stream stream = prompted(tokenize(ctx_, "the quick", true));
  EXPECT_GE(next(stream).status, 0);
}

TEST_P(TokenizerContract, EmptyTextHasNoTokensAndAnArrayAllTheSame) {
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

TEST_P(TokenizerContract, LengthCountsNotATerminator) {
  EXPECT_EQ(tokenize(ctx_, std::string_view("dogs and more", 3)), tokenize(ctx_, "dog"));
  EXPECT_EQ(round_trip(std::string_view("a\0b", 3)), "a\uFFFDb");
  EXPECT_FALSE(tokenize(ctx_, std::string_view("\0\0\0", 3)).empty());
}

TEST_P(TokenizerContract, BytesThatAreNotUtf8DoNotHurt) {
  for (const char* text : {"\xFF", "\x80\x80", "a\xC3", "\xF0\x9F\x98", "\xED\xA0\x80", "\xC0\x80",
                           "\xF4\x90\x80\x80", "abc\xE2\x82 def"}) {
    const Tokens tokens = tokenize(ctx_, text);
    EXPECT_FALSE(tokens.empty());
    EXPECT_TRUE(is_valid_utf8(detokenized(tokens)));
  }
}

TEST_P(TokenizerContract, BufferThatIsTooSmallIsRefusedWithTheSize) {
  const Tokens tokens = tokenize(ctx_, "the quick brown fox");
  const size_t size = detokenized(tokens, false).size() + 1;
  for (const size_t capacity : {size_t{1}, size_t{5}, size - 1}) {
    char text[32] = "unchanged so far";
    OwnedMessage error;
    EXPECT_EQ(eliza_inference_detokenize(ctx_.get(), tokens.data(), tokens.size(), 0, 0, text,
                                         capacity, error.out()),
              ELIZA_ERR_INVALID_ARG);
    for (const std::string& fragment :
         {std::string("eliza_inference_detokenize"), "max_text_bytes " + std::to_string(capacity),
          std::to_string(size)}) {
      EXPECT_NE(error.text().find(fragment), std::string::npos) << error.text();
    }
    EXPECT_STREQ(text, "");
  }
  char text[32];
  EXPECT_EQ(eliza_inference_detokenize(ctx_.get(), tokens.data(), tokens.size(), 0, 0, text, size,
                                       nullptr),
            static_cast<int>(size - 1));
}

TEST_P(TokenizerContract, IdOutsideTheVocabularyIsRefused) {
  char text[32];
  for (const int32_t id : {-1, runtime_.vocabulary_size, INT32_MAX, INT32_MIN}) {
    OwnedMessage error;
    EXPECT_EQ(eliza_inference_detokenize(ctx_.get(), &id, 1, 0, 0, text, sizeof text, error.out()),
              ELIZA_ERR_INVALID_ARG);
    EXPECT_NE(error.text().find(std::to_string(id)), std::string::npos) << error.text();
  }
}

TEST_P(TokenizerContract, LongTextsAreFine) {
  std::string text;
  while (text.size() < 200000) text += "the lazy dog \u4e16 ";
  EXPECT_EQ(round_trip(text), text);
}

}  // namespace
}  // namespace eliza::test
