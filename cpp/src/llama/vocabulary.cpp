#include "llama/tokenizer.h"

#include <llama.h>

#include <limits>

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

}  // namespace

std::vector<int32_t> tokenize(const Model& model, std::string_view text, bool add_special,
                              bool parse_special) {
  check_length(text.size(), "a text");
  // A SentencePiece vocabulary has a token for every byte; other tokenizers need characters.
  std::string characters;
  if (llama_vocab_type(model.vocabulary()) != LLAMA_VOCAB_TYPE_SPM) {
    characters = repaired(text);
    text = characters;
  }
  const auto length = static_cast<int32_t>(text.size());
  return guarded(ELIZA_ERR_FFI_FAULT, "tokenizing failed", [&](const LogCapture&) {
    std::vector<int32_t> tokens(text.size() / 2 + 16);
    for (;;) {
      const int32_t count =
          llama_tokenize(model.vocabulary(), text.data(), length, tokens.data(),
                         static_cast<int32_t>(tokens.size()), add_special, parse_special);
      if (count >= 0) {
        tokens.resize(static_cast<size_t>(count));
        // A vocabulary without the special tokens that its kind should have yields made-up ids.
        model.check_token_ids(tokens.data(), tokens.size());
        return tokens;
      }
      if (count == std::numeric_limits<int32_t>::min()) {
        throw Error(ELIZA_ERR_INVALID_ARG, "the text has too many tokens");
      }
      tokens.resize(static_cast<size_t>(-count));
    }
  });
}

std::string detokenize(const Model& model, const std::vector<int32_t>& tokens, bool remove_special,
                       bool unparse_special) {
  check_length(tokens.size(), "a token sequence");
  const auto count = static_cast<int32_t>(tokens.size());
  return guarded(ELIZA_ERR_FFI_FAULT, "detokenizing failed", [&](const LogCapture&) {
    std::string text(tokens.size() * 8 + 16, '\0');
    for (;;) {
      const int32_t length =
          llama_detokenize(model.vocabulary(), tokens.data(), count, text.data(),
                           static_cast<int32_t>(text.size()), remove_special, unparse_special);
      if (length >= 0) {
        text.resize(static_cast<size_t>(length));
        return to_valid_utf8(text);
      }
      text.resize(static_cast<size_t>(-length));
    }
  });
}

}  // namespace eliza::llama
