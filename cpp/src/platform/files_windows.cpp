#include <fcntl.h>
#include <io.h>
#include <process.h>
#include <sys/stat.h>
#include <windows.h>

#include "platform/files.h"

namespace eliza::platform {
namespace fs = std::filesystem;

std::FILE* open_file(const fs::path& path) { return _wfopen(path.c_str(), L"rbN"); }

// Not every C runtime knows fopen's mode "x".
std::FILE* create_file(const fs::path& path) {
  const int descriptor =
      _wopen(path.c_str(), _O_CREAT | _O_EXCL | _O_WRONLY | _O_BINARY | _O_NOINHERIT,
             _S_IREAD | _S_IWRITE);
  if (descriptor < 0) return nullptr;
  std::FILE* const file = _fdopen(descriptor, "wb");
  if (file == nullptr) _close(descriptor);
  return file;
}

bool write_through(std::FILE* file) {
  return std::fflush(file) == 0 && _commit(_fileno(file)) == 0;
}

// std::filesystem::rename may copy instead, which a crash can interrupt.
std::error_code replace_file(const fs::path& from, const fs::path& to) {
  constexpr DWORD flags = MOVEFILE_REPLACE_EXISTING | MOVEFILE_WRITE_THROUGH;
  if (MoveFileExW(from.c_str(), to.c_str(), flags)) return {};
  return {static_cast<int>(GetLastError()), std::system_category()};
}

// Nothing to do: the rename has been written through.
void write_folder_through(const fs::path&) {}

int process_id() { return _getpid(); }

}  // namespace eliza::platform
