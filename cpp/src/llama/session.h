#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "llama/model.h"
#include "llama/sampler.h"
#include "llama/stream_settings.h"
#include "support/utf8.h"

struct ggml_threadpool;
struct llama_context;

namespace eliza::llama {

// One stream on the in-tree llama.cpp path. Methods throw Error; one thread at a time, `cancel`
// aside. See eliza_inference_llm_stream_* for what each promises.
//
// The state is the token sequence and how much of it the KV cache holds: `sequence_` begins with
// `decoded_` decoded tokens, the rest waits for the next decode. A drawn token is decoded by the
// step after it, so the last one of a generation costs nothing.
class Session {
 public:
  Session(std::shared_ptr<const Model> model, const StreamSettings& settings);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  void prefill(const int32_t* tokens, size_t count);

  // What one `next` call delivers.
  struct Delivery {
    size_t tokens = 0;
    bool final = false;
  };
  Delivery next(int32_t* tokens, size_t token_capacity, char* text, size_t text_capacity);

  void cancel() { cancelled_.store(true); }

  void reset();

  // Returns how many tokens were kept.
  size_t reset_keep(size_t count);

 private:
  void step();
  void end_generation();
  void decode_waiting();
  void decode_batch(size_t count);
  void rewind(size_t count);
  void check_cancelled() const;

  // Destroyed in reverse: the context before the thread pool it uses, the model last.
  const std::shared_ptr<const Model> model_;
  std::atomic<bool> cancelled_{false};
  struct ThreadpoolDeleter {
    void operator()(ggml_threadpool* pool) const;
  };
  std::unique_ptr<ggml_threadpool, ThreadpoolDeleter> threadpool_;
  struct ContextDeleter {
    void operator()(llama_context* context) const;
  };
  std::unique_ptr<llama_context, ContextDeleter> context_;
  size_t context_size_ = 0;
  size_t batch_size_ = 0;  // a multiple of block_size_
  size_t block_size_ = 0;  // tokens from which on the kernels for many rows work, in whole blocks
  const int32_t max_tokens_;
  Sampler sampler_;

  std::vector<int32_t> sequence_;
  size_t decoded_ = 0;
  size_t exact_ = 0;           // a multiple of block_size_, at most decoded_
  bool logits_ready_ = false;  // logits of sequence_.back() are in the context
  int32_t generated_ = 0;      // tokens drawn in this generation
  bool ended_ = false;         // this generation has drawn its last token
  std::vector<int32_t> undelivered_;
  Utf8Assembler text_;
};

}  // namespace eliza::llama
