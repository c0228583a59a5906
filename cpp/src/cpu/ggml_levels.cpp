// How llama.cpp reaches the kernels of the active level, instead of those of its own target
// ggml-cpu.

#include <ggml-backend-impl.h>
#include <ggml-cpu.h>

#include <cstring>
#include <stdexcept>

#include "cpu/level.h"
#include "cpu_levels_built.h"  // written by cmake/CpuLevels.cmake

#define ELIZA_DECLARE(LEVEL) extern "C" ggml_backend_reg_t eliza_cpu_reg_##LEVEL(void);
ELIZA_EACH_CPU_LEVEL(ELIZA_DECLARE)

namespace {

template <typename Function>
Function* of_active_level(const char* name) {
  return reinterpret_cast<Function*>(
      ggml_backend_reg_get_proc_address(ggml_backend_cpu_reg(), name));
}

ggml_backend_reg_t registration_of_active_level() {
  const auto choice = eliza::cpu::active_level();
  if (choice.level == nullptr) throw std::runtime_error(choice.problem);
#define ELIZA_CHOOSE(LEVEL) \
  if (std::strcmp(choice.level->name, #LEVEL) == 0) return eliza_cpu_reg_##LEVEL();
  ELIZA_EACH_CPU_LEVEL(ELIZA_CHOOSE)
  throw std::logic_error("a level that was not built");
}

}  // namespace

// The library asks for problems before (llama::ensure_runtime); programs that use llama.cpp alone
// end with the message. An empty registry would make llama.cpp look for backends in the working
// folder.
ggml_backend_reg_t ggml_backend_cpu_reg(void) {
  static const auto registration = registration_of_active_level();
  return registration;
}

// What this library calls directly.
ggml_threadpool* ggml_threadpool_new(ggml_threadpool_params* params) {
  return of_active_level<decltype(ggml_threadpool_new)>("ggml_threadpool_new")(params);
}

void ggml_threadpool_free(ggml_threadpool* pool) {
  of_active_level<decltype(ggml_threadpool_free)>("ggml_threadpool_free")(pool);
}
