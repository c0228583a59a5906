#include "backends/litert/litert_runtime.h"

#include <algorithm>
#include <vector>

#include "backends/litert/runtime_version.h"
#include "platform/paths.h"
#include "platform/shared_library.h"
#include "support/environment.h"
#include "support/error.h"

namespace eliza::litert {
namespace fs = std::filesystem;
namespace {

#if defined(_WIN32)
constexpr char library_name[] = "litert-lm.dll";
#elif defined(__APPLE__)
constexpr char library_name[] = "liblitert-lm.dylib";
#else
constexpr char library_name[] = "liblitert-lm.so";
#endif

constexpr char variable[] = "ELIZA_LITERT_LM_LIBRARY";

// Whose signatures are those of litert_runtime.h.
const std::vector<std::string> known_versions = {"0.18.1"};

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ELIZA_ERR_NOT_IMPLEMENTED, message);
}

// The directory of our own library. Found when it is loaded: a relative path, which the loader may
// have been given, means something else once the process has changed its working directory.
const fs::path own_directory = [] {
  static const char inside = 0;
  return platform::folder_of(&inside);
}();

fs::path library_path() {
  if (const auto named = environment_string(variable)) {
    const fs::path path = platform::path_of(*named);
    if (path.is_absolute()) return path;
    refuse(variable_is(variable, *named) + "; expected an absolute path");
  }
  return own_directory / library_name;
}

template <typename Function>
void bind(void* library, const char* name, Function& function) {
  const std::string symbol = std::string("litert_lm_") + name;
  function = reinterpret_cast<Function>(platform::address_in(library, symbol.c_str()));
  if (function == nullptr) refuse("it lacks the function " + symbol);
}

Runtime bind_all(void* library) {
  Runtime runtime = {};
#define BIND(function) bind(library, #function, runtime.function)
  BIND(set_min_log_level);
  BIND(get_last_error_message);
  BIND(clear_last_error);
  BIND(loaded_file_create);
  BIND(loaded_file_delete);
  BIND(loaded_file_model_type);
  BIND(loaded_file_max_context_tokens);
  BIND(loaded_file_has_speculative_decoding_support);
  BIND(loaded_file_modality_supported_backends);
  BIND(engine_settings_create);
  BIND(engine_settings_delete);
  BIND(engine_settings_set_num_threads);
  BIND(engine_settings_set_max_num_tokens);
  BIND(engine_settings_set_cache_dir);
  BIND(engine_settings_set_litert_dispatch_lib_dir);
  BIND(engine_settings_set_enable_speculative_decoding);
  BIND(engine_create);
  BIND(engine_delete);
  BIND(engine_get_start_token);
  BIND(engine_get_stop_tokens);
  BIND(engine_tokenize);
  BIND(engine_detokenize);
  BIND(token_union_get_type);
  BIND(token_union_get_string);
  BIND(token_union_get_ids);
  BIND(token_union_delete);
  BIND(token_unions_get_num_tokens);
  BIND(token_unions_get_token_at);
  BIND(token_unions_delete);
  BIND(tokenize_result_get_tokens);
  BIND(tokenize_result_get_num_tokens);
  BIND(tokenize_result_delete);
  BIND(detokenize_result_get_string);
  BIND(detokenize_result_delete);
  BIND(sampler_params_create);
  BIND(sampler_params_delete);
  BIND(sampler_params_set_top_k);
  BIND(sampler_params_set_top_p);
  BIND(sampler_params_set_temperature);
  BIND(sampler_params_set_seed);
  BIND(session_config_create);
  BIND(session_config_delete);
  BIND(session_config_set_max_output_tokens);
  BIND(session_config_set_apply_prompt_template);
  BIND(session_config_set_sampler_params);
  BIND(session_config_set_enable_speculative_decoding);
  BIND(engine_create_session);
  BIND(session_delete);
  BIND(session_cancel_process);
  BIND(session_run_prefill);
  BIND(session_run_decode);
  BIND(session_rewind_to_step);
  BIND(input_data_create);
  BIND(input_data_delete);
  BIND(responses_get_num_candidates);
  BIND(responses_get_response_text_at);
  BIND(responses_delete);
#undef BIND
  return runtime;
}

}  // namespace

std::string Runtime::last_error() const {
  const char* message = get_last_error_message();
  std::string text = message != nullptr ? message : "";
  clear_last_error();
  while (!text.empty() && (text.back() == ' ' || text.back() == ':')) text.pop_back();
  return text.empty() ? "the runtime gives no reason" : text;
}

Runtime open_runtime() {
  const fs::path path = library_path();
  // The loader would wait for a pipe. Android loads libraries that are in no file of their own.
  std::error_code ignored;
  const auto status = fs::status(path, ignored);
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    refuse("no LiteRT-LM runtime: " + quoted(platform::utf8_of(path)) + " is not a file");
  }
  std::string reason;
  void* const library = platform::open_library(path, reason);
  if (library == nullptr) refuse("no LiteRT-LM runtime: " + reason);
  try {
    const std::string version = version_of(library);
    if (std::find(known_versions.begin(), known_versions.end(), version) == known_versions.end()) {
      refuse("it has version " + (version.empty() ? "(none)" : quoted(version)) + "; known are " +
             joined(known_versions));
    }
    Runtime runtime = bind_all(library);
    runtime.path = path;
    runtime.set_min_log_level(silent);
    return runtime;
  } catch (const Error& problem) {
    refuse("the LiteRT-LM runtime " + quoted(platform::utf8_of(path)) +
           " cannot be used: " + problem.what());
  }
}

}  // namespace eliza::litert
