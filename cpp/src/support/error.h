#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>

#include "eliza-inference-ffi.h"

namespace eliza {

// The library's one exception: an ELIZA_ERR_* code and a message for the caller. Becomes the return
// code and `*out_error` at the C boundary (ffi/boundary.h).
class Error : public std::runtime_error {
 public:
  Error(int code, const std::string& message) : std::runtime_error(message), code_(code) {}
  int code() const { return code_; }

 private:
  int code_;
};

// Throws Error(ELIZA_ERR_INVALID_ARG) when a required pointer of the C API is null.
void require(const void* pointer, const char* argument);

// Throws Error(ELIZA_ERR_INVALID_ARG) when a required size of the C API is 0.
void require_size(size_t size, const char* argument);

// A malloc'ed copy of `message` for `*out_error`, cut at U+0000 and repaired to valid UTF-8;
// nullptr when memory is out.
char* duplicate_message(const std::string& message) noexcept;

// The beginning of a long text: messages stay readable whatever the caller passed.
std::string shortened(const std::string& text);

// `value` in single quotes, shortened when long, the bytes of control characters as \xNN: how
// messages show what the caller passed.
std::string quoted(const std::string& value);

}  // namespace eliza
