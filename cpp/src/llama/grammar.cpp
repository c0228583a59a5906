#include "llama/grammar.h"

#include <llama-grammar.h>
#include <llama.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "llama/runtime.h"
#include "support/utf8.h"

namespace eliza::llama {
namespace {

constexpr char root_rule[] = "root";

// llama.cpp's parser recurses along nested groups, repeats a piece as often as it is told, and
// looks for left recursion by a walk that recurses along rules and visits shared ones over and
// over. A hostile grammar would overflow the stack, fill the memory or never end. Nothing sensible
// comes near these limits.
constexpr size_t deepest_nesting = 200;
constexpr size_t most_repeated_bytes = 16 << 20;
constexpr size_t most_rules = 10000;
constexpr size_t longest_chain_of_rules = 500;
constexpr uint64_t most_visits = 1000000;

[[noreturn]] void refuse(const std::string& reason) {
  throw Error(ELIZA_ERR_INVALID_ARG, "gbnf_grammar does not parse: " + shortened(reason));
}

// Past white space and comments.
const char* skip_blank(const char* at) {
  for (;; ++at) {
    if (*at == '#') {
      while (*at != '\0' && *at != '\n' && *at != '\r') ++at;
    }
    if (*at == '\0' || std::strchr(" \t\r\n", *at) == nullptr) return at;
  }
}

// Reads a grammar far enough to see its groups and repetitions, with the lexical rules of
// llama.cpp's parser.
class GrammarScan {
 public:
  explicit GrammarScan(const std::string& gbnf) : at_(gbnf.c_str()), size_(gbnf.size()) {
    // In the middle of a character that is not whole the parser would swallow a closing quote.
    if (to_valid_utf8(gbnf) != gbnf) refuse("it is not valid UTF-8");
  }

  void check() {
    size_t depth = 0;
    while (*at_ != '\0') {
      switch (*at_) {
        case '#':
          at_ = skip_blank(at_);
          break;
        case '"':
          skip_quoted('"');
          break;
        case '[':
          skip_quoted(']');
          break;
        case '<':
          skip_to('>');
          break;
        case '{':
          check_repetition();
          break;
        case '(':
          ++at_;
          if (++depth > deepest_nesting) {
            refuse("groups nest deeper than " + std::to_string(deepest_nesting));
          }
          break;
        case ')':
          ++at_;
          if (depth > 0) --depth;
          break;
        default:
          ++at_;
      }
    }
  }

 private:
  void skip_to(char end) {
    while (*at_ != '\0' && *at_ != end) ++at_;
    if (*at_ == end) ++at_;
  }

  void skip_quoted(char close) {
    for (++at_; *at_ != '\0' && *at_ != close; ++at_) {
      if (*at_ == '\\' && at_[1] != '\0') ++at_;
    }
    if (*at_ == close) ++at_;
  }

  // {m}, {m,} or {m,n}; anything else is for the parser to refuse.
  void check_repetition() {
    ++at_;
    const uint64_t least = read_count(0);
    at_ = skip_blank(at_);
    uint64_t most = least;
    if (*at_ == ',') {
      ++at_;
      most = read_count(least);
    }
    if (most < least) {
      refuse("a repetition of at least " + std::to_string(least) + " and at most " +
             std::to_string(most));
    }
    if (most * size_ > most_repeated_bytes) refuse("a repetition makes it too large");
  }

  uint64_t read_count(uint64_t otherwise) {
    at_ = skip_blank(at_);
    if (*at_ < '0' || *at_ > '9') return otherwise;
    uint64_t count = 0;
    for (; *at_ >= '0' && *at_ <= '9'; ++at_) {
      count = std::min<uint64_t>(count * 10 + static_cast<uint64_t>(*at_ - '0'), UINT32_MAX);
    }
    return count;
  }

  const char* at_;
  const size_t size_;
};

bool ends_alternative(const llama_grammar_element& element) {
  return element.type == LLAMA_GRETYPE_END || element.type == LLAMA_GRETYPE_ALT;
}

// The rules that can stand first in `rule`, as llama.cpp's search for left recursion follows them.
std::vector<uint32_t> leftmost_rules(const llama_grammar_rules& rules,
                                     const llama_grammar_rule& rule) {
  const auto may_be_empty = [&](uint32_t id) {
    bool at_start = true;
    for (const auto& element : rules[id]) {
      if (ends_alternative(element) && at_start) return true;
      at_start = ends_alternative(element);
    }
    return false;
  };
  std::vector<uint32_t> leftmost;
  bool first = true;
  for (const auto& element : rule) {
    if (element.type == LLAMA_GRETYPE_RULE_REF && first) {
      leftmost.push_back(element.value);
      first = may_be_empty(element.value);
    } else {
      first = ends_alternative(element);
    }
  }
  return leftmost;
}

// Refuses left recursion, and what llama.cpp's own search for it could not finish: for each rule,
// how deep that search would go and how many rules it would visit.
void check_recursion(const llama_grammar_rules& rules) {
  struct Visit {
    uint32_t rule;
    std::vector<uint32_t> leftmost;
    size_t next = 0;
  };
  struct Cost {
    bool known = false;
    bool in_progress = false;
    uint64_t visits = 1;
    size_t depth = 1;
  };
  std::vector<Cost> costs(rules.size());
  uint64_t all_visits = 0;
  for (uint32_t root = 0; root < rules.size(); ++root) {
    std::vector<Visit> path;
    if (!costs[root].known) path.push_back({root, leftmost_rules(rules, rules[root])});
    while (!path.empty()) {
      Visit& visit = path.back();
      Cost& cost = costs[visit.rule];
      cost.in_progress = true;
      if (visit.next < visit.leftmost.size()) {
        const uint32_t child = visit.leftmost[visit.next];
        if (costs[child].in_progress) refuse("it is left-recursive");
        if (!costs[child].known) {
          path.push_back({child, leftmost_rules(rules, rules[child])});
          continue;
        }
        ++visit.next;
        cost.visits = std::min(cost.visits + costs[child].visits, most_visits + 1);
        cost.depth = std::max(cost.depth, costs[child].depth + 1);
        continue;
      }
      cost.in_progress = false;
      cost.known = true;
      if (cost.depth > longest_chain_of_rules) {
        refuse("more than " + std::to_string(longest_chain_of_rules) +
               " rules begin with one another");
      }
      path.pop_back();
    }
    all_visits += costs[root].visits;
    if (all_visits > most_visits) refuse("its rules share one another in too many ways");
  }
}

// llama_grammar_parser::parse would print the reason to stderr and lose it.
void parse_rules(llama_grammar_parser& parser, const std::string& gbnf) {
  GrammarScan(gbnf).check();
  const char* at = skip_blank(gbnf.c_str());
  try {
    while (*at != '\0') {
      at = parser.parse_rule(at);
      if (parser.rules.size() > most_rules) {
        refuse("it has more than " + std::to_string(most_rules) + " rules");
      }
    }
  } catch (const Error&) {
    throw;
  } catch (const std::exception& problem) {
    refuse(problem.what());
  }
  for (const auto& [name, id] : parser.symbol_ids) {
    if (id >= parser.rules.size() || parser.rules[id].empty()) {
      refuse("rule " + quoted(name) + " is not defined");
    }
  }
  check_recursion(parser.rules);
}

}  // namespace

Grammar::Grammar(std::shared_ptr<const Model> model, const std::string& gbnf)
    : model_(std::move(model)) {
  guarded(ELIZA_ERR_INVALID_ARG, "gbnf_grammar does not parse", [&](const LogCapture& log) {
    llama_grammar_parser parser(model_->vocabulary().get());
    parse_rules(parser, gbnf);
    const auto root = parser.symbol_ids.find(root_rule);
    if (root == parser.symbol_ids.end()) refuse("it has no rule named root");
    for (const auto& rule : parser.rules) {
      for (const auto& element : rule) {
        names_tokens_ = names_tokens_ || element.type == LLAMA_GRETYPE_TOKEN ||
                        element.type == LLAMA_GRETYPE_TOKEN_NOT;
      }
    }
    auto rules = parser.c_rules();
    start_.reset(llama_grammar_init_impl(model_->vocabulary().get(), rules.data(), rules.size(),
                                         root->second));
    if (!start_) refuse(log.reason());
  });
  reset();
}

Grammar::~Grammar() = default;

void Grammar::Deleter::operator()(llama_grammar* grammar) const {
  llama_grammar_free_impl(grammar);
}

void Grammar::filter(std::vector<Candidate>& candidates) const {
  std::vector<llama_token_data> entries;
  entries.reserve(candidates.size());
  for (const auto& candidate : candidates) entries.push_back({candidate.token, 0.0f, 0.0f});
  llama_token_data_array array = {entries.data(), entries.size(), -1, false};
  llama_grammar_apply_impl(*current_, &array);
  size_t kept = 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    if (!std::isinf(entries[i].logit) && can_follow(candidates[i].token)) {
      candidates[kept++] = candidates[i];
    }
  }
  candidates.resize(kept);
}

// What llama.cpp admits too lightly: it takes overlong forms and the like for the characters they
// resemble, and a control token, which adds nothing to the text, for the characters of its name.
bool Grammar::can_follow(int32_t token) const {
  if (model_->vocabulary().ends_generation(token)) return unfinished_.empty();
  const std::string piece = model_->vocabulary().piece(token);
  if (piece.empty()) return names_tokens_;
  std::string unfinished = unfinished_;
  return continues_utf8(unfinished, piece);
}

void Grammar::accept(int32_t token) {
  llama_grammar_accept_impl(*current_, token);
  if (!model_->vocabulary().ends_generation(token))
    continues_utf8(unfinished_, model_->vocabulary().piece(token));
}

void Grammar::reset() {
  current_.reset(llama_grammar_clone_impl(*start_));
  unfinished_.clear();
}

}  // namespace eliza::llama
