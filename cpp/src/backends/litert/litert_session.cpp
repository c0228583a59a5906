#include "backends/litert/litert_session.h"

#include <algorithm>
#include <charconv>
#include <random>

#include "support/error.h"
#include "support/utf8.h"

namespace eliza::litert {
namespace {

// How many tokens of `generated` are at their end the beginning of, or all of, one of `sequences`.
struct StopMatch {
  size_t complete = 0;
  size_t begun = 0;
};

StopMatch match_stops(const std::vector<int32_t>& generated,
                      const std::vector<std::vector<int32_t>>& sequences) {
  StopMatch match;
  for (const auto& sequence : sequences) {
    const size_t most = std::min(generated.size(), sequence.size());
    for (size_t length = most; length > 0; --length) {
      if (!std::equal(sequence.begin(), sequence.begin() + static_cast<std::ptrdiff_t>(length),
                      generated.end() - static_cast<std::ptrdiff_t>(length))) {
        continue;
      }
      size_t& found = length == sequence.size() ? match.complete : match.begun;
      found = std::max(found, length);
      break;
    }
  }
  return match;
}

int32_t seed_of(const Sampling& sampling) {
  return static_cast<int32_t>(sampling.seed ? *sampling.seed : std::random_device()());
}

[[noreturn]] void fail(const std::string& what, const Runtime& runtime) {
  throw Error(ELIZA_ERR_FFI_FAULT, "LiteRT-LM: " + what + ": " + runtime.last_error());
}

// Tokens that one character can be split over, with room for a blank before it.
constexpr size_t longest_character = 5;

// Whether a text is UTF-8 and no part of a character is missing.
bool is_whole(const std::string& text) {
  return to_valid_utf8(text) == text && text.find("\uFFFD") == std::string::npos;
}

size_t shared_beginning(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first -
                             a.begin());
}

}  // namespace

LitertSession::LitertSession(std::shared_ptr<const LoadedEngine> engine,
                             std::shared_ptr<const Tokenizer> tokenizer, const Sampling& sampling,
                             int32_t drafts)
    : engine_(std::move(engine)),
      runtime_(engine_->runtime()),
      tokenizer_(std::move(tokenizer)),
      sampling_(sampling),
      seed_(seed_of(sampling)),
      drafts_(drafts) {
  runtime_session();
}

LitertSession::~LitertSession() { close_session(); }

void LitertSession::check_cancelled() const {
  if (cancelled_.load()) {
    throw Error(ELIZA_ERR_CANCELLED, "the stream was cancelled; reset it to go on");
  }
}

// Whether a restart must draw what the first start drew. The runtime's random state goes with its
// session.
bool LitertSession::repeats() const {
  return sampling_.temperature > 0 && sampling_.top_k != 1 && sampling_.seed.has_value();
}

Session* LitertSession::runtime_session() {
  if (session_ != nullptr) return session_;
  const std::unique_ptr<SessionConfig, decltype(Runtime::session_config_delete)> config(
      runtime_.session_config_create(), runtime_.session_config_delete);
  const std::unique_ptr<SamplerParams, decltype(Runtime::sampler_params_delete)> sampler(
      runtime_.sampler_params_create(top_p_sampler), runtime_.sampler_params_delete);
  if (!config || !sampler) throw std::bad_alloc();
  const bool greedy = sampling_.temperature <= 0;
  const int32_t all = tokenizer_->size();
  runtime_.sampler_params_set_top_k(sampler.get(), greedy                ? 1
                                                   : sampling_.top_k > 0 ? sampling_.top_k
                                                                         : all);
  runtime_.sampler_params_set_top_p(sampler.get(), greedy ? 1.0f : sampling_.top_p);
  runtime_.sampler_params_set_temperature(sampler.get(), greedy ? 1.0f : sampling_.temperature);
  runtime_.sampler_params_set_seed(sampler.get(), seed_);
  runtime_.session_config_set_max_output_tokens(config.get(), 1 + drafts_);
  runtime_.session_config_set_apply_prompt_template(config.get(), false);
  runtime_.session_config_set_sampler_params(config.get(), sampler.get());
  if (drafts_ > 0) runtime_.session_config_set_enable_speculative_decoding(config.get(), true);
  session_ = runtime_.engine_create_session(engine_->get(), config.get());
  if (session_ == nullptr) fail("a session cannot be made", runtime_);
  return session_;
}

void LitertSession::close_session() {
  if (session_ != nullptr) runtime_.session_delete(session_);
  session_ = nullptr;
  cached_.clear();
  steps_.clear();
  position_ = 0;
  whole_parts_ = 0;
  decoded_ = false;
}

int LitertSession::prefill(const int32_t* token_ids, size_t num_tokens, char**) {
  require(token_ids, "token_ids");
  require_size(num_tokens, "num_tokens");
  check_cancelled();
  tokenizer_->check_token_ids(token_ids, num_tokens);
  const auto context_size = static_cast<size_t>(engine_->context_size());
  if (num_tokens > context_size - std::min(context_size, sequence_.size())) {
    throw Error(ELIZA_ERR_INVALID_ARG,
                std::to_string(num_tokens) + " tokens do not fit the context: " +
                    std::to_string(sequence_.size()) + " of " + std::to_string(context_size) +
                    " positions are taken; reset the stream or shorten the prompt");
  }
  if (ended_) {
    ended_ = false;
    generated_ = 0;
  }
  release(held_.size());
  sequence_.insert(sequence_.end(), token_ids, token_ids + num_tokens);
  // A prompt that comes in parts is as good as whole: the end of the part before is read again.
  if (!generating_) restarted_ = true;
  catch_up();
  return ELIZA_OK;
}

// Makes the runtime hold the first `count` tokens of cached_, or fewer where it cannot hold them
// exactly, and nothing behind them.
void LitertSession::keep_of_cache(size_t count) {
  while (count > 0 && steps_[count - 1] < 0) --count;
  if (count == 0) {
    if (position_ > 0) close_session();
    return;
  }
  const int step = steps_[count - 1];
  if (step != position_) {
    if (runtime_.session_rewind_to_step(runtime_session(), step) != 0) {
      close_session();
      return;
    }
    position_ = step;
  }
  cached_.resize(count);
  steps_.resize(count);
  whole_parts_ = std::min(whole_parts_, count);
}

// Makes the runtime read what of the sequence it has not read.
void LitertSession::catch_up() {
  // The last position takes no more than a drawn token.
  const size_t readable =
      std::min(sequence_.size(), static_cast<size_t>(engine_->context_size()) - 1);
  size_t shared = shared_beginning(cached_, sequence_);
  // What was read in other parts may differ in its last bits from what a fresh stream would read.
  if (restarted_) shared = std::min(shared, whole_parts_);
  if (shared < cached_.size() || (shared > 0 && steps_[shared - 1] != position_)) {
    keep_of_cache(shared);
  }
  restarted_ = false;
  const auto part = static_cast<size_t>(engine_->prefill_length());
  while (cached_.size() < readable) {
    check_cancelled();
    const size_t begin = cached_.size();
    feed(std::min(part - begin % part, readable - begin));
    if (whole_parts_ == begin && cached_.size() % part == 0) whole_parts_ = cached_.size();
  }
}

// Prefills the next `count` tokens of the sequence.
void LitertSession::feed(size_t count) {
  std::vector<int> steps;
  const auto texts = inputs_for(count, steps);
  std::vector<std::unique_ptr<InputData, decltype(Runtime::input_data_delete)>> inputs;
  std::vector<const InputData*> pointers;
  for (const auto& text : texts) {
    inputs.emplace_back(runtime_.input_data_create(text_input, text.data(), text.size()),
                        runtime_.input_data_delete);
    if (!inputs.back()) throw std::bad_alloc();
    pointers.push_back(inputs.back().get());
  }
  if (!pointers.empty() &&
      runtime_.session_run_prefill(runtime_session(), pointers.data(), pointers.size()) != 0) {
    const std::string reason = runtime_.last_error();
    close_session();  // it would answer with nothing from now on
    throw Error(ELIZA_ERR_FFI_FAULT, "LiteRT-LM: a prefill failed: " + reason);
  }
  const auto begin = sequence_.begin() + static_cast<std::ptrdiff_t>(cached_.size());
  cached_.insert(cached_.end(), begin, begin + static_cast<std::ptrdiff_t>(count));
  steps_.insert(steps_.end(), steps.begin(), steps.end());
  if (!steps.empty()) position_ = steps.back();
  decoded_ = false;
}

// The texts that make the runtime read the next `count` tokens, and its position behind each token.
std::vector<std::string> LitertSession::inputs_for(size_t count, std::vector<int>& steps) const {
  std::vector<std::string> texts;
  const size_t first = cached_.size();
  int position = position_;
  if (engine_->has_exact_ids()) {
    for (size_t i = first; i < first + count; ++i) {
      // Some tokenizers read a run of their unknown token, which is 0, as one; inputs part it.
      const bool parted = i > first && sequence_[i] == 0 && sequence_[i - 1] == 0;
      if (i == first || parted) texts.emplace_back();
      texts.back() += '<' + std::to_string(sequence_[i]) + '>';
      steps.push_back(++position);
    }
    return texts;
  }
  // The engine itself puts the start tokens in front.
  size_t skipped = 0;
  if (position == 0) {
    const auto& start = engine_->start_tokens();
    position = static_cast<int>(start.size());
    while (skipped < start.size() && skipped < count && sequence_[skipped] == start[skipped]) {
      steps.push_back(static_cast<int>(++skipped));
    }
  }
  // One input for each token, which the runtime tokenizes on its own; tokens that are parts of a
  // character go together.
  for (size_t begin = first + skipped; begin < first + count;) {
    size_t end = begin + 1;
    const size_t most = std::min(first + count, begin + longest_character);
    std::string text = text_of(begin, end);
    while (!is_whole(text) && end < most) text = text_of(begin, ++end);
    if (!is_whole(text)) text = to_valid_utf8(text_of(begin, end = begin + 1));
    if (!text.empty()) {
      position += static_cast<int>(engine_->tokenize(text).size());
      texts.push_back(text);
    }
    steps.insert(steps.end(), end - begin - 1, -1);
    steps.push_back(position);
    begin = end;
  }
  return texts;
}

// What the tokens [begin, end) of the sequence are in a text.
std::string LitertSession::text_of(size_t begin, size_t end) const {
  std::string pieces;
  for (size_t i = begin; i < end; ++i) pieces += tokenizer_->piece(sequence_[i]);
  if (is_whole(pieces)) return pieces;
  // The runtime has no piece for a part of a character, but the text of all parts.
  const auto at = [&](size_t i) { return sequence_.begin() + static_cast<std::ptrdiff_t>(i); };
  return tokenizer_->detokenize({at(begin), at(end)}, false, false);
}

int LitertSession::next(int32_t* tokens_out, size_t tokens_cap, size_t* num_tokens_out,
                        char* text_out, size_t text_cap, int32_t* drafter_drafted_out,
                        int32_t* drafter_accepted_out, char**) {
  require(tokens_out, "tokens_out");
  require_size(tokens_cap, "tokens_cap");
  require(num_tokens_out, "num_tokens_out");
  require(text_out, "text_out");
  require_size(text_cap, "text_cap");
  *num_tokens_out = 0;
  *text_out = '\0';
  // The runtime does not tell how many tokens it drafted.
  if (drafter_drafted_out != nullptr) *drafter_drafted_out = 0;
  if (drafter_accepted_out != nullptr) *drafter_accepted_out = 0;
  check_cancelled();
  if (outbox_.is_empty() && !ended_) step();
  *num_tokens_out = outbox_.take(tokens_out, tokens_cap, text_out, text_cap);
  return ended_ && outbox_.is_empty() ? 1 : 0;
}

void LitertSession::step() {
  if (sequence_.empty()) {
    throw Error(ELIZA_ERR_INVALID_ARG, "nothing was prefilled; prefill a prompt first");
  }
  const auto context_size = static_cast<size_t>(engine_->context_size());
  if (sequence_.size() >= context_size) return end_generation();
  catch_up();
  const std::string text = decode();
  generating_ = true;
  const Ids ids = ids_of(text);
  if (ids.empty()) return end_generation();
  const int before = position_;
  position_ += engine_->has_exact_ids() ? static_cast<int>(ids.size()) : 1;
  for (size_t i = 0; i < ids.size(); ++i) {
    cached_.push_back(ids[i]);
    const bool last = i + 1 == ids.size();
    steps_.push_back(engine_->has_exact_ids() ? before + static_cast<int>(i) + 1
                     : last                   ? position_
                                              : -1);
    const bool goes_on = accept(ids[i], engine_->has_exact_ids() ? tokenizer_->piece(ids[i])
                                        : i == 0                 ? text
                                                                 : "");
    if (goes_on && generated_ != sampling_.max_tokens && sequence_.size() < context_size) continue;
    release(held_.size());
    return end_generation();
  }
}

// Runs one decode; returns its text, which is empty at a stop of the file.
std::string LitertSession::decode() {
  // A second decode wants the position to be set anew.
  if (decoded_ && runtime_.session_rewind_to_step(session_, position_) != 0) {
    const std::string reason = runtime_.last_error();
    close_session();
    throw Error(ELIZA_ERR_FFI_FAULT, "LiteRT-LM: a step failed: " + reason);
  }
  {
    const std::lock_guard<std::mutex> lock(decoding_mutex_);
    decoding_ = session_;
  }
  check_cancelled();
  const std::unique_ptr<Responses, decltype(Runtime::responses_delete)> responses(
      runtime_.session_run_decode(session_), runtime_.responses_delete);
  {
    const std::lock_guard<std::mutex> lock(decoding_mutex_);
    decoding_ = nullptr;
  }
  decoded_ = true;
  std::string reason;
  if (!responses) reason = runtime_.last_error();
  if (cancelled_.load() || !responses) close_session();
  check_cancelled();
  if (!responses) throw Error(ELIZA_ERR_FFI_FAULT, "LiteRT-LM: a step failed: " + reason);
  if (runtime_.responses_get_num_candidates(responses.get()) < 1) return "";
  const char* text = runtime_.responses_get_response_text_at(responses.get(), 0);
  return text != nullptr ? text : "";
}

// The tokens of a decode's text.
LitertSession::Ids LitertSession::ids_of(const std::string& text) const {
  if (!engine_->has_exact_ids()) {
    return text.empty() ? Ids() : tokenizer_->tokenize(text, false, false);
  }
  Ids ids;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at < end) {
    int32_t id = -1;
    const auto [behind, problem] = std::from_chars(at + 1, end, id);
    if (*at != '<' || problem != std::errc() || behind == end || *behind != '>') {
      throw Error(ELIZA_ERR_FFI_FAULT,
                  "LiteRT-LM: a step answered " + quoted(text) + ", which is no token id");
    }
    ids.push_back(id);
    at = behind + 1;
  }
  tokenizer_->check_token_ids(ids.data(), ids.size());
  return ids;
}

// Takes up a drawn token; false where it ends the generation.
bool LitertSession::accept(int32_t token, const std::string& text) {
  if (engine_->has_exact_ids() && tokenizer_->ends_generation(token)) return false;
  ++generated_;
  sequence_.push_back(token);
  held_.push_back(token);
  held_texts_.push_back(text);
  const auto match = match_stops(held_, tokenizer_->stop_sequences());
  if (match.complete > 0) {
    sequence_.resize(sequence_.size() - match.complete);
    held_.resize(held_.size() - match.complete);
    held_texts_.resize(held_.size());
    return false;
  }
  release(held_.size() - match.begun);
  return true;
}

// Lets the first `count` of the held tokens out.
void LitertSession::release(size_t count) {
  for (size_t i = 0; i < count; ++i) outbox_.push(held_[i], held_texts_[i]);
  held_.erase(held_.begin(), held_.begin() + static_cast<std::ptrdiff_t>(count));
  held_texts_.erase(held_texts_.begin(), held_texts_.begin() + static_cast<std::ptrdiff_t>(count));
}

void LitertSession::end_generation() {
  ended_ = true;
  outbox_.finish();
}

size_t LitertSession::delivered() const {
  return sequence_.size() - held_.size() - outbox_.tokens();
}

int LitertSession::cancel() {
  cancelled_.store(true);
  const std::lock_guard<std::mutex> lock(decoding_mutex_);
  if (decoding_ != nullptr) runtime_.session_cancel_process(decoding_);
  return ELIZA_OK;
}

int LitertSession::reset() {
  reset_keep(0);
  return ELIZA_OK;
}

int LitertSession::reset_keep(int32_t n_keep) {
  sequence_.resize(std::min(static_cast<size_t>(std::max(0, n_keep)), delivered()));
  if (repeats()) close_session();
  restarted_ = true;
  generating_ = false;
  ended_ = false;
  generated_ = 0;
  held_.clear();
  held_texts_.clear();
  outbox_.clear();
  cancelled_.store(false);
  return static_cast<int>(sequence_.size());
}

}  // namespace eliza::litert
