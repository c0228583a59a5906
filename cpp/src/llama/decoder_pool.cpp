#include "llama/decoder_pool.h"

#include <algorithm>

#include "support/error.h"

namespace eliza::llama {
namespace {

// A state can go on in a decoder that computes the same, whatever its threads and outputs.
bool fits(const Decoder::Shape& state, const Decoder::Shape& decoder) {
  return state.context_size == decoder.context_size && state.batch_size == decoder.batch_size &&
         state.cache_type_k == decoder.cache_type_k && state.cache_type_v == decoder.cache_type_v &&
         state.flash_attention == decoder.flash_attention;
}

}  // namespace

size_t DecoderPool::Entry::bytes() const {
  return decoder ? decoder->bytes() : parked->state.bytes() + parked->key.size();
}

template <typename Fits>
DecoderPool::Entries DecoderPool::take_first(const Fits& fits_here) {
  Entries taken;
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = std::find_if(entries_.begin(), entries_.end(), fits_here);
  if (found != entries_.end()) taken.splice(taken.begin(), entries_, found);
  return taken;
}

std::unique_ptr<Decoder> DecoderPool::take(const std::shared_ptr<const Model>& model,
                                           const Decoder::Shape& shape, const std::string& key) {
  // No state is parked under the empty key.
  const Entries state = take_first([&](const Entry& entry) {
    return entry.parked && entry.parked->key == key && entry.parked->model == model &&
           fits(entry.parked->shape, shape);
  });
  Entries spare = take_first([&](const Entry& entry) {
    return entry.decoder && entry.decoder->model() == model && entry.decoder->shape() == shape;
  });
  auto decoder =
      spare.empty() ? std::make_unique<Decoder>(model, shape) : std::move(spare.front().decoder);
  if (!state.empty()) {
    try {
      decoder->restore(state.front().parked->state);
    } catch (const Error&) {
      // The cache is empty: slower, and nothing else.
    }
  }
  return decoder;
}

void DecoderPool::give_back(std::unique_ptr<Decoder> decoder, const std::string& key,
                            const Limits& limits) noexcept {
  Entries news;
  Entries dropped;  // destroyed after the lock, it takes time
  try {
    if (!key.empty() && limits.states > 0) {
      // What was generated after a prompt is decoded again with the next one (Session), so only the
      // exact part is worth keeping.
      decoder->rewind(decoder->exact());
      if (!decoder->tokens().empty()) {
        news.push_front({nullptr, std::make_unique<Parked>(Parked{
                                      key, decoder->model(), decoder->shape(), decoder->save()})});
      }
    }
    decoder->attach(nullptr);
    decoder->clear();
    news.push_back({std::move(decoder), nullptr});
  } catch (...) {
    decoder.reset();
  }

  const std::lock_guard<std::mutex> lock(mutex_);
  if (limits.epoch != epoch_) return;
  if (!key.empty()) {
    // One state for each key: the conversation goes on from the last one.
    for (auto entry = entries_.begin(); entry != entries_.end();) {
      const auto next = std::next(entry);
      if (entry->parked && entry->parked->key == key)
        dropped.splice(dropped.end(), entries_, entry);
      entry = next;
    }
  }
  entries_.splice(entries_.begin(), news);
  size_t states = 0;
  size_t bytes = 0;
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    const auto next = std::next(entry);
    const bool one_too_many = entry->parked && states == limits.states;
    if (one_too_many || bytes + entry->bytes() > limits.bytes) {
      dropped.splice(dropped.end(), entries_, entry);
    } else {
      bytes += entry->bytes();
      if (entry->parked) ++states;
    }
    entry = next;
  }
}

uint64_t DecoderPool::epoch() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return epoch_;
}

void DecoderPool::clear() {
  Entries dropped;
  const std::lock_guard<std::mutex> lock(mutex_);
  dropped.swap(entries_);
  ++epoch_;
}

}  // namespace eliza::llama
