#pragma once

#include "seam/llm_backend.h"

namespace eliza {

// MLX and CoreML: serves `text/*.mlpackage`, `text/*.mlmodelc` or a directory of MLX weights. The
// factory and its artifact probe are here; the runtime is not in this build yet, so available() is
// false on every host.
LlmBackendFactory* mlx_backend();

}  // namespace eliza
