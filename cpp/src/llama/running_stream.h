#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace eliza::llama {

// A stream among the process's others that compute: shares the processors with those that run, and
// carries the flag that stops it. Thread-safe.
class RunningStream {
 public:
  // `threads`: what the stream computes with when it is alone.
  explicit RunningStream(int32_t threads);
  ~RunningStream();
  RunningStream(const RunningStream&) = delete;
  RunningStream& operator=(const RunningStream&) = delete;

  // While one lives, the stream counts as running; so it does for a moment afterwards, in which its
  // caller will ask for the next step.
  class Step {
   public:
    explicit Step(RunningStream& stream);
    ~Step();
    Step(const Step&) = delete;
    Step& operator=(const Step&) = delete;

    // Threads for this step: the stream's own number divided by the running streams, at least 1.
    int32_t threads() const { return threads_; }

   private:
    RunningStream& stream_;
    int32_t threads_;
  };

  std::atomic<bool>& cancelled() { return cancelled_; }
  bool is_cancelled() const { return cancelled_.load(); }

 private:
  const int32_t threads_;
  std::atomic<bool> cancelled_{false};
  bool running_ = false;                               // guarded by the list's mutex
  std::chrono::steady_clock::time_point last_step_{};  // the same
};

}  // namespace eliza::llama
