#include "llama/decoder.h"

#include <llama.h>

// What the public interface does not tell.
#include <llama-context.h>
#include <llama-ext.h>
#include <llama-model.h>

#include <algorithm>
#include <cstring>
#include <future>
#include <optional>
#include <string_view>
#include <system_error>
#include <thread>

#include "llama/runtime.h"

namespace eliza::llama {
namespace {

constexpr llama_seq_id sequence_id = 0;

// The repacked kernels take four rows at a time and give the rest to the one for a single row.
constexpr size_t repacked_rows = 4;

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

llama_context_params context_params(const Model& model, const Decoder::Shape& shape) {
  llama_context_params params = llama_context_default_params();
  int32_t context_size = shape.context_size;
  if (model.training_context() > 0) context_size = std::min(context_size, model.training_context());
  params.n_ctx = static_cast<uint32_t>(context_size);
  params.n_batch = static_cast<uint32_t>(std::min(shape.batch_size, context_size));
  params.n_ubatch = params.n_batch;
  params.n_seq_max = 1;
  params.n_outputs_max = std::min(params.n_batch, static_cast<uint32_t>(shape.outputs));
  params.n_threads = shape.threads;
  params.n_threads_batch = shape.threads;
  params.type_k = static_cast<ggml_type>(shape.cache_type_k);
  params.type_v = static_cast<ggml_type>(shape.cache_type_v);
  params.flash_attn_type = static_cast<llama_flash_attn_type>(shape.flash_attention);
  params.no_perf = true;
  params.swa_full = false;
  return params;
}

// A batch of one sequence; freed with it.
class Batch {
 public:
  Batch(const int32_t* tokens, size_t count, size_t position, bool all_logits)
      : batch_(llama_batch_init(static_cast<int32_t>(count), 0, 1)) {
    batch_.n_tokens = static_cast<int32_t>(count);
    for (size_t i = 0; i < count; ++i) {
      batch_.token[i] = tokens[i];
      batch_.pos[i] = static_cast<llama_pos>(position + i);
      batch_.n_seq_id[i] = 1;
      batch_.seq_id[i][0] = sequence_id;
      batch_.logits[i] = all_logits || i + 1 == count;
    }
  }
  ~Batch() { llama_batch_free(batch_); }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;
  const llama_batch& get() const { return batch_; }

 private:
  llama_batch batch_;
};

}  // namespace

bool Decoder::Shape::operator==(const Shape& other) const {
  return context_size == other.context_size && batch_size == other.batch_size &&
         threads == other.threads && outputs == other.outputs &&
         cache_type_k == other.cache_type_k && cache_type_v == other.cache_type_v &&
         flash_attention == other.flash_attention;
}

void Decoder::ThreadpoolDeleter::operator()(ggml_threadpool* pool) const {
  ggml_threadpool_free(pool);
}

void Decoder::ContextDeleter::operator()(llama_context* context) const { llama_free(context); }

Decoder::Decoder(std::shared_ptr<const Model> model, const Shape& shape, const Decoder* target)
    : model_(std::move(model)), shape_(shape) {
  const std::string what = "the stream's context cannot be created";
  guarded(ELIZA_ERR_FFI_FAULT, what, [&](const LogCapture& log) {
    threadpool_.reset(make_threadpool(shape.threads));
    auto params = context_params(*model_, shape);
    if (target != nullptr) {
      // As much as the target holds, which it follows batch for batch.
      params.n_ctx = llama_n_ctx(target->context());
      params.n_batch = params.n_ubatch = llama_n_batch(target->context());
      params.ctx_other = target->context();
      if (model_->has_mtp_head() || model_->architecture() == "gemma4-assistant") {
        params.ctx_type = LLAMA_CONTEXT_TYPE_MTP;
      }
    }
    context_.reset(llama_init_from_model(model_->get(), params));
    if (!context_) throw Error(ELIZA_ERR_FFI_FAULT, fault_message(what, "", log));
    llama_attach_threadpool(context_.get(), threadpool_.get(), nullptr);
    // llama.cpp rounds the context size up; the decoder keeps to what was asked for.
    context_size_ = std::min(llama_n_ctx(context_.get()), params.n_ctx);
    const size_t batch_rows = llama_n_batch(context_.get());
    row_group_ = batch_rows < many_rows ? batch_rows : repacked_rows;
    least_rows_ = std::min(many_rows, batch_rows);
    batch_size_ = batch_rows - batch_rows % row_group_;
    flash_attention_ = context_->get_cparams().flash_attn;
    for (const auto& [buffer_type, used] : llama_get_memory_breakdown(context_.get())) {
      bytes_ += used.context + used.compute;
    }
    tokens_.reserve(context_size_);
    if (shape.outputs > 1 && target == nullptr) drafting_rows_ = measure_drafting_rows();
  });
}

Decoder::~Decoder() = default;

void Decoder::attach(RunningStream* stream) {
  stream_ = stream;
  const auto abort = [](void* flag) { return static_cast<std::atomic<bool>*>(flag)->load(); };
  llama_set_abort_callback(context_.get(), stream == nullptr ? nullptr : +abort,
                           stream == nullptr ? nullptr : &stream->cancelled());
}

void Decoder::decode_some_of(const std::vector<int32_t>& sequence) {
  const size_t begin = tokens_.size();
  const size_t to_boundary = batch_size_ - begin % batch_size_;
  decode(sequence.data() + begin, std::min(to_boundary, sequence.size() - begin), Output::last);
}

void Decoder::decode_rows(const std::vector<int32_t>& rows) {
  decode(rows.data(), rows.size(), Output::all);
}

void Decoder::decode(const int32_t* tokens, size_t count, Output output) {
  guarded(ELIZA_ERR_FFI_FAULT, "decoding failed", [&](const LogCapture& log) {
    std::optional<RunningStream::Step> step;
    if (stream_ != nullptr) share_processors(step.emplace(*stream_));
    const size_t begin = tokens_.size();
    const Batch batch(tokens, count, begin, output == Output::all);
    logits_row_ = -1;
    restored_logits_.clear();
    const int32_t status = llama_decode(context_.get(), batch.get());
    if (status == 0) {
      tokens_.insert(tokens_.end(), tokens, tokens + count);
      if (begin == exact_ && count >= least_rows_) {
        exact_ = tokens_.size() - tokens_.size() % row_group_;
      }
      logits_row_ = static_cast<int32_t>(count) - 1;
      return;
    }
    // Parts of an interrupted batch may have stayed in the cache.
    tokens_.insert(tokens_.end(), tokens, tokens + count);
    rewind(begin);
    throw Error(ELIZA_ERR_FFI_FAULT,
                fault_message("decoding failed", "status " + std::to_string(status), log));
  });
}

void Decoder::adopt(const std::vector<int32_t>& rows) {
  const auto memory = llama_get_memory(context_.get());
  const auto held = static_cast<size_t>(llama_memory_seq_pos_max(memory, sequence_id) + 1);
  const size_t adopted = std::min(rows.size(), held - std::min(held, tokens_.size()));
  tokens_.insert(tokens_.end(), rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(adopted));
  llama_memory_seq_rm(memory, sequence_id, static_cast<llama_pos>(tokens_.size()), -1);
  logits_row_ = -1;
  restored_logits_.clear();
}

void Decoder::share_processors(const RunningStream::Step& step) {
  llama_set_n_threads(context_.get(), step.threads(), step.threads());
}

const float* Decoder::row_logits(size_t row) const {
  return llama_get_logits_ith(context_.get(), static_cast<int32_t>(row));
}

const float* Decoder::last_logits() const {
  if (!restored_logits_.empty()) return restored_logits_.data();
  return logits_row_ < 0 ? nullptr : llama_get_logits_ith(context_.get(), logits_row_);
}

bool Decoder::can_rewind(size_t count) const {
  if (count >= tokens_.size()) return true;
  if (count == 0) return false;
  // A sliding-window layer at position `count` looks back over the window; where cells of it were
  // recycled already a cut would succeed and the result be wrong.
  const llama_pos window = llama_model_n_swa(model_->get());
  return window <= 0 || llama_memory_seq_pos_min(llama_get_memory(context_.get()), sequence_id) <=
                            std::max(0, static_cast<llama_pos>(count) - window);
}

void Decoder::rewind(size_t count) {
  if (count >= tokens_.size()) return;
  const auto memory = llama_get_memory(context_.get());
  const auto position = static_cast<llama_pos>(count);
  if (!can_rewind(count) || !llama_memory_seq_rm(memory, sequence_id, position, -1)) {
    // With the data: what is masked is multiplied by zero, which does not undo an infinity.
    llama_memory_clear(memory, /*data=*/true);
    count = 0;
  }
  tokens_.resize(count);
  exact_ = std::min(exact_, count - count % row_group_);
  logits_row_ = -1;
  restored_logits_.clear();
}

void Decoder::accept_rows(size_t rows) {
  const size_t dropped = static_cast<size_t>(logits_row_) + 1 - rows;
  const size_t kept = tokens_.size() - dropped;
  rewind(kept);
  if (tokens_.size() == kept) logits_row_ = static_cast<int32_t>(rows) - 1;
}

size_t Decoder::common_prefix(const std::vector<int32_t>& sequence) const {
  const auto end =
      tokens_.begin() + static_cast<std::ptrdiff_t>(std::min(tokens_.size(), sequence.size()));
  return static_cast<size_t>(std::mismatch(tokens_.begin(), end, sequence.begin()).first -
                             tokens_.begin());
}

bool Decoder::holds(const std::vector<int32_t>& sequence) const {
  return sequence.size() <= exact_ && common_prefix(sequence) == sequence.size();
}

size_t Decoder::reusable(const std::vector<int32_t>& sequence) const {
  const size_t size = sequence.size();
  size_t kept = std::min(exact_, common_prefix(sequence));
  kept -= kept % row_group_;
  // The rest must go through the kernels that it would go through without a cache: those for many
  // rows, or, as the last few of the prompt, a batch of its own.
  if (kept == size && kept > 0) kept -= row_group_;
  const size_t batch = kept - kept % batch_size_;
  const size_t batch_end = std::min(size, batch + batch_size_);
  if (kept != batch && batch_end - kept < least_rows_) {
    kept = batch_end - std::min(batch_end, least_rows_);
    kept = std::max(batch, kept - kept % row_group_);
  }
  return can_rewind(kept) ? kept : 0;
}

size_t Decoder::measure_drafting_rows() {
  // Repacked weights have kernels of their own for every four rows. Those of most types give other
  // bits, but seldom, so that a short trial could miss it; those of Q4_0 may give the same.
  bool repacked = false;
  bool alike = true;
  for (const auto& [name, tensor] : model_->get()->tensors_by_name) {
    if (tensor->buffer == nullptr) continue;
    const std::string_view buffer = ggml_backend_buffer_name(tensor->buffer);
    if (buffer.find("REPACK") == std::string_view::npos) continue;
    repacked = true;
    alike = alike && tensor->type == GGML_TYPE_Q4_0;
  }
  const size_t most = std::min({alike ? many_rows - 1 : repacked_rows - 1,
                                static_cast<size_t>(shape_.outputs), batch_size_, context_size_});
  const size_t compared = repacked ? most : std::min<size_t>(most, 4);
  const auto size = static_cast<size_t>(model_->vocabulary().size());
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < many_rows; ++i) tokens.push_back(static_cast<int32_t>(i * 7919 % size));
  clear();
  std::vector<float> singles;
  for (size_t i = 0; i < compared; ++i) {
    decode_rows({tokens[i]});
    singles.insert(singles.end(), row_logits(0), row_logits(0) + size);
  }
  const size_t first = tokens_.size() > 1 ? 1 : 0;
  rewind(first);
  if (tokens_.size() != first) return 1;  // drafts could not be taken back
  size_t found = 1;
  for (const size_t rows : {most, size_t{7}, size_t{3}, size_t{2}}) {
    if (rows > most || rows < 2) continue;
    clear();
    decode_rows({tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(rows)});
    bool same = true;
    for (size_t i = 0; i < std::min(compared, rows); ++i) {
      same =
          same && std::memcmp(row_logits(i), singles.data() + i * size, size * sizeof(float)) == 0;
    }
    if (same) {
      found = rows;
      break;
    }
  }
  clear();
  return found;
}

DecoderState Decoder::save() const {
  return guarded(ELIZA_ERR_FFI_FAULT, "the state cannot be saved", [&](const LogCapture&) {
    DecoderState state;
    state.tokens = tokens_;
    // With smaller batches the kernels for few rows have worked, which only such a decoder repeats.
    state.exact = least_rows_ == many_rows ? exact_ : 0;
    if (const float* logits = last_logits()) {
      state.logits.assign(logits, logits + model_->vocabulary().size());
    }
    state.cache.resize(llama_state_seq_get_size(context_.get(), sequence_id));
    const size_t written = llama_state_seq_get_data(context_.get(), state.cache.data(),
                                                    state.cache.size(), sequence_id);
    if (written != state.cache.size()) {
      throw Error(ELIZA_ERR_FFI_FAULT, "the state cannot be saved: llama.cpp wrote " +
                                           std::to_string(written) + " of " +
                                           std::to_string(state.cache.size()) + " bytes");
    }
    return state;
  });
}

void Decoder::restore(const DecoderState& state) {
  clear();
  const std::string what = "the state cannot be restored";
  guarded(ELIZA_ERR_FFI_FAULT, what, [&](const LogCapture& log) {
    const auto memory = llama_get_memory(context_.get());
    try {
      const size_t read = llama_state_seq_set_data(context_.get(), state.cache.data(),
                                                   state.cache.size(), sequence_id);
      const auto held = llama_memory_seq_pos_max(memory, sequence_id) + 1;
      if (read != state.cache.size() || static_cast<size_t>(held) != state.tokens.size()) {
        throw Error(ELIZA_ERR_FFI_FAULT, fault_message(what, "", log));
      }
    } catch (...) {
      llama_memory_clear(memory, /*data=*/true);
      throw;
    }
  });
  tokens_ = state.tokens;
  exact_ = least_rows_ == many_rows ? state.exact : 0;
  restored_logits_ = state.logits;
}

}  // namespace eliza::llama
