#pragma once

#include <memory>
#include <string>

#include "llama/decoder_pool.h"
#include "llama/model.h"
#include "llama/session.h"
#include "llama/verifier.h"
#include "seam/llm_backend.h"

// What the opaque handles of the C ABI are.

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
};

// Exactly one of the two is set.
struct EliLlmStream {
  std::unique_ptr<eliza::LlmBackendSession> backend;
  std::unique_ptr<eliza::llama::Session> session;
};
