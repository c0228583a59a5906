#include "backends/litert/litert_engine.h"

#include <algorithm>
#include <array>
#include <tuple>

#include "platform/paths.h"
#include "platform/shared_library.h"
#include "seam/stream_config.h"
#include "support/environment.h"
#include "support/error.h"
#include "support/utf8.h"

namespace eliza::litert {
namespace fs = std::filesystem;
namespace {

const std::vector<std::string> accelerator_names = {"npu", "gpu", "cpu"};

// Prompts are cut so that a cancel is seen between the parts. Padding to a signature costs what its
// full length would.
constexpr int32_t longest_part = 128;
constexpr int32_t usual_part = 64;

// Asked before the runtime is: it prints where it finds no driver.
bool host_has_gpu_driver() {
#ifdef __APPLE__
  return true;
#else
#ifdef _WIN32
  const std::array<const char*, 2> drivers = {"d3d12.dll", "vulkan-1.dll"};
#elif defined(__ANDROID__)
  const std::array<const char*, 2> drivers = {"libvulkan.so", "libOpenCL.so"};
#else
  // Not OpenCL, which it has no use for here: many a machine without a GPU has that loader.
  const std::array<const char*, 1> drivers = {"libvulkan.so.1"};
#endif
  return std::any_of(drivers.begin(), drivers.end(), platform::has_library);
#endif
}

// The runtime reaches an NPU through a vendor's library; without one it takes the setting and fails
// at the first session.
bool has_dispatch_library(const fs::path& directory) {
  std::error_code problem;
  for (const auto& entry : fs::directory_iterator(directory, problem)) {
    const std::string name = platform::utf8_of(entry.path().filename());
    for (const char* beginning : {"libLiteRtDispatch", "LiteRtDispatch"}) {
      if (name.rfind(beginning, 0) == 0) return true;
    }
  }
  return false;
}

std::vector<Accelerator> accelerators_of(const Runtime& runtime, LoadedFile* file) {
  std::array<int, 8> backends{};
  const int count = runtime.loaded_file_modality_supported_backends(
      file, text_modality, backends.data(), backends.size());
  std::vector<Accelerator> accelerators;
  for (int i = 0; i < std::min(count, static_cast<int>(backends.size())); ++i) {
    switch (backends[static_cast<size_t>(i)]) {
      case 1:
        accelerators.push_back(Accelerator::cpu);
        break;
      case 2:
        accelerators.push_back(Accelerator::gpu);
        break;
      case 3:
        accelerators.push_back(Accelerator::npu);
        break;
      default:
        break;
    }
  }
  return accelerators;
}

auto load_file(const Runtime& runtime, const std::string& path) {
  auto file = owned(runtime.loaded_file_create(path.c_str()), runtime.loaded_file_delete);
  if (!file) {
    throw Error(ELIZA_ERR_BUNDLE_INVALID,
                "LiteRT-LM model " + quoted(path) + " cannot be loaded: " + runtime.last_error());
  }
  return file;
}

// The accelerators to try for a file, best first, and why the others are not.
struct AcceleratorPlan {
  std::vector<Accelerator> candidates;
  std::vector<std::string> reasons;
};

AcceleratorPlan plan_accelerators(const Runtime& runtime, LoadedFile* file,
                                  const EngineOptions& options) {
  const auto supported = accelerators_of(runtime, file);
  AcceleratorPlan plan;
  for (const auto accelerator : {Accelerator::npu, Accelerator::gpu, Accelerator::cpu}) {
    if (options.forced && options.forced != accelerator) continue;
    std::string problem;
    if (std::find(supported.begin(), supported.end(), accelerator) == supported.end()) {
      problem = "the file is not made for it";
    } else if (accelerator == Accelerator::npu &&
               !has_dispatch_library(runtime.path.parent_path())) {
      problem = "there is no libLiteRtDispatch library beside the runtime";
    } else if (accelerator == Accelerator::gpu && !options.gpu_allowed && !options.forced) {
      problem = "ELIZA_LLM_USE_GPU is 0";
    } else if (accelerator == Accelerator::gpu && !host_has_gpu_driver()) {
      problem = "there is no driver for it";
    }
    if (problem.empty()) {
      plan.candidates.push_back(accelerator);
    } else {
      plan.reasons.push_back(std::string(name_of(accelerator)) + ": " + problem);
    }
  }
  return plan;
}

}  // namespace

const char* name_of(Accelerator accelerator) {
  return accelerator_names[static_cast<size_t>(accelerator)].c_str();
}

bool EngineOptions::operator==(const EngineOptions& other) const {
  const auto tie = [](const EngineOptions& o) {
    return std::tie(o.forced, o.gpu_allowed, o.threads, o.context_size, o.cache_dir, o.speculation);
  };
  return tie(*this) == tie(other);
}

EngineOptions read_engine_options() {
  EngineOptions options;
  if (const auto forced = environment_choice("ELIZA_LITERT_ACCELERATOR", accelerator_names)) {
    options.forced = static_cast<Accelerator>(*forced);
  }
  options.gpu_allowed = environment_integer("ELIZA_LLM_USE_GPU", 0, 1) != 0;
  options.threads = wanted_threads();
  options.context_size = wanted_context();
  options.cache_dir = environment_string("ELIZA_LITERT_CACHE_DIR").value_or("");
  return options;
}

LoadedEngine::LoadedEngine(const Runtime& runtime, const ModelFile& file,
                           const EngineOptions& options)
    : runtime_(runtime), file_(file), options_(options), path_(platform::utf8_of(file.path)) {
  const std::string what = "LiteRT-LM model " + quoted(platform::utf8_of(file.path));
  auto loaded = load_file(runtime_, path_);
  if (runtime_.loaded_file_model_type(loaded.get()) != generative_model) {
    throw Error(ELIZA_ERR_BUNDLE_INVALID, what + " does not generate text");
  }
  if (options.speculation && !runtime_.loaded_file_has_speculative_decoding_support(loaded.get())) {
    throw Error(ELIZA_ERR_INVALID_ARG, "draft_max is not 0, and " + what + " has no drafter");
  }
  context_size_ = options.context_size;
  // The runtime believes the file, and writes behind its cache where the file says too much.
  const ModelShape shape = model_shape(file_, longest_part);
  for (const int32_t most :
       {runtime_.loaded_file_max_context_tokens(loaded.get()), shape.cache_length}) {
    if (most > 0) context_size_ = std::min(most, context_size_);
  }
  prefill_length_ = shape.prefill_length > 0 ? shape.prefill_length : usual_part;
  auto plan = plan_accelerators(runtime_, loaded.get(), options);
  loaded.reset();
  for (const auto accelerator : plan.candidates) {
    engine_ = create(accelerator, options);
    if (engine_ != nullptr) {
      accelerator_ = accelerator;
      break;
    }
    plan.reasons.push_back(std::string(name_of(accelerator)) + ": " + runtime_.last_error());
  }
  if (engine_ == nullptr) {
    const bool forced = options.forced.has_value();
    throw Error(forced ? ELIZA_ERR_INVALID_ARG : ELIZA_ERR_BUNDLE_INVALID,
                what + " cannot be run" + (forced ? " as ELIZA_LITERT_ACCELERATOR asks" : "") +
                    " (" + joined(plan.reasons) + ")");
  }
  try {
    read_tokenizer();
  } catch (...) {
    runtime_.engine_delete(engine_);
    throw;
  }
}

LoadedEngine::~LoadedEngine() { runtime_.engine_delete(engine_); }

bool LoadedEngine::is_of(const ModelFile& file, const EngineOptions& options) const {
  return file_.path == file.path && file_.size == file.size && file_.written == file.written &&
         options_ == options;
}

Engine* LoadedEngine::create(Accelerator accelerator, const EngineOptions& options) const {
  const auto settings =
      owned(runtime_.engine_settings_create(path_.c_str(), name_of(accelerator), nullptr, nullptr),
            runtime_.engine_settings_delete);
  if (!settings) return nullptr;
  runtime_.engine_settings_set_num_threads(settings.get(), options.threads);
  runtime_.engine_settings_set_max_num_tokens(settings.get(), context_size_);
  // The runtime would write its cache beside the model.
  runtime_.engine_settings_set_cache_dir(
      settings.get(), options.cache_dir.empty() ? ":nocache" : options.cache_dir.c_str());
  if (accelerator == Accelerator::npu) {
    runtime_.engine_settings_set_litert_dispatch_lib_dir(
        settings.get(), platform::utf8_of(runtime_.path.parent_path()).c_str());
  }
  if (options.speculation) {
    runtime_.engine_settings_set_enable_speculative_decoding(settings.get(), true);
  }
  Engine* const engine = runtime_.engine_create(settings.get());
  if (engine == nullptr) return nullptr;
  // Some failures show only here.
  const auto config = owned(runtime_.session_config_create(), runtime_.session_config_delete);
  const auto session =
      owned(runtime_.engine_create_session(engine, config.get()), runtime_.session_delete);
  if (session) return engine;
  runtime_.engine_delete(engine);
  return nullptr;
}

std::unique_lock<std::mutex> LoadedEngine::exclusive() const {
  if (has_exact_ids_) return {};
  return std::unique_lock<std::mutex>(exclusive_);
}

void LoadedEngine::read_tokenizer() {
  const std::vector<int32_t> sample = {7, 11, 0, 3};
  const bool exact = tokenize("<7><11><0><3>") == sample && detokenize(sample) == "<7><11><0><3>";
  if (!exact) {
    read_vocabulary();
    check_stops();
  }
  read_start_token();
  if (exact && start_token_) {
    throw Error(ELIZA_ERR_BUNDLE_INVALID,
                "LiteRT-LM model " + quoted(path_) +
                    " writes token ids as text and still has a start token; make it with "
                    "`eliza-ctypes bundle add-litert`");
  }
  has_exact_ids_ = exact;
}

void LoadedEngine::read_start_token() {
  const auto start = owned(runtime_.engine_get_start_token(engine_), runtime_.token_union_delete);
  if (!start) {
    runtime_.clear_last_error();
    return;
  }
  std::vector<int32_t> tokens;
  const int* ids = nullptr;
  size_t count = 0;
  if (runtime_.token_union_get_type(start.get()) == token_union_of_ids) {
    if (runtime_.token_union_get_ids(start.get(), &ids, &count) == 0) {
      tokens.assign(ids, ids + count);
    }
  } else if (const char* text = runtime_.token_union_get_string(start.get())) {
    tokens = tokenize(to_valid_utf8(text));
  }
  const int32_t size = vocabulary_size_;
  if (tokens.size() != 1 || tokens.front() < 0 || (size > 0 && tokens.front() >= size)) {
    throw Error(ELIZA_ERR_BUNDLE_INVALID,
                "LiteRT-LM model " + quoted(path_) + ": its start token is " +
                    std::to_string(tokens.size()) +
                    " tokens or none of its vocabulary; make an exact bundle of it with "
                    "`eliza-ctypes bundle add-litert`");
  }
  start_token_ = tokens.front();
}

// A step of the runtime answers nothing both at a stop and where one may have begun.
void LoadedEngine::check_stops() const {
  const auto stops = owned(runtime_.engine_get_stop_tokens(engine_), runtime_.token_unions_delete);
  if (!stops) {
    runtime_.clear_last_error();
    return;
  }
  for (size_t i = 0; i < runtime_.token_unions_get_num_tokens(stops.get()); ++i) {
    const auto stop =
        owned(runtime_.token_unions_get_token_at(stops.get(), i), runtime_.token_union_delete);
    size_t count = 1;
    const int* ids = nullptr;
    if (runtime_.token_union_get_type(stop.get()) == token_union_of_ids) {
      runtime_.token_union_get_ids(stop.get(), &ids, &count);
    } else if (const char* text = runtime_.token_union_get_string(stop.get())) {
      count = tokenize(to_valid_utf8(text)).size();
    }
    if (count > 1) {
      throw Error(ELIZA_ERR_BUNDLE_INVALID,
                  "LiteRT-LM model " + quoted(path_) +
                      ": it stops at a sequence of several tokens, which is only seen with exact "
                      "ids; make an exact bundle of it with `eliza-ctypes bundle add-litert`");
    }
  }
}

void LoadedEngine::read_vocabulary() {
  // The runtime does not tell how many tokens there are, but has no text for what is none. Nor has
  // it for a few tokens, so that their neighbours are asked too.
  const auto exists = [&](int64_t last) {
    constexpr int64_t neighbours = 8;
    for (int64_t id = last; id >= 0 && id > last - neighbours; --id) {
      const auto text = detokenize({static_cast<int32_t>(id)});
      if (text && !text->empty()) return true;
    }
    return false;
  };
  int64_t below = 0;
  int64_t above = 1;
  constexpr int64_t most = int64_t{1} << 30;
  while (above < most && exists(above - 1)) {
    below = above;
    above *= 2;
  }
  while (above - below > 1) {
    const int64_t middle = (below + above) / 2;
    (exists(middle - 1) ? below : above) = middle;
  }
  vocabulary_size_ = static_cast<int32_t>(below);
  while (vocabulary_size_ > 0 && detokenize({vocabulary_size_ - 1}).value_or("").empty()) {
    --vocabulary_size_;
  }
  for (const auto& spelling : thinking_spellings) {
    const auto ids = tokenize(spelling);
    if (ids.size() == 1 && detokenize(ids) == spelling) thinking_tokens_.push_back(ids.front());
  }
}

std::vector<int32_t> LoadedEngine::tokenize(const std::string& text) const {
  const auto lock = exclusive();
  const auto result =
      owned(runtime_.engine_tokenize(engine_, text.c_str()), runtime_.tokenize_result_delete);
  if (!result) throw Error(ELIZA_ERR_FFI_FAULT, "tokenizing failed: " + runtime_.last_error());
  const int* ids = runtime_.tokenize_result_get_tokens(result.get());
  return {ids, ids + runtime_.tokenize_result_get_num_tokens(result.get())};
}

std::optional<std::string> LoadedEngine::detokenize(const std::vector<int32_t>& ids) const {
  if (ids.empty()) return "";
  const auto lock = exclusive();
  const auto result = owned(runtime_.engine_detokenize(engine_, ids.data(), ids.size()),
                            runtime_.detokenize_result_delete);
  if (!result) {
    runtime_.clear_last_error();
    return std::nullopt;
  }
  const char* text = runtime_.detokenize_result_get_string(result.get());
  return to_valid_utf8(text != nullptr ? text : "");
}

std::shared_ptr<const LoadedEngine> EngineShelf::acquire(const Runtime& runtime,
                                                         const ModelFile& file,
                                                         const EngineOptions& options) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& engine : engines_) {
    if (engine->is_of(file, options)) return engine;
  }
  engines_.erase(std::remove_if(engines_.begin(), engines_.end(),
                                [](const auto& engine) { return engine.use_count() == 1; }),
                 engines_.end());
  engines_.push_back(std::make_shared<const LoadedEngine>(runtime, file, options));
  return engines_.back();
}

std::vector<int32_t> EngineTokenizer::tokenize(std::string_view text, bool add_special,
                                               bool) const {
  std::vector<int32_t> ids;
  if (add_special && engine_->start_token()) ids.push_back(*engine_->start_token());
  if (text.empty()) return ids;
  const auto more = engine_->tokenize(to_valid_utf8(text));
  ids.insert(ids.end(), more.begin(), more.end());
  return ids;
}

std::string EngineTokenizer::detokenize(const std::vector<int32_t>& tokens, bool remove_special,
                                        bool) const {
  const bool starts = !tokens.empty() && engine_->start_token() == tokens.front();
  return engine_->detokenize({tokens.begin() + (remove_special && starts ? 1 : 0), tokens.end()})
      .value_or("");
}

std::string EngineTokenizer::piece(int32_t token) const {
  return engine_->detokenize({token}).value_or("");
}

}  // namespace eliza::litert
