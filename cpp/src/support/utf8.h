#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace eliza {

// Turns a stream of bytes, cut anywhere, into whole UTF-8 characters. Bytes that cannot belong to a
// character become U+FFFD (one for each maximal ill-formed part, as the Unicode standard recommends
// and Python's decoder does), and so does U+0000, which a C string cannot carry.
class Utf8Assembler {
 public:
  // Takes bytes in; completed characters become deliverable.
  void push(std::string_view bytes);

  // Ends the text: the bytes of an unfinished character become U+FFFD.
  void finish();

  // Whole characters not yet taken.
  bool has_text() const { return taken_ < complete_.size(); }

  // Copies as many whole characters as fit `capacity` bytes, terminator included, to `out` and
  // forgets them. Returns the bytes copied, terminator excluded; capacity must be >= 1.
  size_t take(char* out, size_t capacity);

  // All whole characters not yet taken.
  std::string take_all();

  void clear();

 private:
  std::string complete_;  // valid UTF-8; the first `taken_` bytes were delivered
  size_t taken_ = 0;
  std::string unfinished_;  // at most 3 bytes: the beginning of a character
};

// Whether `bytes`, after the `unfinished` beginning of a character, keep a text well-formed; they
// may themselves end inside a character. Leaves the beginning they end with in `unfinished`.
bool continues_utf8(std::string& unfinished, std::string_view bytes);

// `bytes` with everything that is not UTF-8, and U+0000, replaced by U+FFFD.
std::string to_valid_utf8(std::string_view bytes);

}  // namespace eliza
