#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "llama/model.h"
#include "llama/running_stream.h"

struct ggml_threadpool;
struct llama_context;

namespace eliza::llama {

// The tokens that a KV cache holds, and the cache itself as llama.cpp writes it: what a slot file
// and a parked conversation consist of.
struct DecoderState {
  std::vector<int32_t> tokens;
  size_t exact = 0;            // Decoder::exact
  std::vector<float> logits;   // of the last token, or empty
  std::vector<uint8_t> cache;  // of all tokens

  size_t bytes() const {
    return tokens.size() * sizeof(int32_t) + logits.size() * sizeof(float) + cache.size();
  }
};

// A model's compute buffers, threads and KV cache, with one sequence of tokens in it. Costly to
// make, so a closed stream's decoder serves the next one (DecoderPool).
//
// Sums of floats depend on their order, and the kernels for many rows order them otherwise than
// those for a few. What the decoder promises of its results' bits:
//   - they depend neither on the number of threads nor on earlier contents of the cache;
//   - a prompt gives the same ones however much of it `reusable` left in the cache;
//   - up to `drafting_rows` tokens decoded in one batch give those of tokens decoded one by one.
// One thread at a time. Methods throw Error.
class Decoder {
 public:
  // Decoders of equal shape can stand in for each other.
  struct Shape {
    int32_t context_size = 0;
    int32_t batch_size = 0;
    int32_t threads = 0;
    int32_t outputs = 0;  // most rows of one batch whose logits are wanted
    int cache_type_k = 0;
    int cache_type_v = 0;
    int flash_attention = 0;
    bool operator==(const Shape& other) const;
  };

  // Most rows of a batch that may be as good as single ones; from here on other kernels work.
  static constexpr size_t many_rows = 16;

  // `target`: for a draft head, which reads the layers of its model, or is one of them.
  Decoder(std::shared_ptr<const Model> model, const Shape& shape, const Decoder* target = nullptr);
  ~Decoder();
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  const std::shared_ptr<const Model>& model() const { return model_; }
  const Shape& shape() const { return shape_; }
  llama_context* context() const { return context_.get(); }
  size_t context_size() const { return context_size_; }
  size_t bytes() const { return bytes_; }  // of the buffers

  // Belongs to `stream` from here on: its cancel stops a running decode, its share of the
  // processors decides the threads. nullptr: to none.
  void attach(RunningStream* stream);

  const std::vector<int32_t>& tokens() const { return tokens_; }

  // How many tokens at the beginning of `sequence` are those of the cache.
  size_t common_prefix(const std::vector<int32_t>& sequence) const;

  // Decodes up to a batch of the tokens of `sequence` behind `tokens()`, which must be a beginning
  // of it. Cancelled or failed, the cache is as before, or empty.
  void decode_some_of(const std::vector<int32_t>& sequence);

  // Decodes `rows` behind `tokens()` in one batch, with the logits of every row.
  void decode_rows(const std::vector<int32_t>& rows);

  // After somebody else has decoded into the context: counts what is there of `rows` as decoded and
  // cuts the rest.
  void adopt(const std::vector<int32_t>& rows);

  // Sets the threads of the context for a step of the stream it belongs to.
  void share_processors(const RunningStream::Step& step);
  RunningStream* stream() const { return stream_; }

  // [vocabulary_size] of a row of the last decode_rows.
  const float* row_logits(size_t row) const;

  // [vocabulary_size] of the last of `tokens()`; nullptr when they are not there (any more).
  const float* last_logits() const;

  // Makes the cache hold the first `count` tokens, or none where a cut there is not possible.
  void rewind(size_t count);

  // The same after decode_rows, and the logits of the last one stay.
  void accept_rows(size_t rows);

  void clear() { rewind(0); }

  // Leading tokens whose state is what one prefill of them and more after them gives.
  size_t exact() const { return exact_; }

  // Whether all of `sequence` is in the exact part of the cache.
  bool holds(const std::vector<int32_t>& sequence) const;

  // How many leading tokens of `sequence` may stay in the cache so that decoding the rest gives the
  // bits that decoding all of it in an empty cache gives.
  size_t reusable(const std::vector<int32_t>& sequence) const;

  // Whether a rewind to `count` keeps anything.
  bool can_rewind(size_t count) const;

  // Most tokens of one batch that give what single ones give, found by trying: 1 where not even two
  // do, where the cache cannot be cut back, or with a shape for one output.
  size_t drafting_rows() const { return drafting_rows_; }

  // Whether flash attention works, which decides the layout of the cache.
  bool flash_attention() const { return flash_attention_; }

  DecoderState save() const;

  // Throws, with an empty cache, where llama.cpp refuses the state.
  void restore(const DecoderState& state);

 private:
  enum class Output { last, all };
  void decode(const int32_t* tokens, size_t count, Output output);
  size_t measure_drafting_rows();

  // Destroyed in reverse: the context before the thread pool it uses, the model last.
  const std::shared_ptr<const Model> model_;
  const Shape shape_;
  struct ThreadpoolDeleter {
    void operator()(ggml_threadpool* pool) const;
  };
  std::unique_ptr<ggml_threadpool, ThreadpoolDeleter> threadpool_;
  struct ContextDeleter {
    void operator()(llama_context* context) const;
  };
  std::unique_ptr<llama_context, ContextDeleter> context_;
  RunningStream* stream_ = nullptr;
  size_t context_size_ = 0;
  size_t batch_size_ = 0;  // a multiple of row_group_; batches end at its multiples
  size_t row_group_ = 0;   // rows that the kernels for many rows take at a time
  size_t least_rows_ = 0;  // rows from which on those kernels work
  size_t bytes_ = 0;
  size_t drafting_rows_ = 1;
  bool flash_attention_ = false;

  std::vector<int32_t> tokens_;
  size_t exact_ = 0;                    // a multiple of row_group_
  int32_t logits_row_ = -1;             // of the last token in the context's logits, -1: none
  std::vector<float> restored_logits_;  // of the last token, after a restore
};

}  // namespace eliza::llama
