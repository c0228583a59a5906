#include "platform/paths.h"
#include "platform/text_windows.h"

namespace eliza::platform {
namespace fs = std::filesystem;

// std::filesystem would throw where this replaces.
fs::path path_of(const std::string& utf8) { return to_wide(utf8); }

std::string utf8_of(const fs::path& path) { return to_utf8(path.native()); }

}  // namespace eliza::platform
