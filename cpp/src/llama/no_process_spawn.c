/* Stands in for fork and execlp in ggml's abort path (see cmake/LlamaCpp.cmake): a library never
 * spawns a process, not even to attach a debugger to a crash. */
#include <errno.h>

int eliza_no_fork(void);
int eliza_no_execlp(const char* file, const char* argument, ...);

int eliza_no_fork(void) {
  errno = ENOSYS;
  return -1;
}

int eliza_no_execlp(const char* file, const char* argument, ...) {
  (void)file;
  (void)argument;
  errno = ENOSYS;
  return -1;
}
