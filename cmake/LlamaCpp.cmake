# llama.cpp and ggml as static libraries, behind the target `eliza_llama_cpp`.
#
# The source, first match wins:
#   -DELIZA_LLAMA_CPP_DIR=/path         an existing source tree
#   -DELIZA_LLAMA_CPP_URL=... [-DELIZA_LLAMA_CPP_SHA256=...]   an archive, for the open internet
#   otherwise scripts/fetch             the pinned sdist from the Python package index, hash-checked,
#                                       unpacked in a cache outside the checkout
# Each is also an environment variable, for builds that are started by something else.
set(ELIZA_LLAMA_CPP_DIR "$ENV{ELIZA_LLAMA_CPP_DIR}" CACHE PATH "Existing llama.cpp source tree")
set(ELIZA_LLAMA_CPP_URL "$ENV{ELIZA_LLAMA_CPP_URL}" CACHE STRING "Archive of a llama.cpp source tree")
set(ELIZA_LLAMA_CPP_SHA256 "$ENV{ELIZA_LLAMA_CPP_SHA256}" CACHE STRING "SHA-256 of that archive")

if(ELIZA_LLAMA_CPP_DIR)
  set(eliza_llama_source "${ELIZA_LLAMA_CPP_DIR}")
  set(ELIZA_LLAMA_CPP_VERSION "source tree")
elseif(ELIZA_LLAMA_CPP_URL)
  include(FetchContent)
  if(ELIZA_LLAMA_CPP_SHA256)
    FetchContent_Declare(llama_cpp URL "${ELIZA_LLAMA_CPP_URL}" URL_HASH "SHA256=${ELIZA_LLAMA_CPP_SHA256}"
      DOWNLOAD_EXTRACT_TIMESTAMP TRUE SOURCE_SUBDIR none)
  else()
    message(WARNING "ELIZA_LLAMA_CPP_URL without ELIZA_LLAMA_CPP_SHA256: the archive is not checked")
    FetchContent_Declare(llama_cpp URL "${ELIZA_LLAMA_CPP_URL}"
      DOWNLOAD_EXTRACT_TIMESTAMP TRUE SOURCE_SUBDIR none)
  endif()
  # SOURCE_SUBDIR none: unpack only; the subdirectory is added below, with our settings.
  FetchContent_MakeAvailable(llama_cpp)
  set(eliza_llama_source "${llama_cpp_SOURCE_DIR}")
  set(ELIZA_LLAMA_CPP_VERSION "${ELIZA_LLAMA_CPP_URL}")
else()
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  execute_process(
    COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/scripts/fetch llama.cpp
    OUTPUT_VARIABLE eliza_fetch_output OUTPUT_STRIP_TRAILING_WHITESPACE
    RESULT_VARIABLE eliza_fetch_result)
  if(NOT eliza_fetch_result EQUAL 0)
    # Lines that begin with a space are printed as they are. This is the end of what pip shows.
    message(FATAL_ERROR
      " llama.cpp could not be fetched; the reason is above.\n"
      " Instead, unpack its source (vendor/llama.cpp in the source distribution llama-cpp-python 0.3.36)\n"
      " and name that folder, by the environment variable ELIZA_LLAMA_CPP_DIR or by an option:\n"
      "   pip install SOURCE --config-settings=cmake.define.ELIZA_LLAMA_CPP_DIR=/path/to/llama.cpp\n"
      "   cmake -DELIZA_LLAMA_CPP_DIR=/path/to/llama.cpp")
  endif()
  string(REGEX REPLACE ".*\n" "" eliza_llama_source "${eliza_fetch_output}")
  set(ELIZA_LLAMA_CPP_VERSION "pinned, llama-cpp-python 0.3.36")
endif()
if(NOT EXISTS "${eliza_llama_source}/include/llama.h")
  message(FATAL_ERROR "No llama.cpp source tree at '${eliza_llama_source}' (include/llama.h is missing)")
endif()

# A quiet static build. BUILD_SHARED_LIBS stays a normal variable so that a parent project keeps its own.
set(BUILD_SHARED_LIBS OFF)
set(LLAMA_BUILD_NUMBER 1)
set(LLAMA_BUILD_COMMON ${ELIZA_BUILD_TOOLS} CACHE BOOL "" FORCE)
set(LLAMA_BUILD_TOOLS ${ELIZA_BUILD_TOOLS} CACHE BOOL "" FORCE)
foreach(off IN ITEMS LLAMA_CURL LLAMA_OPENSSL LLAMA_SUBPROCESS LLAMA_BUILD_SERVER LLAMA_BUILD_TESTS
    LLAMA_BUILD_EXAMPLES LLAMA_BUILD_APP LLAMA_TOOLS_INSTALL LLAMA_ALL_WARNINGS GGML_OPENMP)
  # OpenMP gains nothing here and its runtime clashes with the copies of numpy and PyTorch.
  set(${off} OFF CACHE BOOL "" FORCE)
endforeach()
if(APPLE)
  # Metal where the chip has it, its shaders inside the library; it needs Apple's SDK, which cross
  # compilers have not. Accelerate would compute some batches otherwise than single tokens.
  set(eliza_metal OFF)
  set(architecture "${CMAKE_OSX_ARCHITECTURES}")
  if(NOT architecture)
    set(architecture "${CMAKE_SYSTEM_PROCESSOR}")
  endif()
  if(architecture STREQUAL "arm64" AND NOT CMAKE_CROSSCOMPILING)
    set(eliza_metal ON)
  endif()
  set(GGML_METAL ${eliza_metal} CACHE BOOL "ggml: use Metal")
  set(GGML_METAL_EMBED_LIBRARY ON CACHE BOOL "ggml: embed Metal library")
  set(GGML_ACCELERATE OFF CACHE BOOL "ggml: enable Accelerate framework")
  set(GGML_BLAS OFF CACHE BOOL "ggml: use BLAS")
endif()
if(CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang")
  # The prefix map keeps the build machine's folders out of the library, where assertions name files.
  add_compile_options(-ffunction-sections -fdata-sections
    "-ffile-prefix-map=${PROJECT_SOURCE_DIR}/=" "-ffile-prefix-map=${eliza_llama_source}/=llama.cpp/"
    "-ffile-prefix-map=${PROJECT_BINARY_DIR}/=")
endif()
if(WIN32 AND CMAKE_C_COMPILER_ID STREQUAL "GNU")
  # gcc for Windows aligns its stack to 16 bytes and may move 32 or 64 as if it were aligned to that
  # (its bug 54412): the assembler makes these moves the ones that need no alignment.
  add_compile_options(-Wa,-muse-unaligned-vector-move)
endif()
include(cmake/CpuLevels.cmake)
eliza_choose_cpu_levels()
if(eliza_cpu_levels)
  set(GGML_NATIVE OFF)  # the levels alone have instruction sets
endif()
set(CMAKE_MESSAGE_LOG_LEVEL WARNING)
add_subdirectory("${eliza_llama_source}" "${PROJECT_BINARY_DIR}/llama.cpp" EXCLUDE_FROM_ALL SYSTEM)
unset(CMAKE_MESSAGE_LOG_LEVEL)

# A library must not touch its host process. ggml.cpp does nothing but install a std::terminate
# handler; ggml.c can fork a debugger from its abort path.
get_target_property(eliza_ggml_sources ggml-base SOURCES)
list(REMOVE_ITEM eliza_ggml_sources ggml.cpp)
set_property(TARGET ggml-base PROPERTY SOURCES ${eliza_ggml_sources})
target_sources(ggml-base PRIVATE ${PROJECT_SOURCE_DIR}/cpp/src/llama/no_process_spawn.c)
set_source_files_properties(${eliza_llama_source}/ggml/src/ggml.c TARGET_DIRECTORY ggml-base
  PROPERTIES COMPILE_DEFINITIONS "fork=eliza_no_fork;execlp=eliza_no_execlp")

# A token's result must not depend on how many threads compute it, on what else is in its batch, or
# on earlier contents of the cache; otherwise reuse of a prompt, drafts, and streams side by side
# would change the text (docs/design.md).
include(cmake/AmendedSource.cmake)
set(ggml_cpu ${eliza_llama_source}/ggml/src/ggml-cpu)

# Flash attention of up to 15 rows sums the cache in parts of 256 cells, whatever the number of
# threads, instead of in one part for each thread for a single row and as a whole for more. From 16
# rows on (Decoder::many_rows), instead of 64, its kernel for many rows works, at a cost that follows
# the rows.
eliza_amend_source(ggml-cpu ${ggml_cpu}/ops.cpp ggml-cpu/ops.cpp
  "(neq1 == 1 && neq3 == 1) && kv_is_f32_or_f16 && (k->type == v->type) && q->type == GGML_TYPE_F32 && nek1 >= 512;"
  "(neq1 < 16 && neq3 == 1) && kv_is_f32_or_f16 && (k->type == v->type) && q->type == GGML_TYPE_F32;"
  "        const int64_t chunk_size = (nek1 + nth - 1) / nth;
"
  "        const int64_t chunk_size = 256;
        const int64_t n_chunks   = (nek1 + chunk_size - 1) / chunk_size;
"
  "        const int64_t ic_start = ith * chunk_size;
        const int64_t ic_end   = std::min(ic_start + chunk_size, nek1);

        const int64_t partial_stride = nth * partial_size;
        float *       chunk_partials = partials_base + ith * partial_size;

        if (ic_start < nek1) {
            for (int64_t q_head = 0; q_head < neq2; q_head++) {
                ggml_compute_forward_flash_attn_ext_f16_one_chunk(
                    params, dst, q_head, q_head + 1, ic_start, ic_end,
                    chunk_partials, partial_stride);
            }
        } else {
            for (int64_t q_head = 0; q_head < neq2; q_head++) {
                float * q_partials = chunk_partials + q_head * partial_stride;
                q_partials[0] = -INFINITY;  // M
                q_partials[1] = 0.0f;       // S
            }
        }

        ggml_barrier(params->threadpool);
        ggml_flash_attn_ext_reduce_partials(params, dst, nth, chunk_size);
"
  "        // a thread works on units in a row: those of the rows that share a part of the cache
        const int64_t group    = neq1*neq2/nek2;
        const int64_t n_units  = neq1*neq2*n_chunks;
        const int64_t per_thread = (n_units + nth - 1)/nth;

        for (int64_t unit = ith*per_thread; unit < std::min((ith + 1)*per_thread, n_units); unit++) {
            const int64_t ir    = unit/(group*n_chunks)*group + unit%group;
            const int64_t chunk = unit/group%n_chunks;
            ggml_compute_forward_flash_attn_ext_f16_one_chunk(
                params, dst, ir, ir + 1, chunk*chunk_size, std::min((chunk + 1)*chunk_size, nek1),
                partials_base + chunk*partial_size, n_chunks*partial_size);
        }

        ggml_barrier(params->threadpool);
        ggml_flash_attn_ext_reduce_partials(params, dst, n_chunks, chunk_size);
"
  "    const int64_t n_q_heads = q->ne[2];
"
  "    const int64_t n_q_heads = q->ne[1]*q->ne[2];
"
  "        // iq1=0, iq3=0 for decode
        memcpy((char *) dst->data + (0*ne2*ne1 + q_head + 0*ne1)*nb1, VKQ_final, nb1);
"
  "        memcpy((char *) dst->data + (q_head/q->ne[1] + q_head%q->ne[1]*ne1)*nb1, VKQ_final, nb1);
"
  "neq1 >= Q_TILE_SZ);"
  "neq1 >= 16);"
  "simd_gemm(KQ, (const float *)Q_q, K_f32, Q_TILE_SZ, DK, KV_TILE_SZ);"
  "simd_gemm(KQ, (const float *)Q_q, K_f32, tile_rows, DK, KV_TILE_SZ);"
  "simd_gemm(VKQ32, KQ, V32, Q_TILE_SZ, KV_TILE_SZ, DV);"
  "simd_gemm(VKQ32, KQ, V32, tile_rows, KV_TILE_SZ, DV);")

# The memory for those parts.
eliza_amend_source(ggml-cpu ${ggml_cpu}/ggml-cpu.c ggml-cpu/ggml-cpu.c
  "                        size_t n_chunks = n_tasks;
"
  "                        const int64_t n_rows = node->src[0]->ne[1];
                        size_t n_chunks = n_rows < 16 ? n_rows*((node->src[1]->ne[1] + 255)/256) : 0;
")
if(CMAKE_C_COMPILER_ID MATCHES "GNU|Clang")
  # Threads that wait for each other give the processor up now and then.
  set_property(SOURCE ${eliza_amended_source} TARGET_DIRECTORY ggml-cpu APPEND PROPERTY
    COMPILE_OPTIONS "-include;${PROJECT_SOURCE_DIR}/cpp/src/llama/polite_spinning.h")
endif()

# The kernels for many rows of F32, F16 and BF16 weights begin at 16 rows too, instead of 2.
eliza_amend_source(ggml-cpu ${ggml_cpu}/llamafile/sgemm.cpp ggml-cpu/llamafile/sgemm.cpp
  "    if (n < 2)
        return false;"
  "    if (n < 16)
        return false;")

# Sums follow the order of the cells in the KV cache: a position goes to the cell that is its
# remainder, where that is free or out of the sliding window, instead of to the next one after
# whatever was cut or restored before. And a cache is zeroed without touching it, when it is made and
# when it is cleared.
eliza_amend_source(llama ${eliza_llama_source}/src/llama-kv-cache.cpp llama-kv-cache.cpp
  "        uint32_t n_tested = 0;
"
  "        for (uint32_t i = 0; n_seq_max == 1 && i < n_tokens; ++i) {
            const uint32_t idx = ubatch.pos[s*n_tokens + i] % cells.size();
            if (!cells.is_empty(idx) &&
                !llama_hparams::is_masked_swa(n_swa, swa_type, cells.pos_get(idx), cells.seq_pos_max(seq_id) + 1)) {
                break;
            }
            res.idxs[s].push_back(idx);
        }
        if (res.idxs[s].size() == n_tokens && (!cont || res.is_contiguous())) {
            continue;
        }
        res.idxs[s].clear();

        uint32_t n_tested = 0;
"
  "        ggml_backend_buffer_clear(buf, 0);
        ctxs_bufs.emplace_back"
  "        void eliza_zero_on_demand(ggml_backend_buffer_t);
        eliza_zero_on_demand(buf);
        ctxs_bufs.emplace_back"
  "            ggml_backend_buffer_clear(buf.get(), 0);"
  "            void eliza_zero_on_demand(ggml_backend_buffer_t);
            eliza_zero_on_demand(buf.get());")
if(CMAKE_SYSTEM_NAME MATCHES "^(Linux|Android)$")
  set(eliza_zero zero_on_demand_linux)
else()
  set(eliza_zero zero_on_demand_other)
endif()
target_sources(llama PRIVATE ${PROJECT_SOURCE_DIR}/cpp/src/llama/${eliza_zero}.cpp)

# ggml's assertions become C++ exceptions (llama/runtime.cpp); its C frames must let them pass.
if(CMAKE_C_COMPILER_ID MATCHES "GNU|Clang")
  foreach(target IN ITEMS ggml-base ggml-cpu)
    if(TARGET ${target})
      target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:C>:-fexceptions>)
    endif()
  endforeach()
endif()

# Which level of CPU kernels computes, and the levels, where there are any.
add_library(eliza_cpu STATIC cpp/src/cpu/features.cpp cpp/src/cpu/level.cpp)
target_link_libraries(eliza_cpu PRIVATE eliza_flags PUBLIC eliza_support)
if(eliza_cpu_levels)
  eliza_add_cpu_levels(eliza_cpu)
endif()

# Speculation is part of llama.cpp's "common", whose other parts (chat templates, downloads, child
# processes) have no place in a library; what speculation needs of it is compiled here.
set(eliza_common ${eliza_llama_source}/common)
set(LLAMA_BUILD_COMMIT unknown)
configure_file(${eliza_common}/build-info.cpp.in ${PROJECT_BINARY_DIR}/build-info.cpp)
add_library(eliza_llama_speculation STATIC ${PROJECT_BINARY_DIR}/build-info.cpp
  ${eliza_common}/common.cpp ${eliza_common}/fit.cpp ${eliza_common}/json.cpp ${eliza_common}/log.cpp
  ${eliza_common}/ngram-cache.cpp ${eliza_common}/ngram-map.cpp ${eliza_common}/ngram-mod.cpp
  ${eliza_common}/reasoning-budget.cpp ${eliza_common}/sampling.cpp ${eliza_common}/speculative.cpp
  ${eliza_common}/trie.cpp ${eliza_common}/unicode.cpp)
target_include_directories(eliza_llama_speculation SYSTEM PUBLIC ${eliza_common})
target_link_libraries(eliza_llama_speculation PUBLIC llama vendor::nlohmann)
target_compile_features(eliza_llama_speculation PRIVATE cxx_std_17)
if(CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang")
  target_compile_options(eliza_llama_speculation PRIVATE -w)
endif()

add_library(eliza_llama_cpp INTERFACE)
target_link_libraries(eliza_llama_cpp INTERFACE
  eliza_llama_speculation llama ggml eliza_cpu vendor::nlohmann vendor::hash)
# The grammar parser is reached through llama.cpp's own header: its public entry prints to stderr.
target_include_directories(eliza_llama_cpp SYSTEM INTERFACE ${eliza_llama_source}/src)
