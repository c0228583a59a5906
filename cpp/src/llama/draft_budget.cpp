#include "llama/draft_budget.h"

#include <algorithm>

namespace eliza::llama {
namespace {

constexpr int enough_plain_steps = 3;
constexpr double share_of_tokens = 0.02;
constexpr double most_balance = 16;  // a long stretch that paid must not fund one that does not
constexpr double weight_of_new = 0.2;

// A step that was interrupted by other work of the machine says little.
constexpr double outlier = 2;

// What a token costs that is decoded in a batch to catch up, of what a drafted one does.
constexpr double share_of_lag = 0.3;

// Of one drafted token; no measurement makes them free.
constexpr double least_cost = 0.05;

void average_in(double& average, double value) { average += weight_of_new * (value - average); }

}  // namespace

size_t DraftBudget::affordable(size_t most, size_t lag) const {
  const double left = balance_ - share_of_lag * static_cast<double>(lag) * cost_of_one_;
  if (plain_steps_ < enough_plain_steps || left <= 0) return 0;
  return std::min(most, static_cast<size_t>(left / cost_of_one_));
}

void DraftBudget::plain_step(double seconds, double wasted) {
  if (plain_seconds_ > 0) balance_ -= std::min(wasted / plain_seconds_, outlier * cost_of_one_);
  balance_ = std::min(most_balance, balance_ + share_of_tokens);
  if (plain_steps_ < enough_plain_steps) {
    // The first ones warm caches up: the quickest counts.
    plain_seconds_ = plain_steps_ == 0 ? seconds : std::min(plain_seconds_, seconds);
    ++plain_steps_;
  } else {
    average_in(plain_seconds_, std::min(seconds, outlier * plain_seconds_));
  }
}

void DraftBudget::draft_step(size_t drafted, size_t delivered, double seconds) {
  if (plain_seconds_ <= 0) return;
  const auto tokens = static_cast<double>(delivered);
  const auto drafts = static_cast<double>(drafted);
  const double expected = 1 + drafts * cost_of_one_;
  const double cost = std::min(seconds / plain_seconds_, outlier * expected);
  balance_ = std::min(most_balance, balance_ + tokens * (1 + share_of_tokens) - cost);
  average_in(cost_of_one_, std::max(least_cost, (cost - 1) / drafts));
}

}  // namespace eliza::llama
