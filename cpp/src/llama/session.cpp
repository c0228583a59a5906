#include "llama/session.h"

#include <algorithm>
#include <chrono>

#include "llama/runtime.h"
#include "llama/slot_file.h"

namespace eliza::llama {
namespace {

SamplingSettings sampling_settings(const Model& model, const StreamSettings& settings) {
  SamplingSettings sampling;
  sampling.temperature = settings.sampling.temperature;
  sampling.top_k = settings.sampling.top_k;
  sampling.top_p = settings.sampling.top_p;
  sampling.repeat_penalty = settings.sampling.repeat_penalty;
  sampling.seed = settings.sampling.seed;
  sampling.banned_tokens = model.vocabulary().suppressed_tokens();
  if (settings.disable_thinking) {
    const auto& thinking = model.vocabulary().thinking_tokens();
    sampling.banned_tokens.insert(sampling.banned_tokens.end(), thinking.begin(), thinking.end());
  }
  return sampling;
}

std::unique_ptr<Grammar> make_grammar(const std::shared_ptr<const Model>& model,
                                      const StreamSettings& settings) {
  if (!settings.grammar) return nullptr;
  return std::make_unique<Grammar>(model, *settings.grammar);
}

Decoder::Shape decoder_shape(const StreamSettings& settings) {
  Decoder::Shape shape;
  shape.context_size = settings.context_size;
  shape.batch_size = settings.batch_size;
  shape.threads = settings.threads;
  shape.outputs = 1;
  shape.cache_type_k = settings.cache_type_k;
  shape.cache_type_v = settings.cache_type_v;
  shape.flash_attention = settings.flash_attention;
  return shape;
}

std::unique_ptr<Decoder> take_decoder(const std::shared_ptr<DecoderPool>& pool,
                                      const std::shared_ptr<const Model>& model,
                                      const Decoder::Shape& shape, const std::string& key) {
  return pool ? pool->take(model, shape, key) : std::make_unique<Decoder>(model, shape);
}

class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace

Session::Session(const StreamResources& resources, const StreamSettings& settings)
    : model_(resources.model),
      verifier_(resources.verifier),
      pool_(resources.pool),
      settings_(settings),
      running_(settings.threads),
      sampler_(sampling_settings(*model_, settings), make_grammar(model_, settings)) {
  const auto pool = pool_.lock();
  if (pool) pool_epoch_ = pool->epoch();
  const bool drafts = settings.draft_max > 0;
  auto shape = decoder_shape(settings);
  shape.outputs = drafts ? static_cast<int32_t>(Decoder::many_rows) : 1;
  decoder_ = take_decoder(pool, model_, shape, settings.cache_key);
  decoder_->attach(&running_);
  if (drafts) set_up_drafter(resources.drafter, pool);
  restarted_ = true;
  sequence_.reserve(decoder_->context_size());
}

void Session::set_up_drafter(const std::shared_ptr<const Model>& model,
                             const std::shared_ptr<DecoderPool>& pool) {
  const size_t most = most_drafts();
  if (most == 0) {
    if (!model) return;
    throw Error(
        ELIZA_ERR_INVALID_ARG,
        "mtp_drafter_path: drafting would change the text or gain nothing, because this "
        "model's kernels or cache do not give tokens in a batch the results of single ones, "
        "or ELIZA_LLM_N_BATCH is 1; set no drafter");
  }
  if (!model) {
    if (model_->has_mtp_head()) set_up_own_head(most);
    if (!drafter_) drafter_ = make_ngram_drafter();
  } else if (model->is_draft_head() || model->has_mtp_head()) {
    check_head_fits(*model_, *model);
    set_up_head(model, most);
  } else {
    check_same_vocabulary(*model_, *model);
    draft_decoder_ = take_decoder(pool, model, decoder_shape(settings_), "");
    draft_decoder_->attach(&running_);
    drafter_ = make_model_drafter(*decoder_, *draft_decoder_, most);
  }
  budget_ = DraftBudget(drafter_->cost_of_one());
}

void Session::set_up_head(const std::shared_ptr<const Model>& model, size_t most) {
  auto shape = decoder_shape(settings_);
  if (model->architecture() == "dflash") shape.outputs = static_cast<int32_t>(most + 1);
  head_decoder_ = std::make_unique<Decoder>(model, shape, decoder_.get());
  head_decoder_->attach(&running_);
  drafter_ = make_head_drafter(*decoder_, *head_decoder_, most);
}

// A head that llama.cpp cannot run is as good as none: nobody has asked for it.
void Session::set_up_own_head(size_t most) {
  try {
    set_up_head(model_, most);
  } catch (const Error&) {
    head_decoder_.reset();
  }
}

Session::~Session() {
  // Before the decoders they use.
  drafter_.reset();
  head_decoder_.reset();
  const auto pool = pool_.lock();
  if (!pool || damaged_) return;
  const DecoderPool::Limits limits{settings_.cache_slots, settings_.cache_bytes, pool_epoch_};
  if (draft_decoder_) pool->give_back(std::move(draft_decoder_), "", limits);
  pool->give_back(std::move(decoder_), settings_.cache_key, limits);
}

void Session::check_cancelled() const {
  if (running_.is_cancelled()) {
    throw Error(ELIZA_ERR_CANCELLED, "the stream was cancelled; reset it to go on");
  }
}

void Session::prefill(const int32_t* tokens, size_t count) {
  check_cancelled();
  model_->vocabulary().check_token_ids(tokens, count);
  const size_t context_size = decoder_->context_size();
  if (count > context_size - sequence_.size()) {
    throw Error(ELIZA_ERR_INVALID_ARG,
                std::to_string(count) + " tokens do not fit the context: " +
                    std::to_string(sequence_.size()) + " of " + std::to_string(context_size) +
                    " positions are taken; reset the stream, shorten the prompt or raise "
                    "ELIZA_LLM_N_CTX");
  }
  if (ended_) {
    ended_ = false;
    generated_ = 0;
    sampler_.restart_grammar();
  }
  sequence_.insert(sequence_.end(), tokens, tokens + count);
  // A prompt that comes in parts is as good as whole: the end of the part before is decoded again
  // with this one. As long as the cache holds all of them, cutting it waits.
  if (!generating_) restarted_ = true;
  if (restarted_ && decoder_->holds(sequence_)) return;
  decode_waiting();
}

Session::Delivery Session::next(int32_t* tokens, size_t token_capacity, char* text,
                                size_t text_capacity) {
  check_cancelled();
  Delivery delivery;
  if (outbox_.is_empty() && !ended_) {
    const auto verdict = step();
    delivery.drafted = verdict.drafted;
    delivery.accepted = verdict.accepted;
  }
  delivery.tokens = outbox_.take(tokens, token_capacity, text, text_capacity);
  delivery.final = ended_ && outbox_.is_empty();
  return delivery;
}

Session::Verdict Session::step() {
  if (sequence_.empty()) {
    throw Error(ELIZA_ERR_INVALID_ARG, "nothing was prefilled; prefill a prompt first");
  }
  if (sequence_.size() >= decoder_->context_size()) {
    end_generation();
    return {};
  }
  const Stopwatch watch;
  double drafting_seconds = 0;
  const bool one_waits = !restarted_ && decoder_->tokens().size() + 1 == sequence_.size();
  if (one_waits && drafter_) {
    const size_t most = affordable_drafts();
    std::vector<int32_t> drafts;
    if (most > 0) decoding([&] { drafts = drafter_->draft(sequence_, most); });
    // The end of the generation is no token to deliver, and nothing comes behind it.
    const auto ends = [&](int32_t token) { return model_->vocabulary().ends_generation(token); };
    drafts.erase(std::find_if(drafts.begin(), drafts.end(), ends), drafts.end());
    check_cancelled();
    drafting_seconds = watch.seconds();
    if (!drafts.empty() && drafts.size() >= static_cast<size_t>(settings_.draft_min)) {
      const size_t before = sequence_.size();
      const auto verdict = step_with(drafts);
      budget_.draft_step(verdict.drafted, sequence_.size() - before, watch.seconds());
      return verdict;
    }
  }
  decode_waiting();
  draw(decoder_->last_logits());
  if (one_waits) budget_.plain_step(watch.seconds() - drafting_seconds, drafting_seconds);
  return {};
}

// As many as the config and the kernels allow.
size_t Session::most_drafts() const {
  return std::min(static_cast<size_t>(settings_.draft_max), decoder_->drafting_rows() - 1);
}

// As many as the context, max_tokens and the budget allow too: a draft that could not be delivered
// is not made.
size_t Session::affordable_drafts() const {
  size_t most = std::min(most_drafts(), decoder_->context_size() - sequence_.size() - 1);
  if (settings_.sampling.max_tokens > 0) {
    most = std::min(most, static_cast<size_t>(settings_.sampling.max_tokens - generated_ - 1));
  }
  return settings_.always_draft ? most : budget_.affordable(most, drafter_->lag(sequence_));
}

// Verifies drafts: decodes them behind the last token in one batch and draws from each row what
// would have been drawn without them, as long as it is what was drafted.
Session::Verdict Session::step_with(const std::vector<int32_t>& drafts) {
  std::vector<int32_t> rows = drafts;
  rows.insert(rows.begin(), sequence_.back());
  const size_t begin = decoder_->tokens().size();
  decoding([&] {
    decoder_->decode_rows(rows);
    drafter_->follow(decoder_->tokens(), begin, /*prompt=*/false);
  });
  const auto first_position = static_cast<size_t>(generated_);
  size_t accepted = 0;
  bool drawn = true;
  for (size_t row = 0; row < rows.size(); ++row) {
    try {
      drawn = draw(decoder_->row_logits(row));
    } catch (const Error&) {
      if (row > 0) break;  // what was drawn before is good; the next step meets the failure again
      decoder_->accept_rows(1);
      throw;
    }
    if (!drawn || row == drafts.size() || sequence_.back() != drafts[row]) break;
    ++accepted;
  }
  // The last token of the sequence waits to be decoded, unless nothing was drawn after it.
  decoder_->accept_rows(accepted + 1);
  drafter_->accept(accepted);
  report(drafts, accepted, first_position);
  return {drafts.size(), accepted};
}

void Session::report(const std::vector<int32_t>& drafts, size_t accepted,
                     size_t first_position) const {
  EliVerifierEvent event{};
  event.accepted_token_ids = drafts.data();
  event.n_accepted = accepted;
  event.rejected_from = event.rejected_to = -1;
  if (accepted < drafts.size()) {
    event.rejected_from = static_cast<int>(first_position + accepted);
    event.rejected_to = static_cast<int>(first_position + drafts.size() - 1);
    if (static_cast<size_t>(generated_) > first_position + accepted) {
      event.corrected_token_ids = &sequence_.back();
      event.n_corrected = 1;
    }
  }
  verifier_->report(event);
}

// Draws a token and appends it; false where it ends the generation instead.
bool Session::draw(const float* logits) {
  const int32_t token = guarded(ELIZA_ERR_FFI_FAULT, "sampling failed", [&](const LogCapture&) {
    return sampler_.draw(logits, model_->vocabulary().size(), sequence_);
  });
  generating_ = true;
  if (model_->vocabulary().ends_generation(token)) {
    end_generation();
    return false;
  }
  sequence_.push_back(token);
  outbox_.push(token, model_->vocabulary().piece(token));
  ++generated_;
  if (generated_ == settings_.sampling.max_tokens || sequence_.size() >= decoder_->context_size()) {
    end_generation();
  }
  return true;
}

void Session::end_generation() {
  ended_ = true;
  outbox_.finish();
}

// Keeps of the cache what the new sequence can use.
void Session::take_up() {
  if (!restarted_) return;
  decoder_->rewind(decoder_->reusable(sequence_));
  restarted_ = false;
}

void Session::decode_waiting() {
  const bool prompt = restarted_ || decoder_->tokens().size() + 1 < sequence_.size();
  take_up();
  // The logits of the last token are wanted too; and a step that failed may have left drafts behind
  // it.
  const size_t decoded = decoder_->tokens().size();
  if (decoded > sequence_.size() ||
      (decoded == sequence_.size() && decoder_->last_logits() == nullptr)) {
    decoder_->rewind(sequence_.size() - 1);
  }
  while (decoder_->tokens().size() < sequence_.size()) {
    check_cancelled();
    const size_t begin = decoder_->tokens().size();
    decoding([&] {
      decoder_->decode_some_of(sequence_);
      if (drafter_) drafter_->follow(decoder_->tokens(), begin, prompt);
    });
  }
}

// Runs `work`, which decodes. An interrupted decode fails as any other.
template <typename Work>
void Session::decoding(const Work& work) {
  try {
    work();
  } catch (const Error&) {
    check_cancelled();
    damaged_ = true;
    throw;
  }
}

// Tokens of the sequence that the caller knows.
size_t Session::delivered() const { return sequence_.size() - outbox_.tokens(); }

void Session::start_over() {
  generated_ = 0;
  ended_ = false;
  outbox_.clear();
  sampler_.reset();
  running_.cancelled().store(false);
}

void Session::reset() { reset_keep(0); }

size_t Session::reset_keep(size_t count) {
  sequence_.resize(std::min(count, delivered()));
  decoder_->rewind(sequence_.size());
  restarted_ = true;
  generating_ = false;
  start_over();
  return sequence_.size();
}

SlotIdentity Session::slot_identity() const {
  SlotIdentity identity;
  identity.model = model_->fingerprint();
  identity.vocabulary_size = static_cast<uint32_t>(model_->vocabulary().size());
  identity.context_size = static_cast<uint32_t>(decoder_->context_size());
  identity.cache_type_k = static_cast<uint32_t>(settings_.cache_type_k);
  identity.cache_type_v = static_cast<uint32_t>(settings_.cache_type_v);
  identity.flash_attention = decoder_->flash_attention();
  return identity;
}

void Session::save_slot(const std::string& filename) {
  take_up();
  // The rest is decoded again, as drafts are: in one batch that gives what single tokens give.
  decoder_->rewind(delivered());
  Slot slot;
  slot.sequence.assign(sequence_.begin(),
                       sequence_.begin() + static_cast<std::ptrdiff_t>(delivered()));
  slot.generating = generating_;
  slot.state = decoder_->save();
  write_slot(filename, slot_identity(), slot);
}

void Session::restore_slot(const std::string& filename) {
  check_cancelled();
  auto slot = read_slot(filename, slot_identity());
  model_->vocabulary().check_token_ids(slot.sequence.data(), slot.sequence.size());
  const auto before = decoder_->save();
  try {
    decoder_->restore(slot.state);
  } catch (const Error& reason) {
    decoder_->restore(before);
    throw Error(ELIZA_ERR_INVALID_ARG, "slot file " + quoted(filename) + ": " + reason.what());
  }
  sequence_ = std::move(slot.sequence);
  generating_ = slot.generating;
  restarted_ = false;
  start_over();
}

}  // namespace eliza::llama
