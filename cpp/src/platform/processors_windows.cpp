#include <windows.h>

#include <algorithm>
#include <bitset>

#include "platform/processors.h"

namespace eliza::platform {

// Of the process's group of up to 64 processors, where new threads start.
int32_t usable_processors() {
  DWORD_PTR ours = 0, all = 0;
  if (GetProcessAffinityMask(GetCurrentProcess(), &ours, &all) && ours != 0) {
    return static_cast<int32_t>(std::bitset<64>(ours).count());
  }
  return std::max(1, static_cast<int32_t>(GetActiveProcessorCount(ALL_PROCESSOR_GROUPS)));
}

}  // namespace eliza::platform
