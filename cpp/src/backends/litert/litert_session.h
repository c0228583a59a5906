#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backends/litert/litert_engine.h"
#include "seam/llm_backend.h"
#include "seam/stream_config.h"
#include "support/outbox.h"

namespace eliza::litert {

// One stream on a loaded engine.
//
// The runtime takes and gives text. With exact ids a token is the text "<id>"; with a stock file it
// is its piece, and what comes back is tokenized. `sequence_` is what the caller and the model have
// written; the runtime's state follows it, and a new sequence keeps of it what it shares. With a
// stock file the runtime's positions are not those of tokens, so that it cannot be cut and reads
// everything again.
class LitertSession final : public LlmBackendSession {
 public:
  // `drafts`: how many tokens one step may draft; 0 without speculation.
  LitertSession(std::shared_ptr<const LoadedEngine> engine,
                std::shared_ptr<const Tokenizer> tokenizer, const Sampling& sampling,
                int32_t drafts);
  ~LitertSession() override;

  int prefill(const int32_t* token_ids, size_t num_tokens, char** out_error) override;
  int next(int32_t* tokens_out, size_t tokens_cap, size_t* num_tokens_out, char* text_out,
           size_t text_cap, int32_t* drafter_drafted_out, int32_t* drafter_accepted_out,
           char** out_error) override;
  int cancel() override;
  int reset() override;
  int reset_keep(int32_t n_keep) override;

 private:
  using Ids = std::vector<int32_t>;

  void check_cancelled() const;
  bool must_repeat() const;
  void open_session();
  void close_session();
  void cut_cache(size_t count);
  void catch_up();
  void feed(size_t count);
  void holds(const Ids& tokens);
  std::vector<std::string> exact_inputs(size_t begin, size_t end) const;
  std::vector<std::string> stock_inputs(size_t begin, size_t end, size_t& position) const;
  std::string text_of(size_t begin, size_t end) const;
  void step();
  std::string decode();
  Ids ids_of(const std::string& text) const;
  bool accept(int32_t token, const std::string& text);
  void release(size_t count);
  void end_generation();
  size_t delivered() const;

  const std::shared_ptr<const LoadedEngine> engine_;
  const Runtime& runtime_;
  const std::shared_ptr<const Tokenizer> tokenizer_;
  const Sampling sampling_;
  const int32_t seed_;
  const int32_t drafts_;
  const size_t context_size_;

  // Both under the mutex: a cancel interrupts the decode that runs, and none after a reset.
  std::mutex cancel_mutex_;
  std::atomic<bool> cancelled_{false};
  Session* decoding_ = nullptr;  // while a decode runs

  Session* session_ = nullptr;
  Ids remembered_;        // what it holds, and what was cut off as long as nothing else was read
  size_t cached_ = 0;     // tokens at the beginning of remembered_ that it holds
  size_t position_ = 0;   // the runtime's; with exact ids it is cached_
  bool decoded_ = false;  // the runtime's last work was a decode, not a prefill

  Ids sequence_;
  bool ended_ = false;     // this generation has drawn its last token
  int32_t generated_ = 0;  // tokens drawn in this generation
  // The last tokens of the sequence, while they may be the beginning of a stop sequence, and their
  // texts.
  Ids held_;
  std::vector<std::string> held_texts_;
  Outbox outbox_;
};

}  // namespace eliza::litert
