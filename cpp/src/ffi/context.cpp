#include <cstdlib>
#include <cstring>

#include "bundle/bundle.h"
#include "ffi/boundary.h"
#include "ffi/handles.h"
#include "ffi/selection.h"
#include "llama/log_capture.h"
#include "llama/runtime.h"
#include "llama/vocabulary.h"
#include "platform/paths.h"

using eliza::Error;
using eliza::quoted;
using eliza::require;
using eliza::ffi::handle_of;
using eliza::ffi::status_of;

namespace eliza {

const char* llm_backend_context_bundle_dir(const EliInferenceContext* ctx) {
  return ctx->bundle_dir.c_str();
}

std::shared_ptr<const Tokenizer> llm_backend_context_tokenizer(EliInferenceContext* ctx) {
  return ctx->tokenizer.acquire(ctx->bundle_dir);
}

std::shared_ptr<void> llm_backend_context_kept(EliInferenceContext* ctx,
                                               const LlmBackendFactory* backend,
                                               const std::function<std::shared_ptr<void>()>& make) {
  return ctx->kept.get(backend, make);
}

namespace ffi {

std::shared_ptr<const Tokenizer> TokenizerSlot::acquire(const std::string& bundle_dir) {
  auto file = find_tokenizer(bundle_dir);
  if (!file && has_text_model(bundle_dir)) file = find_text_model(bundle_dir);
  if (!file) return nullptr;
  std::error_code problem;
  const auto written = std::filesystem::last_write_time(*file, problem);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!tokenizer_ || path_ != *file || written_ != written) {
    tokenizer_ = llama::load_vocabulary(platform::utf8_of(*file));
    path_ = *file;
    written_ = written;
  }
  return tokenizer_;
}

void TokenizerSlot::evict() {
  const std::lock_guard<std::mutex> lock(mutex_);
  tokenizer_.reset();
}

std::shared_ptr<void> KeptByBackends::get(const LlmBackendFactory* backend,
                                          const std::function<std::shared_ptr<void>()>& make) {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto& value = values_[backend];
  if (!value) value = make();
  return value;
}

void KeptByBackends::evict() {
  decltype(values_) released;  // outside the lock: freeing a model takes a while
  const std::lock_guard<std::mutex> lock(mutex_);
  released.swap(values_);
}

}  // namespace ffi
}  // namespace eliza

namespace {

void require_text_region(const char* region_name) {
  require(region_name, "region_name");
  if (std::strcmp(region_name, "text") != 0) {
    throw Error(ELIZA_ERR_NOT_IMPLEMENTED,
                "region " + quoted(region_name) + " is not in this build; only 'text' is");
  }
}

}  // namespace

EliInferenceContext* eliza_inference_create(const char* bundle_dir, char** out_error) {
  return handle_of<EliInferenceContext>(__func__, out_error, [&] {
    require(bundle_dir, "bundle_dir");
    eliza::llama::apply_log_environment();
    eliza::llama::require_cpu_level();
    eliza::check_bundle(bundle_dir);
    return std::make_unique<EliInferenceContext>(bundle_dir).release();
  });
}

void eliza_inference_destroy(EliInferenceContext* ctx) { delete ctx; }

void eliza_inference_free_string(char* str) { std::free(str); }

void eliza_inference_free_tokens(int* tokens) { std::free(tokens); }

int eliza_inference_mmap_acquire(EliInferenceContext* ctx, const char* region_name,
                                 char** out_error) {
  return status_of(__func__, out_error, [&] {
    require(ctx, "ctx");
    require_text_region(region_name);
    if (auto* backend = eliza::ffi::select_backend(*ctx, nullptr)) {
      backend->load(ctx);
    } else {
      eliza::ffi::loading_text_model(*ctx, [&] { return ctx->text_model.acquire_any(); });
    }
    return ELIZA_OK;
  });
}

int eliza_inference_mmap_evict(EliInferenceContext* ctx, const char* region_name,
                               char** out_error) {
  return status_of(__func__, out_error, [&] {
    require(ctx, "ctx");
    require_text_region(region_name);
    ctx->decoders->clear();
    ctx->drafter.evict();
    ctx->text_model.evict();
    ctx->tokenizer.evict();
    ctx->kept.evict();
    return ELIZA_OK;
  });
}
