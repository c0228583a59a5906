#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "llama/grammar.h"

namespace eliza::llama {

// How the next token is drawn; fields as in eliza_llm_stream_config_t, validated.
struct SamplingSettings {
  float temperature = 0.0f;            // 0: greedy
  int32_t top_k = 0;                   // 0: off
  float top_p = 1.0f;                  // 1: off
  float repeat_penalty = 1.0f;         // 1: off
  std::optional<uint32_t> seed;        // unset: a new random one after every reset
  std::vector<int32_t> banned_tokens;  // never drawn
};

// Draws tokens from logits in the order of the contract: grammar, penalties, top-k, top-p,
// temperature, draw. Knows no runtime: any that yields f32 logits can use it.
class Sampler {
 public:
  // `grammar` may be null.
  Sampler(SamplingSettings settings, std::unique_ptr<Grammar> grammar);

  // The next token for `logits` [vocabulary_size] after `sequence`, whose last tokens the repeat
  // penalty looks at. Advances the random state and the grammar: draw once for each token
  // delivered. Throws Error(ELIZA_ERR_FFI_FAULT) when no token can follow.
  int32_t draw(const float* logits, int32_t vocabulary_size, const std::vector<int32_t>& sequence);

  // For the next generation on the same sequence: the grammar starts again.
  void restart_grammar();

  // As constructed.
  void reset();

 private:
  int32_t choose(const float* logits, int32_t vocabulary_size);
  int32_t choose_best(const float* logits, int32_t vocabulary_size);
  void keep_likeliest(const float* logits, int32_t vocabulary_size, size_t count);
  void keep_all(const float* logits, int32_t vocabulary_size);
  void keep_nucleus();
  void penalise(std::vector<float>& logits, const std::vector<int32_t>& sequence) const;
  int32_t draw_candidate();
  double uniform();
  [[noreturn]] void throw_nothing_to_draw() const;

  const SamplingSettings settings_;
  const std::unique_ptr<Grammar> grammar_;
  std::mt19937_64 random_;
  std::vector<float> adjusted_;        // logits after bans and penalties, when there are any
  std::vector<Candidate> candidates_;  // likeliest first, or by id where all tokens are candidates
  std::vector<double> weights_;        // of the candidates, not normalised
};

}  // namespace eliza::llama
