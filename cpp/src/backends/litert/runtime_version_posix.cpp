#include <cstddef>

#include "backends/litert/runtime_version.h"
#include "platform/shared_library.h"

namespace eliza::litert {
namespace {

// A C++ constant, a std::string_view, which is exported beside the C API.
constexpr char version_symbol[] = "_ZN6litert2lm17LITERT_LM_VERSIONE";

struct StringView {
  const char* data;
  size_t size;
};

}  // namespace

std::string version_of(void* library) {
  constexpr size_t longest = 64;
  const auto* version =
      static_cast<const StringView*>(platform::address_in(library, version_symbol));
  if (version == nullptr || version->data == nullptr || version->size > longest) return "";
  return {version->data, version->size};
}

}  // namespace eliza::litert
