#pragma once

#include <cstdint>
#include <cstring>
#include <string>

// A slot file as bytes; docs/slot-files.md has the format.
namespace eliza::test {

constexpr size_t header_bytes = 80;
constexpr size_t at_version = 8;
constexpr size_t at_checksum = 16;
constexpr size_t checked_from = 24;
constexpr size_t at_tokens = 44;
constexpr size_t at_decoded = 48;
constexpr size_t at_exact = 52;
constexpr size_t at_logits = 56;
constexpr size_t at_cache_bytes = 64;

template <typename Number>
Number number_at(const std::string& bytes, size_t at) {
  Number number;
  std::memcpy(&number, bytes.data() + at, sizeof number);
  return number;
}

inline size_t logits_begin(const std::string& bytes) {
  return header_bytes + sizeof(int32_t) * number_at<uint32_t>(bytes, at_tokens);
}

inline size_t cache_begin(const std::string& bytes) {
  return logits_begin(bytes) + sizeof(float) * number_at<uint32_t>(bytes, at_logits);
}

// Empty where the file has none.
inline std::string logits_in(const std::string& bytes) {
  return bytes.substr(logits_begin(bytes), cache_begin(bytes) - logits_begin(bytes));
}

}  // namespace eliza::test
