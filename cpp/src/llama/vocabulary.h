#pragma once

#include <memory>
#include <string>
#include <vector>

#include "seam/tokenizer.h"

struct llama_vocab;

namespace eliza::llama {

// The vocabulary of a loaded GGUF, which must outlive it.
class Vocabulary final : public Tokenizer {
 public:
  explicit Vocabulary(const llama_vocab* vocabulary,
                      std::vector<std::vector<int32_t>> stop_sequences = {});

  const llama_vocab* get() const { return vocabulary_; }

  int32_t size() const override { return size_; }
  std::vector<int32_t> tokenize(std::string_view text, bool add_special,
                                bool parse_special) const override;
  std::string detokenize(const std::vector<int32_t>& tokens, bool remove_special,
                         bool unparse_special) const override;
  std::string piece(int32_t token) const override;
  bool ends_generation(int32_t token) const override;
  const std::vector<std::vector<int32_t>>& stop_sequences() const override {
    return stop_sequences_;
  }
  const std::vector<int32_t>& thinking_tokens() const override { return thinking_; }

  // Throws Error(ELIZA_ERR_BUNDLE_INVALID) where llama.cpp's tokenizer would not end: its RWKV kind
  // on a byte that no token begins with.
  void check_usable() const;

  // Tokens that no stream may generate: the model file asks for it.
  const std::vector<int32_t>& suppressed_tokens() const { return suppressed_; }

 private:
  const llama_vocab* const vocabulary_;
  const int32_t size_;
  const std::vector<std::vector<int32_t>> stop_sequences_;
  std::vector<int32_t> suppressed_;
  std::vector<int32_t> thinking_;
};

// The vocabulary of the GGUF at `path` (UTF-8), whose weights are not read. Besides
// what llama.cpp reads of it, its key `eliza.stop_sequences` counts: an int32 array, the sequences
// one behind the other, each followed by -1. Throws Error(ELIZA_ERR_BUNDLE_INVALID).
std::shared_ptr<const Tokenizer> load_vocabulary(const std::string& path);

}  // namespace eliza::llama
