#include "test_support.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <random>
#include <stdexcept>

#include "seam/llm_backend_registry.h"

extern "C" char** environ;

namespace eliza::test {
namespace fs = std::filesystem;

EnvironmentVariable::EnvironmentVariable(std::string name, const std::optional<std::string>& value)
    : name_(std::move(name)) {
  if (const char* before = std::getenv(name_.c_str())) before_ = before;
  if (value) {
    setenv(name_.c_str(), value->c_str(), 1);
  } else {
    unsetenv(name_.c_str());
  }
}

EnvironmentVariable::~EnvironmentVariable() {
  if (before_) {
    setenv(name_.c_str(), before_->c_str(), 1);
  } else {
    unsetenv(name_.c_str());
  }
}

CleanEnvironment::CleanEnvironment() {
  constexpr std::string_view prefix = "ELIZA_LLM_";
  std::map<std::string, std::optional<std::string>> values = {{"ELIZA_LLM_SEED", "7"}};
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    if (text.substr(0, prefix.size()) == prefix) {
      values.emplace(text.substr(0, text.find('=')), std::nullopt);
    }
  }
  for (const auto& [name, value] : values) {
    variables_.push_back(std::make_unique<EnvironmentVariable>(name, value));
  }
}

TemporaryDirectory::TemporaryDirectory(const std::string& name) {
  std::string pattern = (fs::temp_directory_path() / "eliza-test-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp " + pattern);
  root_ = pattern;
  path_ = root_ / name;
  fs::create_directory(path_);
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  fs::remove_all(root_, ignored);
}

void write_file(const fs::path& path, std::string_view text) {
  fs::create_directories(path.parent_path());
  std::ofstream file(path, std::ios::binary);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file.flush()) throw std::runtime_error("cannot write " + path.string());
}

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path.string());
  return {std::istreambuf_iterator<char>(file), {}};
}

fs::path test_model(const std::string& file_name) {
  const char* folder = std::getenv("ELIZA_TEST_MODELS");
  if (folder == nullptr) {
    throw std::runtime_error(
        "ELIZA_TEST_MODELS is not set: write the tiny models with tests/models/make_tiny_models.py "
        "and name their folder");
  }
  const fs::path model = fs::absolute(folder) / file_name;
  if (!fs::exists(model)) throw std::runtime_error("ELIZA_TEST_MODELS has no " + model.string());
  return model;
}

std::unique_ptr<TemporaryDirectory> make_bundle(const std::string& model_file_name) {
  const fs::path model = test_model(model_file_name);
  auto bundle = std::make_unique<TemporaryDirectory>();
  fs::create_directory(bundle->path() / "text");
  fs::create_symlink(model, bundle->path() / "text" / model_file_name);
  return bundle;
}

char** OwnedMessage::out() {
  eliza_inference_free_string(message_);
  message_ = nullptr;
  return &message_;
}

bool is_valid_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const auto lead = static_cast<unsigned char>(text[at]);
    size_t length = 1;
    uint32_t character = lead;
    if (lead >= 0xF8 || (lead & 0xC0) == 0x80) return false;
    if (lead >= 0xF0) {
      length = 4;
      character = lead & 0x07u;
    } else if (lead >= 0xE0) {
      length = 3;
      character = lead & 0x0Fu;
    } else if (lead >= 0xC0) {
      length = 2;
      character = lead & 0x1Fu;
    }
    if (length > text.size() - at) return false;
    for (size_t i = 1; i < length; ++i) {
      const auto byte = static_cast<unsigned char>(text[at + i]);
      if ((byte & 0xC0) != 0x80) return false;
      character = character << 6 | (byte & 0x3Fu);
    }
    const uint32_t shortest[] = {0, 0, 0x80, 0x800, 0x10000};
    if (character < shortest[length] || character > 0x10FFFF) return false;
    if (character >= 0xD800 && character <= 0xDFFF) return false;
    at += length;
  }
  return true;
}

namespace {

// Points a file descriptor of the process at a file; restores it when destroyed.
class Redirection {
 public:
  Redirection(int descriptor, const fs::path& file) : descriptor_(descriptor) {
    before_ = dup(descriptor);
    const int target = ::open(file.c_str(), O_CREAT | O_WRONLY | O_TRUNC, 0600);
    dup2(target, descriptor);
    ::close(target);
  }
  ~Redirection() {
    dup2(before_, descriptor_);
    ::close(before_);
  }
  Redirection(const Redirection&) = delete;
  Redirection& operator=(const Redirection&) = delete;

 private:
  const int descriptor_;
  int before_;
};

[[noreturn]] void run_child(const std::function<std::string()>& work, int report,
                            unsigned seconds) {
  alarm(seconds);
  std::string outcome;
  try {
    outcome = work();
  } catch (const std::exception& problem) {
    outcome = std::string("threw: ") + problem.what();
  }
  if (::write(report, outcome.data(), outcome.size()) < 0) _exit(2);
  _exit(0);
}

}  // namespace

Output output_of(const std::function<void()>& work) {
  const TemporaryDirectory folder;
  const auto out = folder.path() / "out";
  const auto err = folder.path() / "err";
  std::fflush(nullptr);
  {
    const Redirection out_redirection(STDOUT_FILENO, out);
    const Redirection err_redirection(STDERR_FILENO, err);
    work();
    std::fflush(nullptr);
  }
  return {read_file(out), read_file(err)};
}

std::string outcome_in_child(const std::function<std::string()>& work, unsigned seconds) {
  int report[2];
  if (pipe(report) != 0) throw std::runtime_error("pipe");
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("fork");
  if (child == 0) run_child(work, report[1], seconds);
  ::close(report[1]);
  std::string outcome;
  char buffer[4096];
  for (ssize_t got; (got = ::read(report[0], buffer, sizeof buffer)) > 0;) {
    outcome.append(buffer, static_cast<size_t>(got));
  }
  ::close(report[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) {
    return outcome + "killed by signal " + std::to_string(WTERMSIG(status)) + " (" +
           strsignal(WTERMSIG(status)) + ")";
  }
  if (WEXITSTATUS(status) != 0) {
    return outcome + "ended with status " + std::to_string(WEXITSTATUS(status));
  }
  return outcome;
}

std::vector<std::string> problems_in_children(size_t count,
                                              const std::function<std::string(size_t)>& work,
                                              const std::function<std::string(size_t)>& description,
                                              unsigned seconds) {
  auto* at = static_cast<std::atomic<size_t>*>(mmap(nullptr, sizeof(std::atomic<size_t>),
                                                    PROT_READ | PROT_WRITE,
                                                    MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  std::vector<std::string> problems;
  for (*at = 0; *at < count; ++*at) {
    const std::string outcome = outcome_in_child(
        [&]() -> std::string {
          for (; *at < count; ++*at) {
            const std::string problem = work(*at);
            if (!problem.empty()) return problem;
          }
          return "";
        },
        seconds);
    if (!outcome.empty()) problems.push_back(description(*at) + ": " + outcome);
  }
  munmap(at, sizeof(std::atomic<size_t>));
  return problems;
}

Context create_context(const std::string& bundle_dir) {
  OwnedMessage error;
  Context ctx(eliza_inference_create(bundle_dir.c_str(), error.out()));
  if (!ctx) throw std::runtime_error(error.text());
  return ctx;
}

Stream open_stream(const Context& ctx, const eliza_llm_stream_config_t& config) {
  OwnedMessage error;
  Stream stream(eliza_inference_llm_stream_open(ctx.get(), &config, error.out()));
  if (!stream) throw std::runtime_error(error.text());
  return stream;
}

void prefill(const Stream& stream, const Tokens& tokens) {
  OwnedMessage error;
  const int status =
      eliza_inference_llm_stream_prefill(stream.get(), tokens.data(), tokens.size(), error.out());
  if (status != ELIZA_OK) throw std::runtime_error(error.text());
}

int try_prefill(const Stream& stream, const Tokens& tokens) {
  return eliza_inference_llm_stream_prefill(stream.get(), tokens.data(), tokens.size(), nullptr);
}

Tokens tokenize(const Context& ctx, std::string_view text, bool add_special, bool parse_special) {
  OwnedMessage error;
  int* ids = nullptr;
  size_t count = 0;
  if (eliza_inference_tokenize(ctx.get(), text.data(), text.size(), add_special, parse_special,
                               &ids, &count, error.out()) != ELIZA_OK) {
    throw std::runtime_error(error.text());
  }
  const Tokens tokens(ids, ids + count);
  eliza_inference_free_tokens(ids);
  return tokens;
}

Step next(const Stream& stream, size_t tokens_cap, size_t text_cap) {
  Step step;
  OwnedMessage error;
  Tokens tokens(tokens_cap, -1);
  size_t count = 0;
  std::string text(text_cap, '\xFF');
  step.status =
      eliza_inference_llm_stream_next(stream.get(), tokens.data(), tokens_cap, &count, text.data(),
                                      text_cap, &step.drafted, &step.accepted, error.out());
  tokens.resize(count);
  step.tokens = tokens;
  step.text = text.c_str();
  step.message = error.text();
  return step;
}

Generation generate(const Stream& stream, size_t limit, size_t tokens_cap, size_t text_cap) {
  Generation generation;
  while (!generation.final && generation.tokens.size() < limit) {
    const Step step = next(stream, tokens_cap, text_cap);
    if (step.status < 0) throw std::runtime_error(step.message);
    generation.tokens.insert(generation.tokens.end(), step.tokens.begin(), step.tokens.end());
    generation.text += step.text;
    generation.drafted += step.drafted;
    generation.accepted += step.accepted;
    generation.final = step.status == 1;
  }
  return generation;
}

eliza_llm_stream_config_t sampled_config() {
  eliza_llm_stream_config_t config = {};
  config.temperature = 1.5f;
  config.top_k = 30;
  config.top_p = 0.95f;
  config.repeat_penalty = 1.2f;
  return config;
}

eliza_llm_stream_config_t unkeyed(eliza_llm_stream_config_t config) {
  config.slot_id = -1;
  config.prompt_cache_key = nullptr;
  return config;
}

Tokens concatenated(Tokens first, const Tokens& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

Tokens first_of(const Tokens& tokens, size_t count) {
  return {tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(count)};
}

Tokens rest_of(const Tokens& tokens, size_t begin) {
  return {tokens.begin() + static_cast<std::ptrdiff_t>(begin), tokens.end()};
}

Tokens repeated(const Tokens& tokens, size_t times) {
  Tokens all;
  for (size_t i = 0; i < times; ++i) all = concatenated(all, tokens);
  return all;
}

Tokens random_tokens(size_t count, int32_t lowest, int32_t highest, uint32_t seed) {
  std::mt19937 random(seed);
  Tokens tokens(count);
  for (auto& token : tokens) {
    token = lowest + static_cast<int32_t>(random() % static_cast<uint32_t>(highest - lowest + 1));
  }
  return tokens;
}

RecordingSession::RecordingSession(Recording& recording, Answer answer)
    : recording_(recording), answer_(std::move(answer)) {}

RecordingSession::~RecordingSession() { ++recording_.deleted; }

int RecordingSession::prefill(const int32_t* token_ids, size_t num_tokens, char** out_error) {
  recording_.calls.push_back(recorded("prefill", token_ids, num_tokens, out_error));
  return answer_(out_error);
}

int RecordingSession::next(int32_t* tokens_out, size_t tokens_cap, size_t* num_tokens_out,
                           char* text_out, size_t text_cap, int32_t* drafter_drafted_out,
                           int32_t* drafter_accepted_out, char** out_error) {
  recording_.calls.push_back(recorded("next", tokens_out, tokens_cap, num_tokens_out, text_out,
                                      text_cap, drafter_drafted_out, drafter_accepted_out,
                                      out_error));
  return answer_(out_error);
}

int RecordingSession::cancel() {
  recording_.calls.push_back(recorded("cancel"));
  return answer_(nullptr);
}

int RecordingSession::reset() {
  recording_.calls.push_back(recorded("reset"));
  return answer_(nullptr);
}

int RecordingSession::reset_keep(int32_t n_keep) {
  recording_.calls.push_back(recorded("reset_keep", n_keep));
  return answer_(nullptr);
}

int RecordingSession::save_slot(const char* filename, char** out_error) {
  recording_.calls.push_back(recorded("save_slot", filename, out_error));
  return answer_(out_error);
}

int RecordingSession::restore_slot(const char* filename, char** out_error) {
  recording_.calls.push_back(recorded("restore_slot", filename, out_error));
  return answer_(out_error);
}

bool FakeBackend::can_serve(const char* bundle_dir) const {
  ++probes;
  const std::lock_guard<std::mutex> lock(mutex_);
  probed_bundle_ = bundle_dir;
  return serves;
}

std::string FakeBackend::probed_bundle() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return probed_bundle_;
}

LlmBackendSession* FakeBackend::open(EliInferenceContext* ctx, const eliza_llm_stream_config_t* cfg,
                                     char** out_error) {
  return on_open ? on_open(ctx, cfg, out_error) : nullptr;
}

RegisteredBackend::RegisteredBackend(LlmBackendFactory& backend) : backend_(backend) {
  LlmBackendRegistry::instance().add(&backend);
}

RegisteredBackend::~RegisteredBackend() { LlmBackendRegistry::instance().remove(&backend_); }

}  // namespace eliza::test
