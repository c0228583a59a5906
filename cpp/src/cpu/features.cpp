#include "cpu/features.h"

#include <vector>

#include "support/environment.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <TargetConditionals.h>
#include <sys/sysctl.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace eliza::cpu {
namespace {

constexpr struct {
  Feature feature;
  const char* name;
} feature_names[] = {
    {sse3, "sse3"},
    {ssse3, "ssse3"},
    {sse4_1, "sse4_1"},
    {sse4_2, "sse4_2"},
    {popcnt, "popcnt"},
    {avx, "avx"},
    {f16c, "f16c"},
    {fma, "fma"},
    {avx2, "avx2"},
    {bmi2, "bmi2"},
    {avx_vnni, "avx_vnni"},
    {avx512f, "avx512f"},
    {avx512cd, "avx512cd"},
    {avx512vl, "avx512vl"},
    {avx512dq, "avx512dq"},
    {avx512bw, "avx512bw"},
    {avx512vbmi, "avx512vbmi"},
    {avx512_vnni, "avx512_vnni"},
    {avx512_bf16, "avx512_bf16"},
    {asimd, "asimd"},
    {dotprod, "dotprod"},
    {fp16, "fp16"},
    {i8mm, "i8mm"},
};

#if defined(__x86_64__)
X86Registers read_registers() {
  X86Registers registers;
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx)) return registers;
  registers.leaf1_ecx = ecx;
  if (ecx & bit_OSXSAVE) {
    uint32_t low = 0, high = 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    registers.xcr0 = static_cast<uint64_t>(high) << 32 | low;
  }
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) {
    registers.leaf7_ebx = ebx;
    registers.leaf7_ecx = ecx;
    const bool has_subleaf = eax >= 1;
    if (has_subleaf && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx)) registers.leaf7_1_eax = eax;
  }
  return registers;
}
#elif defined(__aarch64__) && defined(__APPLE__)
bool offers(const char* name) {
  int value = 0;
  size_t size = sizeof value;
  return sysctlbyname(name, &value, &size, nullptr, 0) == 0 && value != 0;
}
#endif

}  // namespace

std::string names_of(Features features) {
  std::vector<std::string> names;
  for (const auto& known : feature_names) {
    if (features & known.feature) names.emplace_back(known.name);
  }
  return joined(names);
}

Features features_of(const X86Registers& registers) {
  Features features = 0;
  const auto add = [&](uint32_t reg, int bit, Feature feature) {
    if (reg >> bit & 1) features |= feature;
  };
  add(registers.leaf1_ecx, 0, sse3);
  add(registers.leaf1_ecx, 9, ssse3);
  add(registers.leaf1_ecx, 19, sse4_1);
  add(registers.leaf1_ecx, 20, sse4_2);
  add(registers.leaf1_ecx, 23, popcnt);
  add(registers.leaf7_ebx, 8, bmi2);

  // The operating system must save the registers, or using them is an illegal instruction.
  constexpr uint64_t ymm_state = 0x6, zmm_state = 0xe6;
  if ((registers.xcr0 & ymm_state) != ymm_state) return features;
  add(registers.leaf1_ecx, 12, fma);
  add(registers.leaf1_ecx, 28, avx);
  add(registers.leaf1_ecx, 29, f16c);
  add(registers.leaf7_ebx, 5, avx2);
  add(registers.leaf7_1_eax, 4, avx_vnni);

  if ((registers.xcr0 & zmm_state) != zmm_state) return features;
  add(registers.leaf7_ebx, 16, avx512f);
  add(registers.leaf7_ebx, 17, avx512dq);
  add(registers.leaf7_ebx, 28, avx512cd);
  add(registers.leaf7_ebx, 30, avx512bw);
  add(registers.leaf7_ebx, 31, avx512vl);
  add(registers.leaf7_ecx, 1, avx512vbmi);
  add(registers.leaf7_ecx, 11, avx512_vnni);
  add(registers.leaf7_1_eax, 5, avx512_bf16);
  return features;
}

Features features_of_hwcaps(uint64_t hwcap, uint64_t hwcap2) {
  Features features = 0;
  constexpr uint64_t fphp = 1u << 9, asimdhp = 1u << 10;
  if (hwcap >> 1 & 1) features |= asimd;
  if (hwcap >> 20 & 1) features |= dotprod;
  if ((hwcap & fphp) && (hwcap & asimdhp)) features |= fp16;
  if (hwcap2 >> 13 & 1) features |= i8mm;
  return features;
}

Features features_of_this_machine() {
#if defined(__x86_64__)
  return features_of(read_registers());
#elif defined(__aarch64__) && defined(__APPLE__)
  Features features = asimd;
#if TARGET_OS_OSX
  features |= dotprod | fp16;  // every Mac with such a processor, whose macOS 11 has no such names
#endif
  if (offers("hw.optional.arm.FEAT_DotProd")) features |= dotprod;
  if (offers("hw.optional.arm.FEAT_FP16")) features |= fp16;
  if (offers("hw.optional.arm.FEAT_I8MM")) features |= i8mm;
  return features;
#elif defined(__aarch64__) && defined(__linux__)
  return features_of_hwcaps(getauxval(AT_HWCAP), getauxval(AT_HWCAP2));
#else
  return 0;
#endif
}

}  // namespace eliza::cpu
