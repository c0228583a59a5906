#include "backends/litert/litert_backend.h"

#include "backends/litert/litert_engine.h"
#include "backends/litert/litert_session.h"
#include "bundle/bundle.h"
#include "support/error.h"

namespace eliza {
namespace {

using namespace litert;

// What the runtime cannot do must not be ignored.
void check_fields(const eliza_llm_stream_config_t& config, const Sampling& sampling) {
  const auto refuse_set = [](const char* field, const char* value) {
    if (value != nullptr) {
      refuse_field(field, quoted(value), "NULL: the backend litert-lm does not have it");
    }
  };
  refuse_set("gbnf_grammar", config.gbnf_grammar);
  refuse_set("mtp_drafter_path", config.mtp_drafter_path);
  refuse_set("cache_type_k", config.cache_type_k);
  refuse_set("cache_type_v", config.cache_type_v);
  if (sampling.repeat_penalty != 1.0f) {
    refuse_field("repeat_penalty", std::to_string(sampling.repeat_penalty),
                 "0 or 1: the backend litert-lm does not have it");
  }
}

class LitertBackend final : public LlmBackendFactory {
 public:
  const char* name() const override { return "litert-lm"; }

  // Above llama.cpp, whose work it takes over where an NPU helps.
  int preference_rank() const override { return 100; }

  bool available() const override {
    try {
      open_runtime();
      return true;
    } catch (const Error&) {
      return false;
    }
  }

  bool can_serve(const char* bundle_dir) const override {
    try {
      find_model_file(bundle_dir);
      return true;
    } catch (const Error&) {
      return false;
    }
  }

  std::string remark(const char* bundle_dir) const override {
    try {
      const auto runtime = open_runtime();
      const auto file = find_model_file(bundle_dir);
      const LoadedEngine engine(runtime, file, read_engine_options());
      if (engine.has_exact_ids() && !has_tokenizer(bundle_dir) && !has_text_model(bundle_dir)) {
        return "would not run: the bundle has no tokenizer for its token ids";
      }
      return std::string("would run on ") + name_of(engine.accelerator()) + ", token ids " +
             (engine.has_exact_ids() ? "exact" : "approximate");
    } catch (const std::exception& problem) {
      return problem.what();
    }
  }

  std::shared_ptr<const Tokenizer> tokenizer(EliInferenceContext* ctx) override {
    const auto engine = engine_of(ctx, read_engine_options());
    if (engine->has_exact_ids()) return nullptr;
    return std::make_shared<EngineTokenizer>(engine);
  }

  void load(EliInferenceContext* ctx) override { engine_of(ctx, read_engine_options()); }

  LlmBackendSession* open(EliInferenceContext* ctx, const eliza_llm_stream_config_t* cfg,
                          char**) override {
    check_stream_config(*cfg);
    const auto sampling = read_sampling(*cfg);
    check_fields(*cfg, sampling);
    auto options = read_engine_options();
    options.speculation = cfg->draft_max > 0;
    const auto engine = engine_of(ctx, options);
    auto tokenizer = llm_backend_context_tokenizer(ctx);
    if (!tokenizer && engine->has_exact_ids()) {
      throw Error(ELIZA_ERR_BUNDLE_INVALID,
                  "LiteRT-LM model " + quoted(engine->path()) +
                      " writes token ids as text, and the bundle has no tokenizer for them; make "
                      "both with `eliza-ctypes bundle add-litert`");
    }
    if (!tokenizer) tokenizer = std::make_shared<EngineTokenizer>(engine);
    if (engine->has_exact_ids() && !engine->detokenize({tokenizer->size() - 1})) {
      throw Error(ELIZA_ERR_BUNDLE_INVALID,
                  "LiteRT-LM model " + quoted(engine->path()) + " has fewer than the " +
                      std::to_string(tokenizer->size()) +
                      " tokens of the bundle's tokenizer; they do not belong together");
    }
    if (cfg->disable_thinking != 0 && !tokenizer->thinking_tokens().empty()) {
      refuse_field("disable_thinking", std::to_string(cfg->disable_thinking),
                   "0: the backend litert-lm cannot keep this model from thinking");
    }
    return new LitertSession(engine, tokenizer, sampling, cfg->draft_max);
  }

 private:
  std::shared_ptr<const LoadedEngine> engine_of(EliInferenceContext* ctx,
                                                const EngineOptions& options) {
    const auto runtime = open_runtime();
    const auto file = find_model_file(llm_backend_context_bundle_dir(ctx));
    const auto shelf = std::static_pointer_cast<EngineShelf>(
        llm_backend_context_kept(ctx, this, [] { return std::make_shared<EngineShelf>(); }));
    return shelf->acquire(runtime, file, options);
  }
};

}  // namespace

LlmBackendFactory* litert_backend() {
  static LitertBackend backend;
  return &backend;
}

}  // namespace eliza
