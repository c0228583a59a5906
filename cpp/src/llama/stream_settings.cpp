#include "llama/stream_settings.h"

#include <llama.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <vector>

#include "llama/log_capture.h"
#include "llama/model.h"
#include "platform/paths.h"
#include "support/environment.h"
#include "support/error.h"

namespace eliza::llama {
namespace {

constexpr int32_t default_batch = 512;
constexpr int32_t default_draft = 8;
constexpr int32_t default_cache_slots = 16;
constexpr int32_t default_cache_megabytes = 1024;

struct CacheType {
  const char* name;
  ggml_type type;
};

constexpr CacheType cache_types[] = {
    {"f32", GGML_TYPE_F32},   {"f16", GGML_TYPE_F16},   {"bf16", GGML_TYPE_BF16},
    {"q8_0", GGML_TYPE_Q8_0}, {"q4_0", GGML_TYPE_Q4_0}, {"q4_1", GGML_TYPE_Q4_1},
    {"q5_0", GGML_TYPE_Q5_0}, {"q5_1", GGML_TYPE_Q5_1}, {"iq4_nl", GGML_TYPE_IQ4_NL},
};

ggml_type cache_type(const char* field, const char* name) {
  if (name == nullptr) return GGML_TYPE_F16;
  std::vector<std::string> known;
  for (const auto& entry : cache_types) {
    if (equal_ignoring_case(entry.name, name)) return entry.type;
    known.emplace_back(entry.name);
  }
  refuse_field(field, quoted(name), "one of " + joined(known));
}

void check_drafter(const char* path) {
  std::error_code problem;
  if (path != nullptr && !std::filesystem::is_regular_file(platform::path_of(path), problem)) {
    refuse_field("mtp_drafter_path", quoted(path), "an existing model file");
  }
}

// Both fields together name a conversation. A key has no control characters, so the separator is
// none of its own.
std::string cache_key(const eliza_llm_stream_config_t& config) {
  const std::string key = config.prompt_cache_key == nullptr ? "" : config.prompt_cache_key;
  if (config.slot_id < 0) return key;
  return std::to_string(config.slot_id) + '\n' + key;
}

int32_t environment_int32(const char* name, int32_t lowest, int32_t highest, int32_t otherwise) {
  return static_cast<int32_t>(environment_integer(name, lowest, highest).value_or(otherwise));
}

int flash_attention() {
  static const int types[] = {LLAMA_FLASH_ATTN_TYPE_AUTO, LLAMA_FLASH_ATTN_TYPE_ENABLED,
                              LLAMA_FLASH_ATTN_TYPE_DISABLED};
  return types[environment_choice("ELIZA_LLM_FLASH_ATTN", {"auto", "on", "off"}).value_or(0)];
}

}  // namespace

StreamSettings read_stream_settings(const eliza_llm_stream_config_t& config) {
  constexpr int32_t no_limit = std::numeric_limits<int32_t>::max();
  check_stream_config(config);
  check_drafter(config.mtp_drafter_path);
  StreamSettings settings;
  settings.sampling = read_sampling(config);
  if (config.gbnf_grammar != nullptr) settings.grammar = config.gbnf_grammar;
  settings.disable_thinking = config.disable_thinking != 0;
  settings.n_gpu_layers = effective_gpu_layers(config.n_gpu_layers);
  settings.cache_type_k = cache_type("cache_type_k", config.cache_type_k);
  settings.cache_type_v = cache_type("cache_type_v", config.cache_type_v);

  settings.cache_key = cache_key(config);
  settings.draft_min = config.draft_min;
  settings.draft_max = config.draft_max;
  if (config.mtp_drafter_path != nullptr) {
    settings.drafter_path = config.mtp_drafter_path;
    if (settings.draft_max == 0) settings.draft_max = std::max(default_draft, settings.draft_min);
  }

  apply_log_environment();
  settings.flash_attention = flash_attention();
  if (ggml_is_quantized(static_cast<ggml_type>(settings.cache_type_v)) &&
      settings.flash_attention == LLAMA_FLASH_ATTN_TYPE_DISABLED) {
    refuse_field("cache_type_v", quoted(config.cache_type_v),
                 "a type that is not quantised while ELIZA_LLM_FLASH_ATTN is off");
  }
  settings.context_size = wanted_context();
  settings.batch_size = environment_int32("ELIZA_LLM_N_BATCH", 1, 65536, default_batch);
  settings.threads = wanted_threads();
  settings.cache_slots = static_cast<size_t>(
      environment_int32("ELIZA_LLM_CACHE_SLOTS", 0, 65536, default_cache_slots));
  settings.cache_bytes = static_cast<size_t>(environment_int32("ELIZA_LLM_CACHE_MB", 0, no_limit,
                                                               default_cache_megabytes))
                         << 20;
  settings.always_draft = environment_choice("ELIZA_LLM_DRAFT", {"auto", "always"}) == 1;
  return settings;
}

}  // namespace eliza::llama
