#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "eliza-inference-ffi.h"

namespace eliza {

// The part of a stream's config and environment that means the same to every runtime.

// Throws Error(ELIZA_ERR_INVALID_ARG) that names the first field whose value no runtime could use.
void check_stream_config(const eliza_llm_stream_config_t& config);

struct Sampling {
  int32_t max_tokens = 0;        // 0: no cap
  float temperature = 0.0f;      // 0: greedy
  int32_t top_k = 0;             // 0: off
  float top_p = 1.0f;            // 1: off
  float repeat_penalty = 1.0f;   // 1: off
  std::optional<uint32_t> seed;  // of ELIZA_LLM_SEED
};

// Of a config that has been checked. Throws Error(ELIZA_ERR_INVALID_ARG) that names the variable.
Sampling read_sampling(const eliza_llm_stream_config_t& config);

// ELIZA_LLM_N_CTX: the positions that a stream's context should have; a model trained for fewer has
// fewer.
int32_t wanted_context();

// ELIZA_LLM_THREADS: the threads that a runtime should compute with; the processors that this
// process may use where it is unset.
int32_t wanted_threads();

// Throws Error(ELIZA_ERR_INVALID_ARG): "FIELD is VALUE; expected EXPECTED".
[[noreturn]] void refuse_field(const std::string& field, const std::string& value,
                               const std::string& expected);

}  // namespace eliza
