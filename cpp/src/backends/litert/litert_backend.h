#pragma once

#include "seam/llm_backend.h"

namespace eliza {

// LiteRT-LM: serves `text/*.litertlm`. The factory and its artifact probe are here; the runtime is
// not in this build yet, so available() is false on every host.
LlmBackendFactory* litert_backend();

}  // namespace eliza
