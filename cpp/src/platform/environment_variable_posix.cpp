#include "platform/environment_variable.h"

#include <cstdlib>

namespace eliza::platform {

std::optional<std::string> environment_variable(const char* name) {
  const char* const value = std::getenv(name);
  if (value == nullptr) return std::nullopt;
  return value;
}

}  // namespace eliza::platform
