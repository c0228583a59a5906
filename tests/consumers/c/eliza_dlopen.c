#include "eliza_dlopen.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

ElizaTable eliza;

/* ISO C has no conversion from dlsym's void* to a function pointer; copying its bytes does it. */
static int find(void* library, const char* name, void* function) {
  void* symbol = dlsym(library, name);
  memcpy(function, &symbol, sizeof symbol);
  return symbol != NULL;
}

const char* eliza_load(const char* path) {
  static char mismatch[128];
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) return dlerror();

#define FIND(result, name, parameters) \
  if (!find(library, "eliza_inference_" #name, &eliza.name)) return dlerror();
  ELIZA_FUNCTIONS(FIND)
#undef FIND

  const char* version = eliza.abi_version();
  if (strtol(version, NULL, 10) == ELIZA_INFERENCE_ABI_VERSION) return NULL;
  snprintf(mismatch, sizeof mismatch, "the library has ABI version %s; this program needs %d",
           version, ELIZA_INFERENCE_ABI_VERSION);
  return mismatch;
}
