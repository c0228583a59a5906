#pragma once

#include "ffi/handles.h"

namespace eliza::ffi {

// The backend that a stream of `ctx` would open on now; nullptr: the in-tree path. Throws
// Error(ELIZA_ERR_INVALID_ARG) where ELIZA_LLM_BACKEND cannot be honoured.
LlmBackendFactory* select_backend(EliInferenceContext& ctx, const eliza_llm_stream_config_t* cfg);

// Throws Error(ELIZA_ERR_BUNDLE_INVALID) where the in-tree path has no model in the bundle, with
// what kept the backends from serving it.
void require_text_model(const std::string& bundle_dir);

}  // namespace eliza::ffi
