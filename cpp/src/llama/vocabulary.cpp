#include "llama/vocabulary.h"

#include <gguf.h>
#include <llama.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>

#include "llama/runtime.h"
#include "support/utf8.h"

namespace eliza::llama {
namespace {

// llama.cpp counts in 32 bits; the rest is room for what repairing and tokenizing add.
void check_length(size_t length, const char* of_what) {
  constexpr size_t longest = std::numeric_limits<int32_t>::max() / 4;
  if (length > longest) {
    throw Error(ELIZA_ERR_INVALID_ARG, std::string(of_what) + " of " + std::to_string(length) +
                                           " is too long; the most is " + std::to_string(longest));
  }
}

// Bytes that are not UTF-8 become U+FFFD; U+0000, which is, stays.
std::string repaired(std::string_view text) {
  std::string result;
  for (size_t begin = 0;; ++begin) {
    const size_t end = text.find('\0', begin);
    result += to_valid_utf8(text.substr(begin, end - begin));
    if (end == std::string_view::npos) return result;
    result += '\0';
    begin = end;
  }
}

constexpr char stop_sequences_key[] = "eliza.stop_sequences";

// Of the GGUF at `path`, which llama.cpp has loaded before. llama.cpp does not hand out arrays.
std::vector<std::vector<int32_t>> read_stop_sequences(const std::string& path) {
  const std::unique_ptr<gguf_context, decltype(&gguf_free)> file(
      gguf_init_from_file(path.c_str(), {/*no_alloc=*/true, /*ctx=*/nullptr}), gguf_free);
  const int64_t key = file ? gguf_find_key(file.get(), stop_sequences_key) : -1;
  if (key < 0) return {};
  if (gguf_get_kv_type(file.get(), key) != GGUF_TYPE_ARRAY ||
      gguf_get_arr_type(file.get(), key) != GGUF_TYPE_INT32) {
    throw Error(ELIZA_ERR_BUNDLE_INVALID,
                std::string(stop_sequences_key) + " is not an array of int32");
  }
  const auto* ids = static_cast<const int32_t*>(gguf_get_arr_data(file.get(), key));
  std::vector<std::vector<int32_t>> sequences;
  std::vector<int32_t> sequence;
  for (size_t i = 0; i < gguf_get_arr_n(file.get(), key); ++i) {
    if (ids[i] >= 0) {
      sequence.push_back(ids[i]);
    } else if (!sequence.empty()) {
      sequences.push_back(std::move(sequence));
      sequence.clear();
    }
  }
  return sequences;
}

// A vocabulary with the model it was loaded in.
struct VocabularyFile {
  ~VocabularyFile() { llama_model_free(model); }
  llama_model* model = nullptr;
  std::optional<Vocabulary> vocabulary;
};

}  // namespace

Vocabulary::Vocabulary(const llama_vocab* vocabulary,
                       std::vector<std::vector<int32_t>> stop_sequences)
    : vocabulary_(vocabulary),
      size_(llama_vocab_n_tokens(vocabulary)),
      stop_sequences_(std::move(stop_sequences)) {
  for (int32_t token = 0; token < size_; ++token) {
    const std::string_view text = llama_vocab_get_text(vocabulary_, token);
    if (std::find(thinking_spellings.begin(), thinking_spellings.end(), text) !=
        thinking_spellings.end()) {
      thinking_.push_back(token);
    }
  }
  int32_t count = 0;
  const llama_token* suppressed = llama_vocab_get_suppress_tokens(vocabulary_, &count);
  for (int32_t i = 0; i < count; ++i) {
    if (suppressed[i] >= 0 && suppressed[i] < size_) suppressed_.push_back(suppressed[i]);
  }
}

std::string Vocabulary::piece(int32_t token) const {
  std::string piece(32, '\0');
  for (;;) {
    const int32_t length =
        llama_token_to_piece(vocabulary_, token, piece.data(), static_cast<int32_t>(piece.size()),
                             /*lstrip=*/0, /*special=*/false);
    piece.resize(static_cast<size_t>(length < 0 ? -length : length));
    if (length >= 0) return piece;
  }
}

void Vocabulary::check_usable() const {
  if (llama_vocab_type(vocabulary_) != LLAMA_VOCAB_TYPE_RWKV) return;
  std::array<bool, 256> known{};
  for (int32_t token = 0; token < size_; ++token) {
    const std::string bytes = piece(token);
    if (bytes.size() == 1) known[static_cast<uint8_t>(bytes[0])] = true;
  }
  if (std::find(known.begin(), known.end(), false) != known.end()) {
    throw Error(ELIZA_ERR_BUNDLE_INVALID, "its vocabulary lacks single bytes");
  }
}

bool Vocabulary::ends_generation(int32_t token) const {
  return llama_vocab_is_eog(vocabulary_, token);
}

std::vector<int32_t> Vocabulary::tokenize(std::string_view text, bool add_special,
                                          bool parse_special) const {
  check_length(text.size(), "a text");
  // A SentencePiece vocabulary has a token for every byte; other tokenizers need characters.
  std::string characters;
  if (llama_vocab_type(vocabulary_) != LLAMA_VOCAB_TYPE_SPM) {
    characters = repaired(text);
    text = characters;
  }
  const auto length = static_cast<int32_t>(text.size());
  return guarded(ELIZA_ERR_FFI_FAULT, "tokenizing failed", [&](const LogCapture&) {
    std::vector<int32_t> tokens(text.size() / 2 + 16);
    for (;;) {
      const int32_t count =
          llama_tokenize(vocabulary_, text.data(), length, tokens.data(),
                         static_cast<int32_t>(tokens.size()), add_special, parse_special);
      if (count >= 0) {
        tokens.resize(static_cast<size_t>(count));
        // A vocabulary without the special tokens that its kind should have yields made-up ids.
        check_token_ids(tokens.data(), tokens.size());
        return tokens;
      }
      if (count == std::numeric_limits<int32_t>::min()) {
        throw Error(ELIZA_ERR_INVALID_ARG, "the text has too many tokens");
      }
      tokens.resize(static_cast<size_t>(-count));
    }
  });
}

std::string Vocabulary::detokenize(const std::vector<int32_t>& tokens, bool remove_special,
                                   bool unparse_special) const {
  check_length(tokens.size(), "a token sequence");
  const auto count = static_cast<int32_t>(tokens.size());
  return guarded(ELIZA_ERR_FFI_FAULT, "detokenizing failed", [&](const LogCapture&) {
    std::string text(tokens.size() * 8 + 16, '\0');
    for (;;) {
      const int32_t length =
          llama_detokenize(vocabulary_, tokens.data(), count, text.data(),
                           static_cast<int32_t>(text.size()), remove_special, unparse_special);
      if (length >= 0) {
        text.resize(static_cast<size_t>(length));
        return to_valid_utf8(text);
      }
      text.resize(static_cast<size_t>(-length));
    }
  });
}

std::shared_ptr<const Tokenizer> load_vocabulary(const std::string& path) {
  ensure_runtime();
  const std::string what = "vocabulary " + quoted(path) + " cannot be loaded";
  const auto file = std::make_shared<VocabularyFile>();
  guarded(ELIZA_ERR_BUNDLE_INVALID, what, [&](const LogCapture& log) {
    llama_model_params params = llama_model_default_params();
    params.vocab_only = true;
    file->model = llama_model_load_from_file(path.c_str(), params);
    if (file->model == nullptr) {
      throw Error(ELIZA_ERR_BUNDLE_INVALID, fault_message(what, "", log));
    }
    const llama_vocab* vocabulary = llama_model_get_vocab(file->model);
    if (llama_vocab_type(vocabulary) == LLAMA_VOCAB_TYPE_NONE) {
      throw Error(ELIZA_ERR_BUNDLE_INVALID, what + ": it has no vocabulary");
    }
    file->vocabulary.emplace(vocabulary, read_stop_sequences(path));
    file->vocabulary->check_usable();
  });
  return {file, &*file->vocabulary};
}

}  // namespace eliza::llama
