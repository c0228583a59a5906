#include "support/utf8.h"

#include <gtest/gtest.h>

#include <random>

#include "test_support.h"

namespace eliza::test {
namespace {

using namespace std::string_literals;

// One U+FFFD for each `R`; other characters stand for themselves.
std::string with_replacements(const std::string& pattern) {
  std::string text;
  for (const char c : pattern) text += c == 'R' ? "\uFFFD" : std::string(1, c);
  return text;
}

std::string assembled(const std::vector<std::string>& parts) {
  Utf8Assembler assembler;
  for (const auto& part : parts) assembler.push(part);
  assembler.finish();
  return assembler.take_all();
}

// Takes everything in pieces of at most `capacity` bytes. Where not even one character fits, checks
// that it really does not and takes it with the smallest capacity that holds any character.
std::string taken_in_pieces(Utf8Assembler& assembler, size_t capacity) {
  std::string all;
  while (assembler.has_text()) {
    char buffer[16];
    std::fill(std::begin(buffer), std::end(buffer), '\x5A');
    size_t length = assembler.take(buffer, capacity);
    EXPECT_LT(length, capacity);
    EXPECT_EQ(buffer[length], '\0');
    EXPECT_EQ(buffer[capacity], '\x5A') << "wrote behind the buffer";
    EXPECT_TRUE(is_valid_utf8({buffer, length})) << "split a character";
    if (length == 0) {
      length = assembler.take(buffer, 5);
      EXPECT_GE(length, capacity) << "a character that fits was held back";
    }
    all.append(buffer, length);
  }
  return all;
}

TEST(Utf8AssemblerTest, DeliversTheSameTextHoweverTheBytesAreCut) {
  const std::string text = "a\u00e9\u20ac\U0001f600 z\u0416\u4e16\U0010ffff!"s;
  for (size_t first = 0; first <= text.size(); ++first) {
    for (size_t second = first; second <= text.size(); ++second) {
      EXPECT_EQ(assembled({text.substr(0, first), text.substr(first, second - first),
                           text.substr(second)}),
                text);
    }
  }
}

TEST(Utf8AssemblerTest, DeliversTheSameTextByteByByte) {
  Utf8Assembler assembler;
  std::string delivered;
  const std::string text = "\U0001f44b\u4e16\u754c\u00e9x";
  for (const char byte : text) {
    assembler.push({&byte, 1});
    const std::string step = assembler.take_all();
    EXPECT_TRUE(is_valid_utf8(step));
    delivered += step;
  }
  EXPECT_EQ(delivered, text);
}

TEST(Utf8AssemblerTest, KeepsTheFirstAndLastCharacterOfEveryLength) {
  const std::string text = "\x01\x7F\u0080\u07ff\u0800\ud7ff\ue000\uffff\U00010000\U0010ffff";
  EXPECT_EQ(to_valid_utf8(text), text);
}

TEST(Utf8AssemblerTest, HoldsBackAnUnfinishedCharacter) {
  Utf8Assembler assembler;
  assembler.push("a\xF0\x9F\x98");
  EXPECT_EQ(assembler.take_all(), "a");
  EXPECT_FALSE(assembler.has_text());
  assembler.push("\x80");
  EXPECT_EQ(assembler.take_all(), "\U0001f600");
}

TEST(Utf8AssemblerTest, ClearForgetsTextAndUnfinishedBytes) {
  Utf8Assembler assembler;
  assembler.push("abc\xF0\x9F");
  char one[2];
  assembler.take(one, sizeof one);
  assembler.clear();
  EXPECT_FALSE(assembler.has_text());
  assembler.push("\x98z");
  EXPECT_EQ(assembler.take_all(), with_replacements("Rz"));
}

TEST(Utf8AssemblerTest, FinishWithoutUnfinishedBytesAddsNothing) {
  Utf8Assembler assembler;
  assembler.push("abc");
  assembler.finish();
  assembler.finish();
  EXPECT_EQ(assembler.take_all(), "abc");
}

struct IllFormed {
  const char* what;
  std::string bytes;
  const char* expected;  // see with_replacements
};

class Utf8IllFormedTest : public testing::TestWithParam<IllFormed> {};

TEST_P(Utf8IllFormedTest, BecomesOneReplacementForEachMaximalPart) {
  const auto& [what, bytes, expected] = GetParam();
  EXPECT_EQ(to_valid_utf8(bytes), with_replacements(expected)) << what;
}

TEST_P(Utf8IllFormedTest, BecomesTheSameWhereverItIsCut) {
  const auto& [what, bytes, expected] = GetParam();
  for (size_t cut = 0; cut <= bytes.size(); ++cut) {
    EXPECT_EQ(assembled({bytes.substr(0, cut), bytes.substr(cut)}), with_replacements(expected))
        << what << ", cut at " << cut;
  }
}

// Expected values: bytes.decode("utf-8", "replace") of Python, and table 3-8 of the Unicode
// standard.
INSTANTIATE_TEST_SUITE_P(
    Sequences, Utf8IllFormedTest,
    testing::Values(IllFormed{"lone continuation", "\x80", "R"},
                    IllFormed{"two of them", "\xBF\x80", "RR"},
                    IllFormed{"overlong slash in 2 bytes", "\xC0\xAF", "RR"},
                    IllFormed{"highest overlong in 2 bytes", "\xC1\xBF", "RR"},
                    IllFormed{"overlong in 3 bytes", "\xE0\x80\x80", "RRR"},
                    IllFormed{"highest overlong in 3 bytes", "\xE0\x9F\xBF", "RRR"},
                    IllFormed{"overlong in 4 bytes", "\xF0\x80\x80\x80", "RRRR"},
                    IllFormed{"highest overlong in 4 bytes", "\xF0\x8F\xBF\xBF", "RRRR"},
                    IllFormed{"lowest surrogate", "\xED\xA0\x80", "RRR"},
                    IllFormed{"highest surrogate", "\xED\xBF\xBF", "RRR"},
                    IllFormed{"above U+10FFFF", "\xF4\x90\x80\x80", "RRRR"},
                    IllFormed{"lead above F4", "\xF5\x80\x80\x80", "RRRR"},
                    IllFormed{"bytes that are never used", "\xFE\xFF", "RR"},
                    IllFormed{"2-byte lead and ASCII", "\xC3(", "R("},
                    IllFormed{"3-byte beginning and ASCII", "\xE2\x82(", "R("},
                    IllFormed{"4-byte beginning and ASCII", "\xF0\x9F\x98(", "R("},
                    IllFormed{"lead after lead", "\xC3\xC3\xC3", "RRR"},
                    IllFormed{"beginning after beginning", "\xF0\x9F\xE2\x82z", "RRz"},
                    IllFormed{"truncated 2-byte", "a\xC3", "aR"},
                    IllFormed{"truncated 3-byte", "a\xE2\x82", "aR"},
                    IllFormed{"truncated 4-byte", "a\xF0\x9F\x98", "aR"},
                    IllFormed{"U+0000", "a\0b"s, "aRb"}, IllFormed{"U+0000 twice", "\0\0"s, "RR"},
                    IllFormed{"U+0000 inside a character", "\xE2\0\x82"s, "RRR"},
                    IllFormed{"Unicode table 3-8",
                              "a\xF1\x80\x80\xE1\x80\xC2"s + "b\x80"s + "c\x80\xBF"s + "d",
                              "aRRRbRcRRd"}));

TEST(Utf8AssemblerTest, ResumesWithTheCharacterThatInterruptsAnother) {
  EXPECT_EQ(to_valid_utf8("\xF0\x9F\U0001f600"), "\uFFFD\U0001f600");
  EXPECT_EQ(to_valid_utf8("\xE2\x82\u20ac"), "\uFFFD\u20ac");
}

class Utf8CapacityTest : public testing::TestWithParam<size_t> {};

TEST_P(Utf8CapacityTest, TakeNeverSplitsACharacterAndLosesNothing) {
  const std::string text = "a\u00e9\u20ac\U0001f600bc\u4e16\u754cd\U0001f44b\u00fc";
  Utf8Assembler assembler;
  assembler.push(text);
  EXPECT_EQ(taken_in_pieces(assembler, GetParam()), text);
}

TEST_P(Utf8CapacityTest, TakeFillsTheBufferAsFarAsItCan) {
  Utf8Assembler assembler;
  assembler.push("abcdefghij");
  char buffer[16];
  EXPECT_EQ(assembler.take(buffer, GetParam()), GetParam() - 1);
}

TEST_P(Utf8CapacityTest, RandomBytesGiveTheSameValidTextForEveryCapacity) {
  std::mt19937 random(20240607);
  // Bytes that are likely to form something: leads, continuations, limits.
  const std::string interesting =
      "a\0\x80\x8F\x90\x9F\xA0\xBF\xC0\xC2\xDF\xE0\xE1\xED\xEF\xF0\xF4"s;
  for (int round = 0; round < 2000; ++round) {
    std::string bytes(random() % 24, '\0');
    for (char& byte : bytes) {
      byte = random() % 2 == 0 ? interesting[random() % interesting.size()]
                               : static_cast<char>(random() % 256);
    }
    const std::string whole = to_valid_utf8(bytes);
    ASSERT_TRUE(is_valid_utf8(whole));
    ASSERT_EQ(whole.find('\0'), std::string::npos);

    Utf8Assembler assembler;
    std::string taken;
    for (size_t at = 0; at < bytes.size();) {
      const size_t length = 1 + random() % 5;
      assembler.push(std::string_view(bytes).substr(at, length));
      taken += taken_in_pieces(assembler, GetParam());
      at += length;
    }
    assembler.finish();
    taken += taken_in_pieces(assembler, GetParam());
    ASSERT_EQ(taken, whole);
  }
}

TEST(ContinuesUtf8Test, FollowsCharactersOverSeveralPieces) {
  std::string unfinished;
  for (const char* piece : {"a", "\xF0\x9F", "\x98", "\x80z\xE4"}) {
    EXPECT_TRUE(continues_utf8(unfinished, piece));
  }
  EXPECT_EQ(unfinished, "\xE4");
}

TEST(ContinuesUtf8Test, RefusesWhatOnlyResemblesACharacter) {
  for (const char* piece : {"\xC0\x80", "\xF0\x84\xB8\x96", "\xED\xA0\x80", "\xF4\x90", "\x80"}) {
    std::string unfinished;
    EXPECT_FALSE(continues_utf8(unfinished, piece)) << piece;
  }
  std::string unfinished = "\xE4\xB8";
  EXPECT_FALSE(continues_utf8(unfinished, "a"));
}

INSTANTIATE_TEST_SUITE_P(Capacities, Utf8CapacityTest, testing::Range<size_t>(1, 9));

}  // namespace
}  // namespace eliza::test
