#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "seam/stream_config.h"

namespace eliza::llama {

// A stream's config and the environment, validated; ggml_type and llama_flash_attn_type as ints so
// that llama.cpp's headers stay out of this one.
struct StreamSettings {
  Sampling sampling;
  std::optional<std::string> grammar;
  bool disable_thinking = false;
  int32_t n_gpu_layers = 0;
  int cache_type_k = 0;
  int cache_type_v = 0;
  int flash_attention = 0;
  int32_t context_size = 0;  // tokens; a model trained for fewer gets fewer
  int32_t batch_size = 0;
  int32_t threads = 0;
  int32_t draft_min = 0;
  int32_t draft_max = 0;      // 0: no drafting
  bool always_draft = false;  // whether or not it pays
  std::optional<std::string> drafter_path;
  std::string cache_key;   // of slot_id and prompt_cache_key together; empty: none
  size_t cache_slots = 0;  // conversations that the context keeps
  size_t cache_bytes = 0;  // of those and of spare decoders
};

// Throws Error(ELIZA_ERR_INVALID_ARG) that names the first field or variable that cannot be used.
StreamSettings read_stream_settings(const eliza_llm_stream_config_t& config);

}  // namespace eliza::llama
