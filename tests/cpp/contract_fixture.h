#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "contract_runtimes.h"
#include "model_fixture.h"
#include "test_support.h"

// The session contract: what every runtime behind the streaming functions of the C ABI promises,
// and the acceptance test of a new one. contract_test.cpp is about streams,
// contract_threads_test.cpp about several threads, contract_tokenizer_test.cpp about the tokenizer;
// contract_runtimes.cpp lists the runtimes. The promises themselves are in eliza-inference-ffi.h.
//
// Streams are driven through the C functions alone, and on the runtime under test alone. Most tests
// compare a stream with a fresh one: whatever it went through, what it says next is what a new
// stream says that is given the same tokens at once.

namespace eliza::test {

using Config = eliza_llm_stream_config_t;

constexpr size_t enough = 1000;  // tokens, where the generation ends before
constexpr int32_t some = 24;     // max_tokens that lets most known answers end by themselves

class ContractFixture : public ModelFixture {
 protected:
  explicit ContractFixture(const Runtime& runtime) : runtime_(runtime) {
    for (const auto& [name, value] : runtime.environment) {
      variables_.push_back(std::make_unique<EnvironmentVariable>(name, value));
    }
    bundle_ = std::make_unique<TemporaryDirectory>();
    ctx_ = create_context(runtime.make_bundle(bundle_->path()).string());
  }

  Stream open(const Config& config = {}) { return open_stream(ctx_, unkeyed(config)); }

  // A stream that has decoded `prompt`.
  Stream prompted(const Tokens& prompt, const Config& config = {}) {
    Stream stream = open(config);
    prefill(stream, prompt);
    return stream;
  }

  const Tokens& prompt() const { return runtime_.prompts[0]; }
  const Tokens& question() const { return runtime_.prompts[1]; }

  // All prompts, those of known answers too.
  std::vector<Tokens> beginnings() const {
    std::vector<Tokens> all = runtime_.prompts;
    for (const Answer& answer : runtime_.answers) all.push_back(answer.prompt);
    return all;
  }

  // `count` tokens of which a prompt may consist.
  Tokens filling(size_t count) const {
    return first_of(repeated(prompt(), count / prompt().size() + 1), count);
  }

  bool refuses(const std::string& field) const {
    return std::count(runtime_.refuses.begin(), runtime_.refuses.end(), field) > 0;
  }

  // A temperature at which the text varies, and nothing else.
  Config heated() const {
    Config config = {};
    config.temperature = runtime_.temperature;
    return config;
  }

  // Every sampler that the runtime has.
  Config sampled() const {
    Config config = sampled_config();
    config.temperature = runtime_.temperature;
    if (refuses("repeat_penalty")) config.repeat_penalty = 0;
    return config;
  }

  const Runtime& runtime_;

 private:
  std::vector<std::unique_ptr<EnvironmentVariable>> variables_;
};

inline Config capped(int32_t max_tokens, Config config = {}) {
  config.max_tokens = max_tokens;
  return config;
}

inline int32_t reset_keep(const Stream& stream, int32_t count) {
  return eliza_inference_llm_stream_reset_keep(stream.get(), count);
}

inline void reset(const Stream& stream) {
  if (eliza_inference_llm_stream_reset(stream.get()) != ELIZA_OK) {
    throw std::runtime_error("reset failed");
  }
}

inline void cancel(const Stream& stream) {
  if (eliza_inference_llm_stream_cancel(stream.get()) != ELIZA_OK) {
    throw std::runtime_error("cancel failed");
  }
}

inline void expect_same(const Generation& got, const Generation& expected) {
  EXPECT_EQ(got.tokens, expected.tokens);
  EXPECT_EQ(got.text, expected.text);
  EXPECT_EQ(got.final, expected.final);
}

// A message names the function, what was wrong with which value, and is no novel.
inline void expect_message(const std::string& message, const std::string& function,
                           const std::vector<std::string>& fragments) {
  EXPECT_NE(message.find("eliza_inference_llm_stream_" + function), std::string::npos) << message;
  for (const auto& fragment : fragments) {
    EXPECT_NE(message.find(fragment), std::string::npos) << fragment << " is not in: " << message;
  }
  EXPECT_TRUE(is_valid_utf8(message));
  EXPECT_LT(message.size(), 4096u);
}

inline void expect_prefill_refused(const Stream& stream, const Tokens& tokens,
                                   const std::vector<std::string>& fragments) {
  OwnedMessage error;
  EXPECT_EQ(
      eliza_inference_llm_stream_prefill(stream.get(), tokens.data(), tokens.size(), error.out()),
      ELIZA_ERR_INVALID_ARG);
  expect_message(error.text(), "prefill", fragments);
  EXPECT_EQ(try_prefill(stream, tokens), ELIZA_ERR_INVALID_ARG) << "with a NULL out_error";
}

inline void expect_open_refused(const Context& ctx, const Config& config,
                                const std::vector<std::string>& fragments) {
  OwnedMessage error;
  const auto open = [&](char** out_error) {
    return Stream(eliza_inference_llm_stream_open(ctx.get(), &config, out_error)) != nullptr;
  };
  if (open(error.out())) {
    ADD_FAILURE() << fragments[0] << " was not refused";
    return;
  }
  expect_message(error.text(), "open", fragments);
  EXPECT_FALSE(open(nullptr)) << "with a NULL out_error";
}

// A call of next that delivers nothing, and says so in its outputs too.
inline void expect_nothing(const Step& step, int status) {
  EXPECT_EQ(step.status, status) << step.message;
  EXPECT_EQ(step.tokens, Tokens());
  EXPECT_EQ(step.text, "");
  EXPECT_EQ(step.drafted, 0);
  EXPECT_EQ(step.accepted, 0);
}

class SessionContract : public ContractFixture, public testing::WithParamInterface<Runtime> {
 protected:
  SessionContract() : ContractFixture(GetParam()) {}
};

inline std::string name_of(const testing::TestParamInfo<Runtime>& test) { return test.param.name; }

}  // namespace eliza::test
