#pragma once

#include <string>

namespace eliza::litert {

// The version of an opened LiteRT-LM library, such as "0.18.1"; empty where it cannot be told. The
// C API has none.
std::string version_of(void* library);

}  // namespace eliza::litert
