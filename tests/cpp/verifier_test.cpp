#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "model_fixture.h"
#include "test_support.h"

// Verifier events tell, step by step, what the drafter proposed and what became of it.

namespace eliza::test {
namespace {

using Config = eliza_llm_stream_config_t;

struct Event {
  Tokens accepted;
  int rejected_from = 0;
  int rejected_to = 0;
  Tokens corrected;
  std::thread::id thread;
};

// Collects the events of a context while it lives.
class EventLog {
 public:
  explicit EventLog(const Context& ctx) : ctx_(ctx) {
    EXPECT_EQ(eliza_inference_set_verifier_callback(ctx.get(), &EventLog::receive, this, nullptr),
              ELIZA_OK);
  }
  ~EventLog() { eliza_inference_set_verifier_callback(ctx_.get(), nullptr, nullptr, nullptr); }
  EventLog(const EventLog&) = delete;
  EventLog& operator=(const EventLog&) = delete;

  std::vector<Event> events;
  std::function<void()> on_event;

 private:
  static void receive(const EliVerifierEvent* event, void* user_data) {
    auto& log = *static_cast<EventLog*>(user_data);
    const auto copied = [](const int* tokens, size_t count) {
      return count == 0 ? Tokens{} : Tokens(tokens, tokens + count);
    };
    log.events.push_back({copied(event->accepted_token_ids, event->n_accepted),
                          event->rejected_from, event->rejected_to,
                          copied(event->corrected_token_ids, event->n_corrected),
                          std::this_thread::get_id()});
    if (log.on_event) log.on_event();
  }

  const Context& ctx_;
};

class DrafterEventsTest : public DraftingFixture, public testing::WithParamInterface<DraftCase> {
 protected:
  DrafterEventsTest() {
    load(GetParam().target);
    if (GetParam().drafter != nullptr) drafter_ = test_model(GetParam().drafter).string();
  }

  Stream open(Config config = {}) {
    config.draft_max = 8;
    if (!drafter_.empty()) config.mtp_drafter_path = drafter_.c_str();
    return open_stream(ctx_, unkeyed(config));
  }

  std::string drafter_;
  const Tokens prompt_ = repeated(random_tokens(7, 10, 250, 3), 5);
};

INSTANTIATE_TEST_SUITE_P(Drafters, DrafterEventsTest,
                         testing::Values(DraftCase{"ngram", "tiny-swa.gguf", nullptr},
                                         DraftCase{"self", "tiny-bpe.gguf", "tiny-bpe.gguf"},
                                         DraftCase{"small", "tiny-bpe.gguf", "tiny-bpe-draft.gguf"},
                                         DraftCase{"head", "tiny-mtp.gguf", nullptr},
                                         DraftCase{"eagle3", "tiny-eagle3-target.gguf",
                                                   "tiny-eagle3.gguf"}));

TEST_P(DrafterEventsTest, TellWhatIsDelivered) {
  for (const Config& config : {Config{}, sampled_config()}) {
    EventLog log(ctx_);
    const Stream stream = open(config);
    prefill(stream, prompt_);
    Tokens output;
    size_t drafting_steps = 0;
    for (int step = 0; step < 80; ++step) {
      const size_t before = log.events.size();
      const Step got = next(stream, 64, 1024);
      ASSERT_EQ(got.status, 0) << got.message;
      if (got.drafted == 0) {
        EXPECT_EQ(log.events.size(), before) << "a plain step has no event";
        output = concatenated(output, got.tokens);
        continue;
      }
      ++drafting_steps;
      ASSERT_EQ(log.events.size(), before + 1) << "one event, and before next returns";
      const Event& event = log.events.back();
      const auto position = static_cast<int>(output.size());
      const auto accepted = static_cast<size_t>(got.accepted);
      EXPECT_EQ(event.accepted, first_of(got.tokens, accepted));
      EXPECT_EQ(event.thread, std::this_thread::get_id());
      if (got.accepted < got.drafted) {
        EXPECT_EQ(event.rejected_from, position + got.accepted);
        EXPECT_EQ(event.rejected_to, position + got.drafted - 1);
        EXPECT_EQ(event.corrected, rest_of(got.tokens, accepted));
        EXPECT_EQ(event.corrected.size(), 1u);
      } else {
        EXPECT_EQ(event.rejected_from, -1);
        EXPECT_EQ(event.rejected_to, -1);
        EXPECT_EQ(event.corrected, Tokens());
      }
      output = concatenated(output, got.tokens);
    }
    if (config.temperature == 0) {
      EXPECT_GT(drafting_steps, 0u) << "nothing was put to the test";
    }
  }
}

TEST_P(DrafterEventsTest, ComeWithTheStepAlsoWhereItsTokensDoNotFit) {
  EventLog log(ctx_);
  const Stream stream = open();
  prefill(stream, prompt_);
  for (int call = 0; call < 80; ++call) {
    const size_t before = log.events.size();
    const Step got = next(stream, 1, 1024);
    EXPECT_EQ(log.events.size(), before + (got.drafted > 0 ? 1 : 0));
  }
}

TEST_P(DrafterEventsTest, CountFromZeroInEveryGeneration) {
  EventLog log(ctx_);
  Config config = {};
  config.max_tokens = 20;
  const Stream stream = open(config);
  for (int generation = 0; generation < 4; ++generation) {
    if (generation == 3) eliza_inference_llm_stream_reset(stream.get());
    prefill(stream, prompt_);
    size_t delivered = 0;
    for (Step got; got.status == 0; delivered += got.tokens.size()) {
      log.events.clear();
      got = next(stream, 64, 1024);
      for (const Event& event : log.events) {
        if (event.rejected_from < 0) continue;
        EXPECT_EQ(event.rejected_from, static_cast<int>(delivered + event.accepted.size()));
        EXPECT_GE(event.rejected_to, event.rejected_from);
        EXPECT_LT(event.rejected_to, config.max_tokens);
      }
    }
    EXPECT_EQ(delivered, 20u);
  }
}

TEST_P(DrafterEventsTest, CancelFromInsideDeliversTheStepAndStopsTheNext) {
  EventLog log(ctx_);
  const Stream stream = open();
  log.on_event = [&] { EXPECT_EQ(eliza_inference_llm_stream_cancel(stream.get()), ELIZA_OK); };
  prefill(stream, prompt_);
  Step got;
  int steps = 0;
  for (; log.events.empty() && steps < 300; ++steps) got = next(stream, 64, 1024);
  ASSERT_EQ(log.events.size(), 1u);
  EXPECT_EQ(got.status, 0) << got.message;
  EXPECT_EQ(got.tokens.size(), static_cast<size_t>(got.accepted) + 1);
  EXPECT_EQ(next(stream, 64, 1024).status, ELIZA_ERR_CANCELLED);
  EXPECT_EQ(log.events.size(), 1u);
  ASSERT_EQ(eliza_inference_llm_stream_reset(stream.get()), ELIZA_OK);
  prefill(stream, prompt_);
  EXPECT_EQ(next(stream).status, 0);
}

// Every event, also of a rejection, adds up with the plain steps to the output of a plain stream.
TEST_P(DrafterEventsTest, RebuildTheOutput) {
  Config config = {};
  config.max_tokens = 60;
  const Stream plain = open_stream(ctx_, unkeyed(config));
  prefill(plain, prompt_);
  const Tokens expected = generate(plain).tokens;
  EventLog log(ctx_);
  const Stream stream = open(config);
  prefill(stream, prompt_);
  Tokens rebuilt;
  for (Step got; got.status == 0;) {
    log.events.clear();
    got = next(stream, 64, 1024);
    ASSERT_GE(got.status, 0) << got.message;
    if (log.events.empty()) {
      rebuilt = concatenated(rebuilt, got.tokens);
      continue;
    }
    const Event& event = log.events[0];
    rebuilt = concatenated(concatenated(rebuilt, event.accepted), event.corrected);
    // With everything accepted one more token was drawn, which is no matter of the drafter.
    if (event.rejected_from < 0) rebuilt.push_back(got.tokens.back());
  }
  EXPECT_EQ(rebuilt, expected);
}

class ScriptedVerifierTest : public DraftingFixture {
 protected:
  ScriptedVerifierTest() : path_(test_model("chain-spm.gguf").string()) {
    load("chain-spm.gguf");
    config_.draft_max = 4;
    config_.mtp_drafter_path = path_.c_str();
    config_ = unkeyed(config_);
  }

  static constexpr int32_t loop_start_ = 274;
  const std::string path_;
  Config config_ = {};
};

TEST_F(ScriptedVerifierTest, NullClearsTheCallback) {
  const Stream stream = open_stream(ctx_, config_);
  prefill(stream, {loop_start_});
  size_t before = 0;
  {
    EventLog log(ctx_);
    generate(stream, 20, 64, 256);
    before = log.events.size();
    EXPECT_GT(before, 0u);
    ASSERT_EQ(eliza_inference_set_verifier_callback(ctx_.get(), nullptr, &log, nullptr), ELIZA_OK);
    generate(stream, 20, 64, 256);
    EXPECT_EQ(log.events.size(), before);
  }
}

TEST_F(ScriptedVerifierTest, LastCallbackAndUserDataCount) {
  const Stream stream = open_stream(ctx_, config_);
  prefill(stream, {loop_start_});
  int calls[2] = {};
  const auto count = [](const EliVerifierEvent*, void* user_data) {
    ++*static_cast<int*>(user_data);
  };
  for (int& counter : calls) {
    ASSERT_EQ(eliza_inference_set_verifier_callback(ctx_.get(), count, &counter, nullptr),
              ELIZA_OK);
    generate(stream, 15, 64, 256);
  }
  EXPECT_GT(calls[0], 0);
  EXPECT_GT(calls[1], 0);
  const auto expects_null = [](const EliVerifierEvent*, void* user_data) {
    EXPECT_EQ(user_data, nullptr);
  };
  ASSERT_EQ(eliza_inference_set_verifier_callback(ctx_.get(), expects_null, nullptr, nullptr),
            ELIZA_OK);
  generate(stream, 15, 64, 256);
}

TEST_F(ScriptedVerifierTest, CallbacksOfOtherContextsStayQuiet) {
  const Context other = create_context(bundle_->string());
  const EventLog theirs(other);
  EventLog ours(ctx_);
  const Stream stream = open_stream(ctx_, config_);
  prefill(stream, {loop_start_});
  generate(stream, 20, 64, 256);
  EXPECT_GT(ours.events.size(), 0u);
  EXPECT_EQ(theirs.events.size(), 0u);
}

TEST_F(ScriptedVerifierTest, StreamsThatDoNotDraftHaveNoEvents) {
  EventLog log(ctx_);
  const Stream stream = open_stream(ctx_, unkeyed());
  prefill(stream, {loop_start_});
  generate(stream, 20);
  EXPECT_EQ(log.events.size(), 0u);
}

TEST_F(ScriptedVerifierTest, ChangeFromInsideIsRefusedAndNoDeadlock) {
  EventLog log(ctx_);
  std::string message;
  log.on_event = [&] {
    OwnedMessage error;
    EXPECT_EQ(eliza_inference_set_verifier_callback(ctx_.get(), nullptr, nullptr, error.out()),
              ELIZA_ERR_INVALID_ARG);
    message = error.text();
  };
  const Stream stream = open_stream(ctx_, config_);
  prefill(stream, {loop_start_});
  generate(stream, 20, 64, 256);
  EXPECT_NE(message.find("set_verifier_callback"), std::string::npos) << message;
  EXPECT_NE(message.find("callback"), std::string::npos) << message;
  EXPECT_GT(log.events.size(), 1u) << "it is still in place";
}

TEST_F(ScriptedVerifierTest, CallbackMayBeSetBeforeTheModelIsLoaded) {
  ctx_ = create_context(bundle_->string());
  EventLog log(ctx_);
  const Stream stream = open_stream(ctx_, config_);
  prefill(stream, {loop_start_});
  generate(stream, 20, 64, 256);
  EXPECT_GT(log.events.size(), 0u);
}

TEST_F(ScriptedVerifierTest, StreamReportsAfterItsContextIsGone) {
  int calls = 0;
  const auto count = [](const EliVerifierEvent*, void* user_data) {
    ++*static_cast<int*>(user_data);
  };
  ASSERT_EQ(eliza_inference_set_verifier_callback(ctx_.get(), count, &calls, nullptr), ELIZA_OK);
  const Stream stream = open_stream(ctx_, config_);
  prefill(stream, {loop_start_});
  ctx_.reset();
  EXPECT_EQ(generate(stream, 20, 64, 256).text.substr(0, 6), "abcabc");
  EXPECT_GT(calls, 0);
}

// The generation ends where the first draft was rejected: nothing was drawn in its place.
TEST_F(ScriptedVerifierTest, EndOfGenerationCorrectsNothing) {
  config_.mtp_drafter_path = nullptr;
  constexpr int32_t half_start = 278;  // says "ok" and half of a character
  EventLog log(ctx_);
  const Stream stream = open_stream(ctx_, config_);
  prefill(stream, {half_start});
  const Tokens said = generate(stream, 1000, 64, 256).tokens;
  ASSERT_GE(said.size(), 5u);
  // Other text follows the copied one, so that a draft goes over the end.
  prefill(stream, concatenated(concatenated(concatenated({half_start}, said), {40, 41, 42, 43}),
                               {half_start}));
  const Generation again = generate(stream, 1000, 64, 256);
  EXPECT_EQ(again.tokens, said);
  ASSERT_GT(log.events.size(), 0u);
  const Event& last = log.events.back();
  EXPECT_EQ(last.rejected_from, static_cast<int>(said.size()));
  EXPECT_GE(last.rejected_to, last.rejected_from);
  EXPECT_EQ(last.corrected, Tokens());
}

}  // namespace
}  // namespace eliza::test
