#pragma once

#include <string>
#include <string_view>

namespace eliza::platform {

// Windows' own text is UTF-16; what is no text becomes U+FFFD.
std::wstring to_wide(std::string_view utf8);
std::string to_utf8(std::wstring_view wide);

}  // namespace eliza::platform
