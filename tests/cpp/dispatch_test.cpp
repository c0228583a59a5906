#include <gtest/gtest.h>

#include <cstring>
#include <new>
#include <stdexcept>

#include "support/error.h"
#include "test_support.h"

// The C entry points over a backend session: what goes in, what comes out, and who owns it.

namespace eliza::test {
namespace {

class DispatchTest : public testing::Test {
 protected:
  DispatchTest() {
    std::filesystem::create_directory(bundle_.path() / "text");
    ctx_ = create_context(bundle_.string());
    backend_.on_open = [this](EliInferenceContext* ctx, const eliza_llm_stream_config_t* cfg,
                              char**) -> LlmBackendSession* {
      opened_with_ = ctx;
      config_seen_ = cfg;
      return new RecordingSession(recording_, answer_);
    };
  }

  // A stream whose session gives `answer` to every call.
  Stream open(RecordingSession::Answer answer) {
    answer_ = std::move(answer);
    return open_stream(ctx_, config_);
  }
  Stream open(int answer = ELIZA_OK) {
    return open([answer](char**) { return answer; });
  }

  CleanEnvironment environment_;
  TemporaryDirectory bundle_;
  FakeBackend backend_{"fake", 1};
  RegisteredBackend registered_{backend_};
  Context ctx_;
  eliza_llm_stream_config_t config_ = {};
  RecordingSession::Answer answer_;
  Recording recording_;
  const EliInferenceContext* opened_with_ = nullptr;
  const eliza_llm_stream_config_t* config_seen_ = nullptr;
};

// Every method of a stream that a session answers. Methods without a message ignore out_error.
struct Method {
  const char* name;
  int (*call)(EliLlmStream*, char** out_error);
  bool has_message;
};

const Method methods[] = {
    {"prefill",
     [](EliLlmStream* s, char** e) { return eliza_inference_llm_stream_prefill(s, nullptr, 0, e); },
     true},
    {"next",
     [](EliLlmStream* s, char** e) {
       return eliza_inference_llm_stream_next(s, nullptr, 0, nullptr, nullptr, 0, nullptr, nullptr,
                                              e);
     },
     true},
    {"cancel", [](EliLlmStream* s, char**) { return eliza_inference_llm_stream_cancel(s); }, false},
    {"reset", [](EliLlmStream* s, char**) { return eliza_inference_llm_stream_reset(s); }, false},
    {"reset_keep",
     [](EliLlmStream* s, char**) { return eliza_inference_llm_stream_reset_keep(s, 3); }, false},
    {"save_slot",
     [](EliLlmStream* s, char** e) { return eliza_inference_llm_stream_save_slot(s, nullptr, e); },
     true},
    {"restore_slot",
     [](EliLlmStream* s, char** e) {
       return eliza_inference_llm_stream_restore_slot(s, nullptr, e);
     },
     true},
};

TEST_F(DispatchTest, OpenHandsOverTheContextAndTheCallersConfig) {
  const Stream stream = open();
  EXPECT_EQ(opened_with_, ctx_.get());
  EXPECT_EQ(config_seen_, &config_);
  EXPECT_EQ(backend_.probed_bundle(), bundle_.string());
}

TEST_F(DispatchTest, OpenDoesNotValidateTheConfigOfABackend) {
  config_.temperature = -1;
  config_.draft_max = -5;
  config_.cache_type_k = "a type only this backend knows";
  EXPECT_NE(open(), nullptr);
}

TEST_F(DispatchTest, ContextGivesItsBundleDirectory) {
  EXPECT_EQ(llm_backend_context_bundle_dir(ctx_.get()), bundle_.string());
}

TEST_F(DispatchTest, PrefillForwardsEveryArgument) {
  const Stream stream = open();
  const int32_t ids[] = {-1, INT32_MAX, 5};
  char* error = nullptr;
  eliza_inference_llm_stream_prefill(stream.get(), ids, 3, &error);
  eliza_inference_llm_stream_prefill(stream.get(), nullptr, SIZE_MAX, nullptr);
  eliza_inference_llm_stream_prefill(stream.get(), ids, 0, &error);
  EXPECT_EQ(recording_.calls,
            (std::vector<RecordedCall>{recorded("prefill", ids, 3, &error),
                                       recorded("prefill", nullptr, SIZE_MAX, nullptr),
                                       recorded("prefill", ids, 0, &error)}));
}

TEST_F(DispatchTest, NextForwardsEveryArgument) {
  const Stream stream = open();
  int32_t tokens[3];
  size_t count = 77;
  char text[5] = "abcd";
  int32_t drafted = 78;
  int32_t accepted = 79;
  char* error = nullptr;
  eliza_inference_llm_stream_next(stream.get(), tokens, 3, &count, text, 5, &drafted, &accepted,
                                  &error);
  eliza_inference_llm_stream_next(stream.get(), nullptr, SIZE_MAX, nullptr, nullptr, SIZE_MAX - 1,
                                  nullptr, nullptr, nullptr);
  eliza_inference_llm_stream_next(stream.get(), tokens, 0, &count, text, 0, nullptr, &accepted,
                                  &error);
  EXPECT_EQ(recording_.calls,
            (std::vector<RecordedCall>{
                recorded("next", tokens, 3, &count, text, 5, &drafted, &accepted, &error),
                recorded("next", nullptr, SIZE_MAX, nullptr, nullptr, SIZE_MAX - 1, nullptr,
                         nullptr, nullptr),
                recorded("next", tokens, 0, &count, text, 0, nullptr, &accepted, &error)}));
  EXPECT_EQ(count, 77u) << "outputs belong to the session";
  EXPECT_STREQ(text, "abcd");
  EXPECT_EQ(drafted, 78);
  EXPECT_EQ(accepted, 79);
}

TEST_F(DispatchTest, CancelAndResetAreForwarded) {
  const Stream stream = open();
  eliza_inference_llm_stream_cancel(stream.get());
  eliza_inference_llm_stream_reset(stream.get());
  EXPECT_EQ(recording_.calls, (std::vector<RecordedCall>{recorded("cancel"), recorded("reset")}));
}

TEST_F(DispatchTest, ResetKeepForwardsItsCountUnclamped) {
  const Stream stream = open();
  std::vector<RecordedCall> expected;
  for (const int32_t count : {0, 7, -1, INT32_MIN, INT32_MAX}) {
    eliza_inference_llm_stream_reset_keep(stream.get(), count);
    expected.push_back(recorded("reset_keep", count));
  }
  EXPECT_EQ(recording_.calls, expected);
}

TEST_F(DispatchTest, SlotsForwardTheFileName) {
  const Stream stream = open();
  const char* name = "slot.bin";
  char* error = nullptr;
  eliza_inference_llm_stream_save_slot(stream.get(), name, &error);
  eliza_inference_llm_stream_save_slot(stream.get(), nullptr, nullptr);
  eliza_inference_llm_stream_restore_slot(stream.get(), name, &error);
  eliza_inference_llm_stream_restore_slot(stream.get(), nullptr, nullptr);
  EXPECT_EQ(
      recording_.calls,
      (std::vector<RecordedCall>{
          recorded("save_slot", name, &error), recorded("save_slot", nullptr, nullptr),
          recorded("restore_slot", name, &error), recorded("restore_slot", nullptr, nullptr)}));
}

TEST_F(DispatchTest, EveryReturnValueComesBackVerbatim) {
  for (const int value : {0, 1, 2, 12345, INT32_MAX, -1, -2, -3, -4, -5, -6, -7, -99, INT32_MIN}) {
    const Stream stream = open(value);
    for (const auto& method : methods) {
      EXPECT_EQ(method.call(stream.get(), nullptr), value) << method.name;
    }
  }
}

TEST_F(DispatchTest, MessageOfTheSessionComesBackVerbatim) {
  const Stream stream = open([](char** out_error) {
    if (out_error != nullptr) *out_error = duplicate_message("the session says so");
    return ELIZA_ERR_BUNDLE_INVALID;
  });
  for (const auto& method : methods) {
    if (!method.has_message) continue;
    OwnedMessage error;
    EXPECT_EQ(method.call(stream.get(), error.out()), ELIZA_ERR_BUNDLE_INVALID) << method.name;
    EXPECT_EQ(error.text(), "the session says so") << method.name;
  }
}

TEST_F(DispatchTest, SuccessLeavesTheMessageAlone) {
  const Stream stream = open();
  char sentinel = 'x';
  for (const auto& method : methods) {
    char* error = &sentinel;
    method.call(stream.get(), &error);
    EXPECT_EQ(error, &sentinel) << method.name;
  }
}

// ----------------------------------------------------------------- opening fails

TEST_F(DispatchTest, MessageOfAFailedOpenReachesTheCaller) {
  backend_.on_open = [](auto*, auto*, char** out_error) -> LlmBackendSession* {
    *out_error = duplicate_message("no NPU today");
    return nullptr;
  };
  OwnedMessage error;
  EXPECT_EQ(eliza_inference_llm_stream_open(ctx_.get(), &config_, error.out()), nullptr);
  EXPECT_NE(error.text().find("no NPU today"), std::string::npos) << error.text();
  EXPECT_EQ(eliza_inference_llm_stream_open(ctx_.get(), &config_, nullptr), nullptr);
}

TEST_F(DispatchTest, FailedOpenWithoutAMessageStillHasOne) {
  backend_.on_open = [](auto*, auto*, char**) -> LlmBackendSession* { return nullptr; };
  OwnedMessage error;
  EXPECT_EQ(eliza_inference_llm_stream_open(ctx_.get(), &config_, error.out()), nullptr);
  EXPECT_NE(error.text().find("eliza_inference_llm_stream_open"), std::string::npos)
      << error.text();
}

TEST_F(DispatchTest, FailedOpenDoesNotFallBackToTheInTreePath) {
  std::filesystem::create_symlink(test_model("tiny-bpe.gguf"),
                                  bundle_.path() / "text" / "model.gguf");
  backend_.on_open = [](auto*, auto*, char**) -> LlmBackendSession* { return nullptr; };
  EXPECT_EQ(eliza_inference_llm_stream_open(ctx_.get(), &config_, nullptr), nullptr);
}

TEST_F(DispatchTest, ForcedBackendThatIsUnknownFailsWithTheSelectorsMessage) {
  const EnvironmentVariable variable("ELIZA_LLM_BACKEND", "no-such-runtime");
  OwnedMessage error;
  EXPECT_EQ(eliza_inference_llm_stream_open(ctx_.get(), &config_, error.out()), nullptr);
  for (const char* fragment :
       {"eliza_inference_llm_stream_open", "ELIZA_LLM_BACKEND", "no-such-runtime", "fake"}) {
    EXPECT_NE(error.text().find(fragment), std::string::npos) << error.text();
  }
}

TEST_F(DispatchTest, InTreePathIsForcedPastTheBackend) {
  const EnvironmentVariable variable("ELIZA_LLM_BACKEND", "LlamaCpp");
  OwnedMessage error;
  EXPECT_EQ(eliza_inference_llm_stream_open(ctx_.get(), &config_, error.out()), nullptr);
  EXPECT_NE(error.text().find("no text model"), std::string::npos) << error.text();
  EXPECT_EQ(opened_with_, nullptr);
}

TEST_F(DispatchTest, BackendThatCannotServeLeavesTheInTreePath) {
  backend_.serves = false;
  OwnedMessage error;
  EXPECT_EQ(eliza_inference_llm_stream_open(ctx_.get(), &config_, error.out()), nullptr);
  EXPECT_NE(error.text().find("no text model"), std::string::npos) << error.text();
}

// -------------------------------------------------------------------- exceptions

struct Thrown {
  const char* what;
  void (*raise)();
  int code;
  const char* fragment;  // of the message
};

class DispatchExceptionTest : public DispatchTest, public testing::WithParamInterface<Thrown> {};

TEST_P(DispatchExceptionTest, BecomesACodeAndAMessage) {
  const Stream stream = open([this](char**) -> int {
    GetParam().raise();
    return 0;
  });
  for (const auto& method : methods) {
    OwnedMessage error;
    EXPECT_EQ(method.call(stream.get(), error.out()), GetParam().code) << method.name;
    if (method.has_message) {
      EXPECT_NE(error.text().find(GetParam().fragment), std::string::npos) << error.text();
      EXPECT_NE(error.text().find(method.name), std::string::npos) << error.text();
    }
    EXPECT_EQ(method.call(stream.get(), nullptr), GetParam().code) << method.name;
  }
}

TEST_P(DispatchExceptionTest, InOpenBecomesAMessage) {
  backend_.on_open = [this](auto*, auto*, char**) -> LlmBackendSession* {
    GetParam().raise();
    return nullptr;
  };
  OwnedMessage error;
  EXPECT_EQ(eliza_inference_llm_stream_open(ctx_.get(), &config_, error.out()), nullptr);
  EXPECT_NE(error.text().find(GetParam().fragment), std::string::npos) << error.text();
  EXPECT_EQ(eliza_inference_llm_stream_open(ctx_.get(), &config_, nullptr), nullptr);
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, DispatchExceptionTest,
    testing::Values(Thrown{"runtime_error", [] { throw std::runtime_error("the delegate broke"); },
                           ELIZA_ERR_FFI_FAULT, "the delegate broke"},
                    Thrown{"int", [] { throw 42; }, ELIZA_ERR_FFI_FAULT, "unknown failure"},
                    Thrown{"bad_alloc", [] { throw std::bad_alloc(); }, ELIZA_ERR_OOM,
                           "out of memory"},
                    Thrown{"Error", [] { throw Error(ELIZA_ERR_CANCELLED, "stopped"); },
                           ELIZA_ERR_CANCELLED, "stopped"}),
    [](const auto& test) { return std::string(test.param.what); });

// --------------------------------------------------------------------- ownership

TEST_F(DispatchTest, CloseDeletesTheSessionOnce) {
  EliLlmStream* stream = open().release();
  EXPECT_EQ(recording_.deleted, 0);
  eliza_inference_llm_stream_close(stream);
  EXPECT_EQ(recording_.deleted, 1);
}

TEST_F(DispatchTest, StreamOutlivesItsContextAndItsRegistration) {
  const Stream stream = open(7);
  ctx_.reset();
  EXPECT_EQ(eliza_inference_llm_stream_cancel(stream.get()), 7);
  EXPECT_EQ(recording_.deleted, 0);
}

// A session that leaves the optional methods to their defaults.
class MinimalSession : public LlmBackendSession {
 public:
  int prefill(const int32_t*, size_t, char**) override { return ELIZA_OK; }
  int next(int32_t*, size_t, size_t*, char*, size_t, int32_t*, int32_t*, char**) override {
    return 1;
  }
  int cancel() override { return ELIZA_OK; }
  int reset() override { return ELIZA_OK; }
  int reset_keep(int32_t) override { return 0; }
};

TEST_F(DispatchTest, SlotsAreRefusedByDefault) {
  backend_.on_open = [](auto*, auto*, char**) -> LlmBackendSession* { return new MinimalSession; };
  const Stream stream = open_stream(ctx_, config_);
  for (const auto& call :
       {eliza_inference_llm_stream_save_slot, eliza_inference_llm_stream_restore_slot}) {
    OwnedMessage error;
    EXPECT_EQ(call(stream.get(), "slot.bin", error.out()), ELIZA_ERR_INVALID_ARG);
    EXPECT_NE(error.text().find("slot"), std::string::npos) << error.text();
    EXPECT_EQ(call(stream.get(), "slot.bin", nullptr), ELIZA_ERR_INVALID_ARG);
  }
}

}  // namespace
}  // namespace eliza::test
