#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "llama/decoder.h"

namespace eliza::llama {

// What a context keeps of its closed streams: their decoders, which make the next open cheap, and
// the states of those that had a cache key, which make the next prefill of the same conversation
// short. Least recently used goes first. Thread-safe.
class DecoderPool {
 public:
  struct Limits {
    size_t states = 0;
    size_t bytes = 0;    // of states and decoders together
    uint64_t epoch = 0;  // what comes from an earlier one is dropped
  };

  // Counts the calls of `clear`: a model that was evicted must not come back with an old stream.
  uint64_t epoch();

  // A decoder for `model`, with the state parked under `key` in its cache where there is a fitting
  // one; it leaves the pool, so that two streams never share it. Otherwise the cache is empty.
  std::unique_ptr<Decoder> take(const std::shared_ptr<const Model>& model,
                                const Decoder::Shape& shape, const std::string& key);

  // Takes a closed stream's decoder back and parks its state under `key` where that is not empty.
  // Never throws: what does not fit or fails is dropped.
  void give_back(std::unique_ptr<Decoder> decoder, const std::string& key,
                 const Limits& limits) noexcept;

  void clear();

 private:
  struct Parked {
    std::string key;
    std::shared_ptr<const Model> model;
    Decoder::Shape shape;
    DecoderState state;
  };
  // One of the two is set. Ordered by time, the last used first.
  struct Entry {
    std::unique_ptr<Decoder> decoder;
    std::unique_ptr<Parked> parked;
    size_t bytes() const;
  };
  using Entries = std::list<Entry>;

  // The first entry that fits, or none.
  template <typename Fits>
  Entries take_first(const Fits& fits_here);

  std::mutex mutex_;
  Entries entries_;
  uint64_t epoch_ = 0;
};

}  // namespace eliza::llama
