#pragma once

#include <cstdint>

namespace eliza::platform {

// How many processors this process may use; at least 1.
int32_t usable_processors();

}  // namespace eliza::platform
