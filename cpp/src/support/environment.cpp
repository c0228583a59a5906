#include "support/environment.h"

#include <algorithm>
#include <charconv>

#include "platform/environment_variable.h"
#include "support/error.h"

namespace eliza {
namespace {

[[noreturn]] void refuse(const char* name, const std::string& value, const std::string& expected) {
  throw Error(ELIZA_ERR_INVALID_ARG,
              variable_is(name, value) + ": expected " + expected + "; correct it or unset it");
}

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

}  // namespace

std::optional<std::string> environment_string(const char* name) {
  auto value = platform::environment_variable(name);
  if (value && value->empty()) return std::nullopt;
  return value;
}

std::optional<int64_t> environment_integer(const char* name, int64_t lowest, int64_t highest) {
  const auto text = environment_string(name);
  if (!text) return std::nullopt;
  int64_t number = 0;
  const char* const end = text->data() + text->size();
  const auto [rest, problem] = std::from_chars(text->data(), end, number);
  if (problem != std::errc() || rest != end || number < lowest || number > highest) {
    refuse(name, *text,
           "a whole number from " + std::to_string(lowest) + " to " + std::to_string(highest));
  }
  return number;
}

std::optional<size_t> environment_choice(const char* name,
                                         const std::vector<std::string>& choices) {
  const auto text = environment_string(name);
  if (!text) return std::nullopt;
  const auto found = std::find_if(choices.begin(), choices.end(), [&](const std::string& choice) {
    return equal_ignoring_case(choice, *text);
  });
  if (found == choices.end()) refuse(name, *text, "one of " + joined(choices));
  return static_cast<size_t>(found - choices.begin());
}

std::string variable_is(const std::string& name, const std::string& value) {
  return "environment variable " + name + " is " + quoted(value);
}

bool equal_ignoring_case(const std::string& a, const std::string& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(),
                                            [](char x, char y) { return lower(x) == lower(y); });
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const auto& word : words) {
    if (!text.empty()) text += ", ";
    text += word;
  }
  return text;
}

}  // namespace eliza
