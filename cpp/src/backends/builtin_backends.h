#pragma once

#include <vector>

#include "seam/llm_backend.h"

namespace eliza {

// The runtimes compiled into this build, in order of registration. A new runtime adds its line in
// builtin_backends.cpp.
std::vector<LlmBackendFactory*> builtin_backends();

}  // namespace eliza
