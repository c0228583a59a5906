#pragma once

#include <shared_mutex>

#include "eliza-inference-ffi.h"

namespace eliza::llama {

// A context's verifier callback, shared with its streams. Thread-safe.
class Verifier {
 public:
  // Waits for callbacks that run. Throws Error(ELIZA_ERR_INVALID_ARG) from inside one.
  void set(eliza_verifier_cb callback, void* user_data);

  void report(const EliVerifierEvent& event) const;

 private:
  mutable std::shared_mutex mutex_;
  eliza_verifier_cb callback_ = nullptr;
  void* user_data_ = nullptr;
};

}  // namespace eliza::llama
