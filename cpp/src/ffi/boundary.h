#pragma once

#include <cstdlib>
#include <new>
#include <string>

#include "support/error.h"

namespace eliza::ffi {

// The C boundary: checks of arguments, and exceptions turned into codes and messages.

// Sets `*out_error` to "FUNCTION: MESSAGE". A null `out_error` is fine.
inline void set_error(char** out_error, const char* function, const std::string& message) noexcept {
  if (out_error == nullptr) return;
  try {
    *out_error = duplicate_message(std::string(function) + ": " + message);
  } catch (...) {
    *out_error = nullptr;
  }
}

// Receives the `*out_error` of a seam call and frees it on every path.
class SeamMessage {
 public:
  SeamMessage() = default;
  ~SeamMessage() { std::free(text_); }
  SeamMessage(const SeamMessage&) = delete;
  SeamMessage& operator=(const SeamMessage&) = delete;

  char** out() { return &text_; }
  bool is_set() const { return text_ != nullptr; }
  [[noreturn]] void raise(int code) const {
    throw Error(code, is_set() ? text_ : "the backend failed without a message");
  }

 private:
  char* text_ = nullptr;
};

// Runs `work`, which returns a status; whatever it throws becomes a negative code and a message.
template <typename Work>
int status_of(const char* function, char** out_error, const Work& work) noexcept {
  try {
    return work();
  } catch (const Error& problem) {
    set_error(out_error, function, problem.what());
    return problem.code();
  } catch (const std::bad_alloc&) {
    set_error(out_error, function, "out of memory");
    return ELIZA_ERR_OOM;
  } catch (const std::exception& problem) {
    set_error(out_error, function, problem.what());
    return ELIZA_ERR_FFI_FAULT;
  } catch (...) {
    set_error(out_error, function, "unknown failure");
    return ELIZA_ERR_FFI_FAULT;
  }
}

// The same for functions that return a handle: nullptr on failure.
template <typename Handle, typename Work>
Handle* handle_of(const char* function, char** out_error, const Work& work) noexcept {
  Handle* handle = nullptr;
  status_of(function, out_error, [&] {
    handle = work();
    return ELIZA_OK;
  });
  return handle;
}

}  // namespace eliza::ffi
