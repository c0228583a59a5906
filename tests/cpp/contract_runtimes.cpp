#include "contract_runtimes.h"

#include <cstdlib>
#include <stdexcept>

namespace eliza::test {
namespace {
namespace fs = std::filesystem;

// ------------------------------------------------------------- the in-tree llama.cpp path

// A bundle of one tiny model.
auto bundle_of(const std::string& model) {
  return [model](const fs::path& folder) {
    fs::create_directory(folder / "text");
    fs::create_symlink(test_model(model), folder / "text" / model);
    return folder;
  };
}

Runtime llama_cpp(const std::string& name, const std::string& model) {
  Runtime runtime;
  runtime.name = "llama_cpp_" + name;
  // With the plain kernels a token has the same state in every batch; with flash attention, that is
  // promised of reset_keep only (AttentionTest in stream_test.cpp).
  runtime.environment = {{"ELIZA_LLM_BACKEND", "llama.cpp"}, {"ELIZA_LLM_FLASH_ATTN", "off"}};
  runtime.make_bundle = bundle_of(model);
  runtime.context_size = 2048;
  runtime.cache_types = {"f16", "F16", "bf16", "f32"};
  runtime.saves_slots = true;
  runtime.keeps_every_count = true;
  return runtime;
}

// Random weights: attention matters, text is mostly no UTF-8, and no generation ends by itself.
Runtime llama_cpp_random(const std::string& name, int32_t vocabulary_size, size_t prompt_length) {
  Runtime runtime = llama_cpp(name, "tiny-" + name + ".gguf");
  runtime.vocabulary_size = vocabulary_size;
  runtime.prompts = {random_tokens(prompt_length, 10, 250, 1), random_tokens(5, 10, 250, 2),
                     random_tokens(17, 10, 250, 3)};
  runtime.small_context = prompt_length + 12;
  return runtime;
}

// Longer prompts than its window of 16 tokens.
Runtime llama_cpp_sliding_window(const std::string& name) {
  Runtime runtime = llama_cpp_random(name, 331, 40);
  runtime.context_size = 1024;
  return runtime;
}

// Every token has one successor; see Chains in tests/models/make_tiny_models.py.
Runtime llama_cpp_chains(const std::string& name) {
  const int32_t smile = 259;
  const int32_t broken = 269;
  const int32_t loop = 274;
  const int32_t half = 278;
  const int32_t null = 284;
  Runtime runtime = llama_cpp(name, "chain-spm.gguf");
  runtime.vocabulary_size = 287;
  runtime.prompts = {{smile}, {half, loop}, {smile, broken, smile}};
  runtime.small_context = 12;
  runtime.temperature = 20;
  runtime.answers = {
      {"smile",
       {smile},
       {260, 243, 162, 155, 131, 261, 262, 35,  263, 264, 148,
        142, 265, 266, 267, 231, 187, 153, 234, 152, 143, 268},
       " \U0001f600 and wave \U0001f44b to the \u4e16\u754c."},
      // As bytes.decode("utf-8", "replace") of Python.
      {"broken", {broken}, {198, 43, 270, 271, 272, 273}, "\uFFFD(\uFFFDz\uFFFD"},
      {"half", {half}, {279, 280, 281, 282, 283}, "ok\uFFFD"},
      {"null", {null}, {285, 3, 286}, "x\uFFFDy"},
  };
  return runtime;
}

// --------------------------------------------------------------------------- the seam alone

// The same streams behind a session that passes every call on: what the seam itself does to them.
// tests/consumers/relay is linked in. It cannot be forced, because its inner streams would then be
// its own, but it outranks everything in a bundle with its file.
Runtime relay() {
  Runtime runtime = llama_cpp_chains("chains");
  runtime.name = "relay";
  runtime.environment = {{"ELIZA_LLM_FLASH_ATTN", "off"}};
  runtime.make_bundle = [](const fs::path& folder) {
    write_file(folder / "text" / "model.relay", "");
    fs::create_symlink(test_model("chain-spm.gguf"), folder / "text" / "model.gguf");
    return folder;
  };
  return runtime;
}

// ----------------------------------------------------------------------------- LiteRT-LM

#ifdef ELIZA_ENABLE_LITERT
// What scripts/test sets; empty where it does not.
std::string given(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr ? value : "";
}

Runtime litert_lm() {
  Runtime runtime;
  runtime.name = "litert_lm";
  runtime.environment = {{"ELIZA_LLM_BACKEND", "litert-lm"},
                         {"ELIZA_LITERT_LM_LIBRARY", given("ELIZA_TEST_LITERT_LIBRARY")}};
  runtime.make_bundle = [](const fs::path&) {
    const fs::path bundle = given("ELIZA_TEST_LITERT_BUNDLE");
    if (fs::is_directory(bundle / "text") && fs::exists(given("ELIZA_TEST_LITERT_LIBRARY"))) {
      return bundle;
    }
    throw std::runtime_error(
        "set ELIZA_TEST_LITERT_LIBRARY to a liblitert-lm.so and ELIZA_TEST_LITERT_BUNDLE to a "
        "bundle that `eliza-ctypes bundle add-litert` has made of the tiny LiteRT-LM model; "
        "scripts/test does");
  };
  runtime.vocabulary_size = 320;
  runtime.context_size = 256;
  const Tokens alphabet = {69, 278, 273, 279};      // "a b c d"
  const Tokens counting = {25, 266, 277, 225, 28};  // "5 6 7 8"
  const Tokens smile = {87, 81, 77, 286};           // "smile"
  runtime.prompts = {alphabet, smile, counting};
  runtime.small_context = 20;
  runtime.answers = {
      {"alphabet",
       alphabet,
       {274, 269, 297, 280, 298, 281, 299, 282, 300, 275, 283,
        301, 284, 302, 270, 265, 303, 304, 276, 305, 285, 306},
       " e f g h i j k l m n o p q r s t u v w x y z"},
      {"smile",
       smile,
       {293, 251, 227, 272, 82,  72,  276, 312, 293, 244, 238,
        294, 295, 225, 165, 121, 249, 168, 248, 239, 18},
       " \U0001f600 and wave \U0001f44b to the \u4e16\u754c."},
  };
  runtime.refuses = {"gbnf_grammar", "repeat_penalty", "draft_max"};  // the model has no drafter
  runtime.keeps_every_count = true;
  return runtime;
}
#endif

std::vector<Runtime> all_runtimes() {
  return {
      llama_cpp_random("bpe", 303, 24),
      llama_cpp_random("spm", 331, 24),
      llama_cpp_sliding_window("swa"),
      llama_cpp_chains("chains"),
      relay(),
#ifdef ELIZA_ENABLE_LITERT
      litert_lm(),
#endif
  };
}

}  // namespace

void PrintTo(const Runtime& runtime, std::ostream* out) { *out << runtime.name; }

const std::vector<Runtime>& contract_runtimes() {
  static const std::vector<Runtime> runtimes = all_runtimes();
  return runtimes;
}

}  // namespace eliza::test
