#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "backends/litert/litert_runtime.h"
#include "backends/litert/litertlm_file.h"
#include "seam/tokenizer.h"

namespace eliza::litert {

enum class Accelerator { npu, gpu, cpu };

const char* name_of(Accelerator accelerator);

// What an engine is made for. Read from the environment; streams whose settings are equal share
// one.
struct EngineOptions {
  std::optional<Accelerator> forced;  // ELIZA_LITERT_ACCELERATOR
  bool gpu_allowed = true;            // ELIZA_LLM_USE_GPU
  int32_t threads = 0;
  int32_t context_size = 0;
  std::string cache_dir;  // ELIZA_LITERT_CACHE_DIR; empty: nothing is written
  bool speculation = false;

  bool operator==(const EngineOptions& other) const;
};

// Throws Error(ELIZA_ERR_INVALID_ARG) that names the variable.
EngineOptions read_engine_options();

// A loaded model. Thread-safe; sessions are made on it and must be gone before it is.
class LoadedEngine {
 public:
  // Throws Error with the runtime's reasons.
  LoadedEngine(const Runtime& runtime, const ModelFile& file, const EngineOptions& options);
  ~LoadedEngine();
  LoadedEngine(const LoadedEngine&) = delete;
  LoadedEngine& operator=(const LoadedEngine&) = delete;

  bool is_of(const ModelFile& file, const EngineOptions& options) const;

  const Runtime& runtime() const { return runtime_; }
  Engine* get() const { return engine_; }
  Accelerator accelerator() const { return accelerator_; }
  const std::string& path() const { return path_; }

  // Positions, the most that a prompt and what follows it may have together.
  int32_t context_size() const { return context_size_; }

  // Tokens that one prefill call should have.
  int32_t prefill_length() const { return prefill_length_; }

  // Whether the file's tokenizer writes the token with id 7 as "<7>": then texts carry ids exactly.
  bool has_exact_ids() const { return has_exact_ids_; }

  // The token that the engine puts in front of a first prefill.
  std::optional<int32_t> start_token() const { return start_token_; }

  // To be held while the runtime computes: it calls the tokenizer of a stock file, which is not
  // thread-safe. Holds nothing where ids are exact.
  std::unique_lock<std::mutex> exclusive() const;

  // Of a stock file: ids are below; and tokens that begin a thinking section.
  int32_t vocabulary_size() const { return vocabulary_size_; }
  const std::vector<int32_t>& thinking_tokens() const { return thinking_tokens_; }

  // The file's own tokenizer. `text` must be UTF-8 without U+0000.
  std::vector<int32_t> tokenize(const std::string& text) const;

  // nullopt where an id is outside the vocabulary.
  std::optional<std::string> detokenize(const std::vector<int32_t>& ids) const;

 private:
  Engine* create(Accelerator accelerator, const EngineOptions& options) const;
  void read_tokenizer();
  void read_start_token();
  void check_stops() const;
  void read_vocabulary();

  const Runtime runtime_;
  const ModelFile file_;
  const EngineOptions options_;
  const std::string path_;
  Engine* engine_ = nullptr;
  Accelerator accelerator_ = Accelerator::cpu;
  int32_t context_size_ = 0;
  int32_t prefill_length_ = 0;
  bool has_exact_ids_ = false;
  std::optional<int32_t> start_token_;
  int32_t vocabulary_size_ = 0;
  std::vector<int32_t> thinking_tokens_;
  mutable std::mutex exclusive_;
};

// The engines that a context keeps. Thread-safe; a second caller waits for the load of the first.
class EngineShelf {
 public:
  // Loads the engine, or hands out one that is loaded. Engines that no stream uses give way to one
  // made otherwise.
  std::shared_ptr<const LoadedEngine> acquire(const Runtime& runtime, const ModelFile& file,
                                              const EngineOptions& options);

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<const LoadedEngine>> engines_;
};

// The tokenizer of a stock file, through the runtime. The runtime reads special tokens in a text
// whatever is asked, and a token's text alone may differ from what it adds to a longer one.
class EngineTokenizer final : public Tokenizer {
 public:
  explicit EngineTokenizer(std::shared_ptr<const LoadedEngine> engine)
      : engine_(std::move(engine)) {}

  int32_t size() const override { return engine_->vocabulary_size(); }
  std::vector<int32_t> tokenize(std::string_view text, bool add_special,
                                bool parse_special) const override;
  std::string detokenize(const std::vector<int32_t>& tokens, bool remove_special,
                         bool unparse_special) const override;
  std::string piece(int32_t token) const override;
  bool ends_generation(int32_t) const override { return false; }  // the runtime sees to it
  const std::vector<std::vector<int32_t>>& stop_sequences() const override { return none_; }
  const std::vector<int32_t>& thinking_tokens() const override {
    return engine_->thinking_tokens();
  }

 private:
  const std::shared_ptr<const LoadedEngine> engine_;
  const std::vector<std::vector<int32_t>> none_;
};

}  // namespace eliza::litert
