#include "ffi/selection.h"

#include "backends/builtin_backends.h"
#include "ffi/boundary.h"
#include "seam/llm_backend_registry.h"

namespace eliza::ffi {

LlmBackendFactory* select_backend(EliInferenceContext& ctx, const eliza_llm_stream_config_t* cfg) {
  llm_backend_register_builtins(LlmBackendRegistry::instance());
  SeamMessage message;
  auto* backend = llm_backend_select(ctx.bundle_dir.c_str(), cfg, message.out());
  if (message.is_set()) message.raise(ELIZA_ERR_INVALID_ARG);
  return backend;
}

}  // namespace eliza::ffi
