#include "seam/tokenizer.h"

#include <cstdlib>
#include <cstring>
#include <limits>

#include "bundle/bundle.h"
#include "ffi/boundary.h"
#include "ffi/handles.h"
#include "ffi/selection.h"

using eliza::Error;
using eliza::require;
using eliza::require_size;
using eliza::ffi::status_of;

namespace {

// The vocabulary of the streams that the context would open. Where that is the GGUF's, the model is
// loaded whole: its streams need it anyway.
std::shared_ptr<const eliza::Tokenizer> tokenizer_of(EliInferenceContext* ctx) {
  const bool has_model = eliza::has_text_model(ctx->bundle_dir);
  const bool has_tokenizer = eliza::has_tokenizer(ctx->bundle_dir);
  if (has_tokenizer && !has_model) return eliza::llm_backend_context_tokenizer(ctx);
  if (has_tokenizer || !has_model) {
    if (auto* const backend = eliza::ffi::select_backend(*ctx, nullptr)) {
      if (has_tokenizer) return eliza::llm_backend_context_tokenizer(ctx);
      if (auto tokenizer = backend->tokenizer(ctx)) return tokenizer;
    }
  }
  const auto model =
      eliza::ffi::loading_text_model(*ctx, [&] { return ctx->text_model.acquire_any(); });
  return {model, &model->vocabulary()};
}

}  // namespace

int eliza_inference_tokenize_supported(void) { return 1; }

int eliza_inference_tokenize(EliInferenceContext* ctx, const char* text, size_t text_len,
                             int add_special, int parse_special, int** out_tokens, size_t* out_n,
                             char** out_error) {
  return status_of(__func__, out_error, [&] {
    require(ctx, "ctx");
    require(text, "text");
    require(out_tokens, "out_tokens");
    require(out_n, "out_n");
    const auto tokens =
        tokenizer_of(ctx)->tokenize({text, text_len}, add_special != 0, parse_special != 0);
    // At least one byte, so that an empty result is not NULL.
    const size_t bytes = tokens.size() * sizeof(int);
    auto* copy = static_cast<int*>(std::malloc(bytes + 1));
    if (copy == nullptr) throw std::bad_alloc();
    std::memcpy(copy, tokens.data(), bytes);
    *out_tokens = copy;
    *out_n = tokens.size();
    return ELIZA_OK;
  });
}

int eliza_inference_detokenize(EliInferenceContext* ctx, const int* tokens, size_t n_tokens,
                               int remove_special, int unparse_special, char* out_text,
                               size_t max_text_bytes, char** out_error) {
  return status_of(__func__, out_error, [&] {
    require(ctx, "ctx");
    if (n_tokens > 0) require(tokens, "tokens");
    require(out_text, "out_text");
    require_size(max_text_bytes, "max_text_bytes");
    *out_text = '\0';
    const auto tokenizer = tokenizer_of(ctx);
    tokenizer->check_token_ids(tokens, n_tokens);
    const std::vector<int32_t> ids(tokens, tokens + n_tokens);
    const std::string text = tokenizer->detokenize(ids, remove_special != 0, unparse_special != 0);
    if (text.size() >= max_text_bytes) {
      throw Error(ELIZA_ERR_INVALID_ARG, "max_text_bytes " + std::to_string(max_text_bytes) +
                                             " is too small; the text needs " +
                                             std::to_string(text.size() + 1) +
                                             " bytes, terminator included");
    }
    if (text.size() > static_cast<size_t>(std::numeric_limits<int>::max())) {
      throw Error(ELIZA_ERR_INVALID_ARG, "the text is too long; detokenize in parts");
    }
    std::memcpy(out_text, text.c_str(), text.size() + 1);
    return static_cast<int>(text.size());
  });
}
