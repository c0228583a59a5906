#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "llama/decoder.h"

namespace eliza::llama {

// Streams on disk. docs/slot-files.md describes the format.

// What must be equal for a state to go on in another stream.
struct SlotIdentity {
  uint64_t model = 0;  // Model::fingerprint
  uint32_t vocabulary_size = 0;
  uint32_t context_size = 0;
  uint32_t cache_type_k = 0;
  uint32_t cache_type_v = 0;
  bool flash_attention = false;
};

struct Slot {
  std::vector<int32_t> sequence;  // begins with the tokens of the state
  bool generating = false;        // not all of them came with a prompt
  DecoderState state;
};

// Writes the file whole or, throwing Error, not at all: what was there before then stays.
void write_slot(const std::string& filename, const SlotIdentity& identity, const Slot& slot);

// Throws Error(ELIZA_ERR_INVALID_ARG) with the reason where the file is none, damaged, or of
// another identity or format.
Slot read_slot(const std::string& filename, const SlotIdentity& identity);

}  // namespace eliza::llama
