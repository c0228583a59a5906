#include "llama/log_capture.h"

#include <llama.h>

#include <atomic>
#include <cstdio>

#include "support/environment.h"

namespace eliza::llama {
namespace {

thread_local LogCapture* innermost = nullptr;

// The lowest ggml level that goes to stderr; above every level: none does.
constexpr int log_nothing = GGML_LOG_LEVEL_ERROR + 1;
std::atomic<int> stderr_level{log_nothing};

// Continuation chunks (GGML_LOG_LEVEL_CONT) belong to the last line of their thread.
thread_local int last_level = GGML_LOG_LEVEL_NONE;

void append(std::string& lines, const char* text) {
  constexpr size_t enough = 2000;
  if (lines.size() > enough) return;
  std::string line(text);
  while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.pop_back();
  if (line.empty()) return;
  if (!lines.empty()) lines += "; ";
  lines += line;
}

void on_log(ggml_log_level level, const char* text, void*) {
  if (level == GGML_LOG_LEVEL_CONT) {
    level = static_cast<ggml_log_level>(last_level);
  } else {
    last_level = level;
  }
  if (level >= stderr_level.load(std::memory_order_relaxed)) std::fputs(text, stderr);
  LogCapture::receive(level, text);
}

}  // namespace

void LogCapture::receive(int level, const char* text) {
  if (innermost == nullptr) return;
  if (level == GGML_LOG_LEVEL_ERROR) append(innermost->errors_, text);
  if (level == GGML_LOG_LEVEL_WARN) append(innermost->warnings_, text);
}

LogCapture::LogCapture() : outer_(innermost) { innermost = this; }

LogCapture::~LogCapture() { innermost = outer_; }

std::string LogCapture::reason() const { return errors_.empty() ? warnings_ : errors_; }

void install_log_capture() { llama_log_set(on_log, nullptr); }

void apply_log_environment() {
  static const int levels[] = {log_nothing, GGML_LOG_LEVEL_ERROR, GGML_LOG_LEVEL_WARN,
                               GGML_LOG_LEVEL_INFO, GGML_LOG_LEVEL_DEBUG};
  const auto choice =
      environment_choice("ELIZA_LLM_LOG", {"off", "error", "warn", "info", "debug"});
  stderr_level.store(levels[choice.value_or(0)], std::memory_order_relaxed);
}

}  // namespace eliza::llama
