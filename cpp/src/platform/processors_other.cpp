#include <algorithm>
#include <thread>

#include "platform/processors.h"

namespace eliza::platform {

int32_t usable_processors() {
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace eliza::platform
