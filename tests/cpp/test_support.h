#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "eliza-inference-ffi.h"
#include "seam/llm_backend.h"

namespace eliza::test {

// Sets (or, with nullopt, unsets) an environment variable; restores it when destroyed.
class EnvironmentVariable {
 public:
  EnvironmentVariable(std::string name, const std::optional<std::string>& value);
  ~EnvironmentVariable();
  EnvironmentVariable(const EnvironmentVariable&) = delete;
  EnvironmentVariable& operator=(const EnvironmentVariable&) = delete;

 private:
  const std::string name_;
  std::optional<std::string> before_;
};

// Unsets every ELIZA_LLM_* variable while it lives, so that a test does not depend on the caller's,
// and sets the seed, so that it does not depend on chance.
class CleanEnvironment {
 public:
  CleanEnvironment();

 private:
  std::vector<std::unique_ptr<EnvironmentVariable>> variables_;
};

class TemporaryDirectory {
 public:
  // `name`: the last part of the path.
  explicit TemporaryDirectory(const std::string& name = "eliza");
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::string string() const { return path_.string(); }

 private:
  std::filesystem::path root_;
  std::filesystem::path path_;
};

// Both make the folders on the way. `text` is written as it is.
void write_file(const std::filesystem::path& path, std::string_view text);
std::string read_file(const std::filesystem::path& path);

// A tiny model of $ELIZA_TEST_MODELS; throws, and so fails the test, where it is missing.
std::filesystem::path test_model(const std::string& file_name);

// A bundle directory whose text/ holds a link to a tiny model.
std::unique_ptr<TemporaryDirectory> make_bundle(const std::string& model_file_name);

// Receives `*out_error` and frees it.
class OwnedMessage {
 public:
  OwnedMessage() = default;
  ~OwnedMessage() { eliza_inference_free_string(message_); }
  OwnedMessage(const OwnedMessage&) = delete;
  OwnedMessage& operator=(const OwnedMessage&) = delete;

  // For one call; frees the message of the call before.
  char** out();
  bool is_set() const { return message_ != nullptr; }
  std::string text() const { return message_ != nullptr ? message_ : ""; }

 private:
  char* message_ = nullptr;
};

// Independent of the library's own decoder.
bool is_valid_utf8(std::string_view text);

// What `work` writes to the process's stdout and stderr, at file descriptor level.
struct Output {
  std::string out;
  std::string err;
};
Output output_of(const std::function<void()>& work);

// Runs `work` in a forked child that has a time limit. Empty when the child came back from it with
// an empty string; otherwise what `work` returned, or how the child died.
std::string outcome_in_child(const std::function<std::string()>& work, unsigned seconds = 60);

// Runs `work(number)` for each number below `count` in a forked child, and in a new one from behind
// a number that ended its child. Returns for each number that went wrong its description and what
// `work` returned or how the child died. `seconds`: the time limit of a child.
std::vector<std::string> problems_in_children(size_t count,
                                              const std::function<std::string(size_t)>& work,
                                              const std::function<std::string(size_t)>& description,
                                              unsigned seconds = 240);

// ----------------------------------------------------------------- the C ABI

struct ContextCloser {
  void operator()(EliInferenceContext* ctx) const { eliza_inference_destroy(ctx); }
};
struct StreamCloser {
  void operator()(EliLlmStream* stream) const { eliza_inference_llm_stream_close(stream); }
};
using Context = std::unique_ptr<EliInferenceContext, ContextCloser>;
using Stream = std::unique_ptr<EliLlmStream, StreamCloser>;
using Tokens = std::vector<int32_t>;

// These throw std::runtime_error with the library's message, and so fail the test.
Context create_context(const std::string& bundle_dir);
Stream open_stream(const Context& ctx, const eliza_llm_stream_config_t& config = {});
void prefill(const Stream& stream, const Tokens& tokens);
Tokens tokenize(const Context& ctx, std::string_view text, bool add_special = false,
                bool parse_special = false);

int try_prefill(const Stream& stream, const Tokens& tokens);

struct Step {
  int status = 0;
  Tokens tokens;
  std::string text;
  std::string message;
  int32_t drafted = 0;
  int32_t accepted = 0;
};
Step next(const Stream& stream, size_t tokens_cap = 8, size_t text_cap = 64);

struct Generation {
  Tokens tokens;
  std::string text;
  bool final = false;
  int32_t drafted = 0;
  int32_t accepted = 0;
};
// Calls next until the final step or until `limit` tokens are there.
Generation generate(const Stream& stream, size_t limit = 1000, size_t tokens_cap = 8,
                    size_t text_cap = 64);

// A config of a sampler that depends on everything drawn before.
eliza_llm_stream_config_t sampled_config();

// `config` for a stream that takes up nothing of those before it: 0 is a prompt-cache slot too.
eliza_llm_stream_config_t unkeyed(eliza_llm_stream_config_t config = {});

// All tokens of both.
Tokens concatenated(Tokens first, const Tokens& second);

// The first `count` tokens.
Tokens first_of(const Tokens& tokens, size_t count);

// Those from `begin` on.
Tokens rest_of(const Tokens& tokens, size_t begin);

// `tokens`, `times` times.
Tokens repeated(const Tokens& tokens, size_t times);

// `count` ids between `lowest` and `highest`, the same ones for the same seed.
Tokens random_tokens(size_t count, int32_t lowest, int32_t highest, uint32_t seed = 7);

// -------------------------------------------------------------------- backends

// One call of a session's method with its arguments, pointers and sizes alike, as integers.
struct RecordedCall {
  std::string method;
  std::vector<uint64_t> arguments;
  bool operator==(const RecordedCall& other) const {
    return method == other.method && arguments == other.arguments;
  }
};

template <typename Argument>
uint64_t as_integer(Argument argument) {
  if constexpr (std::is_pointer_v<Argument>) {
    return reinterpret_cast<uintptr_t>(argument);
  } else if constexpr (std::is_null_pointer_v<Argument>) {
    return 0;
  } else {
    return static_cast<uint64_t>(argument);
  }
}

template <typename... Arguments>
RecordedCall recorded(const char* method, Arguments... arguments) {
  return {method, {as_integer(arguments)...}};
}

// What a RecordingSession saw; outlives it.
struct Recording {
  std::vector<RecordedCall> calls;
  int deleted = 0;
};

// Records every argument of every method. `answer` gives the return value, may set the message and
// may throw.
class RecordingSession : public LlmBackendSession {
 public:
  using Answer = std::function<int(char** out_error)>;
  RecordingSession(Recording& recording, Answer answer);
  ~RecordingSession() override;

  int prefill(const int32_t* token_ids, size_t num_tokens, char** out_error) override;
  int next(int32_t* tokens_out, size_t tokens_cap, size_t* num_tokens_out, char* text_out,
           size_t text_cap, int32_t* drafter_drafted_out, int32_t* drafter_accepted_out,
           char** out_error) override;
  int cancel() override;
  int reset() override;
  int reset_keep(int32_t n_keep) override;
  int save_slot(const char* filename, char** out_error) override;
  int restore_slot(const char* filename, char** out_error) override;

 private:
  Recording& recording_;
  const Answer answer_;
};

// A backend whose every answer the test decides.
class FakeBackend : public LlmBackendFactory {
 public:
  explicit FakeBackend(std::string name, int preference = 1)
      : rank(preference), name_(std::move(name)) {}

  const char* name() const override { return name_.c_str(); }
  bool available() const override {
    ++looks;
    return is_available;
  }
  bool can_serve(const char* bundle_dir) const override;
  int preference_rank() const override { return rank; }
  LlmBackendSession* open(EliInferenceContext* ctx, const eliza_llm_stream_config_t* cfg,
                          char** out_error) override;

  bool is_available = true;
  bool serves = true;
  int rank;
  std::function<LlmBackendSession*(EliInferenceContext*, const eliza_llm_stream_config_t*, char**)>
      on_open;
  mutable std::atomic<int> probes{0};  // calls of can_serve
  mutable std::atomic<int> looks{0};   // calls of available

  // The bundle directory of the last can_serve.
  std::string probed_bundle() const;

 private:
  const std::string name_;
  mutable std::mutex mutex_;
  mutable std::string probed_bundle_;
};

// Keeps a backend in the process-wide registry while it lives.
class RegisteredBackend {
 public:
  explicit RegisteredBackend(LlmBackendFactory& backend);
  ~RegisteredBackend();
  RegisteredBackend(const RegisteredBackend&) = delete;
  RegisteredBackend& operator=(const RegisteredBackend&) = delete;

 private:
  LlmBackendFactory& backend_;
};

}  // namespace eliza::test
