#include "llama/model.h"

#include <hash/xxhash/xxhash.h>
#include <llama-model.h>
#include <llama.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <string_view>

#include "bundle/bundle.h"
#include "llama/runtime.h"
#include "platform/paths.h"
#include "support/environment.h"

namespace eliza::llama {
namespace {

// Hashes the size, the beginning, where the metadata are, and samples of the rest: the whole file
// would take as long as reading it.
uint64_t fingerprint_of(const std::filesystem::path& path) {
  constexpr uintmax_t beginning = 1 << 20;
  constexpr uintmax_t sample = 4096;
  constexpr uintmax_t samples = 256;
  std::ifstream file(path, std::ios::binary);
  const uintmax_t size = std::filesystem::file_size(path);
  std::vector<char> bytes(static_cast<size_t>(std::min(size, beginning)));
  file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  uint64_t hash = XXH64(bytes.data(), bytes.size(), size);
  bytes.resize(sample);
  for (uintmax_t i = 0; i < samples && size > beginning + sample; ++i) {
    file.seekg(static_cast<std::streamoff>(beginning + (size - beginning - sample) * i / samples));
    file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    hash = XXH64(bytes.data(), bytes.size(), hash);
  }
  return hash;
}

}  // namespace

Model::Model(const std::string& path, int32_t n_gpu_layers, Use use)
    : path_(path), gpu_layers_(n_gpu_layers) {
  ensure_runtime();
  const std::string what =
      (use == Use::text ? "text model " : "drafter ") + quoted(path) + " cannot be loaded";
  try {
    guarded(ELIZA_ERR_BUNDLE_INVALID, what, [&](const LogCapture& log) {
      llama_model_params params = llama_model_default_params();
      params.n_gpu_layers = n_gpu_layers;
      params.load_mtp = true;  // mapped, so that streams without drafts pay nothing
      model_ = llama_model_load_from_file(path.c_str(), params);
      if (model_ == nullptr) throw Error(ELIZA_ERR_BUNDLE_INVALID, fault_message(what, "", log));
      const llama_vocab* vocabulary = llama_model_get_vocab(model_);
      training_context_ = llama_model_n_ctx_train(model_);
      read_kind();
      if (is_draft_head_) {
        if (use == Use::drafting) {
          vocabulary_.emplace(vocabulary);
          return;
        }
        throw Error(ELIZA_ERR_BUNDLE_INVALID, what + ": it is a drafter and no text model");
      }
      if (llama_vocab_type(vocabulary) == LLAMA_VOCAB_TYPE_NONE) {
        throw Error(ELIZA_ERR_BUNDLE_INVALID, what + ": it has no vocabulary");
      }
      if (!llama_model_has_decoder(model_) || llama_model_has_encoder(model_) ||
          llama_model_is_diffusion(model_)) {
        throw Error(ELIZA_ERR_BUNDLE_INVALID, what + ": it is not a decoder-only text model");
      }
      vocabulary_.emplace(vocabulary);
      vocabulary_->check_usable();
      try_decoding();
      fingerprint_ = fingerprint_of(platform::path_of(path));
    });
  } catch (const Error& problem) {
    if (model_ != nullptr) llama_model_free(model_);
    // A failed assertion of ggml says nothing of the file; whatever failed here, the file did it.
    const std::string message = problem.what();
    if (message.compare(0, what.size(), what) == 0) throw;
    throw Error(ELIZA_ERR_BUNDLE_INVALID, what + ": " + message);
  } catch (...) {
    if (model_ != nullptr) llama_model_free(model_);
    throw;
  }
}

Model::~Model() { llama_model_free(model_); }

bool Model::has_tensor(const std::string& name) const {
  return model_->get_tensor(name.c_str()) != nullptr;
}

void Model::read_kind() {
  std::array<char, 64> name{};
  llama_model_meta_val_str(model_, "general.architecture", name.data(), name.size());
  architecture_ = name.data();
  const int32_t heads = llama_model_n_layer_nextn(model_);
  const std::string last = "blk." + std::to_string(llama_model_n_layer(model_) + heads - 1);
  has_mtp_head_ = heads > 0 && has_tensor(last + ".nextn.eh_proj.weight");
  const bool has_trunk = has_tensor("blk.0.attn_norm.weight");
  is_draft_head_ = architecture_ == "eagle3" || architecture_ == "dflash" ||
                   architecture_ == "gemma4-assistant" || (has_mtp_head_ && !has_trunk);
}

// A tensor of a type or shape that the kernels cannot take fails an assertion while decoding. On a
// thread of ggml nothing could catch that; so the first tokens are decoded here, on this thread
// alone, in a throwaway context: many rows and one, which run different kernels.
void Model::try_decoding() const {
  constexpr int32_t rows = 4;
  llama_context_params params = llama_context_default_params();
  params.n_ctx = 2 * rows;
  params.n_batch = params.n_ubatch = rows;
  params.n_threads = params.n_threads_batch = 1;
  params.no_perf = true;
  // A pool of our own: one that ggml makes for a decode would leak with the assertion.
  ggml_threadpool_params pool_params = ggml_threadpool_params_default(1);
  const std::unique_ptr<ggml_threadpool, decltype(&ggml_threadpool_free)> threadpool(
      ggml_threadpool_new(&pool_params), ggml_threadpool_free);
  const std::unique_ptr<llama_context, decltype(&llama_free)> context(
      llama_init_from_model(model_, params), llama_free);
  if (!context) throw Error(ELIZA_ERR_BUNDLE_INVALID, "no context can be made for it");
  llama_attach_threadpool(context.get(), threadpool.get(), nullptr);
  std::array<llama_token, rows> tokens{};
  for (const int32_t count : {rows, 1}) {
    if (llama_decode(context.get(), llama_batch_get_one(tokens.data(), count)) != 0) {
      throw Error(ELIZA_ERR_BUNDLE_INVALID, "it cannot decode a token");
    }
  }
}

std::shared_ptr<const Model> ModelSlot::acquire(int32_t n_gpu_layers) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (model_ && model_->gpu_layers() != n_gpu_layers) {
    if (model_.use_count() > 1) {
      throw Error(ELIZA_ERR_INVALID_ARG,
                  "n_gpu_layers " + std::to_string(n_gpu_layers) +
                      ": an open stream of this context has loaded the model with " +
                      std::to_string(model_->gpu_layers()) +
                      " GPU layers; use that value or close the other streams first");
    }
    model_.reset();
  }
  return load(n_gpu_layers);
}

bool ModelSlot::is_loaded_otherwise(int32_t n_gpu_layers) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return model_ && model_->gpu_layers() != n_gpu_layers;
}

std::shared_ptr<const Model> ModelSlot::acquire_any() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return load(effective_gpu_layers(0));
}

void ModelSlot::evict() {
  const std::lock_guard<std::mutex> lock(mutex_);
  model_.reset();
}

std::shared_ptr<const Model> ModelSlot::load(int32_t n_gpu_layers) {
  if (!model_) {
    model_ = std::make_shared<const Model>(platform::utf8_of(find_text_model(bundle_dir_)),
                                           n_gpu_layers);
  }
  return model_;
}

std::shared_ptr<const Model> DrafterSlot::acquire(const std::string& path,
                                                  const std::shared_ptr<const Model>& target) {
  const auto file = platform::path_of(path);
  std::error_code problem;
  if (std::filesystem::equivalent(file, platform::path_of(target->path()), problem)) return target;
  const auto written = std::filesystem::last_write_time(file, problem);
  const std::lock_guard<std::mutex> lock(mutex_);
  const int32_t gpu_layers = target->gpu_layers();
  const bool same = model_ && model_->path() == platform::utf8_of(file) && written_ == written &&
                    model_->gpu_layers() == gpu_layers;
  if (!same) {
    model_.reset();
    try {
      model_ =
          std::make_shared<const Model>(platform::utf8_of(file), gpu_layers, Model::Use::drafting);
    } catch (const Error& reason) {
      throw Error(ELIZA_ERR_INVALID_ARG, std::string("mtp_drafter_path: ") + reason.what());
    }
    written_ = written;
  }
  return model_;
}

void DrafterSlot::evict() {
  const std::lock_guard<std::mutex> lock(mutex_);
  model_.reset();
}

int32_t effective_gpu_layers(int32_t requested) {
  ensure_runtime();
  const bool possible = llama_supports_gpu_offload();
  const auto use_gpu = environment_integer("ELIZA_LLM_USE_GPU", 0, 1);
  if (use_gpu == 1 && !possible) {
    throw Error(ELIZA_ERR_INVALID_ARG,
                "environment variable ELIZA_LLM_USE_GPU is '1', but this build has no GPU backend; "
                "unset it");
  }
  if (!possible || use_gpu == 0) return 0;
  if (requested == 0) return use_gpu == 1 ? -1 : 0;
  return requested < 0 ? -1 : requested;
}

}  // namespace eliza::llama
