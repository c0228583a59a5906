#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "llama/decoder.h"

namespace eliza::llama {

// Proposes the next tokens of a sequence. One thread at a time; methods throw Error.
class Drafter {
 public:
  virtual ~Drafter() = default;

  // A first guess at what one drafted token costs, in plain steps.
  virtual double cost_of_one() const = 0;

  // Up to `most` tokens that may follow `sequence`, whose last token the target has not decoded.
  virtual std::vector<int32_t> draft(const std::vector<int32_t>& sequence, size_t most) = 0;

  // The target accepted the first `count` tokens of the last draft.
  virtual void accept(size_t count) = 0;

  // The target has just decoded the tokens from `begin` to the end of `decoded`, in one batch: of a
  // `prompt`, or in a step.
  virtual void follow(const std::vector<int32_t>& decoded, size_t begin, bool prompt) = 0;

  // Tokens of `sequence` that it has to decode before it can draft, its last ones aside: a drafter
  // that pauses falls behind.
  virtual size_t lag(const std::vector<int32_t>& sequence) const = 0;
};

// Drafts what followed the last tokens the time before: needs no second model.
std::unique_ptr<Drafter> make_ngram_drafter();

// The others draft by llama.cpp's speculation, up to `most` tokens at a time. Decoders belong to
// the caller and outlive the drafter.

// Drafts with an ordinary model of the target's vocabulary (check_same_vocabulary).
std::unique_ptr<Drafter> make_model_drafter(const Decoder& target, Decoder& decoder, size_t most);

// Drafts with a head (MTP, EAGLE3, DFlash) on the target's layers, which it fits (check_head_fits).
std::unique_ptr<Drafter> make_head_drafter(const Decoder& target, Decoder& decoder, size_t most);

// For before a decoder is made for the drafter: throw Error(ELIZA_ERR_INVALID_ARG) that names the
// difference.
void check_same_vocabulary(const Model& target, const Model& drafter);
void check_head_fits(const Model& target, const Model& head);

}  // namespace eliza::llama
