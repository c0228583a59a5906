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
      drafts_(drafts),
      context_size_(static_cast<size_t>(engine_->context_size())) {
  open_session();
}

LitertSession::~LitertSession() { close_session(); }

void LitertSession::check_cancelled() const {
  if (cancelled_.load()) {
    throw Error(ELIZA_ERR_CANCELLED, "the stream was cancelled; reset it to go on");
  }
}

// Whether a restart must draw what the first start drew. The runtime's random state goes with its
// session.
bool LitertSession::must_repeat() const {
  return sampling_.temperature > 0 && sampling_.top_k != 1 && sampling_.seed.has_value();
}

void LitertSession::open_session() {
  if (session_ != nullptr) return;
  const auto exclusive = engine_->exclusive();
  const auto config = owned(runtime_.session_config_create(), runtime_.session_config_delete);
  const auto sampler =
      owned(runtime_.sampler_params_create(top_p_sampler), runtime_.sampler_params_delete);
  if (!config || !sampler) throw std::bad_alloc();
  const bool greedy = sampling_.temperature <= 0;
  const int32_t top_k = sampling_.top_k > 0 ? sampling_.top_k : tokenizer_->size();
  runtime_.sampler_params_set_top_k(sampler.get(), greedy ? 1 : top_k);
  runtime_.sampler_params_set_top_p(sampler.get(), greedy ? 1.0f : sampling_.top_p);
  runtime_.sampler_params_set_temperature(sampler.get(), greedy ? 1.0f : sampling_.temperature);
  runtime_.sampler_params_set_seed(sampler.get(), seed_);
  runtime_.session_config_set_max_output_tokens(config.get(), 1 + drafts_);
  runtime_.session_config_set_apply_prompt_template(config.get(), false);
  runtime_.session_config_set_sampler_params(config.get(), sampler.get());
  if (drafts_ > 0) runtime_.session_config_set_enable_speculative_decoding(config.get(), true);
  session_ = runtime_.engine_create_session(engine_->get(), config.get());
  if (session_ == nullptr) {
    throw Error(ELIZA_ERR_FFI_FAULT,
                "LiteRT-LM: a session cannot be made: " + runtime_.last_error());
  }
}

void LitertSession::close_session() {
  if (session_ != nullptr) {
    const auto exclusive = engine_->exclusive();
    runtime_.session_delete(session_);
  }
  session_ = nullptr;
  remembered_.clear();
  cached_ = 0;
  position_ = 0;
  decoded_ = false;
}

int LitertSession::prefill(const int32_t* token_ids, size_t num_tokens, char**) {
  require(token_ids, "token_ids");
  require_size(num_tokens, "num_tokens");
  check_cancelled();
  tokenizer_->check_token_ids(token_ids, num_tokens);
  if (num_tokens > context_size_ - sequence_.size()) {
    throw Error(ELIZA_ERR_INVALID_ARG,
                std::to_string(num_tokens) + " tokens do not fit the context: " +
                    std::to_string(sequence_.size()) + " of " + std::to_string(context_size_) +
                    " positions are taken; reset the stream or shorten the prompt");
  }
  if (ended_) {
    ended_ = false;
    generated_ = 0;
  }
  release(held_.size());
  const size_t before = sequence_.size();
  sequence_.insert(sequence_.end(), token_ids, token_ids + num_tokens);
  try {
    catch_up();
  } catch (const Error& problem) {
    if (problem.code() == ELIZA_ERR_INVALID_ARG) sequence_.resize(before);
    throw;
  }
  return ELIZA_OK;
}

// Makes the runtime hold the first `count` tokens and nothing behind them.
void LitertSession::cut_cache(size_t count) {
  if (!engine_->has_exact_ids() || count == 0 ||
      runtime_.session_rewind_to_step(session_, static_cast<int>(count)) != 0) {
    close_session();
    return;
  }
  cached_ = count;
  position_ = count;
}

// Makes the runtime read what of the sequence it has not read.
void LitertSession::catch_up() {
  // The last position takes no more than a drawn token.
  const size_t readable = std::min(sequence_.size(), context_size_ - 1);
  const size_t shared = shared_beginning(remembered_, sequence_);
  if (shared < cached_) cut_cache(shared);
  // The runtime skips what it remembers. A prefill that goes on behind the end of that would be
  // read at wrong positions.
  const size_t known = std::min(shared, remembered_.size());
  const auto part = static_cast<size_t>(engine_->prefill_length());
  while (cached_ < readable) {
    check_cancelled();
    const size_t end = cached_ < known ? std::min(known, readable) : readable;
    feed(std::min(part, end - cached_));
  }
}

// Prefills the next `count` tokens of the sequence.
void LitertSession::feed(size_t count) {
  open_session();
  const size_t begin = cached_;
  size_t position = position_ + count;
  const auto texts = engine_->has_exact_ids() ? exact_inputs(begin, begin + count)
                                              : stock_inputs(begin, begin + count, position);
  if (position >= context_size_) {
    throw Error(ELIZA_ERR_INVALID_ARG, "the prompt does not fit the context: as text it takes " +
                                           std::to_string(position) + " of " +
                                           std::to_string(context_size_) +
                                           " positions; reset the stream or shorten the prompt");
  }
  std::vector<std::unique_ptr<InputData, decltype(Runtime::input_data_delete)>> inputs;
  std::vector<const InputData*> pointers;
  for (const auto& text : texts) {
    inputs.push_back(owned(runtime_.input_data_create(text_input, text.data(), text.size()),
                           runtime_.input_data_delete));
    if (!inputs.back()) throw std::bad_alloc();
    pointers.push_back(inputs.back().get());
  }
  int status = 0;
  std::string reason;
  if (!pointers.empty()) {
    const auto exclusive = engine_->exclusive();
    status = runtime_.session_run_prefill(session_, pointers.data(), pointers.size());
    if (status != 0) reason = runtime_.last_error();
  }
  if (status != 0) {
    close_session();  // it would answer with nothing from now on
    throw Error(ELIZA_ERR_FFI_FAULT, "LiteRT-LM: a prefill failed: " + reason);
  }
  const auto at = sequence_.begin() + static_cast<std::ptrdiff_t>(begin);
  holds({at, at + static_cast<std::ptrdiff_t>(count)});
  position_ = position;
  decoded_ = false;
}

// The runtime holds these tokens too. What it reads otherwise than it remembered, it remembers no
// longer.
void LitertSession::holds(const Ids& tokens) {
  const auto at = remembered_.begin() + static_cast<std::ptrdiff_t>(cached_);
  const auto differs = std::mismatch(tokens.begin(), tokens.end(), at, remembered_.end()).first;
  if (differs != tokens.end()) {
    remembered_.resize(cached_);
    remembered_.insert(remembered_.end(), tokens.begin(), tokens.end());
  }
  cached_ += tokens.size();
}

// The texts that make the runtime read the tokens [begin, end) of the sequence.
std::vector<std::string> LitertSession::exact_inputs(size_t begin, size_t end) const {
  std::vector<std::string> texts(1);
  for (size_t i = begin; i < end; ++i) {
    // Some tokenizers read a run of their unknown token, which is 0, as one; inputs part it.
    if (i > begin && sequence_[i] == 0 && sequence_[i - 1] == 0) texts.emplace_back();
    texts.back() += '<' + std::to_string(sequence_[i]) + '>';
  }
  return texts;
}

// The same for a stock file; `position` becomes the runtime's behind them.
std::vector<std::string> LitertSession::stock_inputs(size_t begin, size_t end,
                                                     size_t& position) const {
  std::vector<std::string> texts;
  position = position_;
  // The engine itself puts the start token in front.
  if (position == 0) {
    if (const auto start = engine_->start_token()) {
      ++position;
      if (sequence_[begin] == *start) ++begin;
      if (begin == end) {
        throw Error(ELIZA_ERR_INVALID_ARG,
                    "LiteRT-LM cannot begin with the start token alone; prefill more tokens");
      }
    }
  }
  // One input for each token, which the runtime tokenizes on its own; tokens that are parts of a
  // character go together.
  while (begin < end) {
    size_t next = begin + 1;
    const size_t most = std::min(end, begin + longest_character);
    std::string text = text_of(begin, next);
    while (!is_whole(text) && next < most) text = text_of(begin, ++next);
    if (!is_whole(text)) text = to_valid_utf8(text_of(begin, next = begin + 1));
    if (!text.empty()) {
      position += engine_->tokenize(text).size();
      texts.push_back(text);
    }
    begin = next;
  }
  if (texts.empty()) {
    throw Error(ELIZA_ERR_INVALID_ARG, "LiteRT-LM cannot read tokens that have no text");
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
  // The drafter's counts stay 0: the runtime does not tell how many tokens it drafted.
  prepare_next(tokens_out, tokens_cap, num_tokens_out, text_out, text_cap, drafter_drafted_out,
               drafter_accepted_out);
  check_cancelled();
  if (outbox_.is_empty() && !ended_) step();
  *num_tokens_out = outbox_.take(tokens_out, tokens_cap, text_out, text_cap);
  return ended_ && outbox_.is_empty() ? 1 : 0;
}

void LitertSession::step() {
  if (sequence_.empty()) {
    throw Error(ELIZA_ERR_INVALID_ARG, "nothing was prefilled; prefill a prompt first");
  }
  if (std::max(sequence_.size(), position_) >= context_size_) return end_generation();
  catch_up();
  const std::string text = decode();
  const bool exact = engine_->has_exact_ids();
  const Ids ids = ids_of(text);
  if (ids.empty()) {
    // A stop token of the file, which the runtime now holds and does not tell.
    close_session();
    return end_generation();
  }
  remembered_.resize(cached_);
  holds(ids);
  position_ += exact ? ids.size() : 1;
  for (size_t i = 0; i < ids.size(); ++i) {
    const std::string piece = exact ? tokenizer_->piece(ids[i]) : i == 0 ? text : "";
    const bool goes_on = accept(ids[i], piece);
    if (goes_on && generated_ != sampling_.max_tokens && sequence_.size() < context_size_) {
      continue;
    }
    release(held_.size());
    return end_generation();
  }
}

// Runs one decode; returns its text, which is empty at a stop of the file.
std::string LitertSession::decode() {
  // Interrupts a decode only while it runs.
  struct Running {
    Running(LitertSession& stream) : stream_(stream) {
      const std::lock_guard<std::mutex> lock(stream_.cancel_mutex_);
      stream_.check_cancelled();
      stream_.decoding_ = stream_.session_;
    }
    ~Running() {
      const std::lock_guard<std::mutex> lock(stream_.cancel_mutex_);
      stream_.decoding_ = nullptr;
    }
    LitertSession& stream_;
  };
  std::string text;
  std::string problem;
  {
    const auto exclusive = engine_->exclusive();
    const Running running(*this);
    // A second decode wants the position to be set anew.
    const bool ready =
        !decoded_ || runtime_.session_rewind_to_step(session_, static_cast<int>(position_)) == 0;
    const auto responses =
        owned(ready ? runtime_.session_run_decode(session_) : nullptr, runtime_.responses_delete);
    if (!responses) {
      problem = runtime_.last_error();
    } else if (runtime_.responses_get_num_candidates(responses.get()) > 0) {
      const char* answer = runtime_.responses_get_response_text_at(responses.get(), 0);
      text = answer != nullptr ? answer : "";
    }
    decoded_ = true;
  }
  if (cancelled_.load() || !problem.empty()) close_session();
  check_cancelled();
  if (!problem.empty()) {
    throw Error(ELIZA_ERR_FFI_FAULT, "LiteRT-LM: a step failed: " + problem);
  }
  return text;
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
  const std::lock_guard<std::mutex> lock(cancel_mutex_);
  cancelled_.store(true);
  if (decoding_ != nullptr) runtime_.session_cancel_process(decoding_);
  return ELIZA_OK;
}

int LitertSession::reset() {
  reset_keep(0);
  return ELIZA_OK;
}

int LitertSession::reset_keep(int32_t n_keep) {
  sequence_.resize(std::min(static_cast<size_t>(std::max(0, n_keep)), delivered()));
  if (must_repeat()) close_session();
  ended_ = false;
  generated_ = 0;
  held_.clear();
  held_texts_.clear();
  outbox_.clear();
  cancelled_.store(false);
  return static_cast<int>(sequence_.size());
}

}  // namespace eliza::litert
