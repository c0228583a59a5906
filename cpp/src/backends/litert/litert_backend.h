#pragma once

#include "seam/llm_backend.h"

namespace eliza {

// LiteRT-LM: serves the one `text/*.litertlm` of a bundle through `liblitert-lm`, which is opened
// at run time. docs/litert.md describes it.
LlmBackendFactory* litert_backend();

}  // namespace eliza
