#include <gtest/gtest.h>

#include <thread>

#include "ffi/handles.h"
#include "test_support.h"

// Run under the thread sanitizer too (ctest -L threads). No sleeps: threads wait for what they
// need.

namespace eliza::test {
namespace {

constexpr int loop_start = 274;  // chain-spm.gguf: "loop" never ends

// Runs `work(number)` in `count` threads that start together; rethrows nothing, so `work` reports
// by EXPECT, which GoogleTest allows from any thread.
template <typename Work>
void in_parallel(int count, const Work& work) {
  std::atomic<int> ready{0};
  std::vector<std::thread> threads;
  for (int number = 0; number < count; ++number) {
    threads.emplace_back([&, number] {
      ++ready;
      while (ready < count) std::this_thread::yield();
      try {
        work(number);
      } catch (const std::exception& problem) {
        ADD_FAILURE() << "thread " << number << ": " << problem.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

void wait_for(const std::atomic<bool>& condition) {
  while (!condition) std::this_thread::yield();
}

class ThreadsTest : public testing::Test {
 protected:
  CleanEnvironment environment_;
  EnvironmentVariable threads_{"ELIZA_LLM_THREADS", "2"};
};

Tokens prompt_of(int number) {
  return random_tokens(40, 6, 300, static_cast<uint32_t>(number) + 1);
}

Tokens answer_of(const Stream& stream, int number) {
  prefill(stream, prompt_of(number));
  return generate(stream, 60).tokens;
}

// ------------------------------------------------------------------------ cancel

class CancelPrefillTest : public ThreadsTest, public testing::WithParamInterface<const char*> {};

TEST_P(CancelPrefillTest, StopsItAndTheStreamRecovers) {
  const EnvironmentVariable batch("ELIZA_LLM_N_BATCH", GetParam());
  const auto bundle = make_bundle("tiny-bpe.gguf");
  const Context ctx = create_context(bundle->string());
  const Stream stream = open_stream(ctx);
  const Tokens expected = answer_of(open_stream(ctx), 0);
  const Tokens long_prompt = random_tokens(2000, 6, 300);
  for (int round = 0; round < 5; ++round) {
    std::atomic<bool> started{false};
    int status = ELIZA_OK;
    std::thread prefiller([&] {
      started = true;
      status = try_prefill(stream, long_prompt);
    });
    wait_for(started);
    EXPECT_EQ(eliza_inference_llm_stream_cancel(stream.get()), ELIZA_OK);
    prefiller.join();
    // A cancel that came too late for the prefill is still there for the next step.
    EXPECT_TRUE(status == ELIZA_ERR_CANCELLED || status == ELIZA_OK) << status;
    EXPECT_EQ(next(stream).status, ELIZA_ERR_CANCELLED);
    const int kept = eliza_inference_llm_stream_reset_keep(stream.get(), 2000);
    EXPECT_GE(kept, 0);
    EXPECT_LE(kept, 2000);
    ASSERT_EQ(eliza_inference_llm_stream_reset(stream.get()), ELIZA_OK);
    EXPECT_EQ(answer_of(stream, 0), expected);
    ASSERT_EQ(eliza_inference_llm_stream_reset(stream.get()), ELIZA_OK);
  }
}

TEST_P(CancelPrefillTest, WhatIsKeptOfItIsExact) {
  const EnvironmentVariable batch("ELIZA_LLM_N_BATCH", GetParam());
  const auto bundle = make_bundle("tiny-bpe.gguf");
  const Context ctx = create_context(bundle->string());
  const Tokens prompt = random_tokens(1500, 6, 300);
  const Stream fresh = open_stream(ctx);
  prefill(fresh, prompt);
  const Tokens expected = generate(fresh, 10).tokens;

  const Stream stream = open_stream(ctx);
  std::atomic<bool> started{false};
  std::thread prefiller([&] {
    started = true;
    try_prefill(stream, prompt);
  });
  wait_for(started);
  eliza_inference_llm_stream_cancel(stream.get());
  prefiller.join();
  const int kept = eliza_inference_llm_stream_reset_keep(stream.get(), INT32_MAX);
  ASSERT_GE(kept, 0);
  if (kept < 1500) prefill(stream, Tokens(prompt.begin() + kept, prompt.end()));
  EXPECT_EQ(generate(stream, 10).tokens, expected) << "kept " << kept;
}

INSTANTIATE_TEST_SUITE_P(Batches, CancelPrefillTest, testing::Values("16", "512"));

TEST_F(ThreadsTest, CancelOfOneStreamLeavesTheOthersAlone) {
  const auto bundle = make_bundle("tiny-bpe.gguf");
  const Context ctx = create_context(bundle->string());
  const Tokens expected = answer_of(open_stream(ctx), 1);
  const Stream cancelled = open_stream(ctx);
  const Stream other = open_stream(ctx);
  in_parallel(2, [&](int number) {
    if (number == 0) {
      eliza_inference_llm_stream_cancel(cancelled.get());
      EXPECT_EQ(try_prefill(cancelled, {10, 11}), ELIZA_ERR_CANCELLED);
    } else {
      EXPECT_EQ(answer_of(other, 1), expected);
    }
  });
}

// ---------------------------------------------------------------------- parallel

class ParallelStreamsTest : public ThreadsTest, public testing::WithParamInterface<int> {};

TEST_P(ParallelStreamsTest, WithGrammarsAnswerAsAlone) {
  eliza_llm_stream_config_t config = sampled_config();
  config.gbnf_grammar = "root ::= [a-z ]+";
  const auto bundle = make_bundle("tiny-bpe.gguf");
  const Context ctx = create_context(bundle->string());
  std::vector<Tokens> alone;
  for (int number = 0; number < GetParam(); ++number) {
    alone.push_back(answer_of(open_stream(ctx, config), number));
  }
  in_parallel(GetParam(), [&](int number) {
    EXPECT_EQ(answer_of(open_stream(ctx, config), number), alone[static_cast<size_t>(number)]);
  });
}

INSTANTIATE_TEST_SUITE_P(Counts, ParallelStreamsTest, testing::Values(2, 4));

TEST_F(ThreadsTest, StreamsOfDifferentContextsAnswerAsAlone) {
  const char* models[] = {"tiny-bpe.gguf", "tiny-spm.gguf", "tiny-swa.gguf"};
  std::vector<std::unique_ptr<TemporaryDirectory>> bundles;
  std::vector<Context> contexts;
  std::vector<Tokens> alone;
  for (const char* model : models) {
    bundles.push_back(make_bundle(model));
    contexts.push_back(create_context(bundles.back()->string()));
    alone.push_back(answer_of(open_stream(contexts.back()), 3));
  }
  in_parallel(3, [&](int number) {
    const auto index = static_cast<size_t>(number);
    EXPECT_EQ(answer_of(open_stream(contexts[index]), 3), alone[index]);
  });
}

// --------------------------------------------------------------------- first use

TEST_F(ThreadsTest, ConcurrentFirstUseLoadsOneModel) {
  const auto bundle = make_bundle("tiny-bpe.gguf");
  llama::ModelSlot slot(bundle->string());
  std::vector<std::shared_ptr<const llama::Model>> models(8);
  in_parallel(8, [&](int number) { models[static_cast<size_t>(number)] = slot.acquire_any(); });
  for (const auto& model : models) EXPECT_EQ(model, models[0]);
}

TEST_F(ThreadsTest, ConcurrentFirstUseOfAllKindsWorks) {
  const auto bundle = make_bundle("tiny-bpe.gguf");
  const Context reference = create_context(bundle->string());
  const Tokens expected = answer_of(open_stream(reference), 5);
  const Tokens expected_ids = tokenize(reference, "the quick brown fox");
  const Context ctx = create_context(bundle->string());
  in_parallel(8, [&](int number) {
    if (number % 3 == 0) {
      EXPECT_EQ(answer_of(open_stream(ctx), 5), expected);
    } else if (number % 3 == 1) {
      EXPECT_EQ(tokenize(ctx, "the quick brown fox"), expected_ids);
    } else {
      EXPECT_EQ(eliza_inference_mmap_acquire(ctx.get(), "text", nullptr), ELIZA_OK);
    }
  });
}

TEST_F(ThreadsTest, ConcurrentFirstUseOfABrokenModelFailsForAll) {
  const TemporaryDirectory bundle;
  write_file(bundle.path() / "text" / "broken.gguf", "not a model");
  const Context ctx = create_context(bundle.string());
  const eliza_llm_stream_config_t config = {};
  in_parallel(8, [&](int) {
    OwnedMessage error;
    EXPECT_EQ(eliza_inference_llm_stream_open(ctx.get(), &config, error.out()), nullptr);
    EXPECT_NE(error.text().find("broken.gguf"), std::string::npos) << error.text();
  });
}

TEST_F(ThreadsTest, ContextsMayBeCreatedInParallel) {
  const auto bundle = make_bundle("tiny-spm.gguf");
  in_parallel(8, [&](int) {
    const Context ctx = create_context(bundle->string());
    EXPECT_EQ(tokenize(ctx, "dog").empty(), false);
  });
}

// ---------------------------------------------------------------------- lifetime

TEST_F(ThreadsTest, StreamsMayBeOpenedAndClosedInParallel) {
  const auto bundle = make_bundle("tiny-bpe.gguf");
  const Context ctx = create_context(bundle->string());
  in_parallel(4, [&](int number) {
    for (int round = 0; round < 10; ++round) {
      const Stream stream = open_stream(ctx);
      prefill(stream, prompt_of(number));
      EXPECT_EQ(generate(stream, 2).tokens.size(), 2u);
    }
  });
}

TEST_F(ThreadsTest, ModelMayBeEvictedWhileStreamsRun) {
  const auto bundle = make_bundle("tiny-bpe.gguf");
  const Context ctx = create_context(bundle->string());
  const Tokens expected = answer_of(open_stream(ctx), 2);
  std::atomic<int> running{2};
  in_parallel(3, [&](int number) {
    if (number == 0) {
      while (running > 0) {
        EXPECT_EQ(eliza_inference_mmap_evict(ctx.get(), "text", nullptr), ELIZA_OK);
        std::this_thread::yield();
      }
      return;
    }
    for (int round = 0; round < 3; ++round) EXPECT_EQ(answer_of(open_stream(ctx), 2), expected);
    --running;
  });
}

// ------------------------------------------------------- speculation and prompt cache

eliza_llm_stream_config_t drafting(const std::string& drafter = "") {
  eliza_llm_stream_config_t config = {};
  config.draft_max = 8;
  if (!drafter.empty()) config.mtp_drafter_path = drafter.c_str();
  return unkeyed(config);
}

class DraftingThreadsTest : public ThreadsTest {
 protected:
  EnvironmentVariable always_{"ELIZA_LLM_DRAFT", "always"};
};

TEST_F(DraftingThreadsTest, StreamsAnswerAsAlone) {
  const struct {
    const char* model;
    const char* drafter;
  } kinds[] = {{"tiny-bpe.gguf", "tiny-bpe.gguf"},
               {"tiny-bpe.gguf", "tiny-bpe-draft.gguf"},
               {"tiny-swa.gguf", nullptr},
               {"tiny-mtp.gguf", nullptr},
               {"tiny-eagle3-target.gguf", "tiny-eagle3.gguf"}};
  for (const auto& [model, drafter] : kinds) {
    const auto bundle = make_bundle(model);
    const Context ctx = create_context(bundle->string());
    const std::string path = drafter == nullptr ? "" : test_model(drafter).string();
    std::vector<Tokens> alone;
    for (int number = 0; number < 3; ++number) {
      alone.push_back(answer_of(open_stream(ctx, unkeyed()), number));
    }
    in_parallel(3, [&](int number) {
      for (int round = 0; round < 2; ++round) {
        const Tokens answer = answer_of(open_stream(ctx, drafting(path)), number);
        EXPECT_EQ(first_of(answer, 60), alone[static_cast<size_t>(number)]) << model;
      }
    });
  }
}

TEST_F(DraftingThreadsTest, CancelStopsARunningGeneration) {
  const auto bundle = make_bundle("chain-spm.gguf");
  const Context ctx = create_context(bundle->string());
  const std::string path = test_model("chain-spm.gguf").string();
  const Stream stream = open_stream(ctx, drafting(path));
  for (int round = 0; round < 10; ++round) {
    std::atomic<bool> running{false};
    int last_status = 0;
    std::thread generator([&] {
      prefill(stream, {loop_start});
      for (int steps = 1; last_status >= 0; ++steps) {
        last_status = next(stream, 64, 256).status;
        if (steps == 3) running = true;
      }
    });
    wait_for(running);
    eliza_inference_llm_stream_cancel(stream.get());
    generator.join();
    EXPECT_EQ(last_status, ELIZA_ERR_CANCELLED);
    ASSERT_EQ(eliza_inference_llm_stream_reset(stream.get()), ELIZA_OK);
    prefill(stream, {loop_start});
    EXPECT_EQ(generate(stream, 12).text.substr(0, 12), "abcabcabcabc");
    ASSERT_EQ(eliza_inference_llm_stream_reset(stream.get()), ELIZA_OK);
  }
}

TEST_F(DraftingThreadsTest, WhatIsKeptAfterACancelIsExact) {
  const auto bundle = make_bundle("tiny-bpe.gguf");
  const Context ctx = create_context(bundle->string());
  const std::string path = test_model("tiny-bpe.gguf").string();
  const Tokens expected = answer_of(open_stream(ctx, unkeyed()), 0);
  const Stream stream = open_stream(ctx, drafting(path));
  for (int round = 0; round < 10; ++round) {
    prefill(stream, prompt_of(0));
    std::atomic<bool> running{false};
    std::thread generator([&] {
      for (int status = 0; status == 0; running = true) status = next(stream, 64, 512).status;
    });
    wait_for(running);
    for (int pause = 0; pause < 50 * round; ++pause) std::this_thread::yield();
    eliza_inference_llm_stream_cancel(stream.get());
    generator.join();
    const int32_t kept = eliza_inference_llm_stream_reset_keep(stream.get(), 30);
    ASSERT_EQ(kept, 30);
    prefill(stream, rest_of(prompt_of(0), 30));
    EXPECT_EQ(first_of(generate(stream, 60, 64, 512).tokens, 60), expected);
    eliza_inference_llm_stream_reset(stream.get());
  }
}

// An event is whole, and none comes after the call that took its callback away.
TEST_F(DraftingThreadsTest, CallbackMayChangeWhileAStreamGenerates) {
  const auto bundle = make_bundle("chain-spm.gguf");
  const Context ctx = create_context(bundle->string());
  const std::string path = test_model("chain-spm.gguf").string();
  struct Counter {
    std::atomic<int> calls{0};
    std::atomic<bool> gone{false};
  };
  const auto count = [](const EliVerifierEvent* event, void* user_data) {
    auto& counter = *static_cast<Counter*>(user_data);
    EXPECT_FALSE(counter.gone);
    EXPECT_LE(event->n_accepted, 8u);
    ++counter.calls;
  };
  std::atomic<bool> done{false};
  std::thread generator([&] {
    const Stream stream = open_stream(ctx, drafting(path));
    while (!done) {
      prefill(stream, {loop_start});
      generate(stream, 200, 64, 256);
      eliza_inference_llm_stream_reset(stream.get());
    }
  });
  for (int round = 0; round < 20; ++round) {
    Counter counter;
    EXPECT_EQ(eliza_inference_set_verifier_callback(ctx.get(), count, &counter, nullptr), ELIZA_OK);
    while (counter.calls < 3) std::this_thread::yield();
    EXPECT_EQ(eliza_inference_set_verifier_callback(ctx.get(), nullptr, nullptr, nullptr),
              ELIZA_OK);
    counter.gone = true;
  }
  done = true;
  generator.join();
}

TEST_F(ThreadsTest, StreamsOfDifferentThreadCountsAnswerAsAlone) {
  const auto bundle = make_bundle("tiny-bpe.gguf");
  const Context ctx = create_context(bundle->string());
  std::vector<Tokens> alone;
  std::vector<Stream> streams;
  const char* counts[] = {"1", "2", "3", "4"};
  for (int number = 0; number < 4; ++number) {
    const EnvironmentVariable threads("ELIZA_LLM_THREADS", counts[number]);
    alone.push_back(answer_of(open_stream(ctx, unkeyed()), number));
    streams.push_back(open_stream(ctx, unkeyed()));
  }
  in_parallel(4, [&](int number) {
    const auto index = static_cast<size_t>(number);
    for (int round = 0; round < 2; ++round) {
      EXPECT_EQ(answer_of(streams[index], number), alone[index]);
      eliza_inference_llm_stream_reset(streams[index].get());
    }
  });
}

// All want one key: whoever comes first gets what is parked, and nobody notices.
TEST_F(ThreadsTest, StreamsOfOneKeyMayOpenAndCloseInParallel) {
  const auto bundle = make_bundle("tiny-swa.gguf");
  const Context ctx = create_context(bundle->string());
  eliza_llm_stream_config_t config = unkeyed();
  config.prompt_cache_key = "chat";
  std::vector<Tokens> alone;
  for (int number = 0; number < 3; ++number) {
    alone.push_back(answer_of(open_stream(ctx, unkeyed()), number));
  }
  in_parallel(3, [&](int number) {
    for (int round = 0; round < 6; ++round) {
      const int asked = (number + round) % 3;
      EXPECT_EQ(answer_of(open_stream(ctx, config), asked), alone[static_cast<size_t>(asked)]);
    }
  });
}

TEST_F(ThreadsTest, KeyOfACancelledPrefillStaysExact) {
  const auto bundle = make_bundle("tiny-bpe.gguf");
  const Context ctx = create_context(bundle->string());
  eliza_llm_stream_config_t config = unkeyed();
  config.prompt_cache_key = "chat";
  const Tokens prompt = random_tokens(1500, 6, 300);
  const Stream fresh = open_stream(ctx, unkeyed());
  prefill(fresh, prompt);
  const Tokens expected = generate(fresh, 10).tokens;
  for (int round = 0; round < 4; ++round) {
    {
      const Stream stream = open_stream(ctx, config);
      std::atomic<bool> started{false};
      std::thread prefiller([&] {
        started = true;
        try_prefill(stream, random_tokens(1500, 6, 300, round % 2 == 0 ? 7 : 8));
      });
      wait_for(started);
      eliza_inference_llm_stream_cancel(stream.get());
      prefiller.join();
    }
    const Stream stream = open_stream(ctx, config);
    prefill(stream, prompt);
    EXPECT_EQ(generate(stream, 10).tokens, expected);
  }
}

TEST_F(ThreadsTest, ContextMayBeDestroyedWhileKeyedStreamsClose) {
  const auto bundle = make_bundle("tiny-bpe.gguf");
  for (int round = 0; round < 10; ++round) {
    Context ctx = create_context(bundle->string());
    std::vector<Stream> streams;
    for (int number = 0; number < 3; ++number) {
      eliza_llm_stream_config_t config = {};
      config.slot_id = number;
      streams.push_back(open_stream(ctx, config));
      prefill(streams.back(), prompt_of(number));
    }
    in_parallel(4, [&](int number) {
      if (number == 3) {
        ctx.reset();
      } else {
        streams[static_cast<size_t>(number)].reset();
      }
    });
  }
}

TEST_F(ThreadsTest, EvictMayRunWhileKeyedStreamsOpenAndClose) {
  const auto bundle = make_bundle("tiny-bpe.gguf");
  const Context ctx = create_context(bundle->string());
  const Tokens expected = answer_of(open_stream(ctx, unkeyed()), 2);
  eliza_llm_stream_config_t config = unkeyed();
  config.prompt_cache_key = "chat";
  std::atomic<int> running{2};
  in_parallel(3, [&](int number) {
    if (number == 0) {
      while (running > 0) {
        eliza_inference_mmap_evict(ctx.get(), "text", nullptr);
        std::this_thread::yield();
      }
      return;
    }
    for (int round = 0; round < 4; ++round) {
      EXPECT_EQ(answer_of(open_stream(ctx, config), 2), expected);
    }
    --running;
  });
}

TEST_F(ThreadsTest, StreamsMaySaveToOneFileInParallel) {
  const auto bundle = make_bundle("tiny-bpe.gguf");
  const Context ctx = create_context(bundle->string());
  const TemporaryDirectory folder;
  const std::string path = (folder.path() / "slot").string();
  std::vector<Tokens> answers;
  for (int number = 0; number < 3; ++number) {
    answers.push_back(answer_of(open_stream(ctx, unkeyed()), number));
  }
  in_parallel(3, [&](int number) {
    const Stream stream = open_stream(ctx, unkeyed());
    prefill(stream, prompt_of(number));
    for (int round = 0; round < 10; ++round) {
      EXPECT_EQ(eliza_inference_llm_stream_save_slot(stream.get(), path.c_str(), nullptr),
                ELIZA_OK);
      // Whosoever it is, it is whole.
      const Stream other = open_stream(ctx, unkeyed());
      EXPECT_EQ(eliza_inference_llm_stream_restore_slot(other.get(), path.c_str(), nullptr),
                ELIZA_OK);
      const Tokens said = generate(other, 5).tokens;
      bool known = false;
      for (const Tokens& answer : answers) known = known || first_of(answer, 5) == said;
      EXPECT_TRUE(known);
    }
  });
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()),
                          std::filesystem::directory_iterator()),
            1);
}

}  // namespace
}  // namespace eliza::test
