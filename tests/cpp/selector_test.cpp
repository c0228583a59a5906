#include <gtest/gtest.h>

#include <thread>

#include "backends/builtin_backends.h"
#include "seam/llm_backend_registry.h"
#include "support/environment.h"
#include "test_support.h"

namespace eliza::test {
namespace {

constexpr char variable_name[] = "ELIZA_LLM_BACKEND";
constexpr char bundle[] = "/bundles/some bundle";

class SelectorTest : public testing::Test {
 protected:
  LlmBackendFactory* select(const char* bundle_dir = bundle) {
    return registry_.select(bundle_dir, &config_, message_.out());
  }

  void expect_in_tree() {
    EXPECT_EQ(select(), nullptr);
    EXPECT_FALSE(message_.is_set()) << message_.text();
  }

  void expect_backend(const LlmBackendFactory& backend) {
    EXPECT_EQ(select(), &backend);
    EXPECT_FALSE(message_.is_set()) << message_.text();
  }

  // A hard failure whose message holds every fragment.
  void expect_failure(const std::vector<std::string>& fragments) {
    EXPECT_EQ(select(), nullptr);
    ASSERT_TRUE(message_.is_set());
    for (const auto& fragment : fragments) {
      EXPECT_NE(message_.text().find(fragment), std::string::npos)
          << fragment << " is not in: " << message_.text();
    }
  }

  CleanEnvironment environment_;
  LlmBackendRegistry registry_;
  eliza_llm_stream_config_t config_ = {};
  OwnedMessage message_;
};

// ---------------------------------------------------------------------- unasked

TEST_F(SelectorTest, NoBackendMeansTheInTreePath) { expect_in_tree(); }

TEST_F(SelectorTest, EmptyVariableCountsAsUnset) {
  FakeBackend backend("fake");
  registry_.add(&backend);
  const EnvironmentVariable variable(variable_name, "");
  expect_backend(backend);
}

TEST_F(SelectorTest, HighestRankWinsInAnyOrderOfRegistration) {
  FakeBackend low("low", 1), high("high", 100), middle("middle", 50);
  for (auto* backend : {&low, &high, &middle}) registry_.add(backend);
  expect_backend(high);
  registry_.remove(&high);
  expect_backend(middle);
}

TEST_F(SelectorTest, FirstRegisteredOfEqualRanksWins) {
  FakeBackend first("first", 5), second("second", 5);
  registry_.add(&first);
  registry_.add(&second);
  expect_backend(first);
  registry_.remove(&first);
  registry_.add(&first);
  expect_backend(second);
}

TEST_F(SelectorTest, ZeroAndNegativeRanksAreNeverChosenUnasked) {
  FakeBackend zero("zero", 0), negative("negative", -1), lowest("lowest", INT32_MIN);
  for (auto* backend : {&zero, &negative, &lowest}) registry_.add(backend);
  expect_in_tree();
}

TEST_F(SelectorTest, UnavailableBackendIsPassedOver) {
  FakeBackend best("best", 9), other("other", 1);
  best.is_available = false;
  registry_.add(&best);
  registry_.add(&other);
  expect_backend(other);
  other.is_available = false;
  expect_in_tree();
}

TEST_F(SelectorTest, BackendThatCannotServeTheBundleIsPassedOver) {
  FakeBackend best("best", 9), other("other", 1);
  best.serves = false;
  registry_.add(&best);
  registry_.add(&other);
  expect_backend(other);
  other.serves = false;
  expect_in_tree();
}

// Looking for a runtime may load its library.
TEST_F(SelectorTest, BackendThatCannotServeTheBundleIsNotLookedFor) {
  FakeBackend backend("fake");
  backend.serves = false;
  registry_.add(&backend);
  expect_in_tree();
  EXPECT_EQ(backend.looks, 0);
}

TEST_F(SelectorTest, BackendSeesTheBundleOfTheCall) {
  FakeBackend backend("fake");
  registry_.add(&backend);
  for (const char* directory : {"/a", "/b/\xC3\xA9", ""}) {
    EXPECT_EQ(select(directory), &backend);
    EXPECT_EQ(backend.probed_bundle(), directory);
  }
}

TEST_F(SelectorTest, EveryCallAsksAnew) {
  FakeBackend backend("fake");
  registry_.add(&backend);
  expect_backend(backend);
  backend.serves = false;
  expect_in_tree();
  backend.serves = true;
  backend.is_available = false;
  expect_in_tree();
  backend.is_available = true;
  backend.rank = 0;
  expect_in_tree();
  backend.rank = 1;
  expect_backend(backend);
}

TEST_F(SelectorTest, EveryForcedCallAsksAnew) {
  FakeBackend backend("fake");
  registry_.add(&backend);
  const EnvironmentVariable variable(variable_name, "fake");
  expect_backend(backend);
  backend.serves = false;
  expect_failure({"cannot serve this bundle"});
  backend.serves = true;
  expect_backend(backend);
  EXPECT_GE(backend.probes, 3);
}

// ----------------------------------------------------------------------- forced

class InTreeNameTest : public SelectorTest, public testing::WithParamInterface<const char*> {};

TEST_P(InTreeNameTest, ForcesTheInTreePathPastEveryBackend) {
  FakeBackend backend("fake", 100);
  registry_.add(&backend);
  const EnvironmentVariable variable(variable_name, GetParam());
  expect_in_tree();
}

INSTANTIATE_TEST_SUITE_P(Names, InTreeNameTest,
                         testing::Values("llama.cpp", "llamacpp", "LLAMA.CPP", "LlamaCpp",
                                         "Llama.cpp", "lLaMaCpP"));

TEST_F(SelectorTest, ForcedBackendMatchesInAnyCase) {
  FakeBackend backend("LiteRT-fake"), better("better", 100);
  registry_.add(&backend);
  registry_.add(&better);
  for (const char* name : {"LiteRT-fake", "litert-FAKE", "LITERT-FAKE"}) {
    const EnvironmentVariable variable(variable_name, name);
    expect_backend(backend);
  }
}

TEST_F(SelectorTest, ForcedBackendNeedsNoPositiveRank) {
  FakeBackend backend("fake", -7);
  registry_.add(&backend);
  const EnvironmentVariable variable(variable_name, "fake");
  expect_backend(backend);
}

class ForcedFailureTest : public SelectorTest {
 protected:
  ForcedFailureTest() {
    unavailable_.is_available = false;
    unable_.serves = false;
    for (auto* backend : {&able_, &unavailable_, &unable_}) registry_.add(backend);
  }

  // Every failure names the variable, the value, the bundle, and each backend with its state.
  void expect_failure_of(const std::string& value, const std::string& problem) {
    const EnvironmentVariable variable(variable_name, value);
    expect_failure({variable_name, "'" + value + "'", problem, bundle, "llama.cpp (rank 0)",
                    "able (rank 3): available and able", "absent (rank 9): not available",
                    "unable (rank 8): available, but"});
  }

  FakeBackend able_{"able", 3}, unavailable_{"absent", 9}, unable_{"unable", 8};
};

TEST_F(ForcedFailureTest, UnknownNameFailsAndListsEveryBackend) {
  for (const char* name :
       {"vulkan", "llama", "llama.cpp ", "ab", "ablee", "able,absent", "'%s%n"}) {
    expect_failure_of(name, "is not a backend of this build");
  }
}

TEST_F(ForcedFailureTest, RemarkOfTheInTreePathIsListed) {
  registry_.remark_in_tree("CPU level avx2");
  expect_failure_of("vulkan", "llama.cpp (rank 0): always available; CPU level avx2\n");
}

TEST_F(ForcedFailureTest, UnavailableBackendFailsAndListsEveryBackend) {
  expect_failure_of("absent", "is not available on this host");
}

TEST_F(ForcedFailureTest, UnableBackendFailsAndListsEveryBackend) {
  expect_failure_of("unable", "cannot serve this bundle");
}

TEST_F(ForcedFailureTest, HugeAndIllFormedNamesGiveAReadableMessage) {
  for (const std::string& name : {std::string(100000, 'x'), std::string("\xFF\xFE")}) {
    const EnvironmentVariable variable(variable_name, name);
    expect_failure({variable_name});
    EXPECT_LT(message_.text().size(), 2000u);
    EXPECT_TRUE(is_valid_utf8(message_.text()));
  }
}

// ----------------------------------------------------------------- registration

TEST_F(SelectorTest, RegisteringTwiceChangesNothing) {
  FakeBackend first("fake", 5), between("other", 5);
  registry_.add(&first);
  registry_.add(&between);
  registry_.add(&first);
  expect_backend(first);
  registry_.remove(&first);
  expect_backend(between);
}

TEST_F(SelectorTest, SecondBackendOfANameInAnotherCaseIsIgnored) {
  FakeBackend first("fake", 1), impostor("FAKE", 100);
  registry_.add(&first);
  registry_.add(&impostor);
  expect_backend(first);
  registry_.remove(&impostor);
  expect_backend(first);
}

TEST_F(SelectorTest, RemovedBackendIsUnknown) {
  FakeBackend backend("fake");
  registry_.add(&backend);
  registry_.remove(&backend);
  registry_.remove(&backend);
  expect_in_tree();
  const EnvironmentVariable variable(variable_name, "fake");
  expect_failure({"is not a backend of this build"});
}

TEST_F(SelectorTest, BuiltinsRegisterOnce) {
  llm_backend_register_builtins(registry_);
  llm_backend_register_builtins(registry_);
  const EnvironmentVariable variable(variable_name, "no such backend");
  expect_failure({variable_name});
  const std::string list = message_.text();
  for (const auto* backend : builtin_backends()) {
    const std::string line = std::string("\n  ") + backend->name() + " (rank";
    EXPECT_NE(list.find(line), std::string::npos) << list;
    EXPECT_EQ(list.find(line), list.rfind(line)) << list;
  }
}

TEST_F(SelectorTest, ProcessWideRegistryTakesTheBuiltins) {
  llm_backend_register_builtins(LlmBackendRegistry::instance());
  const EnvironmentVariable variable(variable_name, "no such backend");
  EXPECT_EQ(llm_backend_select(bundle, &config_, message_.out()), nullptr);
  for (const auto* backend : builtin_backends()) {
    EXPECT_NE(message_.text().find(backend->name()), std::string::npos) << message_.text();
  }
}

TEST_F(SelectorTest, ThreadsMayAddSelectAndRemoveAtOnce) {
  constexpr int rounds = 500;
  FakeBackend always("always", 1);
  registry_.add(&always);
  std::atomic<int> failures{0};
  std::atomic<int> done{0};
  std::vector<std::thread> threads;
  for (int number = 0; number < 8; ++number) {
    threads.emplace_back([&, number] {
      FakeBackend own("fake " + std::to_string(number), 2);
      for (int round = 0; round < rounds; ++round) {
        registry_.add(&own);
        OwnedMessage message;
        // Another thread's backend may be gone by now: only look at the pointer.
        if (registry_.select(bundle, &config_, message.out()) == nullptr) ++failures;
        registry_.remove(&own);
      }
      // No other thread may be probing `own` when it is destroyed: wait for all of them.
      ++done;
      while (done < 8) std::this_thread::yield();
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
  expect_backend(always);
}

// ------------------------------------------------------------------------ gates

#ifdef ELIZA_ENABLE_LITERT
constexpr bool litert_enabled = true;
#else
constexpr bool litert_enabled = false;
#endif
#ifdef ELIZA_ENABLE_MLX
constexpr bool mlx_enabled = true;
#else
constexpr bool mlx_enabled = false;
#endif

const LlmBackendFactory* builtin(const std::string& name) {
  for (const auto* backend : builtin_backends()) {
    if (backend->name() == name) return backend;
  }
  return nullptr;
}

TEST(GateTest, ABackendIsInTheBuildExactlyWhenItsGateIsOn) {
  EXPECT_EQ(builtin("litert-lm") != nullptr, litert_enabled);
  EXPECT_EQ(builtin("mlx-coreml") != nullptr, mlx_enabled);
  EXPECT_EQ(builtin_backends().size(), size_t{litert_enabled} + size_t{mlx_enabled});
}

TEST_F(SelectorTest, ForcingABackendWhoseGateIsOffFails) {
  llm_backend_register_builtins(registry_);
  for (const char* name : {"litert-lm", "mlx-coreml"}) {
    if (builtin(name) != nullptr) continue;
    const EnvironmentVariable variable(variable_name, name);
    expect_failure({name, "is not a backend of this build"});
  }
}

// What a gated scaffold must do on a host without its runtime. The bundle holds its artifact.
class ScaffoldTest : public SelectorTest {
 protected:
  void expect_scaffold(const std::string& name) {
    const auto* backend = builtin(name);
    ASSERT_NE(backend, nullptr);
    EXPECT_FALSE(backend->available());
    EXPECT_GT(backend->preference_rank(), 0);

    llm_backend_register_builtins(registry_);
    const std::string directory = bundle_.string();
    EXPECT_TRUE(backend->can_serve(directory.c_str()));
    EXPECT_EQ(select(directory.c_str()), nullptr);
    EXPECT_FALSE(message_.is_set()) << "selection does not fall through: " << message_.text();

    const EnvironmentVariable variable(variable_name, name);
    EXPECT_EQ(select(directory.c_str()), nullptr);
    EXPECT_NE(message_.text().find("not available on this host"), std::string::npos)
        << message_.text();
  }

  bool serves(const std::string& name) const {
    const auto* backend = builtin(name);
    return backend != nullptr && backend->can_serve(bundle_.string().c_str());
  }

  void add(const std::string& file) { write_file(bundle_.path() / file, "x"); }
  void add_directory(const std::string& name) {
    std::filesystem::create_directories(bundle_.path() / name);
  }

  TemporaryDirectory bundle_;
};

#ifdef ELIZA_ENABLE_MLX
TEST_F(ScaffoldTest, MlxIsRegisteredAndAbsent) {
  add_directory("text/model.mlpackage");
  expect_scaffold("mlx-coreml");
}

TEST_F(ScaffoldTest, MlxServesPackagesCompiledModelsAndWeights) {
  for (const char* artifact : {"text/model.mlpackage/Manifest.json", "text/model.mlmodelc/model"}) {
    add(artifact);
    EXPECT_TRUE(serves("mlx-coreml")) << artifact;
    std::filesystem::remove_all(bundle_.path() / "text");
    EXPECT_FALSE(serves("mlx-coreml"));
  }
  for (const std::string folder : {"text/", "text/gemma-mlx/"}) {
    add(folder + "config.json");
    EXPECT_FALSE(serves("mlx-coreml")) << "no weights in " << folder;
    add(folder + "model.safetensors");
    EXPECT_TRUE(serves("mlx-coreml")) << folder;
    std::filesystem::remove_all(bundle_.path() / "text");
  }
}

TEST_F(ScaffoldTest, MlxDoesNotServeWhatOnlyLooksSimilar) {
  EXPECT_FALSE(serves("mlx-coreml")) << "no text/";
  add("text/model.gguf");
  add("text/file.mlpackage");
  add("text/weights/model.safetensors");
  add("text/config/config.json");
  add_directory("other.mlmodelc");
  EXPECT_FALSE(serves("mlx-coreml"));
}
#endif

}  // namespace
}  // namespace eliza::test
