#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace eliza {

// The vocabulary of a bundle. It belongs to the bundle, not to a runtime: a caller tokenizes before
// it opens a stream, so ids must mean the same whichever runtime answers. Immutable and
// thread-safe; methods throw Error.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Ids are 0 to size() - 1.
  virtual int32_t size() const = 0;

  // See eliza_inference_tokenize for the flags.
  virtual std::vector<int32_t> tokenize(std::string_view text, bool add_special,
                                        bool parse_special) const = 0;

  // Valid UTF-8. Ids must be inside the vocabulary.
  virtual std::string detokenize(const std::vector<int32_t>& tokens, bool remove_special,
                                 bool unparse_special) const = 0;

  // The bytes that a generated token adds to the text; empty for control tokens. Not necessarily
  // whole characters.
  virtual std::string piece(int32_t token) const = 0;

  virtual bool ends_generation(int32_t token) const = 0;

  // Sequences of tokens that end a generation together.
  virtual const std::vector<std::vector<int32_t>>& stop_sequences() const = 0;

  // Tokens that begin a thinking section.
  virtual const std::vector<int32_t>& thinking_tokens() const = 0;

  // Throws Error(ELIZA_ERR_INVALID_ARG) that names the first id outside the vocabulary.
  void check_token_ids(const int32_t* ids, size_t count) const;
};

// How model families spell the token that begins a thinking section.
extern const std::vector<std::string> thinking_spellings;

}  // namespace eliza
