#include "llama/session.h"

#include <llama.h>

#include <algorithm>
#include <future>
#include <system_error>
#include <thread>

#include "llama/runtime.h"

namespace eliza::llama {
namespace {

constexpr llama_seq_id sequence_id = 0;

// ggml's kernels switch at 4 rows (repacked weights), at 8 (attention without flash) and at 64
// (flash attention); whole blocks of 64 rows take the same path in any batch that holds at least
// one.
constexpr size_t most_block_rows = 64;

SamplingSettings sampling_settings(const Model& model, const StreamSettings& settings) {
  SamplingSettings sampling;
  sampling.temperature = settings.temperature;
  sampling.top_k = settings.top_k;
  sampling.top_p = settings.top_p;
  sampling.repeat_penalty = settings.repeat_penalty;
  sampling.seed = settings.seed;
  sampling.banned_tokens = model.suppressed_tokens();
  if (settings.disable_thinking) {
    const auto& thinking = model.thinking_tokens();
    sampling.banned_tokens.insert(sampling.banned_tokens.end(), thinking.begin(), thinking.end());
  }
  return sampling;
}

std::unique_ptr<Grammar> make_grammar(const std::shared_ptr<const Model>& model,
                                      const StreamSettings& settings) {
  if (!settings.grammar) return nullptr;
  return std::make_unique<Grammar>(model, *settings.grammar);
}

// ggml aborts when a thread of a pool cannot be started, with the others running; so it is tried
// out beforehand. Throws Error.
void check_threads_start(int32_t threads) {
  std::vector<std::thread> started;
  std::promise<void> enough;
  const std::shared_future<void> end = enough.get_future().share();
  bool failed = false;
  try {
    while (started.size() + 1 < static_cast<size_t>(threads)) {
      started.emplace_back([end] { end.wait(); });
    }
  } catch (const std::system_error&) {
    failed = true;
  }
  enough.set_value();
  for (auto& thread : started) thread.join();
  if (failed) {
    throw Error(ELIZA_ERR_OOM, "only " + std::to_string(started.size() + 1) + " of " +
                                   std::to_string(threads) +
                                   " compute threads can be started; lower ELIZA_LLM_THREADS");
  }
}

ggml_threadpool* make_threadpool(int32_t threads) {
  // Without a pool of its own a context makes one, and starts and joins its threads, for every
  // token.
  check_threads_start(threads);
  ggml_threadpool_params params = ggml_threadpool_params_default(threads);
  // How long its threads watch for the next step before they sleep: milliseconds, which outlasts
  // the caller's work between two steps; the default of 50 keeps an idle stream busy for much
  // longer.
  params.poll = 1;
  return ggml_threadpool_new(&params);
}

llama_context_params context_params(const Model& model, const StreamSettings& settings,
                                    std::atomic<bool>& cancelled) {
  llama_context_params params = llama_context_default_params();
  int32_t context_size = settings.context_size;
  if (model.training_context() > 0) context_size = std::min(context_size, model.training_context());
  params.n_ctx = static_cast<uint32_t>(context_size);
  params.n_batch = static_cast<uint32_t>(std::min(settings.batch_size, context_size));
  params.n_ubatch = params.n_batch;
  params.n_seq_max = 1;
  params.n_outputs_max = 1;
  params.n_threads = settings.threads;
  params.n_threads_batch = settings.threads;
  params.type_k = static_cast<ggml_type>(settings.cache_type_k);
  params.type_v = static_cast<ggml_type>(settings.cache_type_v);
  params.flash_attn_type = static_cast<llama_flash_attn_type>(settings.flash_attention);
  params.no_perf = true;
  params.swa_full = false;
  params.abort_callback = [](void* flag) { return static_cast<std::atomic<bool>*>(flag)->load(); };
  params.abort_callback_data = &cancelled;
  return params;
}

}  // namespace

void Session::ThreadpoolDeleter::operator()(ggml_threadpool* pool) const {
  ggml_threadpool_free(pool);
}

void Session::ContextDeleter::operator()(llama_context* context) const { llama_free(context); }

Session::Session(std::shared_ptr<const Model> model, const StreamSettings& settings)
    : model_(std::move(model)),
      max_tokens_(settings.max_tokens),
      sampler_(sampling_settings(*model_, settings), make_grammar(model_, settings)) {
  const std::string what = "the stream's context cannot be created";
  guarded(ELIZA_ERR_FFI_FAULT, what, [&](const LogCapture& log) {
    threadpool_.reset(make_threadpool(settings.threads));
    const auto params = context_params(*model_, settings, cancelled_);
    context_.reset(llama_init_from_model(model_->get(), params));
    if (!context_) throw Error(ELIZA_ERR_FFI_FAULT, fault_message(what, "", log));
    llama_attach_threadpool(context_.get(), threadpool_.get(), nullptr);
    // llama.cpp rounds the context size up; the stream keeps to what was asked for.
    context_size_ = std::min(llama_n_ctx(context_.get()), params.n_ctx);
    const size_t batch_rows = llama_n_batch(context_.get());
    block_size_ = std::min(most_block_rows, batch_rows);
    batch_size_ = batch_rows - batch_rows % block_size_;
  });
  sequence_.reserve(context_size_);
}

Session::~Session() = default;

void Session::check_cancelled() const {
  if (cancelled_.load()) {
    throw Error(ELIZA_ERR_CANCELLED, "the stream was cancelled; reset it to go on");
  }
}

void Session::prefill(const int32_t* tokens, size_t count) {
  check_cancelled();
  model_->check_token_ids(tokens, count);
  if (count > context_size_ - sequence_.size()) {
    throw Error(ELIZA_ERR_INVALID_ARG,
                std::to_string(count) + " tokens do not fit the context: " +
                    std::to_string(sequence_.size()) + " of " + std::to_string(context_size_) +
                    " positions are taken; reset the stream, shorten the prompt or raise "
                    "ELIZA_LLM_N_CTX");
  }
  if (ended_) {
    ended_ = false;
    generated_ = 0;
    sampler_.restart_grammar();
  }
  sequence_.insert(sequence_.end(), tokens, tokens + count);
  logits_ready_ = false;
  decode_waiting();
}

Session::Delivery Session::next(int32_t* tokens, size_t token_capacity, char* text,
                                size_t text_capacity) {
  check_cancelled();
  if (undelivered_.empty() && !text_.has_text() && !ended_) step();

  Delivery delivery;
  delivery.tokens = std::min(token_capacity, undelivered_.size());
  const auto delivered = undelivered_.begin() + static_cast<std::ptrdiff_t>(delivery.tokens);
  std::copy(undelivered_.begin(), delivered, tokens);
  undelivered_.erase(undelivered_.begin(), delivered);
  const size_t bytes = text_.take(text, text_capacity);
  if (bytes == 0 && delivery.tokens == 0 && text_.has_text()) {
    throw Error(ELIZA_ERR_INVALID_ARG,
                "text_cap " + std::to_string(text_capacity) +
                    " cannot hold the next character and the terminator; 5 bytes hold any");
  }
  delivery.final = ended_ && undelivered_.empty() && !text_.has_text();
  return delivery;
}

void Session::step() {
  if (sequence_.empty()) {
    throw Error(ELIZA_ERR_INVALID_ARG, "nothing was prefilled; prefill a prompt first");
  }
  if (sequence_.size() >= context_size_) return end_generation();
  if (!logits_ready_) decode_waiting();
  const int32_t token = guarded(ELIZA_ERR_FFI_FAULT, "sampling failed", [&](const LogCapture&) {
    const float* logits = llama_get_logits_ith(context_.get(), -1);
    return sampler_.draw(logits, model_->vocabulary_size(), sequence_);
  });
  if (model_->ends_generation(token)) return end_generation();
  sequence_.push_back(token);
  logits_ready_ = false;
  undelivered_.push_back(token);
  text_.push(model_->piece(token));
  ++generated_;
  if (generated_ == max_tokens_ || sequence_.size() >= context_size_) end_generation();
}

void Session::end_generation() {
  ended_ = true;
  text_.finish();
}

void Session::decode_waiting() {
  while (decoded_ < sequence_.size()) {
    check_cancelled();
    const size_t to_boundary = batch_size_ - decoded_ % batch_size_;
    decode_batch(std::min(to_boundary, sequence_.size() - decoded_));
  }
  logits_ready_ = true;
}

void Session::decode_batch(size_t count) {
  guarded(ELIZA_ERR_FFI_FAULT, "decoding failed", [&](const LogCapture& log) {
    const size_t begin = decoded_;
    const auto batch = llama_batch_get_one(sequence_.data() + begin, static_cast<int32_t>(count));
    const int32_t status = llama_decode(context_.get(), batch);
    if (status == 0) {
      decoded_ += count;
      const bool exact = begin == exact_ && count >= block_size_;
      if (exact) exact_ = decoded_ - decoded_ % block_size_;
      return;
    }
    // Parts of an interrupted batch may have stayed in the cache.
    decoded_ = static_cast<size_t>(
        llama_memory_seq_pos_max(llama_get_memory(context_.get()), sequence_id) + 1);
    rewind(begin);
    check_cancelled();
    throw Error(ELIZA_ERR_FFI_FAULT,
                fault_message("decoding failed", "status " + std::to_string(status), log));
  });
}

// Makes the cache hold the first `count` tokens, or none where a cut there is not possible.
void Session::rewind(size_t count) {
  if (count >= decoded_) return;
  const auto memory = llama_get_memory(context_.get());
  const auto position = static_cast<llama_pos>(count);
  // A sliding-window layer at position `count` looks back over the window; where cells of it were
  // recycled already the cut would succeed and the result be wrong.
  const llama_pos window = llama_model_n_swa(model_->get());
  const bool window_whole = window <= 0 || llama_memory_seq_pos_min(memory, sequence_id) <=
                                               std::max(0, position - window);
  if (count == 0 || !window_whole || !llama_memory_seq_rm(memory, sequence_id, position, -1)) {
    llama_memory_clear(memory, /*data=*/false);
    count = 0;
  }
  decoded_ = count;
  exact_ = std::min(exact_, count);
}

void Session::reset() { reset_keep(0); }

size_t Session::reset_keep(size_t count) {
  count = std::min(count, sequence_.size());
  // At least a block is left to decode, so that the kernels for many rows do it.
  const size_t blocks = count < block_size_ ? 0 : (count - block_size_) / block_size_;
  const size_t reusable = std::min(exact_, blocks * block_size_);
  rewind(reusable);
  // Tokens behind the reusable ones are kept too and wait to be decoded; a lost window is
  // different, nothing of the state survives it and the caller should know.
  const size_t kept = decoded_ < reusable ? 0 : count;
  sequence_.resize(kept);
  logits_ready_ = false;
  generated_ = 0;
  ended_ = false;
  undelivered_.clear();
  text_.clear();
  sampler_.reset();
  cancelled_.store(false);
  return kept;
}

}  // namespace eliza::llama
