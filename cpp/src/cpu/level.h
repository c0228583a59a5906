#pragma once

#include <string>
#include <vector>

#include "cpu/features.h"

// Levels of CPU kernels: which of those compiled into this library computes. ELIZA_CPU_LEVELS in
// cmake/CpuLevels.cmake decides what there is.

namespace eliza::cpu {

struct Level {
  const char* name;
  Features needs;
};

// Every level that any build can have, from the lowest to the highest of each architecture.
const std::vector<Level>& known_levels();

// Those of this build, from the lowest to the highest; empty where the kernels are compiled for the
// machine that built them.
const std::vector<Level>& built_levels();

// Either a level, or a problem and nothing.
struct Choice {
  const Level* level = nullptr;
  std::string problem;
};

// The highest of `levels` that a processor with `features` runs, or the one named `forced`, unless
// that is empty. Levels must not be empty.
Choice choose(const std::vector<Level>& levels, Features features, const std::string& forced);

// What this process computes with: the choice for this machine and ELIZA_CPU_LEVEL, made by the
// first call that succeeds. Neither a level nor a problem in a build without levels. Thread-safe.
Choice active_level();

// "CPU level avx2", or why there is none; empty in a build without levels.
std::string describe_active_level();

}  // namespace eliza::cpu
