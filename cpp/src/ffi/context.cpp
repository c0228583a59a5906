#include <cstdlib>
#include <cstring>

#include "bundle/bundle.h"
#include "ffi/boundary.h"
#include "ffi/handles.h"
#include "llama/log_capture.h"

using eliza::Error;
using eliza::quoted;
using eliza::ffi::handle_of;
using eliza::ffi::require;
using eliza::ffi::status_of;

namespace eliza {

const char* llm_backend_context_bundle_dir(const EliInferenceContext* ctx) {
  return ctx->bundle_dir.c_str();
}

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
    ctx->text_model.acquire_any();
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
    return ELIZA_OK;
  });
}
