#pragma once

#include <filesystem>
#include <string>

namespace eliza::platform {

// Paths are UTF-8 in the C API, in messages and for the runtimes. On Windows what is no text
// becomes U+FFFD, in both directions; elsewhere a path is any bytes.
std::filesystem::path path_of(const std::string& utf8);
std::string utf8_of(const std::filesystem::path& path);

}  // namespace eliza::platform
