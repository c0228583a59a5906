#include "support/error.h"

#include <cstdlib>
#include <cstring>

#include "support/utf8.h"

namespace eliza {

void require(const void* pointer, const char* argument) {
  if (pointer == nullptr) {
    throw Error(ELIZA_ERR_INVALID_ARG, std::string(argument) + " is NULL; pass a valid pointer");
  }
}

void require_size(size_t size, const char* argument) {
  if (size == 0) {
    throw Error(ELIZA_ERR_INVALID_ARG, std::string(argument) + " is 0; it must be at least 1");
  }
}

char* duplicate_message(const std::string& message) noexcept {
  try {
    const std::string text = to_valid_utf8(message);
    auto* copy = static_cast<char*>(std::malloc(text.size() + 1));
    if (copy != nullptr) std::memcpy(copy, text.c_str(), text.size() + 1);
    return copy;
  } catch (...) {
    return nullptr;
  }
}

std::string shortened(const std::string& text) {
  constexpr size_t longest = 200;
  if (text.size() <= longest) return text;
  return text.substr(0, longest) + "... (" + std::to_string(text.size()) + " bytes)";
}

std::string quoted(const std::string& value) {
  constexpr char digits[] = "0123456789abcdef";
  const std::string shown = shortened(value);
  std::string text;
  bool second = false;  // of the two bytes of U+0080 to U+009F, which terminals obey too
  for (size_t i = 0; i < shown.size(); ++i) {
    const auto byte = static_cast<unsigned char>(shown[i]);
    const bool first = byte == 0xc2 && i + 1 < shown.size() && (shown[i + 1] & 0xe0) == 0x80;
    if (byte < 0x20 || byte == 0x7f || first || second) {
      text += {'\\', 'x', digits[byte >> 4], digits[byte & 15]};
    } else {
      text += shown[i];
    }
    second = first;
  }
  return "'" + text + "'";
}

}  // namespace eliza
