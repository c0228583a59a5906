#include "llama/draft_budget.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <string>

// The budget against a simulated machine, whose clock the test is.

namespace eliza::llama {
namespace {

// A stream of tokens on a machine where a plain step takes one second.
struct Simulation {
  double cost_of_one = 0.5;  // seconds that a drafted token adds to its step
  double cost_of_step = 0;   // seconds that drafting adds whatever its length
  double noise = 0;          // share by which a step may take longer
  size_t most = 8;

  // How many of `drafted` tokens are right at token number `at`.
  std::function<size_t(size_t drafted, size_t at)> accepted;

  // Whether the drafter finds anything; it takes its time to find out.
  std::function<bool(size_t at)> finds = [](size_t) { return true; };

  double seconds = 0;
  size_t tokens = 0;
  size_t steps = 0;
  size_t drafting_steps = 0;
  size_t longest_draft = 0;
  std::mt19937 random{7};

  double noisy(double duration) {
    return duration * (1 + noise * static_cast<double>(random() % 1000) / 1000);
  }

  void run(DraftBudget& budget, size_t count) {
    const size_t end = tokens + count;
    while (tokens < end) {
      ++steps;
      const size_t drafted = budget.affordable(most);
      if (drafted == 0) {
        const double duration = noisy(1);
        budget.plain_step(duration);
        seconds += duration;
        ++tokens;
        continue;
      }
      const double drafting = noisy(cost_of_step + cost_of_one * static_cast<double>(drafted));
      if (!finds(tokens)) {
        const double duration = noisy(1);
        const double search = noisy(cost_of_step + cost_of_one);  // ends at the first token
        budget.plain_step(duration, search);
        seconds += duration + search;
        ++tokens;
        continue;
      }
      ++drafting_steps;
      longest_draft = std::max(longest_draft, drafted);
      const size_t delivered = std::min(accepted(drafted, tokens), drafted) + 1;
      const double duration = noisy(1 + drafting);
      budget.draft_step(drafted, delivered, duration);
      seconds += duration;
      tokens += delivered;
    }
  }

  // Plain decoding of as many tokens takes a second each, and half the noise on average.
  double speed() const { return static_cast<double>(tokens) * (1 + noise / 2) / seconds; }
};

std::function<size_t(size_t, size_t)> always(size_t count) {
  return [count](size_t, size_t) { return count; };
}

TEST(DraftBudgetTest, DraftsNothingBeforeItKnowsAPlainStep) {
  DraftBudget budget(0.5);
  EXPECT_EQ(budget.affordable(8), 0u);
  budget.plain_step(1);
  EXPECT_EQ(budget.affordable(8), 0u);
}

TEST(DraftBudgetTest, NeverDraftsMoreThanAsked) {
  DraftBudget budget(0.01);
  for (int i = 0; i < 10; ++i) budget.plain_step(1);
  for (const size_t most : {0, 1, 5, 1000}) EXPECT_LE(budget.affordable(most), most);
  EXPECT_EQ(budget.affordable(1), 1u);
}

struct Drafter {
  std::string name;
  double first_guess;
  double cost_of_one;
  double cost_of_step;
};

const Drafter drafters[] = {{"as guessed", 0.6, 0.6, 0},
                            {"as dear as the target", 1, 1, 0},
                            {"cheap", 0.6, 0.05, 0},
                            {"twice as dear as guessed", 0.6, 1.2, 0},
                            {"with a fixed cost", 0.6, 0.3, 0.6},
                            {"cheaper than guessed", 1, 0.1, 0}};

const std::pair<const char*, std::function<size_t(size_t, size_t)>> acceptances[] = {
    {"none", always(0)},
    {"one", always(1)},
    {"half", [](size_t drafted, size_t) { return drafted / 2; }},
    {"all", always(1000)},
    {"all or none by turns", [](size_t, size_t at) { return at / 40 % 2 == 0 ? 1000 : 0; }},
    {"all at first", [](size_t, size_t at) { return at < 60 ? 1000 : 0; }},
    {"one in three", [](size_t, size_t at) { return at % 3 == 0 ? 2 : 0; }}};

TEST(DraftBudgetTest, NeverLosesMoreThanAFewPercent) {
  for (const Drafter& drafter : drafters) {
    for (const auto& [kind, accepted] : acceptances) {
      for (const size_t count : {128, 256, 1000, 10000}) {
        for (const double noise : {0.0, 0.3}) {
          DraftBudget budget(drafter.first_guess);
          Simulation machine;
          machine.cost_of_one = drafter.cost_of_one;
          machine.cost_of_step = drafter.cost_of_step;
          machine.noise = noise;
          machine.accepted = accepted;
          machine.run(budget, count);
          EXPECT_GT(machine.speed(), 0.94) << drafter.name << ", accepted: " << kind << ", "
                                           << count << " tokens, noise " << noise;
        }
      }
    }
  }
}

// A first guess that is far too low costs more at the start, and no more later.
TEST(DraftBudgetTest, LearnsADrafterThatIsMuchDearerThanGuessed) {
  for (const auto& [kind, accepted] : acceptances) {
    DraftBudget budget(0.6);
    Simulation machine;
    machine.cost_of_one = 5;
    machine.accepted = accepted;
    machine.run(budget, 128);
    EXPECT_GT(machine.speed(), 0.8) << kind;
    machine.run(budget, 1000);
    EXPECT_GT(machine.speed(), 0.95) << kind;
  }
}

TEST(DraftBudgetTest, SearchesThatFindNothingCostLittleToo) {
  for (const Drafter& drafter : drafters) {
    for (const size_t every : {size_t{1000000}, size_t{10}, size_t{2}}) {
      for (const size_t count : {128, 1000, 10000}) {
        DraftBudget budget(drafter.first_guess);
        Simulation machine;
        machine.cost_of_one = drafter.cost_of_one;
        machine.cost_of_step = drafter.cost_of_step;
        machine.finds = [every](size_t at) { return at % every == 1; };
        machine.accepted = always(1);
        machine.run(budget, count);
        EXPECT_GT(machine.speed(), 0.94)
            << drafter.name << ", finds one in " << every << ", " << count << " tokens";
      }
    }
  }
}

TEST(DraftBudgetTest, DraftsAtFullLengthWhereItPays) {
  for (const double cost : {0.05, 0.2, 0.6}) {
    DraftBudget budget(0.6);
    Simulation machine;
    machine.cost_of_one = cost;
    machine.accepted = always(1000);
    machine.run(budget, 200);
    EXPECT_EQ(machine.longest_draft, 8u) << cost;
    // Nearly as fast as with full drafts from the first token on.
    const double ideal = 9 / (1 + 8 * cost);
    EXPECT_GT(machine.speed(), 0.85 * ideal) << cost;
  }
}

TEST(DraftBudgetTest, RecoversAfterAStretchThatDidNotPay) {
  for (const size_t stretch : {50, 200, 2000}) {
    DraftBudget budget(0.3);
    Simulation machine;
    machine.cost_of_one = 0.3;
    machine.accepted = [&](size_t, size_t at) { return at < stretch ? 0 : 1000; };
    machine.run(budget, stretch);
    const double before = machine.seconds;
    const size_t tokens = machine.tokens;
    machine.run(budget, 200);
    const double speed = static_cast<double>(machine.tokens - tokens) / (machine.seconds - before);
    EXPECT_GT(speed, 1.3) << "after " << stretch << " tokens";
  }
}

TEST(DraftBudgetTest, LongStretchThatPaidDoesNotFundOneThatDoesNot) {
  DraftBudget budget(0.3);
  Simulation machine;
  machine.cost_of_one = 0.3;
  machine.accepted = [](size_t, size_t at) { return at < 5000 ? 1000 : 0; };
  machine.run(budget, 5000);
  const double before = machine.seconds;
  const size_t tokens = machine.tokens;
  machine.run(budget, 1000);
  const auto plain = static_cast<double>(machine.tokens - tokens);
  EXPECT_LT(machine.seconds - before, plain * 1.02 + 20);
}

// The machine slept, or was busy, in the middle of one step.
TEST(DraftBudgetTest, OneLongStepDoesNotEndDrafting) {
  for (const bool in_draft : {true, false}) {
    for (const double length : {10.0, 1000.0, 1e6}) {
      DraftBudget budget(0.3);
      Simulation machine;
      machine.cost_of_one = 0.3;
      machine.accepted = always(1000);
      machine.run(budget, 100);
      if (in_draft) {
        budget.draft_step(8, 9, length);
      } else {
        budget.plain_step(length);
      }
      machine.seconds = 0;
      machine.tokens = 0;
      machine.run(budget, 200);
      EXPECT_GT(machine.speed(), 1.5) << length << (in_draft ? " in a draft" : " in a plain step");
    }
  }
}

TEST(DraftBudgetTest, OneLongSearchDoesNotEndDrafting) {
  DraftBudget budget(0.3);
  Simulation machine;
  machine.cost_of_one = 0.3;
  machine.accepted = always(1000);
  machine.run(budget, 100);
  budget.plain_step(1, 1e6);
  machine.seconds = 0;
  machine.tokens = 0;
  machine.run(budget, 200);
  EXPECT_GT(machine.speed(), 1.5);
}

TEST(DraftBudgetTest, ClockThatStandsStillIsNoDivisionByZero) {
  DraftBudget budget(0.5);
  for (int step = 0; step < 50; ++step) {
    const size_t drafted = budget.affordable(8);
    EXPECT_LE(drafted, 8u);
    if (drafted > 0) {
      budget.draft_step(drafted, 1, 0);
    } else {
      budget.plain_step(0);
    }
  }
  for (int step = 0; step < 50; ++step) {
    budget.plain_step(1);
    EXPECT_LE(budget.affordable(8), 8u);
  }
}

}  // namespace
}  // namespace eliza::llama
