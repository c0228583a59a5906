#include "llama/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "support/error.h"

namespace eliza::llama {
namespace {

// Tokens at the end of the sequence that the repeat penalty covers.
constexpr size_t penalty_window = 64;

// Equal logits rank by id, so that a result does not depend on the order of evaluation.
bool likelier(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
}

// The first of the highest logits, -1 where none is above -infinity; NaN never is. Whole blocks are
// skipped without a branch for each logit, which the compiler turns into vector instructions.
int32_t index_of_highest(const float* logits, int32_t count) {
  constexpr int32_t block = 32;
  int32_t best = -1;
  float highest = -std::numeric_limits<float>::infinity();
  for (int32_t begin = 0; begin < count; begin += block) {
    const int32_t length = std::min(block, count - begin);
    if (length == block) {
      int higher = 0;
      for (int32_t i = 0; i < block; ++i) higher |= logits[begin + i] > highest;
      if (higher == 0) continue;
    }
    for (int32_t token = begin; token < begin + length; ++token) {
      if (logits[token] > highest) {
        highest = logits[token];
        best = token;
      }
    }
  }
  return best;
}

}  // namespace

Sampler::Sampler(SamplingSettings settings, std::unique_ptr<Grammar> grammar)
    : settings_(std::move(settings)), grammar_(std::move(grammar)) {
  reset();
}

void Sampler::reset() {
  std::random_device device;
  random_.seed(settings_.seed ? *settings_.seed
                              : (static_cast<uint64_t>(device()) << 32 | device()));
  restart_grammar();
}

void Sampler::restart_grammar() {
  if (grammar_) grammar_->reset();
}

int32_t Sampler::draw(const float* logits, int32_t vocabulary_size,
                      const std::vector<int32_t>& sequence) {
  if (settings_.repeat_penalty != 1.0f || !settings_.banned_tokens.empty()) {
    adjusted_.assign(logits, logits + vocabulary_size);
    penalise(adjusted_, sequence);
    for (const int32_t token : settings_.banned_tokens) {
      adjusted_[static_cast<size_t>(token)] = -std::numeric_limits<float>::infinity();
    }
    logits = adjusted_.data();
  }
  const int32_t token = choose(logits, vocabulary_size);
  if (grammar_) grammar_->accept(token);
  return token;
}

int32_t Sampler::choose(const float* logits, int32_t vocabulary_size) {
  if (settings_.temperature <= 0.0f) return choose_best(logits, vocabulary_size);

  // Grammar and penalties commute: one masks logits, the other scales them. So the grammar needs to
  // look only at as many of the likeliest tokens as top-k will keep.
  const auto all = static_cast<size_t>(vocabulary_size);
  const size_t wanted =
      settings_.top_k > 0 ? std::min(static_cast<size_t>(settings_.top_k), all) : all;
  for (size_t looked_at = grammar_ && wanted < all ? std::min(all, 4 * wanted + 256) : wanted;;
       looked_at = std::min(all, 8 * looked_at)) {
    if (looked_at < all) {
      keep_likeliest(logits, vocabulary_size, looked_at);
    } else {
      keep_all(logits, vocabulary_size);
    }
    if (grammar_) grammar_->filter(candidates_);
    if (candidates_.size() >= wanted || looked_at == all) break;
  }
  if (candidates_.size() > wanted) {
    std::sort(candidates_.begin(), candidates_.end(), likelier);
    candidates_.resize(wanted);
  }
  if (settings_.top_p > 0.0f && settings_.top_p < 1.0f) keep_nucleus();
  return draw_candidate();
}

int32_t Sampler::choose_best(const float* logits, int32_t vocabulary_size) {
  const int32_t best = index_of_highest(logits, vocabulary_size);
  if (best < 0) throw_nothing_to_draw();
  if (!grammar_) return best;
  candidates_.assign(1, {best, logits[best]});
  grammar_->filter(candidates_);
  if (!candidates_.empty()) return best;
  keep_all(logits, vocabulary_size);
  grammar_->filter(candidates_);
  if (candidates_.empty()) throw_nothing_to_draw();
  return std::min_element(candidates_.begin(), candidates_.end(), likelier)->token;
}

void Sampler::throw_nothing_to_draw() const {
  throw Error(ELIZA_ERR_FFI_FAULT, grammar_ ? "gbnf_grammar admits no likely token here"
                                            : "the model gives no token a probability");
}

void Sampler::keep_all(const float* logits, int32_t vocabulary_size) {
  candidates_.clear();
  candidates_.reserve(static_cast<size_t>(vocabulary_size));
  for (int32_t token = 0; token < vocabulary_size; ++token) {
    // A masked token is no candidate, and a NaN would make sorting undefined.
    if (logits[token] > -std::numeric_limits<float>::infinity()) {
      candidates_.push_back({token, logits[token]});
    }
  }
}

void Sampler::keep_likeliest(const float* logits, int32_t vocabulary_size, size_t count) {
  // A heap of the best so far, its least likely on top; almost every token is refused by one
  // comparison.
  candidates_.clear();
  for (int32_t token = 0; token < vocabulary_size; ++token) {
    const float logit = logits[token];
    if (candidates_.size() < count) {
      if (!(logit > -std::numeric_limits<float>::infinity())) continue;
      candidates_.push_back({token, logit});
      std::push_heap(candidates_.begin(), candidates_.end(), likelier);
    } else if (logit > candidates_.front().logit) {
      std::pop_heap(candidates_.begin(), candidates_.end(), likelier);
      candidates_.back() = {token, logit};
      std::push_heap(candidates_.begin(), candidates_.end(), likelier);
    }
  }
  std::sort_heap(candidates_.begin(), candidates_.end(), likelier);
}

void Sampler::keep_nucleus() {
  if (candidates_.empty()) return;
  const auto best = std::min_element(candidates_.begin(), candidates_.end(), likelier);
  const double highest = best->logit;
  const auto weight = [&](const Candidate& c) { return std::exp(c.logit - highest); };
  double total = 0;
  for (const auto& candidate : candidates_) total += weight(candidate);
  // Sort as far as the mass reaches, which is seldom far.
  const double wanted = settings_.top_p * total;
  double mass = 0;
  size_t kept = 0;
  for (size_t sorted = 0; mass < wanted && kept < candidates_.size(); ++kept) {
    if (kept == sorted) {
      sorted = std::min(candidates_.size(), std::max<size_t>(256, 4 * sorted));
      const auto from = candidates_.begin() + static_cast<std::ptrdiff_t>(kept);
      std::partial_sort(from, candidates_.begin() + static_cast<std::ptrdiff_t>(sorted),
                        candidates_.end(), likelier);
    }
    mass += weight(candidates_[kept]);
  }
  candidates_.resize(std::max<size_t>(1, kept));
}

void Sampler::penalise(std::vector<float>& logits, const std::vector<int32_t>& sequence) const {
  const float penalty = settings_.repeat_penalty;
  if (penalty == 1.0f) return;
  const size_t window = std::min(penalty_window, sequence.size());
  std::vector<int32_t> recent(sequence.end() - static_cast<std::ptrdiff_t>(window), sequence.end());
  std::sort(recent.begin(), recent.end());
  recent.erase(std::unique(recent.begin(), recent.end()), recent.end());
  for (const int32_t token : recent) {
    float& logit = logits[static_cast<size_t>(token)];
    // An infinity would turn unlikely into impossible, or certain.
    const float penalised = logit > 0 ? logit / penalty : logit * penalty;
    logit = std::clamp(penalised, std::numeric_limits<float>::lowest(),
                       std::numeric_limits<float>::max());
  }
}

int32_t Sampler::draw_candidate() {
  if (candidates_.empty()) throw_nothing_to_draw();
  const auto best = std::min_element(candidates_.begin(), candidates_.end(), likelier);
  const double highest = best->logit;
  const double temperature = settings_.temperature;
  double total = 0;
  weights_.clear();
  for (const auto& candidate : candidates_) {
    weights_.push_back(std::exp((candidate.logit - highest) / temperature));
    total += weights_.back();
  }
  double left = uniform() * total;
  for (size_t i = 0; i < weights_.size(); ++i) {
    left -= weights_[i];
    if (left < 0) return candidates_[i].token;
  }
  return best->token;  // rounding used up the mass
}

double Sampler::uniform() {
  // The 53 random bits of a double: the same on every standard library, unlike its distributions.
  return static_cast<double>(random_() >> 11) * 0x1.0p-53;
}

}  // namespace eliza::llama
