#include "cpu/level.h"

#include <algorithm>
#include <mutex>

#include "support/environment.h"

// Written by cmake/CpuLevels.cmake: names and spaces.
#ifndef ELIZA_CPU_LEVEL_NAMES
#define ELIZA_CPU_LEVEL_NAMES ""
#endif

namespace eliza::cpu {
namespace {

constexpr char variable[] = "ELIZA_CPU_LEVEL";

constexpr Features for_sse42 = sse3 | ssse3 | sse4_1 | sse4_2 | popcnt;
constexpr Features for_avx = for_sse42 | avx;
constexpr Features for_avx2 = for_avx | avx2 | f16c | fma | bmi2;
constexpr Features for_avx512 = for_avx2 | avx512f | avx512cd | avx512vl | avx512dq | avx512bw;
constexpr Features for_avx512_vnni = for_avx512 | avx512_vnni;

std::string listed(const std::vector<const Level*>& levels) {
  std::vector<std::string> names;
  for (const auto* level : levels) names.emplace_back(level->name);
  return names.empty() ? "none of them" : joined(names);
}

}  // namespace

const std::vector<Level>& known_levels() {
  static const auto& levels = *new std::vector<Level>{
      {"sse42", for_sse42},
      {"avx", for_avx},
      {"avx2", for_avx2},
      {"avx2_vnni", for_avx2 | avx_vnni},
      {"avx512", for_avx512},
      {"avx512_vnni", for_avx512_vnni},
      {"avx512_bf16", for_avx512_vnni | avx512vbmi | avx512_bf16},
      {"armv8", asimd},
      {"dotprod", asimd | dotprod | fp16},
      {"i8mm", asimd | dotprod | fp16 | i8mm},
  };
  return levels;
}

const std::vector<Level>& built_levels() {
  static const auto& levels = *[] {
    auto* built = new std::vector<Level>;
    const std::string names = std::string(" ") + ELIZA_CPU_LEVEL_NAMES + " ";
    for (const auto& level : known_levels()) {
      const bool is_built = names.find(std::string(" ") + level.name + " ") != std::string::npos;
      if (is_built) built->push_back(level);
    }
    return built;
  }();
  return levels;
}

Choice choose(const std::vector<Level>& levels, Features features, const std::string& forced) {
  std::vector<const Level*> offered, all;
  for (const auto& level : levels) {
    all.push_back(&level);
    if (!(level.needs & ~features)) offered.push_back(&level);
  }
  if (!forced.empty()) {
    const auto found = std::find_if(all.begin(), all.end(),
                                    [&](const auto* level) { return level->name == forced; });
    const std::string offer = "this processor offers " + listed(offered) + " of " + listed(all);
    if (found == all.end()) {
      return {nullptr,
              variable_is(variable, forced) + ", which is no level of this build; " + offer};
    }
    if (const Features lacking = (*found)->needs & ~features) {
      return {nullptr, variable_is(variable, forced) +
                           ", for which processor or operating system lack " + names_of(lacking) +
                           "; " + offer};
    }
    return {*found, ""};
  }
  if (offered.empty()) {
    return {nullptr, "this build's lowest CPU level, " + std::string(all.front()->name) +
                         ", needs what processor or operating system lack: " +
                         names_of(all.front()->needs & ~features)};
  }
  return {offered.back(), ""};
}

Choice active_level() {
  static std::mutex mutex;
  static const Level* active = nullptr;
  const std::lock_guard<std::mutex> lock(mutex);

  const std::string forced = environment_string(variable).value_or("");
  if (built_levels().empty()) {
    if (forced.empty()) return {};
    return {nullptr, variable_is(variable, forced) +
                         ", but this build has no levels: its kernels are for the machine that "
                         "built it; unset it"};
  }
  if (active != nullptr && (forced.empty() || forced == active->name)) return {active, ""};
  auto choice = choose(built_levels(), features_of_this_machine(), forced);
  if (choice.level == nullptr) return choice;
  if (active != nullptr) {
    return {nullptr, variable_is(variable, forced) + ", but this process computes with " +
                         active->name + " already; set it before the first use"};
  }
  active = choice.level;
  return choice;
}

std::string describe_active_level() {
  const auto choice = active_level();
  if (choice.level == nullptr) return choice.problem;
  return std::string("CPU level ") + choice.level->name;
}

}  // namespace eliza::cpu
