#include <windows.h>

#include "platform/paths.h"
#include "platform/shared_library.h"
#include "platform/text_windows.h"

namespace eliza::platform {
namespace fs = std::filesystem;
namespace {

// While it lives, a library that cannot be loaded is an error of this thread and no message box.
class NoMessageBoxes {
 public:
  NoMessageBoxes() { SetThreadErrorMode(SEM_FAILCRITICALERRORS, &before_); }
  ~NoMessageBoxes() { SetThreadErrorMode(before_, nullptr); }
  NoMessageBoxes(const NoMessageBoxes&) = delete;
  NoMessageBoxes& operator=(const NoMessageBoxes&) = delete;

 private:
  DWORD before_ = 0;
};

std::string message_of(DWORD error) {
  wchar_t text[512];
  const DWORD size = FormatMessageW(
      FORMAT_MESSAGE_FROM_SYSTEM | FORMAT_MESSAGE_IGNORE_INSERTS | FORMAT_MESSAGE_MAX_WIDTH_MASK,
      nullptr, error, 0, text, sizeof(text) / sizeof(*text), nullptr);
  std::string message = to_utf8({text, size});
  while (!message.empty() && message.back() == ' ') message.pop_back();
  return message.empty() ? "error " + std::to_string(error) : message;
}

}  // namespace

void* open_library(const fs::path& path, std::string& reason) {
  const NoMessageBoxes scope;
  // What it needs may lie beside it; the working folder is never searched.
  HMODULE const library = LoadLibraryExW(
      path.c_str(), nullptr, LOAD_LIBRARY_SEARCH_DLL_LOAD_DIR | LOAD_LIBRARY_SEARCH_DEFAULT_DIRS);
  if (library == nullptr) reason = utf8_of(path) + ": " + message_of(GetLastError());
  return library;
}

void* address_in(void* library, const char* name) {
  return reinterpret_cast<void*>(GetProcAddress(static_cast<HMODULE>(library), name));
}

bool has_library(const char* name) {
  const NoMessageBoxes scope;
  HMODULE const library =
      LoadLibraryExW(to_wide(name).c_str(), nullptr, LOAD_LIBRARY_SEARCH_SYSTEM32);
  if (library != nullptr) FreeLibrary(library);
  return library != nullptr;
}

fs::path folder_of(const void* address) {
  constexpr DWORD flags =
      GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS | GET_MODULE_HANDLE_EX_FLAG_UNCHANGED_REFCOUNT;
  constexpr DWORD longest_path = 32768;
  HMODULE module = nullptr;
  if (!GetModuleHandleExW(flags, static_cast<const wchar_t*>(address), &module)) return {};
  std::wstring file(longest_path, L'\0');
  file.resize(GetModuleFileNameW(module, file.data(), longest_path));
  return fs::path(file).parent_path();
}

}  // namespace eliza::platform
