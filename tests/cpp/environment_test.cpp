#include "support/environment.h"

#include <gtest/gtest.h>

#include "support/error.h"
#include "test_support.h"

namespace eliza::test {
namespace {

constexpr char name[] = "ELIZA_TEST_VARIABLE";

// The message of the Error that `work` must throw.
template <typename Work>
std::string refusal(const Work& work) {
  try {
    work();
  } catch (const Error& problem) {
    EXPECT_EQ(problem.code(), ELIZA_ERR_INVALID_ARG);
    return problem.what();
  }
  ADD_FAILURE() << "nothing was refused";
  return "";
}

TEST(EnvironmentTest, UnsetAndEmptyAreNothing) {
  for (const std::optional<std::string>& value : {std::optional<std::string>(), {""}}) {
    const EnvironmentVariable variable(name, value);
    EXPECT_EQ(environment_string(name), std::nullopt);
    EXPECT_EQ(environment_integer(name, 1, 9), std::nullopt);
    EXPECT_EQ(environment_choice(name, {"on", "off"}), std::nullopt);
  }
}

TEST(EnvironmentTest, StringIsTakenAsItIs) {
  const EnvironmentVariable variable(name, " Two words\xC3\xA9 ");
  EXPECT_EQ(environment_string(name), " Two words\xC3\xA9 ");
}

TEST(EnvironmentTest, IntegerIncludesItsBounds) {
  for (const int64_t number : {-3, 0, 7}) {
    const EnvironmentVariable variable(name, std::to_string(number));
    EXPECT_EQ(environment_integer(name, -3, 7), number);
  }
}

class EnvironmentIntegerTest : public testing::TestWithParam<const char*> {};

TEST_P(EnvironmentIntegerTest, IsRefusedWithNameValueAndBounds) {
  const EnvironmentVariable variable(name, GetParam());
  const std::string message = refusal([] { environment_integer(name, 0, 4096); });
  EXPECT_NE(message.find(name), std::string::npos) << message;
  EXPECT_NE(message.find(GetParam()), std::string::npos) << message;
  EXPECT_NE(message.find("0 to 4096"), std::string::npos) << message;
}

INSTANTIATE_TEST_SUITE_P(Junk, EnvironmentIntegerTest,
                         testing::Values("-1", "4097", "x", "1x", " 1", "1 ", "+1", "1.5", "1e3",
                                         "0x10", "1,000", "--1", "99999999999999999999999",
                                         "-99999999999999999999999", "nan", "\xD9\xA3"));

TEST(EnvironmentTest, ChoiceIgnoresCase) {
  for (const char* value : {"off", "OFF", "oFf"}) {
    const EnvironmentVariable variable(name, value);
    EXPECT_EQ(environment_choice(name, {"on", "off"}), 1u);
  }
}

TEST(EnvironmentTest, UnknownChoiceIsRefusedWithTheList) {
  for (const char* value : {"maybe", "of", "offf", " off", "on,off"}) {
    const EnvironmentVariable variable(name, value);
    const std::string message = refusal([] { environment_choice(name, {"on", "off"}); });
    EXPECT_NE(message.find(name), std::string::npos) << message;
    EXPECT_NE(message.find(value), std::string::npos) << message;
    EXPECT_NE(message.find("on, off"), std::string::npos) << message;
  }
}

TEST(EnvironmentTest, LongValuesAreShortenedInMessages) {
  const EnvironmentVariable variable(name, std::string(100000, 'x'));
  EXPECT_LT(refusal([] { environment_integer(name, 0, 1); }).size(), 1000u);
}

TEST(EnvironmentTest, CaseIsIgnoredForAsciiOnly) {
  EXPECT_TRUE(equal_ignoring_case("", ""));
  EXPECT_TRUE(equal_ignoring_case("LiteRT-LM", "litert-lm"));
  EXPECT_FALSE(equal_ignoring_case("litert-lm", "litert-lm "));
  EXPECT_FALSE(equal_ignoring_case("[", "{"));
  EXPECT_FALSE(equal_ignoring_case("\xC3\x89", "\xC3\xA9"));
}

TEST(EnvironmentTest, WordsAreJoinedByCommas) {
  EXPECT_EQ(joined({}), "");
  EXPECT_EQ(joined({"a"}), "a");
  EXPECT_EQ(joined({"a", "b", "c"}), "a, b, c");
}

}  // namespace
}  // namespace eliza::test
