# llama.cpp and ggml as static libraries, behind the target `eliza_llama_cpp`.
#
# The source, first match wins:
#   -DELIZA_LLAMA_CPP_DIR=/path         an existing source tree
#   -DELIZA_LLAMA_CPP_URL=... [-DELIZA_LLAMA_CPP_SHA256=...]   an archive, for the open internet
#   otherwise scripts/fetch             the pinned sdist from the Python package index, hash-checked,
#                                       unpacked in a cache outside the checkout
set(ELIZA_LLAMA_CPP_DIR "" CACHE PATH "Existing llama.cpp source tree")
set(ELIZA_LLAMA_CPP_URL "" CACHE STRING "Archive of a llama.cpp source tree")
set(ELIZA_LLAMA_CPP_SHA256 "" CACHE STRING "SHA-256 of that archive")

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
    message(FATAL_ERROR
      "llama.cpp could not be fetched (see above). Without the Python package index, point "
      "ELIZA_LLAMA_CPP_DIR at a source tree or ELIZA_LLAMA_CPP_URL at an archive.")
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
if(CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang")
  # The prefix map keeps the build machine's folders out of the library, where assertions name files.
  add_compile_options(-ffunction-sections -fdata-sections
    "-ffile-prefix-map=${PROJECT_SOURCE_DIR}/=" "-ffile-prefix-map=${eliza_llama_source}/=llama.cpp/")
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

# Threads that wait for each other give the processor up now and then.
if(TARGET ggml-cpu AND CMAKE_C_COMPILER_ID MATCHES "GNU|Clang")
  set_source_files_properties(${eliza_llama_source}/ggml/src/ggml-cpu/ggml-cpu.c
    TARGET_DIRECTORY ggml-cpu
    PROPERTIES COMPILE_OPTIONS "-include;${PROJECT_SOURCE_DIR}/cpp/src/llama/polite_spinning.h")
endif()

# ggml's assertions become C++ exceptions (llama/runtime.cpp); its C frames must let them pass.
if(CMAKE_C_COMPILER_ID MATCHES "GNU|Clang")
  foreach(target IN ITEMS ggml-base ggml-cpu)
    if(TARGET ${target})
      target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:C>:-fexceptions>)
    endif()
  endforeach()
endif()

add_library(eliza_llama_cpp INTERFACE)
target_link_libraries(eliza_llama_cpp INTERFACE llama ggml vendor::nlohmann)
# The grammar parser is reached through llama.cpp's own header: its public entry prints to stderr.
target_include_directories(eliza_llama_cpp SYSTEM INTERFACE ${eliza_llama_source}/src)
