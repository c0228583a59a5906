#include <windows.h>

#include "backends/litert/runtime_version.h"

namespace eliza::litert {
namespace {

// The DLL exports no version, and the one in its resources is not the release's. So a release is
// known by what symbol servers tell builds apart by: the link's time stamp and the image's size.
constexpr struct {
  DWORD time_stamp;
  DWORD image_size;
  const char* version;
} releases[] = {
    {0x6ace96c8, 0x2fed000, "0.18.1"},  // litert-lm-api, win_amd64
};

}  // namespace

std::string version_of(void* library) {
  const auto* const image = static_cast<const unsigned char*>(library);
  const auto* const start = reinterpret_cast<const IMAGE_DOS_HEADER*>(image);
  const auto* const headers = reinterpret_cast<const IMAGE_NT_HEADERS*>(image + start->e_lfanew);
  for (const auto& release : releases) {
    if (release.time_stamp == headers->FileHeader.TimeDateStamp &&
        release.image_size == headers->OptionalHeader.SizeOfImage) {
      return release.version;
    }
  }
  return "";
}

}  // namespace eliza::litert
