#pragma once

#include <string>

namespace eliza::llama {

// Collects what llama.cpp and ggml log as warnings and errors on the current thread while it lives,
// so that a failure can say why. Captures nest; the innermost collects.
class LogCapture {
 public:
  LogCapture();
  ~LogCapture();
  LogCapture(const LogCapture&) = delete;
  LogCapture& operator=(const LogCapture&) = delete;

  // The collected lines joined by "; ": the errors, or the warnings where no error was logged.
  // Empty when nothing was logged.
  std::string reason() const;

  // Takes one piece of log (level: a ggml_log_level) for the innermost capture of this thread.
  static void receive(int level, const char* text);

 private:
  std::string errors_;
  std::string warnings_;
  LogCapture* outer_;
};

// Routes llama.cpp's and ggml's log into captures, away from stderr. Called once per process.
void install_log_capture();

// Reads ELIZA_LLM_LOG (off, error, warn, info, debug): lines of that level and above go to stderr.
// Throws Error for another value.
void apply_log_environment();

}  // namespace eliza::llama
