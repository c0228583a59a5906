#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "eliza-inference-ffi.h"
#include "seam/tokenizer.h"

// The seam: what an in-process text runtime implements to answer behind the streaming ABI. It knows
// no runtime; a runtime knows the seam and never the C entry points. docs/writing-a-backend.md
// walks through an implementation.
//
// Conventions are those of eliza-inference-ffi.h: status codes >= 0 on success, negative
// ELIZA_ERR_* on failure, `*out_error` a malloc'ed message (set it with eliza::duplicate_message)
// or left alone. Or throw: the C entry points turn eliza::Error into its code and "FUNCTION:
// MESSAGE", std::bad_alloc into ELIZA_ERR_OOM and anything else into ELIZA_ERR_FFI_FAULT. They
// forward every argument verbatim, NULLs included.

namespace eliza {

// One open stream on a runtime; the FFI owns it and deletes it in `close`. One thread at a time,
// `cancel` aside.
class LlmBackendSession {
 public:
  virtual ~LlmBackendSession() = default;

  virtual int prefill(const int32_t* token_ids, size_t num_tokens, char** out_error) = 0;

  // 0: more, 1: final, < 0: error. The drafter counts are 0 where the runtime has no drafter.
  virtual int next(int32_t* tokens_out, size_t tokens_cap, size_t* num_tokens_out, char* text_out,
                   size_t text_cap, int32_t* drafter_drafted_out, int32_t* drafter_accepted_out,
                   char** out_error) = 0;

  // Called from any thread, also while another method runs.
  virtual int cancel() = 0;

  virtual int reset() = 0;

  // Returns how many tokens were kept. A runtime that cannot keep a prefix resets and returns 0;
  // this is never an error.
  virtual int reset_keep(int32_t n_keep) = 0;

  virtual int save_slot(const char* filename, char** out_error);
  virtual int restore_slot(const char* filename, char** out_error);
};

// One runtime; a singleton that lives as long as the process.
class LlmBackendFactory {
 public:
  virtual ~LlmBackendFactory() = default;

  // Stable and unique without case, such as "litert-lm".
  virtual const char* name() const = 0;

  // Compiled in and present on this host. Cheap; must not remember what a later change of the host
  // would make false.
  virtual bool available() const = 0;

  // Whether the bundle holds an artifact of this runtime. Cheap: a look at `text/`, no model load.
  virtual bool can_serve(const char* bundle_dir) const = 0;

  // Higher wins; only positive ranks are chosen unasked. The in-tree llama.cpp path counts as 0.
  virtual int preference_rank() const = 0;

  // A remark for people on how this bundle would run, or why it would not; shown where backends are
  // listed. Only asked when somebody reads it: may take a while.
  virtual std::string remark(const char*) const { return ""; }

  // The vocabulary that the runtime has of the bundle, where the bundle itself holds none that the
  // library can read; nullptr: this runtime has none either.
  virtual std::shared_ptr<const Tokenizer> tokenizer(EliInferenceContext*) { return nullptr; }

  // Loads what the first `open` would load and keeps it with the context.
  virtual void load(EliInferenceContext*) {}

  // Opens a session, or returns nullptr and sets `*out_error`. The context is opaque: read the
  // bundle directory with llm_backend_context_bundle_dir during this call and copy what you need,
  // a stream may outlive its context.
  virtual LlmBackendSession* open(EliInferenceContext* ctx, const eliza_llm_stream_config_t* cfg,
                                  char** out_error) = 0;
};

// The bundle directory of a context, valid as long as the context. Defined by the FFI, the only
// part that knows the struct.
const char* llm_backend_context_bundle_dir(const EliInferenceContext* ctx);

// The vocabulary in the bundle: of its `text/*.tokenizer`, else of its GGUF; nullptr where there is
// neither. Loaded once for a context; the weights are not read. Throws Error.
std::shared_ptr<const Tokenizer> llm_backend_context_tokenizer(EliInferenceContext* ctx);

// What a backend keeps with a context for all its streams, such as a loaded model: one value for
// each backend, which the first call makes. Released with the context and by
// eliza_inference_mmap_evict; streams hold their own reference. Thread-safe; `make` runs under a
// lock and must be quick.
std::shared_ptr<void> llm_backend_context_kept(EliInferenceContext* ctx,
                                               const LlmBackendFactory* backend,
                                               const std::function<std::shared_ptr<void>()>& make);

// What `next` begins with, whoever answers: throws Error(ELIZA_ERR_INVALID_ARG) for a required
// argument that is NULL or 0, and clears the outputs.
void prepare_next(const int32_t* tokens_out, size_t tokens_cap, size_t* num_tokens_out,
                  char* text_out, size_t text_cap, int32_t* drafter_drafted_out,
                  int32_t* drafter_accepted_out);

}  // namespace eliza
