#include <dlfcn.h>

#include "platform/shared_library.h"

namespace eliza::platform {
namespace fs = std::filesystem;

void* open_library(const fs::path& path, std::string& reason) {
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const message = dlerror();
    reason = message != nullptr ? message : path.string();
  }
  return library;
}

void* address_in(void* library, const char* name) { return dlsym(library, name); }

bool has_library(const char* name) {
  void* const handle = dlopen(name, RTLD_LAZY | RTLD_LOCAL);
  if (handle != nullptr) dlclose(handle);
  return handle != nullptr;
}

fs::path folder_of(const void* address) {
  Dl_info info = {};
  std::error_code problem;
  if (dladdr(address, &info) == 0 || info.dli_fname == nullptr) return {};
  return fs::absolute(info.dli_fname, problem).parent_path();
}

}  // namespace eliza::platform
