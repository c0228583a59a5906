#include "llama/running_stream.h"

#include <algorithm>
#include <mutex>
#include <vector>

namespace eliza::llama {
namespace {

// A caller that takes longer between two steps leaves its processors to the others.
constexpr std::chrono::milliseconds between_steps{5};

struct StreamList {
  std::mutex mutex;
  std::vector<RunningStream*> streams;
};

StreamList& all_streams() {
  // Never destroyed: a stream may be closed while the process exits.
  static auto* const list = new StreamList;
  return *list;
}

}  // namespace

RunningStream::RunningStream(int32_t threads) : threads_(threads) {
  const std::lock_guard<std::mutex> lock(all_streams().mutex);
  all_streams().streams.push_back(this);
}

RunningStream::~RunningStream() {
  auto& [mutex, streams] = all_streams();
  const std::lock_guard<std::mutex> lock(mutex);
  streams.erase(std::find(streams.begin(), streams.end(), this));
}

RunningStream::Step::Step(RunningStream& stream) : stream_(stream) {
  const auto now = std::chrono::steady_clock::now();
  auto& [mutex, streams] = all_streams();
  const std::lock_guard<std::mutex> lock(mutex);
  int32_t others = 0;
  for (const RunningStream* other : streams) {
    if (other == &stream) continue;
    if (other->running_ || now - other->last_step_ < between_steps) ++others;
  }
  stream.running_ = true;
  threads_ = std::max(1, stream.threads_ / (1 + others));
}

RunningStream::Step::~Step() {
  const std::lock_guard<std::mutex> lock(all_streams().mutex);
  stream_.running_ = false;
  stream_.last_step_ = std::chrono::steady_clock::now();
}

}  // namespace eliza::llama
