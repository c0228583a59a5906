#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "llama/model.h"

namespace eliza::llama {

// The model's tokenizer in both directions; thread-safe. See eliza_inference_tokenize for flags.

std::vector<int32_t> tokenize(const Model& model, std::string_view text, bool add_special,
                              bool parse_special);

// Valid UTF-8. Ids must be inside the vocabulary.
std::string detokenize(const Model& model, const std::vector<int32_t>& tokens, bool remove_special,
                       bool unparse_special);

}  // namespace eliza::llama
