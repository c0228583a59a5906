#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "llama/decoder_pool.h"
#include "llama/model.h"
#include "llama/session.h"
#include "llama/verifier.h"
#include "seam/llm_backend.h"

// What the opaque handles of the C ABI are.

namespace eliza::ffi {

// The vocabulary of a bundle apart from a loaded model; loaded at first use, and anew where its
// file was replaced. Thread-safe.
class TokenizerSlot {
 public:
  // nullptr where the bundle holds none.
  std::shared_ptr<const Tokenizer> acquire(const std::string& bundle_dir);
  void evict();

 private:
  std::mutex mutex_;
  std::filesystem::path path_;
  std::filesystem::file_time_type written_{};
  std::shared_ptr<const Tokenizer> tokenizer_;
};

// What backends keep with a context. Thread-safe.
class KeptByBackends {
 public:
  std::shared_ptr<void> get(const LlmBackendFactory* backend,
                            const std::function<std::shared_ptr<void>()>& make);
  void evict();

 private:
  std::mutex mutex_;
  std::map<const LlmBackendFactory*, std::shared_ptr<void>> values_;
};

}  // namespace eliza::ffi

struct EliInferenceContext {
  explicit EliInferenceContext(const std::string& directory)
      : bundle_dir(directory), text_model(directory) {}

  const std::string bundle_dir;
  eliza::llama::ModelSlot text_model;
  eliza::llama::DrafterSlot drafter;
  const std::shared_ptr<eliza::llama::DecoderPool> decoders =
      std::make_shared<eliza::llama::DecoderPool>();
  const std::shared_ptr<eliza::llama::Verifier> verifier =
      std::make_shared<eliza::llama::Verifier>();
  eliza::ffi::TokenizerSlot tokenizer;
  eliza::ffi::KeptByBackends kept;
};

// Exactly one of the two is set.
struct EliLlmStream {
  std::unique_ptr<eliza::LlmBackendSession> backend;
  std::unique_ptr<eliza::llama::Session> session;
};
