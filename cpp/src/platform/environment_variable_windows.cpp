#include <windows.h>

#include "platform/environment_variable.h"
#include "platform/text_windows.h"

namespace eliza::platform {

// From the process itself: a C runtime has a copy from when it started, and the host's may be
// another one than ours.
std::optional<std::string> environment_variable(const char* name) {
  const std::wstring wide_name = to_wide(name);
  std::wstring value;
  for (DWORD size = 256; size > value.size();) {
    value.resize(size);
    SetLastError(ERROR_SUCCESS);
    size = GetEnvironmentVariableW(wide_name.c_str(), value.data(), size);
    if (size == 0 && GetLastError() != ERROR_SUCCESS) return std::nullopt;
    if (size < value.size()) {  // without the terminator, which is counted where it does not fit
      value.resize(size);
      return to_utf8(value);
    }
  }
  return std::nullopt;
}

}  // namespace eliza::platform
