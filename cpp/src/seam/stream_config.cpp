#include "seam/stream_config.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "platform/processors.h"
#include "support/environment.h"
#include "support/error.h"

namespace eliza {
namespace {

// NULL is "unset", an empty string a mistake.
void require_not_empty(const char* field, const char* value) {
  if (value != nullptr && *value == '\0') {
    refuse_field(field, "an empty string", "a value, or NULL for none");
  }
}

void require_draft_count(const char* field, int32_t value) {
  constexpr int32_t most = 1024;
  if (value < 0 || value > most) {
    refuse_field(field, std::to_string(value), "a number from 0 to " + std::to_string(most));
  }
}

void require_key(const char* field, const char* value) {
  constexpr size_t longest = 1024;
  require_not_empty(field, value);
  const std::string key = value == nullptr ? "" : value;
  if (key.size() > longest) {
    refuse_field(field, std::to_string(key.size()) + " bytes long",
                 "at most " + std::to_string(longest) + " bytes");
  }
  for (const char character : key) {
    if (static_cast<unsigned char>(character) < 0x20 || character == 0x7f) {
      refuse_field(field, quoted(key), "a text without control characters");
    }
  }
}

void require_finite(const char* field, float value) {
  if (!std::isfinite(value)) refuse_field(field, std::to_string(value), "a finite number");
}

}  // namespace

void check_stream_config(const eliza_llm_stream_config_t& config) {
  require_finite("temperature", config.temperature);
  require_finite("top_p", config.top_p);
  require_finite("repeat_penalty", config.repeat_penalty);
  if (config.repeat_penalty < 0) {
    refuse_field("repeat_penalty", std::to_string(config.repeat_penalty), "0 or more");
  }
  require_not_empty("gbnf_grammar", config.gbnf_grammar);
  require_draft_count("draft_min", config.draft_min);
  require_draft_count("draft_max", config.draft_max);
  if (config.draft_max > 0 && config.draft_min > config.draft_max) {
    refuse_field("draft_min", std::to_string(config.draft_min),
                 "at most draft_max, which is " + std::to_string(config.draft_max));
  }
  require_not_empty("mtp_drafter_path", config.mtp_drafter_path);
  require_key("prompt_cache_key", config.prompt_cache_key);
}

Sampling read_sampling(const eliza_llm_stream_config_t& config) {
  Sampling sampling;
  sampling.max_tokens = std::max(0, config.max_tokens);
  sampling.temperature = std::max(0.0f, config.temperature);
  sampling.top_k = std::max(0, config.top_k);
  if (config.top_p > 0.0f && config.top_p < 1.0f) sampling.top_p = config.top_p;
  if (config.repeat_penalty > 0.0f) sampling.repeat_penalty = config.repeat_penalty;
  if (const auto seed = environment_integer("ELIZA_LLM_SEED", 0, UINT32_MAX)) {
    sampling.seed = static_cast<uint32_t>(*seed);
  }
  return sampling;
}

int32_t wanted_context() {
  constexpr int32_t usual = 8192;
  const auto wanted =
      environment_integer("ELIZA_LLM_N_CTX", 1, std::numeric_limits<int32_t>::max());
  return static_cast<int32_t>(wanted.value_or(usual));
}

int32_t wanted_threads() {
  constexpr int32_t most = 512;
  const auto wanted = environment_integer("ELIZA_LLM_THREADS", 1, most);
  return wanted ? static_cast<int32_t>(*wanted) : platform::usable_processors();
}

void refuse_field(const std::string& field, const std::string& value, const std::string& expected) {
  throw Error(ELIZA_ERR_INVALID_ARG, field + " is " + value + "; expected " + expected);
}

}  // namespace eliza
