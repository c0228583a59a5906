#include "backends/litert/litert_backend.h"

#include "bundle/bundle.h"
#include "support/error.h"

namespace eliza {
namespace {

class LitertBackend final : public LlmBackendFactory {
 public:
  const char* name() const override { return "litert-lm"; }
  bool available() const override { return false; }

  bool can_serve(const char* bundle_dir) const override {
    for (const auto& file : text_entries(bundle_dir, ".litertlm")) {
      std::error_code problem;
      if (std::filesystem::is_regular_file(file, problem)) return true;
    }
    return false;
  }

  // Above llama.cpp, whose work it takes over where an NPU helps.
  int preference_rank() const override { return 100; }

  LlmBackendSession* open(EliInferenceContext*, const eliza_llm_stream_config_t*,
                          char** out_error) override {
    if (out_error != nullptr) {
      *out_error = duplicate_message("litert-lm: the LiteRT-LM runtime is not in this build");
    }
    return nullptr;
  }
};

}  // namespace

LlmBackendFactory* litert_backend() {
  static LitertBackend backend;
  return &backend;
}

}  // namespace eliza
