#pragma once

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

// Throws Error(ELIZA_ERR_INVALID_ARG) when a required pointer is null.
inline void require(const void* pointer, const char* argument) {
  if (pointer == nullptr) {
    throw Error(ELIZA_ERR_INVALID_ARG, std::string(argument) + " is NULL; pass a valid pointer");
  }
}

// Throws Error(ELIZA_ERR_INVALID_ARG) when a required size is 0.
inline void require_size(size_t size, const char* argument) {
  if (size == 0) {
    throw Error(ELIZA_ERR_INVALID_ARG, std::string(argument) + " is 0; it must be at least 1");
  }
}

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
