#include "backends/mlx/mlx_backend.h"

#include "bundle/bundle.h"
#include "platform/paths.h"
#include "support/error.h"

namespace eliza {
namespace fs = std::filesystem;
namespace {

// MLX weights as mlx-lm writes them: config.json beside at least one .safetensors file.
bool is_mlx_weights_directory(const fs::path& directory) {
  std::error_code problem;
  if (!fs::is_regular_file(directory / "config.json", problem)) return false;
  for (const auto& file : fs::directory_iterator(directory, problem)) {
    if (file.path().extension() == ".safetensors") return true;
  }
  return false;
}

class MlxBackend final : public LlmBackendFactory {
 public:
  const char* name() const override { return "mlx-coreml"; }
  bool available() const override { return false; }

  bool can_serve(const char* bundle_dir) const override {
    // A CoreML package and a compiled CoreML model are directories.
    for (const char* extension : {".mlpackage", ".mlmodelc"}) {
      for (const auto& entry : text_entries(bundle_dir, extension)) {
        std::error_code problem;
        if (fs::is_directory(entry, problem)) return true;
      }
    }
    std::error_code problem;
    for (const auto& entry :
         fs::directory_iterator(platform::path_of(bundle_dir) / "text", problem)) {
      if (is_mlx_weights_directory(entry.path())) return true;
    }
    return is_mlx_weights_directory(platform::path_of(bundle_dir) / "text");
  }

  // Above llama.cpp on Apple hardware; below litert-lm, which never meets it on one host.
  int preference_rank() const override { return 90; }

  LlmBackendSession* open(EliInferenceContext*, const eliza_llm_stream_config_t*,
                          char** out_error) override {
    if (out_error != nullptr) {
      *out_error = duplicate_message("mlx-coreml: the MLX/CoreML runtime is not in this build");
    }
    return nullptr;
  }
};

}  // namespace

LlmBackendFactory* mlx_backend() {
  static MlxBackend backend;
  return &backend;
}

}  // namespace eliza
