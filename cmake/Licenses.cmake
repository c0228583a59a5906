# The licence of everything that is linked into the library, installed beside it in a folder
# `licenses`: a file for each component, taken from where the component comes from.
set(ELIZA_CXX_RUNTIME_LICENSES "" CACHE STRING
  "Licence files of a C++ runtime that becomes part of the library and asks for it")

# Installs the licence `file` under the component's name.
function(eliza_install_license component file)
  install(FILES "${file}" DESTINATION ${CMAKE_INSTALL_LIBDIR}/licenses RENAME ${component}.txt
    COMPONENT library)
endfunction()

eliza_install_license(llama.cpp ${eliza_llama_source}/LICENSE)
eliza_install_license(nlohmann-json ${eliza_llama_source}/licenses/LICENSE-jsonhpp)
eliza_install_license(xxhash ${eliza_llama_source}/vendor/hash/xxhash/LICENSE)
eliza_install_license(sha256 ${eliza_llama_source}/vendor/hash/sha256/LICENSE)
eliza_install_license(rotate-bits ${eliza_llama_source}/vendor/hash/rotate-bits/LICENSE.md)

# llamafile's matrix multiplication carries its own at its head.
file(READ ${eliza_llama_source}/ggml/src/ggml-cpu/llamafile/sgemm.cpp head LIMIT 4000)
string(REGEX MATCH "^(//[^\n]*\n)+" head "${head}")
string(REGEX REPLACE "(^|\n)// ?" "\\1" head "${head}")
if(NOT head MATCHES "Mozilla Foundation.*Permission is hereby granted")
  message(FATAL_ERROR "${eliza_llama_source}: no licence at the head of llamafile/sgemm.cpp")
endif()
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/licenses/llamafile.txt CONTENT "${head}" @ONLY)
eliza_install_license(llamafile ${PROJECT_BINARY_DIR}/licenses/llamafile.txt)

# libgcc and libstdc++ ask for nothing where a compiler makes them part of its output; the runtime of
# mingw-w64 does, and is part of it. Each distribution of that compiler keeps its licence elsewhere.
if(MINGW AND eliza_cpu_levels AND NOT ELIZA_CXX_RUNTIME_LICENSES)
  message(FATAL_ERROR "A library for other machines needs the licences of mingw-w64's runtime and of "
    "winpthreads beside it: name their files in ELIZA_CXX_RUNTIME_LICENSES")
endif()
foreach(file IN LISTS ELIZA_CXX_RUNTIME_LICENSES)
  get_filename_component(name "${file}" DIRECTORY)
  get_filename_component(name "${name}" NAME)
  eliza_install_license(${name} ${file})
endforeach()
