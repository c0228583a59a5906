#include "llama/stream_settings.h"

#include <llama.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <thread>
#include <vector>

#ifdef __linux__
#include <sched.h>
#endif

#include "bundle/bundle.h"
#include "llama/log_capture.h"
#include "llama/model.h"
#include "support/environment.h"
#include "support/error.h"

namespace eliza::llama {
namespace {

constexpr int32_t default_context = 8192;
constexpr int32_t default_batch = 512;
constexpr int32_t default_draft = 8;
constexpr int32_t most_drafted = 1024;
constexpr int32_t most_threads = 512;
constexpr size_t longest_cache_key = 1024;
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

[[noreturn]] void refuse(const std::string& field, const std::string& value,
                         const std::string& expected) {
  throw Error(ELIZA_ERR_INVALID_ARG, field + " is " + value + "; expected " + expected);
}

void refuse_empty(const char* field, const char* value) {
  if (value != nullptr && *value == '\0') {
    refuse(field, "an empty string", "a value, or NULL for none");
  }
}

void require_finite(const char* field, float value) {
  if (!std::isfinite(value)) refuse(field, std::to_string(value), "a finite number");
}

ggml_type cache_type(const char* field, const char* name) {
  if (name == nullptr) return GGML_TYPE_F16;
  std::vector<std::string> known;
  for (const auto& entry : cache_types) {
    if (equal_ignoring_case(entry.name, name)) return entry.type;
    known.emplace_back(entry.name);
  }
  refuse(field, quoted(name), "one of " + joined(known));
}

void check_drafting(const eliza_llm_stream_config_t& config) {
  if (config.draft_min < 0 || config.draft_min > most_drafted) {
    refuse("draft_min", std::to_string(config.draft_min),
           "a number from 0 to " + std::to_string(most_drafted));
  }
  if (config.draft_max < 0 || config.draft_max > most_drafted) {
    refuse("draft_max", std::to_string(config.draft_max),
           "a number from 0 to " + std::to_string(most_drafted));
  }
  if (config.draft_max > 0 && config.draft_min > config.draft_max) {
    refuse("draft_min", std::to_string(config.draft_min),
           "at most draft_max, which is " + std::to_string(config.draft_max));
  }
  refuse_empty("mtp_drafter_path", config.mtp_drafter_path);
  if (config.mtp_drafter_path != nullptr) {
    std::error_code problem;
    if (!std::filesystem::is_regular_file(bundle_path(config.mtp_drafter_path), problem)) {
      refuse("mtp_drafter_path", quoted(config.mtp_drafter_path), "an existing model file");
    }
  }
}

// Both fields together name a conversation. A key has no control characters, so the separator is
// none of its own.
std::string cache_key(const eliza_llm_stream_config_t& config) {
  refuse_empty("prompt_cache_key", config.prompt_cache_key);
  const std::string key = config.prompt_cache_key == nullptr ? "" : config.prompt_cache_key;
  if (key.size() > longest_cache_key) {
    refuse("prompt_cache_key", std::to_string(key.size()) + " bytes long",
           "at most " + std::to_string(longest_cache_key) + " bytes");
  }
  for (const char character : key) {
    if (static_cast<unsigned char>(character) < 0x20 || character == 0x7f) {
      refuse("prompt_cache_key", quoted(key), "a text without control characters");
    }
  }
  if (config.slot_id < 0) return key;
  return std::to_string(config.slot_id) + '\n' + key;
}

int32_t usable_processors() {
#ifdef __linux__
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
#endif
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
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
  require_finite("temperature", config.temperature);
  require_finite("top_p", config.top_p);
  require_finite("repeat_penalty", config.repeat_penalty);
  if (config.repeat_penalty < 0) {
    refuse("repeat_penalty", std::to_string(config.repeat_penalty), "0 or more");
  }
  refuse_empty("gbnf_grammar", config.gbnf_grammar);
  check_drafting(config);

  StreamSettings settings;
  settings.max_tokens = std::max(0, config.max_tokens);
  settings.temperature = std::max(0.0f, config.temperature);
  settings.top_k = std::max(0, config.top_k);
  if (config.top_p > 0.0f && config.top_p < 1.0f) settings.top_p = config.top_p;
  if (config.repeat_penalty > 0.0f) settings.repeat_penalty = config.repeat_penalty;
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
    refuse("cache_type_v", quoted(config.cache_type_v),
           "a type that is not quantised while ELIZA_LLM_FLASH_ATTN is off");
  }
  settings.context_size = environment_int32("ELIZA_LLM_N_CTX", 1, no_limit, default_context);
  settings.batch_size = environment_int32("ELIZA_LLM_N_BATCH", 1, 65536, default_batch);
  settings.threads = environment_int32("ELIZA_LLM_THREADS", 1, most_threads, usable_processors());
  settings.cache_slots = static_cast<size_t>(
      environment_int32("ELIZA_LLM_CACHE_SLOTS", 0, 65536, default_cache_slots));
  settings.cache_bytes = static_cast<size_t>(environment_int32("ELIZA_LLM_CACHE_MB", 0, no_limit,
                                                               default_cache_megabytes))
                         << 20;
  settings.always_draft = environment_choice("ELIZA_LLM_DRAFT", {"auto", "always"}) == 1;
  if (const auto seed = environment_integer("ELIZA_LLM_SEED", 0, UINT32_MAX)) {
    settings.seed = static_cast<uint32_t>(*seed);
  }
  return settings;
}

}  // namespace eliza::llama
