#include "support/outbox.h"

#include <algorithm>
#include <string>

#include "support/error.h"

namespace eliza {

void Outbox::push(int32_t token, std::string_view bytes) {
  tokens_.push_back(token);
  text_.push(bytes);
}

size_t Outbox::take(int32_t* tokens, size_t token_capacity, char* text, size_t text_capacity) {
  const size_t count = std::min(token_capacity, tokens_.size());
  const auto end = tokens_.begin() + static_cast<std::ptrdiff_t>(count);
  std::copy(tokens_.begin(), end, tokens);
  tokens_.erase(tokens_.begin(), end);
  const size_t bytes = text_.take(text, text_capacity);
  if (bytes == 0 && count == 0 && text_.has_text()) {
    throw Error(ELIZA_ERR_INVALID_ARG,
                "text_cap " + std::to_string(text_capacity) +
                    " cannot hold the next character and the terminator; 5 bytes hold any");
  }
  return count;
}

void Outbox::clear() {
  tokens_.clear();
  text_.clear();
}

}  // namespace eliza
