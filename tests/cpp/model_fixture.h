#pragma once

#include <gtest/gtest.h>

#include "test_support.h"

namespace eliza::test {

// Streams on a tiny model, in a clean environment.
class ModelFixture : public testing::Test {
 protected:
  void load(const std::string& model) {
    bundle_ = make_bundle(model);
    ctx_ = create_context(bundle_->string());
  }

  // What a new stream generates after `prompt`, taking up nothing that another one left.
  Generation fresh(const Tokens& prompt, size_t limit,
                   const eliza_llm_stream_config_t& config = {}) {
    const Stream stream = open_stream(ctx_, unkeyed(config));
    prefill(stream, prompt);
    return generate(stream, limit);
  }

  CleanEnvironment environment_;
  // A tiny model gains nothing from a second thread, and waiting for one on a busy machine is slow.
  EnvironmentVariable one_thread_{"ELIZA_LLM_THREADS", "1"};
  std::unique_ptr<TemporaryDirectory> bundle_;
  Context ctx_;
};

// Streams that may draft do so whether or not it pays.
class DraftingFixture : public ModelFixture {
 private:
  EnvironmentVariable always_{"ELIZA_LLM_DRAFT", "always"};
};

struct DraftCase {
  const char* name;
  const char* target;
  const char* drafter;  // nullptr: none is named
};

inline void PrintTo(const DraftCase& drafting, std::ostream* out) { *out << drafting.name; }

}  // namespace eliza::test
