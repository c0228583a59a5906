#pragma once

#include <cstdio>
#include <filesystem>
#include <system_error>

// Files that must be whole or not there at all. Where a function fails, errno tells why.

namespace eliza::platform {

// nullptr where it cannot be opened.
std::FILE* open_file(const std::filesystem::path& path);

// A new file to write; nullptr where it cannot be made or there is one already.
std::FILE* create_file(const std::filesystem::path& path);

// Whether everything written to the file is on the disk now.
bool write_through(std::FILE* file);

// Gives the file `from` the name `to`, in the same folder, whose file it replaces in one step.
std::error_code replace_file(const std::filesystem::path& from, const std::filesystem::path& to);

// Makes a new name in the folder outlive a crash, on file systems that can.
void write_folder_through(const std::filesystem::path& folder);

int process_id();

}  // namespace eliza::platform
