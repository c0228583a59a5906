#pragma once

#include <cstdint>
#include <string>

// Instruction sets that the levels of CPU kernels differ in. Plain code for any processor of the
// architecture, used before anything else of the library.

namespace eliza::cpu {

enum Feature : uint32_t {
  // x86-64
  sse3 = 1u << 0,
  ssse3 = 1u << 1,
  sse4_1 = 1u << 2,
  sse4_2 = 1u << 3,
  popcnt = 1u << 4,
  avx = 1u << 5,
  f16c = 1u << 6,
  fma = 1u << 7,
  avx2 = 1u << 8,
  bmi2 = 1u << 9,
  avx_vnni = 1u << 10,
  avx512f = 1u << 11,
  avx512cd = 1u << 12,
  avx512vl = 1u << 13,
  avx512dq = 1u << 14,
  avx512bw = 1u << 15,
  avx512vbmi = 1u << 16,
  avx512_vnni = 1u << 17,
  avx512_bf16 = 1u << 18,
  // aarch64
  asimd = 1u << 19,
  dotprod = 1u << 20,
  fp16 = 1u << 21,
  i8mm = 1u << 22,
};

// A set of Feature.
using Features = uint32_t;

// "sse4_2, popcnt"
std::string names_of(Features features);

// What this processor has and this operating system lets it use.
Features features_of_this_machine();

// The registers that tell of an x86-64 processor; 0 where it has no such leaf.
struct X86Registers {
  uint32_t leaf1_ecx = 0;
  uint32_t leaf7_ebx = 0;
  uint32_t leaf7_ecx = 0;
  uint32_t leaf7_1_eax = 0;
  uint64_t xcr0 = 0;  // states that the operating system saves; 0 where OSXSAVE is not set
};
Features features_of(const X86Registers& registers);

// Linux's description of an aarch64 processor: AT_HWCAP and AT_HWCAP2.
Features features_of_hwcaps(uint64_t hwcap, uint64_t hwcap2);

}  // namespace eliza::cpu
