#include <future>
#include <thread>

#include "contract_fixture.h"

// What streams promise to several threads. Run under the thread sanitizer too (ctest -L threads).
// No sleeps: threads wait for what they need; what a thread throws is rethrown where it is waited
// for.

namespace eliza::test {
namespace {

class ThreadsContract : public SessionContract {
 protected:
  template <typename Work>
  static std::future<std::invoke_result_t<Work>> in_thread(Work work) {
    return std::async(std::launch::async, std::move(work));
  }

  static void wait_for(const std::atomic<bool>& condition) {
    while (!condition) std::this_thread::yield();
  }

  // As long as the context allows, so that there is time to cancel.
  Tokens long_prompt() const { return filling(runtime_.context_size - 20); }
};

INSTANTIATE_TEST_SUITE_P(Runtimes, ThreadsContract, testing::ValuesIn(contract_runtimes()),
                         name_of);

TEST_P(ThreadsContract, StreamsAnswerAsAlone) {
  for (const Config& config : {Config{}, sampled()}) {
    std::vector<Generation> alone;
    for (const Tokens& prompt : runtime_.prompts) alone.push_back(fresh(prompt, 16, config));
    std::vector<std::future<void>> threads;
    for (size_t number = 0; number < alone.size(); ++number) {
      threads.push_back(in_thread([&, number] {
        const Stream stream = open(config);
        for (int round = 0; round < 3; ++round) {
          prefill(stream, runtime_.prompts[number]);
          expect_same(generate(stream, 16), alone[number]);
          reset(stream);
        }
      }));
    }
    for (auto& thread : threads) thread.get();
  }
}

TEST_P(ThreadsContract, StreamsOpenAndCloseBesideOthers) {
  const Generation expected = fresh(prompt(), 4);
  std::vector<std::future<void>> threads;
  for (int number = 0; number < 3; ++number) {
    threads.push_back(in_thread([&] {
      for (int round = 0; round < 6; ++round) expect_same(fresh(prompt(), 4), expected);
    }));
  }
  for (auto& thread : threads) thread.get();
}

TEST_P(ThreadsContract, StreamMayMoveFromThreadToThread) {
  const Stream stream = open();
  in_thread([&] { prefill(stream, prompt()); }).get();
  Tokens tokens;
  for (int step = 0; step < 8; ++step) {
    in_thread([&] { tokens = concatenated(tokens, next(stream).tokens); }).get();
  }
  EXPECT_EQ(tokens, fresh(prompt(), 8).tokens);
}

TEST_P(ThreadsContract, ContextMayGoWhileAStreamGenerates) {
  const Tokens expected = fresh(prompt(), 16).tokens;
  const Stream stream = prompted(prompt());
  std::atomic<bool> running{false};
  auto generator = in_thread([&] {
    Tokens tokens;
    while (tokens.size() < 16) {
      tokens = concatenated(tokens, next(stream).tokens);
      running = true;
    }
    return tokens;
  });
  wait_for(running);
  ctx_.reset();
  EXPECT_EQ(generator.get(), expected);
}

TEST_P(ThreadsContract, CancelStopsARunningGeneration) {
  const Generation expected = fresh(prompt(), 8);
  const Stream stream = open();
  for (int round = 0; round < 5; ++round) {
    prefill(stream, prompt());
    std::atomic<bool> running{false};
    std::atomic<bool> cancelled{false};
    auto generator = in_thread([&] {
      int status = 0;
      // A generation that ends before repeats its final step until the cancel comes.
      for (int steps = 1; status >= 0; ++steps) {
        const bool last = cancelled;
        status = next(stream).status;
        if (steps == 3) running = true;
        if (last) break;
      }
      running = true;
      return status;
    });
    wait_for(running);
    cancel(stream);
    cancelled = true;
    EXPECT_EQ(generator.get(), ELIZA_ERR_CANCELLED);
    expect_nothing(next(stream), ELIZA_ERR_CANCELLED);
    EXPECT_EQ(try_prefill(stream, prompt()), ELIZA_ERR_CANCELLED);
    reset(stream);
    prefill(stream, prompt());
    expect_same(generate(stream, 8), expected);
    reset(stream);
  }
}

TEST_P(ThreadsContract, CancelStopsARunningPrefill) {
  const Generation expected = fresh(prompt(), 8);
  const Stream stream = open();
  for (int round = 0; round < 5; ++round) {
    std::atomic<bool> started{false};
    auto prefiller = in_thread([&] {
      started = true;
      return try_prefill(stream, long_prompt());
    });
    wait_for(started);
    cancel(stream);
    const int status = prefiller.get();
    // One that came too late for the prefill is still there for the next step.
    EXPECT_TRUE(status == ELIZA_ERR_CANCELLED || status == ELIZA_OK) << status;
    expect_nothing(next(stream), ELIZA_ERR_CANCELLED);
    reset(stream);
    prefill(stream, prompt());
    expect_same(generate(stream, 8), expected);
    reset(stream);
  }
}

TEST_P(ThreadsContract, WhatIsKeptOfACancelledPrefillIsExact) {
  const Tokens whole = long_prompt();
  const Generation expected = fresh(whole, 8);
  const Stream stream = open();
  for (int round = 0; round < 3; ++round) {
    std::atomic<bool> started{false};
    auto prefiller = in_thread([&] {
      started = true;
      try_prefill(stream, whole);
    });
    wait_for(started);
    cancel(stream);
    prefiller.get();
    const int32_t kept = reset_keep(stream, INT32_MAX);
    ASSERT_GE(kept, 0);
    ASSERT_LE(static_cast<size_t>(kept), whole.size());
    SCOPED_TRACE("kept " + std::to_string(kept));
    const Tokens rest = rest_of(whole, static_cast<size_t>(kept));
    if (!rest.empty()) prefill(stream, rest);
    expect_same(generate(stream, 8), expected);
    reset(stream);
  }
}

TEST_P(ThreadsContract, ManyThreadsMayCancelAtOnce) {
  const Stream stream = prompted(prompt());
  std::vector<std::future<void>> threads;
  for (int number = 0; number < 3; ++number) {
    threads.push_back(in_thread([&] { cancel(stream); }));
  }
  for (int step = 0; step < 20; ++step) next(stream);
  for (auto& thread : threads) thread.get();
  expect_nothing(next(stream), ELIZA_ERR_CANCELLED);
}

}  // namespace
}  // namespace eliza::test
