/* Included ahead of ggml-cpu.c (see cmake/LlamaCpp.cmake). Its threads wait for each other in loops
 * that never give the processor up. Where more threads are ready than there are processors, a
 * waiting thread then burns the time slice that the awaited one needs, and decoding becomes many
 * times slower. Here the loops yield now and then, which costs nothing where every thread has a
 * processor.
 *
 * ggml-cpu.c defines ggml_thread_cpu_relax(void) and calls ggml_thread_cpu_relax(): the macro below
 * gives the definition another name and the calls another function. */
#ifndef ELIZA_LLAMA_POLITE_SPINNING_H
#define ELIZA_LLAMA_POLITE_SPINNING_H

#if defined(_WIN32)
/* As windows.h has it, which ggml-cpu.c includes later, with settings of its own. */
__declspec(dllimport) int __stdcall SwitchToThread(void);
#define ELIZA_YIELD SwitchToThread
#else
#include <sched.h>
#define ELIZA_YIELD sched_yield
#endif

static inline void ggml_thread_cpu_relax_once(void);

static inline void eliza_cpu_relax(void) {
  static _Thread_local unsigned rounds;
  ggml_thread_cpu_relax_once();
  if (++rounds % 256 == 0) ELIZA_YIELD();
}

#define ggml_thread_cpu_relax(argument) ELIZA_CPU_RELAX_##argument
#define ELIZA_CPU_RELAX_void ggml_thread_cpu_relax_once(void)
#define ELIZA_CPU_RELAX_ eliza_cpu_relax()

#endif
