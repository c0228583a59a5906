#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "llama/decoder.h"
#include "llama/decoder_pool.h"
#include "llama/draft_budget.h"
#include "llama/drafter.h"
#include "llama/model.h"
#include "llama/running_stream.h"
#include "llama/sampler.h"
#include "llama/slot_file.h"
#include "llama/stream_settings.h"
#include "llama/verifier.h"
#include "support/outbox.h"

namespace eliza::llama {

// What the streams of a context share; outlives the context while a stream needs it.
struct StreamResources {
  std::shared_ptr<const Model> model;
  std::shared_ptr<const Model> drafter;  // null: none was named
  std::shared_ptr<const Verifier> verifier;
  std::weak_ptr<DecoderPool> pool;  // gone with the context: then nothing is kept
};

// One stream on the in-tree llama.cpp path. Methods throw Error; one thread at a time, `cancel`
// aside. See eliza_inference_llm_stream_* for what each promises.
//
// `sequence_` is what the caller and the sampler have written; the decoder's cache follows it. In
// between they hold the same tokens, but for those that wait for the next decode: a drawn token is
// decoded by the step after it, so the last one of a generation costs nothing. After a restart the
// cache still holds tokens, and the first decode keeps of them what the new sequence can use.
class Session {
 public:
  Session(const StreamResources& resources, const StreamSettings& settings);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  void prefill(const int32_t* tokens, size_t count);

  // What one `next` call delivers.
  struct Delivery {
    size_t tokens = 0;
    size_t drafted = 0;
    size_t accepted = 0;
    bool final = false;
  };
  Delivery next(int32_t* tokens, size_t token_capacity, char* text, size_t text_capacity);

  void cancel() { running_.cancelled().store(true); }

  void reset();

  // Returns how many tokens were kept.
  size_t reset_keep(size_t count);

  void save_slot(const std::string& filename);
  void restore_slot(const std::string& filename);

 private:
  struct Verdict {
    size_t drafted = 0;
    size_t accepted = 0;
  };
  Verdict step();
  Verdict step_with(const std::vector<int32_t>& drafts);
  size_t most_drafts() const;
  size_t affordable_drafts() const;
  void report(const std::vector<int32_t>& drafts, size_t accepted, size_t first_position) const;
  bool draw(const float* logits);
  void end_generation();
  size_t delivered() const;
  void start_over();
  void take_up();
  void decode_waiting();
  template <typename Work>
  void decoding(const Work& work);
  void set_up_drafter(const std::shared_ptr<const Model>& model,
                      const std::shared_ptr<DecoderPool>& pool);
  void set_up_head(const std::shared_ptr<const Model>& model, size_t most);
  void set_up_own_head(size_t most);
  SlotIdentity slot_identity() const;
  void check_cancelled() const;

  const std::shared_ptr<const Model> model_;
  const std::shared_ptr<const Verifier> verifier_;
  const std::weak_ptr<DecoderPool> pool_;
  uint64_t pool_epoch_ = 0;
  const StreamSettings settings_;
  RunningStream running_;
  std::unique_ptr<Decoder> decoder_;
  std::unique_ptr<Decoder> draft_decoder_;  // of an ordinary drafting model
  std::unique_ptr<Decoder> head_decoder_;   // of a draft head, bound to decoder_
  std::unique_ptr<Drafter> drafter_;        // null: decodes plainly
  DraftBudget budget_{1};
  Sampler sampler_;

  std::vector<int32_t> sequence_;
  bool restarted_ = false;   // the cache may hold other tokens than the sequence
  bool generating_ = false;  // something was drawn since the last restart
  bool damaged_ = false;     // something failed; the decoder serves no other stream
  int32_t generated_ = 0;    // tokens drawn in this generation
  bool ended_ = false;       // this generation has drawn its last token
  Outbox outbox_;
};

}  // namespace eliza::llama
