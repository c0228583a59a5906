#include <algorithm>

#include "ffi/boundary.h"
#include "ffi/handles.h"
#include "ffi/selection.h"
#include "llama/stream_settings.h"

// Every function has the backend branch on top: it forwards its arguments verbatim. Below it is the
// in-tree llama.cpp path.

using eliza::Error;
using eliza::require;
using eliza::require_size;
using eliza::ffi::handle_of;
using eliza::ffi::SeamMessage;
using eliza::ffi::status_of;

namespace {

EliLlmStream* open_on_backend(eliza::LlmBackendFactory& factory, EliInferenceContext* ctx,
                              const eliza_llm_stream_config_t* cfg) {
  auto stream = std::make_unique<EliLlmStream>();
  SeamMessage message;
  stream->backend.reset(factory.open(ctx, cfg, message.out()));
  if (!stream->backend) message.raise(ELIZA_ERR_FFI_FAULT);
  return stream.release();
}

EliLlmStream* open_in_tree(EliInferenceContext* ctx, const eliza_llm_stream_config_t& cfg) {
  const auto settings = eliza::llama::read_stream_settings(cfg);
  // Spare decoders use the model too; they must not keep it from being loaded anew.
  if (ctx->text_model.is_loaded_otherwise(settings.n_gpu_layers)) ctx->decoders->clear();
  eliza::llama::StreamResources resources;
  resources.model = eliza::ffi::loading_text_model(
      *ctx, [&] { return ctx->text_model.acquire(settings.n_gpu_layers); });
  if (settings.drafter_path) {
    resources.drafter = ctx->drafter.acquire(*settings.drafter_path, resources.model);
  }
  resources.verifier = ctx->verifier;
  resources.pool = ctx->decoders;
  auto stream = std::make_unique<EliLlmStream>();
  stream->session = std::make_unique<eliza::llama::Session>(resources, settings);
  return stream.release();
}

void require_file_name(const char* filename) {
  require(filename, "filename");
  if (*filename == '\0') throw Error(ELIZA_ERR_INVALID_ARG, "filename is empty; name a file");
}

}  // namespace

int eliza_inference_llm_stream_supported(void) { return 1; }
int eliza_inference_llm_mtp_supported(void) { return 1; }
int eliza_inference_llm_kv_quant_supported(void) { return 1; }

EliLlmStream* eliza_inference_llm_stream_open(EliInferenceContext* ctx,
                                              const eliza_llm_stream_config_t* cfg,
                                              char** out_error) {
  return handle_of<EliLlmStream>(__func__, out_error, [&]() -> EliLlmStream* {
    require(ctx, "ctx");
    require(cfg, "cfg");
    if (auto* backend = eliza::ffi::select_backend(*ctx, cfg)) {
      return open_on_backend(*backend, ctx, cfg);
    }
    return open_in_tree(ctx, *cfg);
  });
}

int eliza_inference_llm_stream_prefill(EliLlmStream* stream, const int32_t* token_ids,
                                       size_t num_tokens, char** out_error) {
  return status_of(__func__, out_error, [&] {
    require(stream, "stream");
    if (stream->backend) return stream->backend->prefill(token_ids, num_tokens, out_error);
    require(token_ids, "token_ids");
    require_size(num_tokens, "num_tokens");
    stream->session->prefill(token_ids, num_tokens);
    return ELIZA_OK;
  });
}

int eliza_inference_llm_stream_next(EliLlmStream* stream, int32_t* tokens_out, size_t tokens_cap,
                                    size_t* num_tokens_out, char* text_out, size_t text_cap,
                                    int32_t* drafter_drafted_out, int32_t* drafter_accepted_out,
                                    char** out_error) {
  return status_of(__func__, out_error, [&] {
    require(stream, "stream");
    if (stream->backend) {
      return stream->backend->next(tokens_out, tokens_cap, num_tokens_out, text_out, text_cap,
                                   drafter_drafted_out, drafter_accepted_out, out_error);
    }
    eliza::prepare_next(tokens_out, tokens_cap, num_tokens_out, text_out, text_cap,
                        drafter_drafted_out, drafter_accepted_out);
    const auto delivery = stream->session->next(tokens_out, tokens_cap, text_out, text_cap);
    *num_tokens_out = delivery.tokens;
    if (drafter_drafted_out != nullptr) {
      *drafter_drafted_out = static_cast<int32_t>(delivery.drafted);
    }
    if (drafter_accepted_out != nullptr) {
      *drafter_accepted_out = static_cast<int32_t>(delivery.accepted);
    }
    return delivery.final ? 1 : 0;
  });
}

int eliza_inference_llm_stream_cancel(EliLlmStream* stream) {
  return status_of(__func__, nullptr, [&] {
    require(stream, "stream");
    if (stream->backend) return stream->backend->cancel();
    stream->session->cancel();
    return ELIZA_OK;
  });
}

int eliza_inference_llm_stream_save_slot(EliLlmStream* stream, const char* filename,
                                         char** out_error) {
  return status_of(__func__, out_error, [&]() -> int {
    require(stream, "stream");
    if (stream->backend) return stream->backend->save_slot(filename, out_error);
    require_file_name(filename);
    stream->session->save_slot(filename);
    return ELIZA_OK;
  });
}

int eliza_inference_llm_stream_restore_slot(EliLlmStream* stream, const char* filename,
                                            char** out_error) {
  return status_of(__func__, out_error, [&]() -> int {
    require(stream, "stream");
    if (stream->backend) return stream->backend->restore_slot(filename, out_error);
    require_file_name(filename);
    stream->session->restore_slot(filename);
    return ELIZA_OK;
  });
}

int eliza_inference_llm_stream_reset(EliLlmStream* stream) {
  return status_of(__func__, nullptr, [&] {
    require(stream, "stream");
    if (stream->backend) return stream->backend->reset();
    stream->session->reset();
    return ELIZA_OK;
  });
}

int eliza_inference_llm_stream_reset_keep(EliLlmStream* stream, int32_t n_keep) {
  return status_of(__func__, nullptr, [&] {
    require(stream, "stream");
    if (stream->backend) return stream->backend->reset_keep(n_keep);
    const auto kept = stream->session->reset_keep(static_cast<size_t>(std::max(0, n_keep)));
    return static_cast<int>(kept);
  });
}

void eliza_inference_llm_stream_close(EliLlmStream* stream) { delete stream; }

int eliza_inference_set_verifier_callback(EliInferenceContext* ctx, eliza_verifier_cb cb,
                                          void* user_data, char** out_error) {
  return status_of(__func__, out_error, [&] {
    require(ctx, "ctx");
    ctx->verifier->set(cb, user_data);
    return ELIZA_OK;
  });
}
