// Stands in for the memset of a new KV cache (see cmake/LlamaCpp.cmake), which touches every page
// of it: most streams never use most of their context.
#include <ggml-backend.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

void eliza_zero_on_demand(ggml_backend_buffer_t buffer);

void eliza_zero_on_demand(ggml_backend_buffer_t buffer) {
  // The whole pages of private anonymous memory, which every allocator hands out, read as zero
  // after this. The parts of pages at the ends, and what cannot be treated so, are written.
  if (ggml_backend_buffer_is_host(buffer)) {
    const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    const auto begin = reinterpret_cast<uintptr_t>(ggml_backend_buffer_get_base(buffer));
    const uintptr_t end = begin + ggml_backend_buffer_get_size(buffer);
    const uintptr_t first = (begin + page - 1) / page * page;
    const uintptr_t last = end / page * page;
    if (first < last && madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED) == 0) {
      for (uintptr_t byte = begin; byte < first; ++byte) *reinterpret_cast<uint8_t*>(byte) = 0;
      for (uintptr_t byte = last; byte < end; ++byte) *reinterpret_cast<uint8_t*>(byte) = 0;
      return;
    }
  }
  ggml_backend_buffer_clear(buffer, 0);
}
