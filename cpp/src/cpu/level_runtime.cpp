// Part of every CPU level that gcc compiles for Linux: what the kernels take from libstdc++ and
// from glibc 2.29 and later. With it a level can become part of a library that has another C++
// runtime and is for an older glibc (ELIZA_CPU_LEVELS_DIR); the rest, such as operator new and the
// base classes of exceptions, has the same names and layouts in every C++ runtime.

#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <mutex>
#include <new>
#include <stdexcept>

namespace std {

void __throw_bad_alloc() { throw bad_alloc(); }
void __throw_bad_array_new_length() { throw bad_alloc(); }
void __throw_length_error(const char* what) { throw logic_error(what); }
void __throw_system_error(int code) { throw runtime_error(strerror(code)); }

// std::call_once hands what it calls to pthread_once by these.
__thread void* __once_callable;
__thread void (*__once_call)();
extern "C" void __once_proxy() { __once_call(); }

}  // namespace std

// Headers declare these otherwise, or give them other names: hence __asm__.
extern "C" {

int level_getcpu(unsigned* cpu, unsigned* node) __asm__("getcpu");
int level_getcpu(unsigned* cpu, unsigned* node) {
  return static_cast<int>(syscall(SYS_getcpu, cpu, node, nullptr));
}

// What the headers of glibc 2.38 make of strtol.
long level_strtol(const char* text, char** end, int base) __asm__("strtol");
long __isoc23_strtol(const char* text, char** end, int base) {
  return level_strtol(text, end, base);
}
}
