#include "ffi/selection.h"

#include "backends/builtin_backends.h"
#include "bundle/bundle.h"
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

void require_text_model(const std::string& bundle_dir) {
  if (has_text_model(bundle_dir)) return;
  try {
    find_text_model(bundle_dir);
  } catch (const Error& problem) {
    const auto backends = LlmBackendRegistry::instance().describe(bundle_dir.c_str());
    if (backends.empty()) throw;
    throw Error(problem.code(), problem.what() + ("; and no backend can serve it:" + backends));
  }
}

}  // namespace eliza::ffi
