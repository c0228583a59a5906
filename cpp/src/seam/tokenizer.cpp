#include "seam/tokenizer.h"

#include "support/error.h"

namespace eliza {

const std::vector<std::string> thinking_spellings = {"<think>", "[THINK]", "<|think|>",
                                                     "<seed:think>"};

void Tokenizer::check_token_ids(const int32_t* ids, size_t count) const {
  for (size_t i = 0; i < count; ++i) {
    if (ids[i] >= 0 && ids[i] < size()) continue;
    throw Error(ELIZA_ERR_INVALID_ARG, "token id " + std::to_string(ids[i]) + " at index " +
                                           std::to_string(i) + " is outside the vocabulary (0 to " +
                                           std::to_string(size() - 1) + ")");
  }
}

}  // namespace eliza
