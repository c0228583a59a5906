#include "platform/paths.h"

namespace eliza::platform {
namespace fs = std::filesystem;

fs::path path_of(const std::string& utf8) { return utf8; }

std::string utf8_of(const fs::path& path) { return path.string(); }

}  // namespace eliza::platform
