#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "llama/vocabulary.h"

struct llama_model;

namespace eliza::llama {

// A loaded text model with its vocabulary; immutable, shared by streams and tokenizer calls. Or a
// draft head: the file of a drafter that cannot stand alone, because it reads a text model's
// layers.
class Model {
 public:
  enum class Use { text, drafting };

  // Loads the GGUF at `path` (UTF-8) with `n_gpu_layers` layers offloaded (< 0: all).
  // Throws Error(ELIZA_ERR_BUNDLE_INVALID) with llama.cpp's reason; so is a draft head for text.
  Model(const std::string& path, int32_t n_gpu_layers, Use use = Use::text);
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  llama_model* get() const { return model_; }
  const Vocabulary& vocabulary() const { return *vocabulary_; }
  int32_t training_context() const { return training_context_; }
  int32_t gpu_layers() const { return gpu_layers_; }
  const std::string& path() const { return path_; }

  const std::string& architecture() const { return architecture_; }
  bool is_draft_head() const { return is_draft_head_; }

  // Whether it has a layer that predicts the token after the next (MTP).
  bool has_mtp_head() const { return has_mtp_head_; }

  bool has_tensor(const std::string& name) const;

  // Tells this model's file from others, also from one with the same architecture and other
  // weights.
  uint64_t fingerprint() const { return fingerprint_; }

 private:
  void read_kind();
  void try_decoding() const;

  const std::string path_;
  uint64_t fingerprint_ = 0;
  std::string architecture_;
  bool is_draft_head_ = false;
  bool has_mtp_head_ = false;
  llama_model* model_ = nullptr;
  std::optional<Vocabulary> vocabulary_;
  int32_t training_context_ = 0;
  int32_t gpu_layers_;
};

// The one model of a context: loaded at first use, shared afterwards. Thread-safe; a second caller
// waits for the load of the first.
class ModelSlot {
 public:
  explicit ModelSlot(std::string bundle_dir) : bundle_dir_(std::move(bundle_dir)) {}

  // For a stream that wants `n_gpu_layers` layers offloaded. A model loaded otherwise is reloaded
  // when no stream uses it; else Error(ELIZA_ERR_INVALID_ARG).
  std::shared_ptr<const Model> acquire(int32_t n_gpu_layers);

  // Whether a model is loaded, and with another number of offloaded layers.
  bool is_loaded_otherwise(int32_t n_gpu_layers);

  // For a caller to whom the placement does not matter.
  std::shared_ptr<const Model> acquire_any();

  // Forgets the model; it is freed with its last user.
  void evict();

 private:
  std::shared_ptr<const Model> load(int32_t n_gpu_layers);

  const std::string bundle_dir_;
  std::mutex mutex_;
  std::shared_ptr<const Model> model_;
};

// The drafting model that a context's streams named last; loaded at first use. Thread-safe.
class DrafterSlot {
 public:
  // The model of the file at `path` (UTF-8), or `target` itself where that is the same file. Throws
  // Error(ELIZA_ERR_INVALID_ARG) with the reason.
  std::shared_ptr<const Model> acquire(const std::string& path,
                                       const std::shared_ptr<const Model>& target);

  // Forgets the model; it is freed with its last user.
  void evict();

 private:
  std::mutex mutex_;
  std::shared_ptr<const Model> model_;
  std::filesystem::file_time_type written_{};
};

// The layers to offload for a config's n_gpu_layers: ELIZA_LLM_USE_GPU and what the build can do
// decide. Throws Error where the environment asks for a GPU that the build has not.
int32_t effective_gpu_layers(int32_t requested);

}  // namespace eliza::llama
