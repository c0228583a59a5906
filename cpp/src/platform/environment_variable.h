#pragma once

#include <optional>
#include <string>

namespace eliza::platform {

// The value of an environment variable as UTF-8; nullopt where it is not set.
std::optional<std::string> environment_variable(const char* name);

}  // namespace eliza::platform
