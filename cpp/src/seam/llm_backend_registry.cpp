#include "seam/llm_backend_registry.h"

#include <algorithm>

#include "support/environment.h"
#include "support/error.h"

namespace eliza {
namespace {

constexpr char in_tree_name[] = "llama.cpp";

bool names_in_tree(const std::string& name) {
  return equal_ignoring_case(name, in_tree_name) || equal_ignoring_case(name, "llamacpp");
}

// `eliza-ctypes info` reads these lines.
std::string lines_of(const std::vector<LlmBackendFactory*>& factories, const char* bundle_dir) {
  std::string lines;
  for (const auto* factory : factories) {
    const char* state = !factory->available() ? "not available on this host"
                        : !factory->can_serve(bundle_dir)
                            ? "available, but the bundle holds nothing it can serve"
                            : "available and able to serve this bundle";
    lines += std::string("\n  ") + factory->name() + " (rank " +
             std::to_string(factory->preference_rank()) + "): " + state;
    const std::string remark = factory->remark(bundle_dir);
    if (!remark.empty()) lines += "; " + remark;
  }
  return lines;
}

}  // namespace

void prepare_next(const int32_t* tokens_out, size_t tokens_cap, size_t* num_tokens_out,
                  char* text_out, size_t text_cap, int32_t* drafter_drafted_out,
                  int32_t* drafter_accepted_out) {
  require(tokens_out, "tokens_out");
  require_size(tokens_cap, "tokens_cap");
  require(num_tokens_out, "num_tokens_out");
  require(text_out, "text_out");
  require_size(text_cap, "text_cap");
  *num_tokens_out = 0;
  *text_out = '\0';
  if (drafter_drafted_out != nullptr) *drafter_drafted_out = 0;
  if (drafter_accepted_out != nullptr) *drafter_accepted_out = 0;
}

int LlmBackendSession::save_slot(const char*, char** out_error) {
  if (out_error != nullptr) {
    *out_error = duplicate_message(
        "eliza_inference_llm_stream_save_slot: this stream's backend does not save slots");
  }
  return ELIZA_ERR_INVALID_ARG;
}

int LlmBackendSession::restore_slot(const char*, char** out_error) {
  if (out_error != nullptr) {
    *out_error = duplicate_message(
        "eliza_inference_llm_stream_restore_slot: this stream's backend does not restore slots");
  }
  return ELIZA_ERR_INVALID_ARG;
}

LlmBackendRegistry& LlmBackendRegistry::instance() {
  // Never destroyed: a stream may be opened while the process is already running its exit handlers.
  static auto& registry = *new LlmBackendRegistry;
  return registry;
}

void LlmBackendRegistry::add(LlmBackendFactory* factory) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const bool known = std::any_of(factories_.begin(), factories_.end(), [&](const auto* other) {
    return equal_ignoring_case(other->name(), factory->name());
  });
  if (!known) factories_.push_back(factory);
}

void LlmBackendRegistry::remove(const LlmBackendFactory* factory) {
  const std::lock_guard<std::mutex> lock(mutex_);
  factories_.erase(std::remove(factories_.begin(), factories_.end(), factory), factories_.end());
}

std::vector<LlmBackendFactory*> LlmBackendRegistry::snapshot() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return factories_;
}

std::string LlmBackendRegistry::describe(const char* bundle_dir) const {
  return lines_of(snapshot(), bundle_dir);
}

void LlmBackendRegistry::remark_in_tree(const std::string& remark) {
  const std::lock_guard<std::mutex> lock(mutex_);
  in_tree_remark_ = remark.empty() ? "" : "; " + remark;
}

std::string LlmBackendRegistry::in_tree_remark() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return in_tree_remark_;
}

LlmBackendFactory* LlmBackendRegistry::select(const char* bundle_dir,
                                              const eliza_llm_stream_config_t*,
                                              char** out_error) const {
  // The probes run outside the lock: they are the runtimes' code.
  const auto factories = snapshot();

  if (const auto wanted = environment_string("ELIZA_LLM_BACKEND")) {
    if (names_in_tree(*wanted)) return nullptr;
    const auto found = std::find_if(factories.begin(), factories.end(), [&](const auto* factory) {
      return equal_ignoring_case(factory->name(), *wanted);
    });
    const char* problem = found == factories.end()           ? "is not a backend of this build"
                          : !(*found)->available()           ? "is not available on this host"
                          : !(*found)->can_serve(bundle_dir) ? "cannot serve this bundle"
                                                             : nullptr;
    if (problem == nullptr) return *found;
    *out_error = duplicate_message(
        variable_is("ELIZA_LLM_BACKEND", *wanted) + ", which " + problem + " (bundle " +
        quoted(bundle_dir) + "); unset it or name a backend that can:\n  " + in_tree_name +
        " (rank 0): always available" + in_tree_remark() + lines_of(factories, bundle_dir));
    return nullptr;
  }

  LlmBackendFactory* best = nullptr;
  for (auto* factory : factories) {
    const int rank = factory->preference_rank();
    if (rank <= 0 || (best != nullptr && rank <= best->preference_rank())) continue;
    // The bundle first: looking for a runtime may load its library, and most bundles need none.
    if (factory->can_serve(bundle_dir) && factory->available()) best = factory;
  }
  return best;
}

LlmBackendFactory* llm_backend_select(const char* bundle_dir, const eliza_llm_stream_config_t* cfg,
                                      char** out_error) {
  return LlmBackendRegistry::instance().select(bundle_dir, cfg, out_error);
}

}  // namespace eliza
