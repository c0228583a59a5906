#include "llama/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "support/error.h"
#include "test_support.h"

namespace eliza::llama {
namespace {

using test::Tokens;
using Logits = std::vector<float>;

constexpr float minus_infinity = -std::numeric_limits<float>::infinity();
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

int32_t draw(Sampler& sampler, const Logits& logits, const Tokens& sequence = {}) {
  return sampler.draw(logits.data(), static_cast<int32_t>(logits.size()), sequence);
}

SamplingSettings seeded(float temperature) {
  SamplingSettings settings;
  settings.temperature = temperature;
  settings.seed = 12345;
  return settings;
}

using Distribution = std::map<int32_t, double>;

// The contract word by word, as slow as it likes: grammar, penalties, top-k, top-p, temperature.
Distribution reference(const SamplingSettings& settings, const Logits& logits,
                       const Tokens& sequence, const Tokens& admitted) {
  Logits adjusted = logits;
  const size_t first = sequence.size() > 64 ? sequence.size() - 64 : 0;
  for (size_t token = 0; token < logits.size(); ++token) {
    const auto id = static_cast<int32_t>(token);
    const auto begin = sequence.begin() + static_cast<std::ptrdiff_t>(first);
    if (std::find(begin, sequence.end(), id) == sequence.end()) continue;
    float& logit = adjusted[token];
    logit = logit > 0 ? logit / settings.repeat_penalty : logit * settings.repeat_penalty;
  }
  Tokens kept;
  for (const int32_t token : admitted) {
    const auto& banned = settings.banned_tokens;
    if (std::find(banned.begin(), banned.end(), token) == banned.end()) kept.push_back(token);
  }
  const auto logit_of = [&](int32_t token) {
    return static_cast<double>(adjusted[static_cast<size_t>(token)]);
  };
  std::stable_sort(kept.begin(), kept.end(),
                   [&](int32_t a, int32_t b) { return logit_of(a) > logit_of(b); });
  if (settings.top_k > 0 && kept.size() > static_cast<size_t>(settings.top_k)) {
    kept.resize(static_cast<size_t>(settings.top_k));
  }
  const double highest = logit_of(kept.front());
  if (settings.top_p > 0 && settings.top_p < 1) {
    double total = 0;
    for (const int32_t token : kept) total += std::exp(logit_of(token) - highest);
    double mass = 0;
    size_t count = 0;
    while (mass < settings.top_p * total) mass += std::exp(logit_of(kept[count++]) - highest);
    kept.resize(count);
  }
  Distribution probabilities;
  double total = 0;
  for (const int32_t token : kept) {
    total += probabilities[token] = std::exp((logit_of(token) - highest) / settings.temperature);
  }
  for (auto& [token, probability] : probabilities) probability /= total;
  return probabilities;
}

Tokens all_tokens(const Logits& logits) {
  Tokens tokens(logits.size());
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}

// Draws `count` times and compares with `expected`: nothing else comes, and Pearson's statistic
// stays in the range that all but one seed in a million would stay in.
void expect_distribution(Sampler& sampler, const Logits& logits, const Tokens& sequence,
                         const Distribution& expected, int count) {
  std::map<int32_t, int> drawn;
  for (int i = 0; i < count; ++i) {
    ++drawn[draw(sampler, logits, sequence)];
    sampler.restart_grammar();
  }
  for (const auto& [token, times] : drawn) {
    EXPECT_EQ(expected.count(token), 1u) << "token " << token << " came " << times << " times";
  }
  // Cells too rare for the statistic are merged.
  double statistic = 0;
  double rare_expected = 0;
  double rare_drawn = 0;
  double cells = 0;
  const auto add = [&](double wanted, double got) {
    statistic += (got - wanted) * (got - wanted) / wanted;
    ++cells;
  };
  for (const auto& [token, probability] : expected) {
    if (probability * count >= 10) {
      add(probability * count, drawn[token]);
    } else {
      rare_expected += probability * count;
      rare_drawn += drawn[token];
    }
  }
  if (rare_expected >= 10) add(rare_expected, rare_drawn);
  const double freedom = std::max(1.0, cells - 1);
  EXPECT_LT(statistic, freedom + 5 * std::sqrt(2 * freedom) + 12);
}

void expect_distribution(const SamplingSettings& settings, const Logits& logits,
                         const Tokens& sequence = {}, int count = 20000) {
  Sampler sampler(settings, nullptr);
  const auto expected = reference(settings, logits, sequence, all_tokens(logits));
  expect_distribution(sampler, logits, sequence, expected, count);
}

const Logits some_logits = {1.0f, 2.5f, -0.5f, 2.0f, 0.0f, 1.5f, -3.0f, 2.25f};

// ------------------------------------------------------------------------ greedy

TEST(GreedySamplerTest, TakesTheLargestLogit) {
  Sampler sampler({}, nullptr);
  EXPECT_EQ(draw(sampler, {-5, -1, -3}), 1);
  EXPECT_EQ(draw(sampler, {minus_infinity, -1e30f, minus_infinity}), 1);
  EXPECT_EQ(draw(sampler, {7}), 0);
}

TEST(GreedySamplerTest, TakesTheLowestIdOfEqualLogits) {
  Sampler sampler({}, nullptr);
  EXPECT_EQ(draw(sampler, {1, 3, 3, 3, 2}), 1);
  EXPECT_EQ(draw(sampler, {0, 0, 0}), 0);
}

TEST(GreedySamplerTest, IgnoresTopKAndTopP) {
  SamplingSettings settings;
  settings.top_k = 3;
  settings.top_p = 0.1f;
  Sampler sampler(settings, nullptr);
  EXPECT_EQ(draw(sampler, some_logits), 1);
}

TEST(GreedySamplerTest, NeverTakesABannedToken) {
  SamplingSettings settings;
  settings.banned_tokens = Tokens{1, 7};
  Sampler sampler(settings, nullptr);
  EXPECT_EQ(draw(sampler, some_logits), 3);
}

TEST(GreedySamplerTest, NeverTakesANotANumber) {
  Sampler sampler({}, nullptr);
  EXPECT_EQ(draw(sampler, {not_a_number, 1, 2, not_a_number}), 2);
  EXPECT_EQ(draw(sampler, {1, not_a_number, 2}), 2);
}

// A made-up token would be worse than an error.
class NothingToDrawTest : public testing::TestWithParam<float> {};

TEST_P(NothingToDrawTest, IsAnError) {
  for (const float nothing : {minus_infinity, not_a_number}) {
    Sampler sampler(seeded(GetParam()), nullptr);
    EXPECT_THROW(draw(sampler, {nothing, nothing, nothing}), Error) << nothing;
  }
  SamplingSettings settings = seeded(GetParam());
  settings.banned_tokens = Tokens{0, 1};
  Sampler sampler(settings, nullptr);
  EXPECT_THROW(draw(sampler, {1, 2}), Error) << "every token is banned";
}

INSTANTIATE_TEST_SUITE_P(Temperatures, NothingToDrawTest, testing::Values(0.0f, 1.0f));

// ----------------------------------------------------------------- distributions

TEST(SamplerDistributionTest, FollowsTheSoftmaxAtEveryTemperature) {
  for (const float temperature : {0.3f, 1.0f, 2.5f, 1000.0f}) {
    expect_distribution(seeded(temperature), some_logits);
  }
}

TEST(SamplerDistributionTest, TopKKeepsTheLikeliest) {
  for (const int32_t top_k : {1, 2, 3, 7, 8, 100}) {
    SamplingSettings settings = seeded(1.2f);
    settings.top_k = top_k;
    expect_distribution(settings, some_logits);
  }
}

TEST(SamplerDistributionTest, TopKKeepsLowerIdsOfEqualLogits) {
  SamplingSettings settings = seeded(1.0f);
  settings.top_k = 3;
  expect_distribution(settings, {1, 2, 2, 2, 2, 1});
}

TEST(SamplerDistributionTest, TopPKeepsTheSmallestSetThatReachesTheMass) {
  for (const float top_p : {0.0001f, 0.3f, 0.5f, 0.9f, 0.999f}) {
    SamplingSettings settings = seeded(1.0f);
    settings.top_p = top_p;
    expect_distribution(settings, some_logits);
  }
}

TEST(SamplerDistributionTest, TopPOutsideItsRangeIsOff) {
  for (const float top_p : {-1.0f, 0.0f, 1.0f, 2.0f}) {
    SamplingSettings settings = seeded(1.0f);
    settings.top_p = top_p;
    expect_distribution(settings, some_logits);
  }
}

TEST(SamplerDistributionTest, TopPLooksAtTheLogitsBeforeTemperature) {
  SamplingSettings settings = seeded(50.0f);
  settings.top_p = 0.6f;
  expect_distribution(settings, some_logits);
}

TEST(SamplerDistributionTest, EverythingTogetherOnALargeVocabulary) {
  Logits logits(3000);
  for (size_t i = 0; i < logits.size(); ++i) {
    logits[i] = 3.0f * std::sin(static_cast<float>(i * i % 1013));
  }
  const Tokens sequence = test::random_tokens(200, 0, 2999);
  for (const int32_t top_k : {0, 20, 700, 2999}) {
    for (const float top_p : {1.0f, 0.95f, 0.2f}) {
      SamplingSettings settings = seeded(0.8f);
      settings.top_k = top_k;
      settings.top_p = top_p;
      settings.repeat_penalty = 1.3f;
      settings.banned_tokens = Tokens{5, 17, 2999};
      expect_distribution(settings, logits, sequence, 3000);
    }
  }
}

TEST(SamplerDistributionTest, TinyTemperatureTakesTheBest) {
  Sampler sampler(seeded(1e-30f), nullptr);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(draw(sampler, some_logits), 1);
}

TEST(SamplerDistributionTest, BannedTokensNeverCome) {
  SamplingSettings settings = seeded(10.0f);
  settings.banned_tokens = Tokens{1, 3, 7};
  expect_distribution(settings, some_logits);
  settings.top_k = 2;
  expect_distribution(settings, some_logits);
}

// ---------------------------------------------------------------- repeat penalty

TEST(RepeatPenaltyTest, LowersPositiveAndNegativeLogits) {
  SamplingSettings settings;
  settings.repeat_penalty = 2.0f;
  Sampler sampler(settings, nullptr);
  EXPECT_EQ(draw(sampler, {4, 3, 1}, {0}), 1);
  EXPECT_EQ(draw(sampler, {-2, -3, -9}, {0}), 1);
}

TEST(RepeatPenaltyTest, CountsARepeatedTokenOnce) {
  SamplingSettings settings;
  settings.repeat_penalty = 1.5f;
  Sampler sampler(settings, nullptr);
  EXPECT_EQ(draw(sampler, {3, 1.9f}, Tokens(60, 0)), 0);
}

TEST(RepeatPenaltyTest, CoversTheLast64TokensOnly) {
  SamplingSettings settings;
  settings.repeat_penalty = 10.0f;
  Sampler sampler(settings, nullptr);
  Tokens sequence(65, 2);
  sequence[0] = 0;
  EXPECT_EQ(draw(sampler, {9, 8, 0}, sequence), 0) << "65 back";
  sequence[1] = 0;
  EXPECT_EQ(draw(sampler, {9, 8, 0}, sequence), 1) << "64 back";
}

TEST(RepeatPenaltyTest, LooksAtNothingWhenOff) {
  Sampler sampler({}, nullptr);
  EXPECT_EQ(draw(sampler, {9, 8}, {0, 0, 0}), 0);
}

TEST(RepeatPenaltyTest, ChangesTheDistribution) {
  SamplingSettings settings = seeded(1.0f);
  settings.repeat_penalty = 1.7f;
  expect_distribution(settings, some_logits, {1, 6, 3, 1});
}

// -------------------------------------------------------------------------- seed

Tokens drawn(Sampler& sampler, size_t count = 50) {
  Tokens tokens;
  while (tokens.size() < count) tokens.push_back(draw(sampler, some_logits));
  return tokens;
}

TEST(SamplerSeedTest, RepeatsForTheSameSeedAndAfterReset) {
  Sampler sampler(seeded(2.0f), nullptr);
  Sampler twin(seeded(2.0f), nullptr);
  const Tokens first = drawn(sampler);
  EXPECT_NE(drawn(sampler), first) << "the random state does not advance";
  EXPECT_EQ(drawn(twin), first);
  sampler.reset();
  EXPECT_EQ(drawn(sampler), first);
}

TEST(SamplerSeedTest, DiffersForAnotherSeed) {
  SamplingSettings settings = seeded(2.0f);
  Sampler sampler(settings, nullptr);
  settings.seed = 54321;
  Sampler other(settings, nullptr);
  EXPECT_NE(drawn(sampler), drawn(other));
}

TEST(SamplerSeedTest, DiffersWithoutASeed) {
  SamplingSettings settings = seeded(2.0f);
  settings.seed.reset();
  Sampler sampler(settings, nullptr);
  Sampler other(settings, nullptr);
  const Tokens first = drawn(sampler);
  EXPECT_NE(drawn(other), first);
  sampler.reset();
  EXPECT_NE(drawn(sampler), first);
}

// ----------------------------------------------------------------------- grammar

class GrammarSamplerTest : public testing::Test {
 protected:
  GrammarSamplerTest()
      : model_(std::make_shared<const Model>(test::test_model("tiny-bpe.gguf").string(), 0)),
        logits_(static_cast<size_t>(model_->vocabulary().size())) {
    for (size_t i = 0; i < logits_.size(); ++i) {
      logits_[i] = 2.0f * std::sin(static_cast<float>(i * 7 % 101));
    }
  }

  std::unique_ptr<Grammar> grammar(const std::string& gbnf) {
    return std::make_unique<Grammar>(model_, gbnf);
  }

  // Tokens whose text is made of `characters` only: what `root ::= [characters]+` admits first.
  Tokens made_of(const std::string& characters) {
    Tokens tokens;
    for (int32_t token = 0; token < model_->vocabulary().size(); ++token) {
      const std::string piece = model_->vocabulary().piece(token);
      if (!piece.empty() && piece.find_first_not_of(characters) == std::string::npos) {
        tokens.push_back(token);
      }
    }
    return tokens;
  }

  int32_t token_of(const std::string& text) {
    for (int32_t token = 0; token < model_->vocabulary().size(); ++token) {
      if (model_->vocabulary().piece(token) == text) return token;
    }
    ADD_FAILURE() << "no token " << text;
    return 0;
  }

  // Text drawn until the end of generation.
  std::string text_of(Sampler& sampler) {
    std::string text;
    for (int i = 0; i < 100; ++i) {
      const int32_t token = draw(sampler, logits_);
      if (model_->vocabulary().ends_generation(token)) return text;
      text += model_->vocabulary().piece(token);
    }
    ADD_FAILURE() << "no end after: " << text;
    return text;
  }

  std::shared_ptr<const Model> model_;
  Logits logits_;
};

TEST_F(GrammarSamplerTest, GreedyTakesTheBestAdmittedToken) {
  Sampler sampler({}, grammar("root ::= [ahe]+"));
  const Tokens admitted = made_of("ahe");
  ASSERT_GT(admitted.size(), 2u);
  const auto likelier = [&](int32_t a, int32_t b) {
    return logits_[static_cast<size_t>(a)] < logits_[static_cast<size_t>(b)];
  };
  EXPECT_EQ(draw(sampler, logits_), *std::max_element(admitted.begin(), admitted.end(), likelier));
}

TEST_F(GrammarSamplerTest, FollowsTheGrammarToItsEnd) {
  for (const float temperature : {0.0f, 1.0f, 5.0f}) {
    Sampler sampler(seeded(temperature), grammar(R"(root ::= "the quick" (" brown" | " lazy"))"));
    const std::string text = text_of(sampler);
    EXPECT_TRUE(text == "the quick brown" || text == "the quick lazy") << text;
  }
}

TEST_F(GrammarSamplerTest, StartsAgainAfterResetAndRestart) {
  Sampler sampler({}, grammar(R"(root ::= "dog")"));
  EXPECT_EQ(text_of(sampler), "dog");
  sampler.restart_grammar();
  EXPECT_EQ(text_of(sampler), "dog");
  sampler.restart_grammar();
  draw(sampler, logits_);
  sampler.reset();
  EXPECT_EQ(text_of(sampler), "dog");
}

TEST_F(GrammarSamplerTest, ComesBeforeTopK) {
  // The plain top 2 are no digits at all.
  logits_[static_cast<size_t>(token_of("x"))] = 50;
  logits_[static_cast<size_t>(token_of("y"))] = 49;
  SamplingSettings settings = seeded(1.0f);
  settings.top_k = 2;
  Sampler sampler(settings, grammar("root ::= [0-9]+"));
  const auto expected = reference(settings, logits_, {}, made_of("0123456789"));
  EXPECT_EQ(expected.size(), 2u);
  expect_distribution(sampler, logits_, {}, expected, 2000);
}

TEST_F(GrammarSamplerTest, FindsATokenFarBehindTheLikeliest) {
  const int32_t wanted = token_of("Q");
  for (float& logit : logits_) logit += 100;
  logits_[static_cast<size_t>(wanted)] = -100;
  for (const int32_t top_k : {0, 1, 10}) {
    SamplingSettings settings = seeded(1.0f);
    settings.top_k = top_k;
    Sampler sampler(settings, grammar(R"(root ::= "Q")"));
    EXPECT_EQ(draw(sampler, logits_), wanted) << top_k;
  }
}

TEST_F(GrammarSamplerTest, EqualsTheNaiveOrderOfSteps) {
  const Tokens admitted = made_of("abcdefghijklm ");
  const Tokens sequence = test::random_tokens(100, 6, model_->vocabulary().size() - 1);
  for (const int32_t top_k : {0, 1, 5, 11, 60}) {
    for (const float top_p : {1.0f, 0.8f, 0.3f}) {
      SamplingSettings settings = seeded(1.4f);
      settings.top_k = top_k;
      settings.top_p = top_p;
      settings.repeat_penalty = 1.5f;
      settings.banned_tokens = Tokens{admitted[1]};
      Sampler sampler(settings, grammar("root ::= [a-m ]+"));
      const auto expected = reference(settings, logits_, sequence, admitted);
      expect_distribution(sampler, logits_, sequence, expected, 1000);
    }
  }
}

TEST_F(GrammarSamplerTest, BanAndGrammarTogetherLeaveAnError) {
  SamplingSettings settings;
  settings.banned_tokens = Tokens{token_of("Q")};
  for (const float temperature : {0.0f, 1.0f}) {
    settings.temperature = temperature;
    Sampler sampler(settings, grammar(R"(root ::= "Q")"));
    EXPECT_THROW(draw(sampler, logits_), Error);
  }
}

TEST_F(GrammarSamplerTest, CharactersOfSeveralTokensAreAdmitted) {
  Sampler sampler({}, grammar("root ::= \"\u00e9\U0001f600\u4e16\""));
  EXPECT_EQ(text_of(sampler), "\u00e9\U0001f600\u4e16");
}

TEST_F(GrammarSamplerTest, NeverDrawsAnIllFormedCharacter) {
  SamplingSettings settings;
  settings.temperature = 5.0f;
  for (const char* gbnf : {"root ::= [\u4e16\U0001f600]{4}", "root ::= [^a]{4}", "root ::= .{4}"}) {
    for (uint32_t seed = 0; seed < 40; ++seed) {
      settings.seed = seed;
      Sampler sampler(settings, grammar(gbnf));
      EXPECT_TRUE(test::is_valid_utf8(text_of(sampler))) << gbnf << " with seed " << seed;
    }
  }
}

TEST_F(GrammarSamplerTest, HugePenaltyForbidsNothing) {
  for (const float penalty : {1e-38f, 3e38f}) {
    SamplingSettings settings;
    settings.repeat_penalty = penalty;
    Sampler sampler(settings, grammar(R"(root ::= "QQQQQQQQ")"));
    Tokens sequence;
    for (int i = 0; i < 8; ++i)
      sequence.push_back(sampler.draw(logits_.data(), model_->vocabulary().size(), sequence));
    EXPECT_EQ(sequence, Tokens(8, token_of("Q")));
  }
}

}  // namespace
}  // namespace eliza::llama
