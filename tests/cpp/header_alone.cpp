#include "eliza-inference-ffi.h"
