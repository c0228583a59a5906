#include <array>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>

#include "bundle/bundle.h"
#include "seam/llm_backend_registry.h"
#include "support/error.h"

// A backend for a library that only tests build. Its sessions pass every call on, through the C
// ABI, to an in-tree stream of the same library: what a consumer sees must not differ in a byte.
// It serves bundles with a `text/*.relay` file and outranks the in-tree path there. Each session
// appends how often it was called, a JSON object on a line, to the file that
// ELIZA_TEST_RELAY_CALLS names: the proof that the branch on top was taken.

namespace eliza {
namespace {

// Set while this thread opens an inner stream, which selection must not hand to the relay again.
thread_local bool opens_inner_stream = false;

struct StreamCloser {
  void operator()(EliLlmStream* stream) const { eliza_inference_llm_stream_close(stream); }
};

class RelaySession final : public LlmBackendSession {
 public:
  explicit RelaySession(EliLlmStream* inner) : inner_(inner) {}

  ~RelaySession() override {
    const char* path = std::getenv("ELIZA_TEST_RELAY_CALLS");
    if (path == nullptr) return;
    std::string line;
    for (size_t method = 0; method < calls_.size(); method++) {
      line += (method == 0 ? "{\"" : ", \"") + std::string(kMethods[method]) +
              "\": " + std::to_string(calls_[method]);
    }
    std::ofstream(path, std::ios::app) << line + "}\n";
  }

  int prefill(const int32_t* token_ids, size_t num_tokens, char** out_error) override {
    calls_[0]++;
    return eliza_inference_llm_stream_prefill(inner_.get(), token_ids, num_tokens, out_error);
  }

  int next(int32_t* tokens_out, size_t tokens_cap, size_t* num_tokens_out, char* text_out,
           size_t text_cap, int32_t* drafter_drafted_out, int32_t* drafter_accepted_out,
           char** out_error) override {
    calls_[1]++;
    return eliza_inference_llm_stream_next(inner_.get(), tokens_out, tokens_cap, num_tokens_out,
                                           text_out, text_cap, drafter_drafted_out,
                                           drafter_accepted_out, out_error);
  }

  int cancel() override {
    calls_[2]++;
    return eliza_inference_llm_stream_cancel(inner_.get());
  }

  int reset() override {
    calls_[3]++;
    return eliza_inference_llm_stream_reset(inner_.get());
  }

  int reset_keep(int32_t n_keep) override {
    calls_[4]++;
    return eliza_inference_llm_stream_reset_keep(inner_.get(), n_keep);
  }

  int save_slot(const char* filename, char** out_error) override {
    calls_[5]++;
    return eliza_inference_llm_stream_save_slot(inner_.get(), filename, out_error);
  }

  int restore_slot(const char* filename, char** out_error) override {
    calls_[6]++;
    return eliza_inference_llm_stream_restore_slot(inner_.get(), filename, out_error);
  }

 private:
  static constexpr std::array<const char*, 7> kMethods = {
      "prefill", "next", "cancel", "reset", "reset_keep", "save_slot", "restore_slot"};
  const std::unique_ptr<EliLlmStream, StreamCloser> inner_;
  std::array<std::atomic<unsigned>, kMethods.size()> calls_ = {};
};

class RelayBackend final : public LlmBackendFactory {
 public:
  const char* name() const override { return "relay"; }
  bool available() const override { return !opens_inner_stream; }
  bool can_serve(const char* bundle_dir) const override {
    return !text_entries(bundle_dir, ".relay").empty();
  }
  int preference_rank() const override { return 1000; }

  LlmBackendSession* open(EliInferenceContext* ctx, const eliza_llm_stream_config_t* cfg,
                          char** out_error) override {
    char* message = nullptr;
    opens_inner_stream = true;
    auto* inner = eliza_inference_llm_stream_open(ctx, cfg, &message);
    opens_inner_stream = false;
    if (inner != nullptr) return new RelaySession(inner);
    // The outer entry point names itself in front of the message, as the inner one has done.
    const std::string text = message != nullptr ? message : "no message";
    eliza_inference_free_string(message);
    const std::string named = "eliza_inference_llm_stream_open: ";
    if (out_error != nullptr) {
      *out_error = duplicate_message(text.rfind(named, 0) == 0 ? text.substr(named.size()) : text);
    }
    return nullptr;
  }
};

[[maybe_unused]] const bool registered = [] {
  static RelayBackend backend;
  LlmBackendRegistry::instance().add(&backend);
  return true;
}();

}  // namespace
}  // namespace eliza
