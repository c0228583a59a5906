#include "llama/verifier.h"

#include <mutex>

#include "support/error.h"

namespace eliza::llama {
namespace {

thread_local bool inside_callback = false;

}  // namespace

void Verifier::set(eliza_verifier_cb callback, void* user_data) {
  if (inside_callback) {
    throw Error(ELIZA_ERR_INVALID_ARG,
                "a verifier callback cannot change the callback; do it after next has returned");
  }
  // Exclusive: what the old callback uses may be freed as soon as this returns.
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  callback_ = callback;
  user_data_ = user_data;
}

void Verifier::report(const EliVerifierEvent& event) const {
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  if (callback_ == nullptr) return;
  struct Inside {
    Inside() { inside_callback = true; }
    ~Inside() { inside_callback = false; }
  } const inside;
  callback_(&event, user_data_);
}

}  // namespace eliza::llama
