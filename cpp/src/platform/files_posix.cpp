#include <fcntl.h>
#include <unistd.h>

#include "platform/files.h"

namespace eliza::platform {
namespace fs = std::filesystem;

std::FILE* open_file(const fs::path& path) { return std::fopen(path.c_str(), "rb"); }

std::FILE* create_file(const fs::path& path) { return std::fopen(path.c_str(), "wbx"); }

bool write_through(std::FILE* file) { return std::fflush(file) == 0 && fsync(fileno(file)) == 0; }

std::error_code replace_file(const fs::path& from, const fs::path& to) {
  std::error_code problem;
  fs::rename(from, to, problem);
  return problem;
}

void write_folder_through(const fs::path& folder) {
  const int descriptor = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return;
  fsync(descriptor);
  ::close(descriptor);
}

int process_id() { return getpid(); }

}  // namespace eliza::platform
