#include "eliza-inference-ffi.h"

/* A translation unit needs a declaration of its own to be pedantically valid C99. */
extern const size_t eliza_config_size;
const size_t eliza_config_size = sizeof(eliza_llm_stream_config_t);
