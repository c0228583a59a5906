// Keeps the DLL in the process once it is there, as -z nodelete does on Linux: some runtimes unload
// libraries while threads of an open context still run in them.
#include <windows.h>

namespace {

const bool stays_loaded = [] {
  static const char inside = 0;
  HMODULE module = nullptr;
  return GetModuleHandleExW(GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS | GET_MODULE_HANDLE_EX_FLAG_PIN,
                            reinterpret_cast<const wchar_t*>(&inside), &module) != 0;
}();

}  // namespace
