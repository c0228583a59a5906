#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

namespace eliza::litert {

// The functions of LiteRT-LM's C API that are used: own declarations, as liblitert-lm 0.18.1 of the
// Python package litert-lm-api exports them, without their prefix `litert_lm_`. Handles are opaque.
// An int is 0 on success unless it is a count.
struct EngineSettings;
struct Engine;
struct SamplerParams;
struct SessionConfig;
struct Session;
struct InputData;
struct Responses;
struct TokenizeResult;
struct DetokenizeResult;
struct TokenUnion;
struct TokenUnions;
struct LoadedFile;

constexpr int silent = 1000;           // of set_min_log_level
constexpr int top_p_sampler = 2;       // of sampler_params_create; greedy is top-p with k = 1
constexpr int text_input = 0;          // of input_data_create
constexpr int text_modality = 0;       // of loaded_file_modality_supported_backends
constexpr int generative_model = 1;    // of loaded_file_model_type
constexpr int token_union_of_ids = 1;  // of token_union_get_type

struct Runtime {
  void (*set_min_log_level)(int level);
  const char* (*get_last_error_message)();  // of this thread; nullptr: none
  void (*clear_last_error)();

  LoadedFile* (*loaded_file_create)(const char* path);
  void (*loaded_file_delete)(LoadedFile*);
  int (*loaded_file_model_type)(LoadedFile*);
  int (*loaded_file_max_context_tokens)(LoadedFile*);
  bool (*loaded_file_has_speculative_decoding_support)(LoadedFile*);
  // Best first: 1 CPU, 2 GPU, 3 NPU. Returns how many there are.
  int (*loaded_file_modality_supported_backends)(LoadedFile*, int modality, int* backends,
                                                 size_t capacity);

  EngineSettings* (*engine_settings_create)(const char* path, const char* backend,
                                            const char* vision_backend, const char* audio_backend);
  void (*engine_settings_delete)(EngineSettings*);
  void (*engine_settings_set_num_threads)(EngineSettings*, int threads);
  void (*engine_settings_set_max_num_tokens)(EngineSettings*, int tokens);
  void (*engine_settings_set_cache_dir)(EngineSettings*, const char* directory);
  void (*engine_settings_set_litert_dispatch_lib_dir)(EngineSettings*, const char* directory);
  void (*engine_settings_set_enable_speculative_decoding)(EngineSettings*, bool enable);

  Engine* (*engine_create)(const EngineSettings*);
  void (*engine_delete)(Engine*);
  TokenUnion* (*engine_get_start_token)(Engine*);  // nullptr: the file has none
  TokenUnions* (*engine_get_stop_tokens)(Engine*);
  TokenizeResult* (*engine_tokenize)(Engine*, const char* text);
  DetokenizeResult* (*engine_detokenize)(Engine*, const int* ids, size_t count);

  int (*token_union_get_type)(TokenUnion*);
  const char* (*token_union_get_string)(TokenUnion*);
  int (*token_union_get_ids)(TokenUnion*, const int** ids, size_t* count);
  void (*token_union_delete)(TokenUnion*);
  size_t (*token_unions_get_num_tokens)(TokenUnions*);
  TokenUnion* (*token_unions_get_token_at)(TokenUnions*, size_t index);
  void (*token_unions_delete)(TokenUnions*);
  const int* (*tokenize_result_get_tokens)(const TokenizeResult*);
  size_t (*tokenize_result_get_num_tokens)(const TokenizeResult*);
  void (*tokenize_result_delete)(TokenizeResult*);
  const char* (*detokenize_result_get_string)(const DetokenizeResult*);
  void (*detokenize_result_delete)(DetokenizeResult*);

  SamplerParams* (*sampler_params_create)(int type);
  void (*sampler_params_delete)(SamplerParams*);
  void (*sampler_params_set_top_k)(SamplerParams*, int32_t k);
  void (*sampler_params_set_top_p)(SamplerParams*, float p);
  void (*sampler_params_set_temperature)(SamplerParams*, float temperature);
  void (*sampler_params_set_seed)(SamplerParams*, int32_t seed);

  SessionConfig* (*session_config_create)();
  void (*session_config_delete)(SessionConfig*);
  void (*session_config_set_max_output_tokens)(SessionConfig*, int tokens);
  void (*session_config_set_apply_prompt_template)(SessionConfig*, bool apply);
  void (*session_config_set_sampler_params)(SessionConfig*, const SamplerParams*);
  void (*session_config_set_enable_speculative_decoding)(SessionConfig*, bool enable);

  Session* (*engine_create_session)(Engine*, SessionConfig*);
  void (*session_delete)(Session*);
  void (*session_cancel_process)(Session*);  // from any thread
  int (*session_run_prefill)(Session*, const InputData* const* inputs, size_t count);
  Responses* (*session_run_decode)(Session*);
  int (*session_rewind_to_step)(Session*, int step);

  InputData* (*input_data_create)(int type, const void* data, size_t size);
  void (*input_data_delete)(InputData*);

  int (*responses_get_num_candidates)(const Responses*);
  const char* (*responses_get_response_text_at)(const Responses*, int index);
  void (*responses_delete)(Responses*);

  // Where the library was found.
  std::filesystem::path path;

  // The message of the last call that failed on this thread.
  std::string last_error() const;
};

// Frees what the runtime hands out, whatever happens.
template <typename Handle, typename Delete>
std::unique_ptr<Handle, Delete> owned(Handle* handle, Delete deleter) {
  return {handle, deleter};
}

// Opens the runtime's library: the one that ELIZA_LITERT_LM_LIBRARY names, else the one beside our
// own library. It is never unloaded, so that a second call is cheap, and nothing is remembered.
// Throws Error(ELIZA_ERR_NOT_IMPLEMENTED) that says why there is none to be used: not found, a
// version that is not known, a function that it lacks.
Runtime open_runtime();

}  // namespace eliza::litert
