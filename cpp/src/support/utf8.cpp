#include "support/utf8.h"

#include <cstdint>
#include <cstring>

namespace eliza {
namespace {

constexpr char replacement[] = "\xEF\xBF\xBD";

struct Scan {
  enum class Kind { whole, unfinished, ill_formed } kind;
  size_t length;  // bytes of the character, of its beginning, or of the ill-formed part
};

// The bounds of the second byte exclude overlong forms, surrogates and values above U+10FFFF.
Scan scan_character(std::string_view bytes) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {Scan::Kind::whole, 1};
  if (lead < 0xC2 || lead > 0xF4) return {Scan::Kind::ill_formed, 1};
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  uint8_t low = 0x80;
  uint8_t high = 0xBF;
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  for (size_t i = 1; i < length; ++i) {
    if (i == bytes.size()) return {Scan::Kind::unfinished, i};
    if (byte(i) < low || byte(i) > high) return {Scan::Kind::ill_formed, i};
    low = 0x80;
    high = 0xBF;
  }
  return {Scan::Kind::whole, length};
}

}  // namespace

void Utf8Assembler::push(std::string_view bytes) {
  std::string joined;
  if (!unfinished_.empty()) {
    joined = unfinished_.append(bytes);
    unfinished_.clear();
    bytes = joined;
  }
  while (!bytes.empty()) {
    const Scan scan = scan_character(bytes);
    if (scan.kind == Scan::Kind::unfinished) {
      unfinished_.assign(bytes);
      return;
    }
    if (scan.kind == Scan::Kind::whole && bytes.front() != '\0') {
      complete_.append(bytes.substr(0, scan.length));
    } else {
      complete_.append(replacement);
    }
    bytes.remove_prefix(scan.length);
  }
}

void Utf8Assembler::finish() {
  if (unfinished_.empty()) return;
  unfinished_.clear();
  complete_.append(replacement);
}

size_t Utf8Assembler::take(char* out, size_t capacity) {
  size_t length = complete_.size() - taken_;
  if (length > capacity - 1) {
    length = capacity - 1;
    const auto is_continuation = [&](size_t i) {
      return (static_cast<uint8_t>(complete_[taken_ + i]) & 0xC0) == 0x80;
    };
    while (length > 0 && is_continuation(length)) --length;
  }
  std::memcpy(out, complete_.data() + taken_, length);
  out[length] = '\0';
  taken_ += length;
  if (taken_ == complete_.size()) {
    complete_.clear();
    taken_ = 0;
  }
  return length;
}

std::string Utf8Assembler::take_all() {
  std::string text = complete_.substr(taken_);
  complete_.clear();
  taken_ = 0;
  return text;
}

void Utf8Assembler::clear() {
  complete_.clear();
  unfinished_.clear();
  taken_ = 0;
}

bool continues_utf8(std::string& unfinished, std::string_view bytes) {
  unfinished.append(bytes);
  std::string_view rest = unfinished;
  while (!rest.empty()) {
    const Scan scan = scan_character(rest);
    if (scan.kind == Scan::Kind::ill_formed) return false;
    if (scan.kind == Scan::Kind::unfinished) break;
    rest.remove_prefix(scan.length);
  }
  unfinished.erase(0, unfinished.size() - rest.size());
  return true;
}

std::string to_valid_utf8(std::string_view bytes) {
  Utf8Assembler assembler;
  assembler.push(bytes);
  assembler.finish();
  return assembler.take_all();
}

}  // namespace eliza
