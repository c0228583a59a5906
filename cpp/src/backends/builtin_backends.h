#pragma once

#include <vector>

#include "seam/llm_backend_registry.h"

namespace eliza {

// The runtimes compiled into this build, in order of registration. A new runtime adds its line in
// builtin_backends.cpp.
std::vector<LlmBackendFactory*> builtin_backends();

// Registers them; calling it again changes nothing.
void llm_backend_register_builtins(LlmBackendRegistry& registry);

}  // namespace eliza
