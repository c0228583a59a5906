#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "support/utf8.h"

namespace eliza {

// What a stream has generated and not yet delivered. Tokens and text that do not fit the caller's
// buffers wait for the next call; so do the bytes of an unfinished character.
class Outbox {
 public:
  // A token and the bytes it adds to the text.
  void push(int32_t token, std::string_view bytes);

  // Ends the text: the bytes of an unfinished character become U+FFFD.
  void finish() { text_.finish(); }

  // Tokens that wait.
  size_t tokens() const { return tokens_.size(); }

  // Nothing waits but perhaps the beginning of a character.
  bool is_empty() const { return tokens_.empty() && !text_.has_text(); }

  // Delivers what fits; returns the number of tokens. `text` is NUL-terminated. Throws
  // Error(ELIZA_ERR_INVALID_ARG) where not even the next character fits and no token is due.
  size_t take(int32_t* tokens, size_t token_capacity, char* text, size_t text_capacity);

  void clear();

 private:
  std::vector<int32_t> tokens_;
  Utf8Assembler text_;
};

}  // namespace eliza
