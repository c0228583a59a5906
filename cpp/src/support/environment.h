#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace eliza {

// Environment variables of the library (docs/environment.md). An unset or empty variable is
// nullopt; a value that does not parse throws Error(ELIZA_ERR_INVALID_ARG) that names the variable.

std::optional<std::string> environment_string(const char* name);

// A whole decimal number in [lowest, highest].
std::optional<int64_t> environment_integer(const char* name, int64_t lowest, int64_t highest);

// One of `choices`, compared without case; returns its index.
std::optional<size_t> environment_choice(const char* name, const std::vector<std::string>& choices);

// "environment variable NAME is 'VALUE'": how messages about one begin.
std::string variable_is(const std::string& name, const std::string& value);

// Whether two ASCII strings are equal without case.
bool equal_ignoring_case(const std::string& a, const std::string& b);

// "a, b, c"
std::string joined(const std::vector<std::string>& words);

}  // namespace eliza
