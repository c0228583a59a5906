#include "llama/drafter.h"

#include <llama-ext.h>
#include <speculative.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "llama/runtime.h"

namespace eliza::llama {
namespace {

constexpr llama_seq_id sequence_id = 0;

// Tokens that must have occurred in this order before, for what followed them to be drafted.
constexpr ptrdiff_t ngram_size = 3;

// llama.cpp's own n-gram drafters find nothing in a loop that is hardly longer than their pattern,
// where drafting pays best.
class NgramDrafter final : public Drafter {
 public:
  double cost_of_one() const override { return 0.6; }

  std::vector<int32_t> draft(const std::vector<int32_t>& sequence, size_t most) override {
    std::vector<int32_t> drafted;
    if (sequence.size() <= static_cast<size_t>(ngram_size)) return drafted;
    const auto last = sequence.end() - ngram_size;
    auto before = last;
    do {
      if (before == sequence.begin()) return drafted;
      --before;
    } while (!std::equal(last, sequence.end(), before));
    const auto next = static_cast<size_t>(before - sequence.begin()) + ngram_size;
    for (size_t i = next; drafted.size() < most; ++i) {
      // Behind its end the sequence goes on with what was drafted.
      drafted.push_back(i < sequence.size() ? sequence[i] : drafted[i - sequence.size()]);
    }
    return drafted;
  }

  void accept(size_t) override {}
  void follow(const std::vector<int32_t>&, size_t, bool) override {}
  size_t lag(const std::vector<int32_t>&) const override { return 0; }
};

// What the drafters by llama.cpp have in common.
class SpeculationDrafter : public Drafter {
 public:
  void accept(size_t count) override {
    common_speculative_accept(speculation_.get(), sequence_id, static_cast<uint16_t>(count));
  }

 protected:
  SpeculationDrafter(common_params_speculative& params, size_t most) {
    params.draft.n_max = static_cast<int32_t>(most);
    params.draft.backend_sampling = false;
    const std::string what = "drafting cannot be set up";
    guarded(ELIZA_ERR_INVALID_ARG, what, [&](const LogCapture& log) {
      speculation_.reset(common_speculative_init(params, /*n_seq=*/1));
      if (!speculation_) throw Error(ELIZA_ERR_INVALID_ARG, fault_message(what, "", log));
    });
  }

  std::vector<int32_t> propose(const std::vector<int32_t>& sequence, size_t most) {
    return guarded(ELIZA_ERR_FFI_FAULT, "drafting failed", [&](const LogCapture&) {
      history_.assign(sequence.begin(), sequence.end() - 1);
      std::vector<int32_t> drafted;
      auto& params = common_speculative_get_draft_params(speculation_.get(), sequence_id);
      params.drafting = true;
      params.n_max = static_cast<int32_t>(most);
      params.pos0 = static_cast<llama_pos>(history_.size());
      params.id_last = sequence.back();
      params.prompt = &history_;
      params.result = &drafted;
      common_speculative_draft(speculation_.get());
      if (drafted.size() > most) drafted.resize(most);
      return drafted;
    });
  }

  common_speculative_ptr speculation_;

 private:
  std::vector<int32_t> history_;
};

class ModelDrafter final : public SpeculationDrafter {
 public:
  ModelDrafter(common_params_speculative& params, Decoder& decoder, size_t most)
      : SpeculationDrafter(params, most), decoder_(decoder) {}

  double cost_of_one() const override { return 1.0; }

  std::vector<int32_t> draft(const std::vector<int32_t>& sequence, size_t most) override {
    const size_t before_last = sequence.size() - 1;
    if (before_last + most > decoder_.context_size()) return {};
    catch_up(sequence, before_last);
    std::vector<int32_t> drafted;
    try {
      const RunningStream::Step step(*decoder_.stream());
      decoder_.share_processors(step);
      drafted = propose(sequence, most);
    } catch (...) {
      decoder_.adopt({});
      throw;
    }
    // Proposing has decoded the last token and drafted ones: those that get accepted need not be
    // decoded again.
    auto decoded = drafted;
    decoded.insert(decoded.begin(), sequence.back());
    decoder_.adopt(decoded);
    return drafted;
  }

  void follow(const std::vector<int32_t>& decoded, size_t, bool prompt) override {
    if (prompt) catch_up(decoded, decoded.size());
  }

  size_t lag(const std::vector<int32_t>& sequence) const override {
    // The last token is part of every draft, the one before of one after a draft that was right.
    constexpr size_t usual = 2;
    const size_t missing = sequence.size() - decoder_.common_prefix(sequence);
    return missing - std::min(missing, usual);
  }

 private:
  // Makes the cache hold the first `count` tokens of `sequence` and no more.
  void catch_up(const std::vector<int32_t>& sequence, size_t count) {
    const std::vector<int32_t> wanted(sequence.begin(),
                                      sequence.begin() + static_cast<std::ptrdiff_t>(count));
    decoder_.rewind(decoder_.common_prefix(wanted));
    while (decoder_.tokens().size() < count) decoder_.decode_some_of(wanted);
  }

  Decoder& decoder_;
};

common_speculative_type head_type(const Model& model) {
  if (model.architecture() == "eagle3") return COMMON_SPECULATIVE_TYPE_DRAFT_EAGLE3;
  if (model.architecture() == "dflash") {
    return model.has_tensor("markov_w1.weight") ? COMMON_SPECULATIVE_TYPE_DRAFT_DSPARK
                                                : COMMON_SPECULATIVE_TYPE_DRAFT_DFLASH;
  }
  return COMMON_SPECULATIVE_TYPE_DRAFT_MTP;
}

// llama.cpp fails an assertion in the middle of a decode where another architecture is asked for
// the inputs of its layers.
constexpr const char* architectures_with_layer_inputs[] = {
    "bailingmoe3",  "deepseek4", "gemma4",     "gpt-oss",        "hunyuan-dense", "hunyuan_vl",
    "lfm2",         "lfm2moe",   "llama",      "mimo2",          "minimax-01",    "minimax-m2",
    "muse-glimmer", "nanbeige",  "nemotron_h", "nemotron_h_moe", "qwen3",         "qwen35",
    "qwen35moe",    "qwen3moe",  "qwen3next",  "qwen4exp"};

[[noreturn]] void refuse_head(const std::string& reason) {
  throw Error(ELIZA_ERR_INVALID_ARG,
              "mtp_drafter_path: the drafter does not fit the model: " + reason);
}

// Reads hidden states that the target computed, which are there only until its next decode.
class HeadDrafter final : public SpeculationDrafter {
 public:
  HeadDrafter(common_params_speculative& params, const Decoder& target, Decoder& decoder,
              size_t most)
      : SpeculationDrafter(params, most), target_(target), decoder_(decoder) {}

  ~HeadDrafter() override {
    speculation_.reset();
    // It has made the target output its layers, which another stream has no use for.
    llama_set_embeddings_nextn(target_.context(), false, false);
    const int32_t* layers = llama_model_target_layer_ids(decoder_.model()->get());
    for (uint32_t i = 0; i < llama_model_target_layer_ids_n(decoder_.model()->get()); ++i) {
      llama_set_embeddings_layer_inp(target_.context(), static_cast<uint32_t>(layers[i]), false);
    }
  }

  double cost_of_one() const override { return 0.6; }

  std::vector<int32_t> draft(const std::vector<int32_t>& sequence, size_t most) override {
    const size_t before_last = sequence.size() - 1;
    if (before_last + most > decoder_.context_size()) return {};
    const RunningStream::Step step(*decoder_.stream());
    decoder_.share_processors(step);
    cut(before_last);  // rejected tokens
    return propose(sequence, most);
  }

  size_t lag(const std::vector<int32_t>&) const override { return 0; }

  void follow(const std::vector<int32_t>& decoded, size_t begin, bool) override {
    guarded(ELIZA_ERR_FFI_FAULT, "drafting failed", [&](const LogCapture&) {
      const RunningStream::Step step(*decoder_.stream());
      decoder_.share_processors(step);
      common_batch batch;
      for (size_t i = begin; i < decoded.size(); ++i) {
        batch.add(decoded[i], static_cast<llama_pos>(i), sequence_id, i + 1 == decoded.size());
      }
      cut(begin);  // drafted tokens
      if (common_speculative_process(speculation_.get(), batch)) return;
      // It lacks what comes before, of which no hidden states are left: it begins here.
      llama_memory_clear(llama_get_memory(decoder_.context()), /*data=*/false);
      common_speculative_process(speculation_.get(), batch);
    });
  }

 private:
  void cut(size_t count) {
    llama_memory_seq_rm(llama_get_memory(decoder_.context()), sequence_id,
                        static_cast<llama_pos>(count), -1);
  }

  const Decoder& target_;
  Decoder& decoder_;
};

}  // namespace

std::unique_ptr<Drafter> make_ngram_drafter() { return std::make_unique<NgramDrafter>(); }

std::unique_ptr<Drafter> make_model_drafter(const Decoder& target, Decoder& decoder, size_t most) {
  common_params_speculative params;
  params.types = {COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE};
  params.draft.ctx_tgt = target.context();
  params.draft.ctx_dft = decoder.context();
  return std::make_unique<ModelDrafter>(params, decoder, most);
}

std::unique_ptr<Drafter> make_head_drafter(const Decoder& target, Decoder& decoder, size_t most) {
  common_params_speculative params;
  params.types = {head_type(*decoder.model())};
  params.draft.ctx_tgt = target.context();
  params.draft.ctx_dft = decoder.context();
  return std::make_unique<HeadDrafter>(params, target, decoder, most);
}

void check_head_fits(const Model& target, const Model& head) {
  check_same_vocabulary(target, head);
  if (head_type(head) == COMMON_SPECULATIVE_TYPE_DRAFT_MTP) {
    if (llama_model_n_embd_out(target.get()) != llama_model_n_embd_out(head.get())) {
      refuse_head("it is for a model of another width");
    }
    return;
  }
  std::array<char, 32> width{};
  const std::string key = head.architecture() + ".target_hidden_size";
  if (llama_model_meta_val_str(head.get(), key.c_str(), width.data(), width.size()) > 0 &&
      std::to_string(llama_model_n_embd(target.get())) != width.data()) {
    refuse_head("it is for a model of another width");
  }
  const auto known = [&](const char* name) { return target.architecture() == name; };
  if (std::none_of(std::begin(architectures_with_layer_inputs),
                   std::end(architectures_with_layer_inputs), known)) {
    refuse_head("llama.cpp does not show it the layers of architecture " +
                quoted(target.architecture()));
  }
  const int32_t* layers = llama_model_target_layer_ids(head.get());
  for (uint32_t i = 0; i < llama_model_target_layer_ids_n(head.get()); ++i) {
    if (layers[i] < 0 || layers[i] >= llama_model_n_layer(target.get())) {
      refuse_head("it reads layer " + std::to_string(layers[i]) + " of " +
                  std::to_string(llama_model_n_layer(target.get())));
    }
  }
}

void check_same_vocabulary(const Model& target, const Model& drafter) {
  const auto refuse = [](const std::string& difference) {
    throw Error(ELIZA_ERR_INVALID_ARG,
                "mtp_drafter_path: the drafter's vocabulary is not the model's: " + difference);
  };
  if (llama_vocab_type(target.vocabulary().get()) != llama_vocab_type(drafter.vocabulary().get())) {
    refuse("their tokenizers are of different kinds");
  }
  const int32_t size = target.vocabulary().size();
  if (drafter.vocabulary().size() != size) {
    refuse("it has " + std::to_string(drafter.vocabulary().size()) + " tokens and the model " +
           std::to_string(size));
  }
  for (int32_t token = 0; token < size; ++token) {
    const char* ours = llama_vocab_get_text(target.vocabulary().get(), token);
    const char* theirs = llama_vocab_get_text(drafter.vocabulary().get(), token);
    if (std::strcmp(ours, theirs) != 0) {
      refuse("token " + std::to_string(token) + " is " + quoted(theirs) + " there and " +
             quoted(ours) + " here");
    }
  }
}

}  // namespace eliza::llama
