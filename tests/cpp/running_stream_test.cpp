#include "llama/running_stream.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <thread>
#include <vector>

// Streams that compute at the same time share the processors. Run under the thread sanitizer too.

namespace eliza::llama {
namespace {

using Step = RunningStream::Step;

// The caller of a stream may take a moment between two steps; afterwards it counts no more.
void wait_until_alone(RunningStream& stream, int32_t threads) {
  while (Step(stream).threads() != threads) std::this_thread::yield();
}

TEST(RunningStreamTest, AloneItHasItsThreads) {
  for (const int32_t threads : {1, 2, 3, 16}) {
    RunningStream stream(threads);
    wait_until_alone(stream, threads);
    for (int step = 0; step < 3; ++step) EXPECT_EQ(Step(stream).threads(), threads);
  }
}

TEST(RunningStreamTest, EachOfManyGetsItsShare) {
  constexpr int32_t threads = 12;
  std::vector<std::unique_ptr<RunningStream>> streams;
  std::vector<std::unique_ptr<Step>> steps;
  for (int i = 0; i < 16; ++i) streams.push_back(std::make_unique<RunningStream>(threads));
  wait_until_alone(*streams[0], threads);
  for (size_t i = 0; i < streams.size(); ++i) {
    steps.push_back(std::make_unique<Step>(*streams[i]));
    EXPECT_EQ(steps.back()->threads(), std::max(1, threads / static_cast<int32_t>(i + 1)));
  }
  // And those that were first, with their next step.
  steps[0].reset();
  EXPECT_EQ(Step(*streams[0]).threads(), 1);
}

TEST(RunningStreamTest, IdleStreamsDoNotCount) {
  RunningStream stream(8);
  std::vector<std::unique_ptr<RunningStream>> idle;
  for (int i = 0; i < 10; ++i) idle.push_back(std::make_unique<RunningStream>(8));
  wait_until_alone(stream, 8);
  EXPECT_EQ(Step(stream).threads(), 8);
}

TEST(RunningStreamTest, StreamBetweenTwoStepsStillCounts) {
  RunningStream one(8);
  RunningStream other(8);
  // The machine may take longer between these two lines than a stream's pause may: try again.
  for (int round = 0; round < 1000; ++round) {
    {
      const Step step(other);
    }
    if (Step(one).threads() == 4) return;
  }
  FAIL() << "it never counted";
}

TEST(RunningStreamTest, FullShareComesBackAfterAPause) {
  RunningStream one(8);
  RunningStream other(8);
  {
    const Step step(other);
    EXPECT_EQ(Step(one).threads(), 4);
  }
  wait_until_alone(one, 8);
  EXPECT_EQ(Step(one).threads(), 8);
}

TEST(RunningStreamTest, FullShareComesBackWithTheEndOfTheOther) {
  RunningStream one(8);
  {
    RunningStream other(8);
    const Step step(other);
    EXPECT_EQ(Step(one).threads(), 4);
  }
  EXPECT_EQ(Step(one).threads(), 8);
}

TEST(RunningStreamTest, StepsOfOneStreamMayBeNested) {
  RunningStream one(8);
  RunningStream other(8);
  const Step outer(one);
  {
    const Step inner(one);
  }
  EXPECT_EQ(Step(other).threads(), 4) << "the outer step still runs";
}

TEST(RunningStreamTest, EachStreamDividesItsOwnThreads) {
  RunningStream few(2);
  RunningStream many(9);
  const Step step(few);
  EXPECT_EQ(Step(many).threads(), 4);
  RunningStream third(3);
  const Step third_step(third);
  EXPECT_EQ(third_step.threads() >= 1, true);
}

TEST(RunningStreamTest, ManyThreadsMayStepAndCome) {
  std::vector<std::thread> threads;
  for (int number = 0; number < 6; ++number) {
    threads.emplace_back([] {
      for (int round = 0; round < 30; ++round) {
        RunningStream stream(4);
        for (int i = 0; i < 20; ++i) {
          const Step step(stream);
          EXPECT_GE(step.threads(), 1);
          EXPECT_LE(step.threads(), 4);
        }
        stream.cancelled().store(true);
        EXPECT_TRUE(stream.is_cancelled());
      }
    });
  }
  for (auto& thread : threads) thread.join();
  RunningStream alone(4);
  EXPECT_EQ(Step(alone).threads(), 4);
}

}  // namespace
}  // namespace eliza::llama
