#include "backends/builtin_backends.h"

#ifdef ELIZA_ENABLE_LITERT
#include "backends/litert/litert_backend.h"
#endif
#ifdef ELIZA_ENABLE_MLX
#include "backends/mlx/mlx_backend.h"
#endif

namespace eliza {

std::vector<LlmBackendFactory*> builtin_backends() {
  return {
#ifdef ELIZA_ENABLE_LITERT
      litert_backend(),
#endif
#ifdef ELIZA_ENABLE_MLX
      mlx_backend(),
#endif
  };
}

void llm_backend_register_builtins(LlmBackendRegistry& registry) {
  for (auto* factory : builtin_backends()) registry.add(factory);
}

}  // namespace eliza
