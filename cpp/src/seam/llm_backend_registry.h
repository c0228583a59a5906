#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "seam/llm_backend.h"

namespace eliza {

// The known runtimes and the choice among them. Thread-safe; keeps nothing of a bundle between
// calls.
class LlmBackendRegistry {
 public:
  // The process-wide registry. Empty until llm_backend_register_builtins.
  static LlmBackendRegistry& instance();

  // Adds a runtime; one whose name is already known is ignored. The factory must outlive the
  // registry's use.
  void add(LlmBackendFactory* factory);

  // Removes a runtime. Open sessions are not affected.
  void remove(const LlmBackendFactory* factory);

  // What the in-tree path adds to its line where backends are listed, as LlmBackendFactory::remark.
  void remark_in_tree(const std::string& remark);

  // Chooses the runtime for a stream:
  //   a factory                          open the session on it
  //   nullptr and *out_error untouched   use the in-tree llama.cpp path
  //   nullptr and *out_error set         hard failure: ELIZA_LLM_BACKEND cannot be honoured
  // `cfg` is part of the contract and not looked at.
  LlmBackendFactory* select(const char* bundle_dir, const eliza_llm_stream_config_t* cfg,
                            char** out_error) const;

  // One line for each backend, "\n  NAME (rank N): STATE; REMARK": whether it would serve the
  // bundle, and why not.
  std::string describe(const char* bundle_dir) const;

 private:
  std::vector<LlmBackendFactory*> snapshot() const;
  std::string in_tree_remark() const;

  mutable std::mutex mutex_;
  std::vector<LlmBackendFactory*> factories_;  // in order of registration
  std::string in_tree_remark_;                 // "; REMARK" or empty
};

// LlmBackendRegistry::instance().select(...)
LlmBackendFactory* llm_backend_select(const char* bundle_dir, const eliza_llm_stream_config_t* cfg,
                                      char** out_error);

}  // namespace eliza
