#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace eliza::litert {

// What our own reading of a `.litertlm` file finds. The container (version 1): the magic
// "LITERTLM", three 32-bit version numbers, at byte 24 the 64-bit end of the header, from byte 32
// on a flatbuffer that lists the sections with their kind and place.
struct ModelFile {
  std::filesystem::path path;
  std::uintmax_t size = 0;
  std::filesystem::file_time_type written;
  uint64_t model_offset = 0;  // of the section with the text model, a TFLite flatbuffer
};

// The bundle's file: the only `text/*.litertlm`, its header read and checked. The runtime ends the
// process on some files whose header promises what the file has not; those are refused here. Throws
// Error(ELIZA_ERR_BUNDLE_INVALID), also where there is none or several.
ModelFile find_model_file(const std::string& bundle_dir);

// What the signatures of the text model say; 0 where they do not.
struct ModelShape {
  // Of the lengths that prefill takes ("prefill_128" takes 128) the largest that is at most
  // `longest`, else the smallest.
  int32_t prefill_length = 0;
  int32_t cache_length = 0;  // positions of the KV cache
};
ModelShape model_shape(const ModelFile& file, int32_t longest);

}  // namespace eliza::litert
