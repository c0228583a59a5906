#include "llama/runtime.h"

#include <llama.h>
#include <log.h>

#include <mutex>

#include "cpu/level.h"

namespace eliza::llama {
namespace {

thread_local int assertion_scopes = 0;

void on_ggml_abort(const char* message) {
  // Elsewhere, such as on a compute thread, nothing could catch the exception: let ggml abort.
  if (assertion_scopes > 0) throw Error(ELIZA_ERR_FFI_FAULT, std::string("llama.cpp: ") + message);
}

}  // namespace

void require_cpu_level() {
  const auto choice = cpu::active_level();
  if (!choice.problem.empty()) throw Error(ELIZA_ERR_INVALID_ARG, choice.problem);
}

void ensure_runtime() {
  require_cpu_level();
  static std::once_flag once;
  std::call_once(once, [] {
    install_log_capture();
    common_log_set_verbosity_thold(LOG_LEVEL_OUTPUT - 1);  // speculation would print to stderr
    ggml_set_abort_callback(on_ggml_abort);
    llama_backend_init();
  });
}

AssertionScope::AssertionScope() { ++assertion_scopes; }

AssertionScope::~AssertionScope() { --assertion_scopes; }

std::string fault_message(const std::string& what, const std::string& detail,
                          const LogCapture& log) {
  std::string message = what;
  if (!detail.empty()) message += ": " + detail;
  const std::string reason = log.reason();
  if (!reason.empty()) message += " (" + reason + ")";
  return message;
}

}  // namespace eliza::llama
