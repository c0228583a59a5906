#pragma once

#include "ffi/handles.h"
#include "support/error.h"

namespace eliza::ffi {

// The backend that a stream of `ctx` would open on now; nullptr: the in-tree path. Throws
// Error(ELIZA_ERR_INVALID_ARG) where ELIZA_LLM_BACKEND cannot be honoured.
LlmBackendFactory* select_backend(EliInferenceContext& ctx, const eliza_llm_stream_config_t* cfg);

// Throws `problem` again; where the bundle has no model for the in-tree path, with what kept the
// backends from serving it.
[[noreturn]] void explain_failed_load(const EliInferenceContext& ctx, const Error& problem);

// Runs `load`, which acquires the text model of the in-tree path.
template <typename Load>
auto loading_text_model(const EliInferenceContext& ctx, const Load& load) {
  try {
    return load();
  } catch (const Error& problem) {
    explain_failed_load(ctx, problem);
  }
}

}  // namespace eliza::ffi
