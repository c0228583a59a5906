#include "cpu/level.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "test_support.h"

namespace eliza::test {
namespace {

using cpu::Choice;
using cpu::Features;
using cpu::Level;
using cpu::X86Registers;

constexpr char variable_name[] = "ELIZA_CPU_LEVEL";
constexpr uint64_t sse_state = 0x3, avx_state = 0x7, avx512_state = 0xe7;

// What processors answer to cpuid and xgetbv; bits that no level asks about are left out.
constexpr X86Registers conroe{0x00000201, 0, 0, 0, sse_state};  // Core 2: SSSE3
constexpr X86Registers nehalem{0x00980201, 0, 0, 0, sse_state};
constexpr X86Registers sandy_bridge{0x10980201, 0, 0, 0, avx_state};
constexpr X86Registers haswell{0x30981201, 0x120, 0, 0, avx_state};
constexpr X86Registers alder_lake{0x30981201, 0x120, 0, 0x10, avx_state};
constexpr X86Registers skylake_x{0x30981201, 0xd0030120, 0, 0, avx512_state};
constexpr X86Registers cascade_lake{0x30981201, 0xd0030120, 0x800, 0, avx512_state};
constexpr X86Registers zen4{0x30981201, 0xd0030120, 0x802, 0x20, avx512_state};

std::vector<Level> x86_levels() {
  auto levels = cpu::known_levels();
  levels.resize(7);
  return levels;
}

std::vector<Level> arm_levels() {
  const auto& levels = cpu::known_levels();
  return {levels.begin() + 7, levels.end()};
}

Choice chosen(const X86Registers& registers, const std::string& forced = "") {
  static const auto levels = x86_levels();
  return cpu::choose(levels, cpu::features_of(registers), forced);
}

std::string name_of(const Choice& choice) {
  return choice.level != nullptr ? choice.level->name : "none: " + choice.problem;
}

void expect_problem(const Choice& choice, const std::vector<std::string>& fragments) {
  EXPECT_EQ(choice.level, nullptr);
  for (const auto& fragment : fragments) {
    EXPECT_NE(choice.problem.find(fragment), std::string::npos)
        << fragment << " is not in: " << choice.problem;
  }
}

TEST(CpuLevelTest, EachProcessorGetsItsHighestLevel) {
  EXPECT_EQ(name_of(chosen(nehalem)), "sse42");
  EXPECT_EQ(name_of(chosen(sandy_bridge)), "avx");
  EXPECT_EQ(name_of(chosen(haswell)), "avx2");
  EXPECT_EQ(name_of(chosen(alder_lake)), "avx2_vnni");
  EXPECT_EQ(name_of(chosen(skylake_x)), "avx512");
  EXPECT_EQ(name_of(chosen(cascade_lake)), "avx512_vnni");
  EXPECT_EQ(name_of(chosen(zen4)), "avx512_bf16");
}

TEST(CpuLevelTest, RegistersThatTheSystemDoesNotSaveAreNotUsed) {
  auto registers = zen4;
  registers.xcr0 = avx_state;
  EXPECT_EQ(name_of(chosen(registers)), "avx2");
  for (const uint64_t state : {sse_state, uint64_t{0}}) {
    registers.xcr0 = state;
    EXPECT_EQ(name_of(chosen(registers)), "sse42");
  }
}

TEST(CpuLevelTest, OneMissingFeatureMeansTheLevelBelow) {
  auto registers = haswell;
  registers.leaf7_ebx &= ~(1u << 8);  // some virtual machines hide BMI2
  EXPECT_EQ(name_of(chosen(registers)), "avx");
}

TEST(CpuLevelTest, ProcessorBelowTheLowestLevelIsToldWhatItLacks) {
  expect_problem(chosen(conroe), {"sse42", "lack: sse4_1, sse4_2, popcnt"});
  expect_problem(chosen({}), {"sse42", "sse3"});
}

TEST(CpuLevelTest, ForcedLevelIsTakenWhereTheProcessorHasIt) {
  for (const auto& level : x86_levels()) {
    if (level.needs & cpu::avx_vnni) continue;  // the one that this processor lacks
    EXPECT_EQ(name_of(chosen(zen4, level.name)), level.name);
  }
}

TEST(CpuLevelTest, ForcedLevelThatTheProcessorLacksIsRefused) {
  expect_problem(chosen(sandy_bridge, "avx2"),
                 {"ELIZA_CPU_LEVEL is 'avx2'", "lack f16c, fma, avx2, bmi2",
                  "this processor offers sse42, avx of sse42, avx, avx2,"});
  expect_problem(chosen(conroe, "sse42"), {"offers none of"});
}

TEST(CpuLevelTest, UnknownNameIsRefusedAndTheOfferListed) {
  for (const std::string name : {"AVX", "avx3", " avx", "sse42,avx", "1"}) {
    expect_problem(chosen(sandy_bridge, name), {"ELIZA_CPU_LEVEL is '" + name + "'", "no level",
                                                "this processor offers sse42, avx of sse42"});
  }
}

TEST(CpuLevelTest, LinuxTellsArmProcessors) {
  static const auto levels = arm_levels();
  const auto name = [&](uint64_t hwcap, uint64_t hwcap2) {
    return name_of(cpu::choose(levels, cpu::features_of_hwcaps(hwcap, hwcap2), ""));
  };
  EXPECT_EQ(name(0xff, 0), "armv8");                    // Cortex-A53
  EXPECT_EQ(name(0x119fff, 0), "dotprod");              // Cortex-A76
  EXPECT_EQ(name(0x119fff & ~(1u << 10), 0), "armv8");  // no half floats for vectors
  EXPECT_EQ(name(0x119fff, 1u << 13), "i8mm");          // Neoverse V1
  EXPECT_EQ(name(0xff, 1u << 13), "armv8");
}

// ------------------------------------------------------------------- this build

TEST(ActiveCpuLevelTest, IsTheSameWheneverItIsAskedFor) {
  const auto first = cpu::active_level(), second = cpu::active_level();
  EXPECT_EQ(first.problem, "");
  EXPECT_EQ(first.level, second.level);
  EXPECT_EQ(first.level == nullptr, cpu::built_levels().empty());
}

TEST(ActiveCpuLevelTest, CreateFailsWhereTheVariableNamesNoLevel) {
  const auto bundle = make_bundle("tiny-bpe.gguf");
  const EnvironmentVariable variable(variable_name, "no\nsuch\xC2\x9B");
  OwnedMessage message;
  EXPECT_EQ(eliza_inference_create(bundle->string().c_str(), message.out()), nullptr);
  EXPECT_NE(message.text().find(variable_name), std::string::npos) << message.text();
  EXPECT_NE(message.text().find("'no\\x0asuch\\xc2\\x9b'"), std::string::npos) << message.text();
}

TEST(ActiveCpuLevelTest, LaterChangeOfTheVariableFailsOpensAndLeavesOpenStreamsAlone) {
  const auto bundle = make_bundle("tiny-bpe.gguf");
  const auto context = create_context(bundle->string());
  auto stream = open_stream(context);
  prefill(stream, {1, 2, 3});
  const EnvironmentVariable variable(variable_name, "no such level");
  OwnedMessage message;
  const eliza_llm_stream_config_t config = {};
  EXPECT_EQ(eliza_inference_llm_stream_open(context.get(), &config, message.out()), nullptr);
  EXPECT_NE(message.text().find(variable_name), std::string::npos) << message.text();
  EXPECT_EQ(generate(stream, 4).tokens.size(), 4u);
  stream.reset();
}

TEST(ActiveCpuLevelTest, CannotChangeOnceItIsInUse) {
  const auto active = cpu::active_level();
  for (const auto& level : cpu::known_levels()) {
    const EnvironmentVariable variable(variable_name, level.name);
    const auto choice = cpu::active_level();
    if (active.level != nullptr && std::string(active.level->name) == level.name) {
      EXPECT_EQ(name_of(choice), level.name);
    } else {
      expect_problem(choice, {std::string(variable_name) + " is '" + level.name + "'"});
    }
  }
}

TEST(ActiveCpuLevelTest, NativeBuildHasNoneToForce) {
  const EnvironmentVariable variable(variable_name, "sse42");
  const bool is_native = cpu::built_levels().empty();
  const bool says_so =
      cpu::active_level().problem.find("this build has no levels") != std::string::npos;
  EXPECT_EQ(says_so, is_native);
}

}  // namespace
}  // namespace eliza::test
