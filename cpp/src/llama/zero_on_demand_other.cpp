// Where there is no way to make pages read as zero again without touching them, a new KV cache is
// written (see cmake/LlamaCpp.cmake). Windows and macOS have none for memory that an allocator
// hands out: what they call so leaves the contents undefined, or takes the pages from their owner.
#include <ggml-backend.h>

void eliza_zero_on_demand(ggml_backend_buffer_t buffer);

void eliza_zero_on_demand(ggml_backend_buffer_t buffer) { ggml_backend_buffer_clear(buffer, 0); }
