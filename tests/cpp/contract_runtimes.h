#pragma once

#include <filesystem>
#include <functional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "test_support.h"

// The runtimes that contract_test.cpp holds to the session contract. A new backend adds one entry
// in contract_runtimes.cpp.

namespace eliza::test {

// What the model is known to say greedily after a prompt, up to where it ends the generation.
struct Answer {
  std::string name;  // letters and digits
  Tokens prompt;
  Tokens tokens;  // without the end-of-generation token
  std::string text;
};

// A runtime and what the suite needs to know of it and of the model it is tested with.
struct Runtime {
  // The ending of its tests' names: letters, digits and '_'.
  std::string name;

  // Set while a test runs. ELIZA_LLM_BACKEND belongs here: a test that reaches another runtime
  // proves nothing.
  std::vector<std::pair<std::string, std::string>> environment;

  // Returns a bundle directory: `folder`, which is empty, filled; or one that lies elsewhere.
  // Throws, and so fails the test, where something is missing.
  std::function<std::filesystem::path(const std::filesystem::path& folder)> make_bundle;

  // --------------------------------------------------------------------- its model

  int32_t vocabulary_size = 0;
  // The most that ELIZA_LLM_N_CTX can give.
  size_t context_size = 0;
  // Different beginnings, two or more. The greedy answer to the first has 16 tokens at least, to
  // the others one at least.
  std::vector<Tokens> prompts;
  // A context that holds the first prompt, but not its greedy answer too.
  size_t small_context = 0;
  // One at which text that no other sampler narrows varies with the seed.
  float temperature = 1.5f;
  // With characters that are split over tokens; may be empty.
  std::vector<Answer> answers;

  // ---------------------------------------------------------------- what it can do

  // Optional config fields (gbnf_grammar, repeat_penalty, draft_max, disable_thinking) that it does
  // not honour: a stream that asks for one must not open.
  std::vector<std::string> refuses;
  // Values of cache_type_k and cache_type_v that work with the model; empty: no value but NULL.
  std::vector<std::string> cache_types;
  // save_slot and restore_slot work.
  bool saves_slots = false;
  // reset_keep keeps as many tokens as it is asked to; a runtime may keep fewer.
  bool keeps_every_count = false;
};

// For GoogleTest's messages.
void PrintTo(const Runtime& runtime, std::ostream* out);

const std::vector<Runtime>& contract_runtimes();

}  // namespace eliza::test
