#pragma once

#include <filesystem>
#include <string>

namespace eliza::platform {

// Opens a shared library for as long as the process lives. nullptr where that fails, with the
// system's reason; the names in it are in no other library's way.
void* open_library(const std::filesystem::path& path, std::string& reason);

// The address of what the library exports by this name; nullptr where there is none.
void* address_in(void* library, const char* name);

// Whether the system finds this library by its name and can load it.
bool has_library(const char* name);

// The folder of the file from which the code or constant at `address` was loaded; empty where it
// cannot be told.
std::filesystem::path folder_of(const void* address);

}  // namespace eliza::platform
