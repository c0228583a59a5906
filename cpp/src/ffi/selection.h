#pragma once

#include "ffi/handles.h"

namespace eliza::ffi {

// The backend that a stream of `ctx` would open on now; nullptr: the in-tree path. Throws
// Error(ELIZA_ERR_INVALID_ARG) where ELIZA_LLM_BACKEND cannot be honoured.
LlmBackendFactory* select_backend(EliInferenceContext& ctx, const eliza_llm_stream_config_t* cfg);

}  // namespace eliza::ffi
