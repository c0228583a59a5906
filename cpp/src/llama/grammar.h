#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "llama/model.h"

struct llama_grammar;

namespace eliza::llama {

// A candidate for the next token.
struct Candidate {
  int32_t token;
  float logit;
};

// A GBNF grammar over a model's vocabulary and where a generation stands in it.
class Grammar {
 public:
  // Throws Error(ELIZA_ERR_INVALID_ARG) with the parser's reason.
  Grammar(std::shared_ptr<const Model> model, const std::string& gbnf);
  ~Grammar();

  // Removes the candidates that the grammar does not admit here; keeps the order of the others.
  void filter(std::vector<Candidate>& candidates) const;

  // Advances by a token that `filter` admitted.
  void accept(int32_t token);

  // Back to the root rule.
  void reset();

 private:
  bool can_follow(int32_t token) const;

  struct Deleter {
    void operator()(llama_grammar* grammar) const;
  };
  using Pointer = std::unique_ptr<llama_grammar, Deleter>;

  const std::shared_ptr<const Model> model_;
  Pointer start_;              // as parsed
  Pointer current_;            // after the accepted tokens
  bool names_tokens_ = false;  // the grammar does, not only characters
  std::string unfinished_;     // the beginning of a character that the accepted tokens end with
};

}  // namespace eliza::llama
