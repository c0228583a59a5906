#pragma once

#include <cstddef>

namespace eliza::llama {

// Decides how many tokens are worth drafting, so that drafting costs at most a few percent where it
// does not pay. It counts in plain steps: a step that drafted loses its duration less the tokens it
// brought. What may be lost is a small start and two percent of the tokens; what was won extends
// it, within bounds.
class DraftBudget {
 public:
  // `cost_of_one`: a first guess at the plain steps that one drafted token adds to its step.
  explicit DraftBudget(double cost_of_one) : cost_of_one_(cost_of_one) {}

  // The most tokens to draft in the next step, up to `most`, when the drafter has to decode `lag`
  // tokens first.
  size_t affordable(size_t most, size_t lag = 0) const;

  // `wasted`: seconds before it in which a drafter found nothing.
  void plain_step(double seconds, double wasted = 0);
  void draft_step(size_t drafted, size_t delivered, double seconds);

 private:
  static constexpr double start_ = 2;

  double cost_of_one_;
  double plain_seconds_ = 0;  // of one plain step, a moving average
  int plain_steps_ = 0;       // counted until the average is a measurement
  double balance_ = start_;   // plain steps that may be lost
};

}  // namespace eliza::llama
