#include "ffi/selection.h"

#include "backends/builtin_backends.h"
#include "bundle/bundle.h"
#include "cpu/level.h"
#include "ffi/boundary.h"
#include "seam/llm_backend_registry.h"

namespace eliza::ffi {

LlmBackendFactory* select_backend(EliInferenceContext& ctx, const eliza_llm_stream_config_t* cfg) {
  auto& registry = LlmBackendRegistry::instance();
  llm_backend_register_builtins(registry);
  registry.remark_in_tree(cpu::describe_active_level());
  SeamMessage message;
  auto* backend = llm_backend_select(ctx.bundle_dir.c_str(), cfg, message.out());
  if (message.is_set()) message.raise(ELIZA_ERR_INVALID_ARG);
  return backend;
}

void explain_failed_load(const EliInferenceContext& ctx, const Error& problem) {
  std::string message = problem.what();
  if (!has_text_model(ctx.bundle_dir)) {
    const auto backends = LlmBackendRegistry::instance().describe(ctx.bundle_dir.c_str());
    if (!backends.empty()) message += "; and no backend can serve it:" + backends;
  }
  throw Error(problem.code(), message);
}

}  // namespace eliza::ffi
