#pragma once

#include <new>
#include <string>

#include "llama/log_capture.h"
#include "support/error.h"

namespace eliza::llama {

// Throws Error(ELIZA_ERR_INVALID_ARG) where this build has no CPU kernels that the processor runs,
// or not those that ELIZA_CPU_LEVEL names.
void require_cpu_level();

// Initialises llama.cpp once for the process; throws as require_cpu_level does. Thread-safe.
void ensure_runtime();

// While one lives, a ggml assertion that fails on this thread throws Error(ELIZA_ERR_FFI_FAULT)
// instead of aborting the process: contents of a model file can make one fail. Throw away what it
// interrupted.
class AssertionScope {
 public:
  AssertionScope();
  ~AssertionScope();
  AssertionScope(const AssertionScope&) = delete;
  AssertionScope& operator=(const AssertionScope&) = delete;
};

// "WHAT: DETAIL (LOG)", leaving out what is empty.
std::string fault_message(const std::string& what, const std::string& detail,
                          const LogCapture& log);

// Runs `work` against llama.cpp in an AssertionScope. What llama.cpp throws becomes Error(`code`)
// whose message begins with `what` and ends with the captured log. Our own Error and
// std::bad_alloc pass through.
template <typename Work>
auto guarded(int code, const std::string& what, const Work& work) {
  const LogCapture log;
  const AssertionScope assertions;
  try {
    return work(log);
  } catch (const Error&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& problem) {
    throw Error(code, fault_message(what, problem.what(), log));
  }
}

}  // namespace eliza::llama
