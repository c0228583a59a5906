#include "eliza-inference-ffi.h"

#define ELIZA_TEXT_(x) #x
#define ELIZA_TEXT(x) ELIZA_TEXT_(x)

#ifdef ELIZA_ENABLE_LITERT
#define ELIZA_LITERT_FACT "true"
#else
#define ELIZA_LITERT_FACT "false"
#endif
#ifdef ELIZA_ENABLE_MLX
#define ELIZA_MLX_FACT "true"
#else
#define ELIZA_MLX_FACT "false"
#endif

namespace {

// The version string, and behind its terminator what was built. Tools find the facts in the file by
// their marker, so that they need no symbol and no loading; sharing the array with the version
// keeps the linker from dropping them.
constexpr char version_and_facts[] =
    ELIZA_TEXT(ELIZA_INFERENCE_ABI_VERSION) "\0"
    "ELIZA_BUILD_FACTS {"
    "\"library\": \"" ELIZA_LIBRARY_VERSION "\", "
    "\"abi\": " ELIZA_TEXT(ELIZA_INFERENCE_ABI_VERSION) ", "
    "\"llama_cpp\": \"" ELIZA_LLAMA_CPP_VERSION "\", "
    "\"litert\": " ELIZA_LITERT_FACT ", "
    "\"mlx\": " ELIZA_MLX_FACT ", "
    "\"compiler\": \"" ELIZA_COMPILER "\", "
    "\"build_type\": \"" ELIZA_BUILD_TYPE "\", "
    "\"cpu_native\": \"" ELIZA_GGML_NATIVE "\", "
    "\"cpu_levels\": \"" ELIZA_CPU_LEVELS "\", "
    "\"sanitizers\": \"" ELIZA_SANITIZERS "\"}";

}  // namespace

const char* eliza_inference_abi_version(void) { return version_and_facts; }
