# The CPU kernels compiled several times inside one library, once for each level of instruction sets;
# the best that processor and operating system offer is chosen when the library is first used
# (cpp/src/cpu). ELIZA_CPU_LEVELS:
#   OFF     llama.cpp's own way: with GGML_NATIVE, its default, for the machine that builds
#   ON      every level of the target's architecture
#   a list  those of its levels, such as "sse42;avx2"
#
# llama.cpp reaches its CPU kernels through one function, ggml_backend_cpu_reg(). A level is one
# object file: the sources of llama.cpp's own target ggml-cpu, amended ones included, compiled with
# the level's flags and linked to one file, in which that function has the level's name and nothing
# else is seen from outside: not even the C++ templates, of which the linker would otherwise keep one
# copy for all levels, with instructions that an older processor has not. A level's code has a section
# of its own, .text_NAME, also in the stripped library: so `scripts/wheel-check` can tell whose
# instructions it sees. Where object files are not ELF, cmake/separate_level.py gives the level's objects
# symbols of their own instead, to the same effect, and on Windows sections.
set(ELIZA_CPU_LEVELS OFF CACHE STRING "Levels of CPU kernels in the library: OFF (native), ON, a list")

include(CheckCSourceCompiles)
include(CheckCXXSourceCompiles)

# The folder `cpu-levels` of another build of this tree, by a compiler that makes faster kernels: its
# target eliza_cpu_level_objects makes the levels' files and nothing else.
set(ELIZA_CPU_LEVELS_DIR "" CACHE PATH "Take the levels' object files from there")

# Names, flags, what comes before what: from the lowest to the highest, as in cpp/src/cpu/level.cpp.
set(eliza_cpu_names_x86_64 sse42 avx avx2 avx2_vnni avx512 avx512_vnni avx512_bf16)
set(eliza_cpu_flags_sse42 -msse4.2)
set(eliza_cpu_flags_avx ${eliza_cpu_flags_sse42} -mavx)
set(eliza_cpu_flags_avx2 ${eliza_cpu_flags_avx} -mavx2 -mf16c -mfma -mbmi2)
set(eliza_cpu_flags_avx2_vnni ${eliza_cpu_flags_avx2} -mavxvnni)
set(eliza_cpu_flags_avx512 ${eliza_cpu_flags_avx2}
  -mavx512f -mavx512cd -mavx512vl -mavx512dq -mavx512bw)
set(eliza_cpu_flags_avx512_vnni ${eliza_cpu_flags_avx512} -mavx512vnni)
set(eliza_cpu_flags_avx512_bf16 ${eliza_cpu_flags_avx512_vnni} -mavx512vbmi -mavx512bf16)
set(eliza_cpu_names_aarch64 armv8 dotprod i8mm)
set(eliza_cpu_flags_armv8 -march=armv8-a)
set(eliza_cpu_flags_dotprod -march=armv8.2-a+dotprod+fp16)
set(eliza_cpu_flags_i8mm -march=armv8.2-a+dotprod+fp16+i8mm)
if(CMAKE_C_COMPILER_ID MATCHES "Clang")
  # Older versions of clang leave features of -march out of what the preprocessor tells.
  set(eliza_cpu_flags_armv8 -mcpu=generic)
  set(eliza_cpu_flags_dotprod -mcpu=generic+dotprod+fullfp16)
  set(eliza_cpu_flags_i8mm -mcpu=generic+dotprod+fullfp16+i8mm)
endif()

set(eliza_objects_are_elf FALSE)
if(UNIX AND NOT APPLE)
  set(eliza_objects_are_elf TRUE)
endif()

# Sets `eliza_cpu_levels`, the names of the levels to build; empty for a native build. And
# `eliza_known_cpu_levels`, all of the architecture.
function(eliza_choose_cpu_levels)
  set(eliza_cpu_levels "" PARENT_SCOPE)
  if(NOT ELIZA_CPU_LEVELS)
    if(ELIZA_CPU_LEVELS_DIR)
      message(FATAL_ERROR "ELIZA_CPU_LEVELS_DIR is given without ELIZA_CPU_LEVELS")
    endif()
    return()
  endif()
  if(NOT CMAKE_C_COMPILER_ID MATCHES "GNU|Clang")
    message(FATAL_ERROR "ELIZA_CPU_LEVELS needs gcc or clang")
  endif()
  eliza_require_baseline_flags()
  set(architecture "${CMAKE_SYSTEM_PROCESSOR}")
  if(APPLE AND CMAKE_OSX_ARCHITECTURES)
    set(architecture "${CMAKE_OSX_ARCHITECTURES}")
  endif()
  string(TOLOWER "${architecture}" architecture)
  string(REGEX REPLACE "^amd64$" "x86_64" architecture "${architecture}")
  string(REGEX REPLACE "^arm64$" "aarch64" architecture "${architecture}")
  set(known ${eliza_cpu_names_${architecture}})
  if(NOT known)
    message(FATAL_ERROR "ELIZA_CPU_LEVELS: no levels are known for '${architecture}'")
  endif()
  set(eliza_known_cpu_levels ${known} PARENT_SCOPE)
  string(TOUPPER "${ELIZA_CPU_LEVELS}" wanted)
  if(wanted MATCHES "^(ON|YES|TRUE|1)$")
    set(eliza_cpu_levels ${known} PARENT_SCOPE)
    return()
  endif()
  foreach(wanted IN LISTS ELIZA_CPU_LEVELS)
    if(NOT wanted IN_LIST known)
      message(FATAL_ERROR "ELIZA_CPU_LEVELS: '${wanted}' is no level of ${architecture}; there are: "
        "${known}")
    endif()
  endforeach()
  set(ordered "")
  foreach(name IN LISTS known)
    if(name IN_LIST ELIZA_CPU_LEVELS)
      list(APPEND ordered ${name})
    endif()
  endforeach()
  set(eliza_cpu_levels ${ordered} PARENT_SCOPE)
endfunction()

# Stops where CFLAGS, CXXFLAGS or a toolchain add instruction sets: they would be in what runs on every
# processor, and in the lowest level.
function(eliza_require_baseline_flags)
  set(newer __AVX__ __BMI__ __BMI2__ __LZCNT__ __MOVBE__ __ARM_FEATURE_DOTPROD)
  if(NOT APPLE)  # what every Mac has does not count there
    list(APPEND newer __SSE3__ __ARM_FEATURE_ATOMICS __ARM_FEATURE_CRC32 __ARM_FEATURE_SVE)
  endif()
  list(TRANSFORM newer REPLACE "(.+)" "defined(\\1)" OUTPUT_VARIABLE conditions)
  list(JOIN conditions " || " condition)
  set(code "#if ${condition}\n#error\n#endif\nint main(void) { return 0; }")
  set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
  unset(ELIZA_C_IS_BASELINE CACHE)  # flags change between configurations
  unset(ELIZA_CXX_IS_BASELINE CACHE)
  check_c_source_compiles("${code}" ELIZA_C_IS_BASELINE)
  check_cxx_source_compiles("${code}" ELIZA_CXX_IS_BASELINE)
  if(NOT ELIZA_C_IS_BASELINE OR NOT ELIZA_CXX_IS_BASELINE)
    message(FATAL_ERROR "ELIZA_CPU_LEVELS: outside the levels the library must run on every processor; "
      "build without -march, -mcpu and -m flags (C: '${CMAKE_C_FLAGS}', C++: '${CMAKE_CXX_FLAGS}')")
  endif()
endfunction()

# Sets `sources_sum` to a sum of what levels are made of, for ELIZA_CPU_LEVELS_DIR: ggml, and what
# LlamaCpp.cmake amends there.
function(eliza_sum_level_sources)
  set(ggml ${eliza_llama_source}/ggml)
  file(GLOB_RECURSE files ${ggml}/include/*.h ${ggml}/src/ggml-cpu/*)
  file(GLOB more ${ggml}/src/*.h ${ggml}/src/*.c ${ggml}/src/*.cpp)
  set(sums "")
  foreach(file IN LISTS files more ITEMS ${PROJECT_SOURCE_DIR}/cmake/LlamaCpp.cmake)
    file(SHA256 ${file} sum)
    string(APPEND sums ${sum})
  endforeach()
  string(SHA256 sources_sum "${sums}")
  set(sources_sum ${sources_sum} PARENT_SCOPE)
endfunction()

# Puts each of `eliza_cpu_levels` into `target`, a library of this project, and lets ggml use that
# instead of ggml-cpu. Adds to `eliza_compiler` which one made them, where it was another.
function(eliza_add_cpu_levels target)
  eliza_sum_level_sources()
  if(ELIZA_CPU_LEVELS_DIR AND NOT eliza_objects_are_elf)
    message(FATAL_ERROR "ELIZA_CPU_LEVELS_DIR needs ELF object files")
  elseif(ELIZA_CPU_LEVELS_DIR)
    set(origin ${ELIZA_CPU_LEVELS_DIR}/origin.txt)
    if(NOT EXISTS ${origin})
      message(FATAL_ERROR "ELIZA_CPU_LEVELS_DIR: nothing was built in '${ELIZA_CPU_LEVELS_DIR}'")
    endif()
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${origin})
    file(STRINGS ${origin} origin)
    list(POP_BACK origin compiler)
    if(NOT origin STREQUAL sources_sum)
      message(FATAL_ERROR "ELIZA_CPU_LEVELS_DIR: '${ELIZA_CPU_LEVELS_DIR}' was made of other sources "
        "than these: build it anew")
    endif()
    string(APPEND eliza_compiler ", CPU levels by ${compiler}")
    set(eliza_compiler "${eliza_compiler}" PARENT_SCOPE)
    list(TRANSFORM eliza_cpu_levels REPLACE "(.+)" "${ELIZA_CPU_LEVELS_DIR}/\\1.o" OUTPUT_VARIABLE levels)
  else()
    eliza_compile_cpu_levels()
  endif()
  set_source_files_properties(${levels} PROPERTIES EXTERNAL_OBJECT TRUE)
  target_sources(${target} PRIVATE ${levels})

  list(JOIN eliza_cpu_levels ") LEVEL(" listed)
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/cpu-levels/cpu_levels_built.h CONTENT
    "#define ELIZA_EACH_CPU_LEVEL(LEVEL) LEVEL(${listed})\n")
  set(source ${PROJECT_SOURCE_DIR}/cpp/src/cpu/ggml_levels.cpp)
  target_sources(${target} PRIVATE ${source})
  set_property(SOURCE ${source} PROPERTY INCLUDE_DIRECTORIES ${PROJECT_BINARY_DIR}/cpu-levels)
  get_target_property(folder ggml-cpu SOURCE_DIR)
  target_include_directories(${target} SYSTEM PRIVATE "${folder}")
  list(JOIN eliza_cpu_levels " " names)
  target_compile_definitions(${target} PRIVATE "ELIZA_CPU_LEVEL_NAMES=\"${names}\"")
  target_link_libraries(${target} PUBLIC ggml-base Threads::Threads)

  foreach(property IN ITEMS LINK_LIBRARIES INTERFACE_LINK_LIBRARIES)
    get_target_property(libraries ggml ${property})
    list(TRANSFORM libraries REPLACE "^ggml-cpu$" ${target})
    if(NOT ${target} IN_LIST libraries)
      message(FATAL_ERROR "target ggml does not link ggml-cpu as expected: ${property} ${libraries}")
    endif()
    set_target_properties(ggml PROPERTIES ${property} "${libraries}")
  endforeach()
endfunction()

# Compiles the sources of target ggml-cpu once for each of `eliza_cpu_levels`; sets `levels` to the
# object files.
function(eliza_compile_cpu_levels)
  get_target_property(folder ggml-cpu SOURCE_DIR)
  get_target_property(listed ggml-cpu SOURCES)
  set(sources "")
  foreach(source IN LISTS listed)
    get_filename_component(source "${source}" ABSOLUTE BASE_DIR "${folder}")
    list(APPEND sources "${source}")
    foreach(property IN ITEMS INCLUDE_DIRECTORIES COMPILE_OPTIONS COMPILE_DEFINITIONS)
      get_property(value SOURCE "${source}" TARGET_DIRECTORY ggml-cpu PROPERTY ${property})
      set_property(SOURCE "${source}" PROPERTY ${property} "${value}")
    endforeach()
  endforeach()

  # What ggml-cpu is compiled with, apart from what tells of instruction sets.
  get_directory_property(definitions DIRECTORY "${folder}" COMPILE_DEFINITIONS)
  get_target_property(own_definitions ggml-cpu COMPILE_DEFINITIONS)
  list(APPEND definitions ${own_definitions})
  list(FILTER definitions EXCLUDE REGEX "^GGML_(SSE42|AVX|FMA|F16C|BMI2|AMX)")
  get_target_property(include_directories ggml-cpu INCLUDE_DIRECTORIES)

  foreach(name IN LISTS eliza_cpu_levels)
    set(objects eliza_cpu_objects_${name})
    add_library(${objects} OBJECT ${sources})
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND eliza_objects_are_elf)
      target_sources(${objects} PRIVATE ${PROJECT_SOURCE_DIR}/cpp/src/cpu/level_runtime.cpp)
      # From C++20 on, libstdc++'s headers leave no member of std::string to its library.
      set_target_properties(${objects} PROPERTIES CXX_STANDARD 20)
    endif()
    target_link_libraries(${objects} PRIVATE ggml-base)
    target_include_directories(${objects} SYSTEM PRIVATE ${include_directories})
    target_compile_definitions(${objects} PRIVATE ${definitions})
    target_compile_options(${objects} PRIVATE -w
      $<$<COMPILE_LANGUAGE:C>:-fexceptions>
      $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fno-gnu-unique>
      ${eliza_cpu_flags_${name}})
    set_target_properties(${objects} PROPERTIES C_STANDARD 11)

    if(eliza_objects_are_elf)
      eliza_join_level(${name} ${objects})
    else()
      eliza_separate_level(${name} ${objects} "${sources}")
    endif()
    set_source_files_properties(${level} PROPERTIES GENERATED TRUE)
    list(APPEND levels ${level})
  endforeach()
  add_custom_target(eliza_cpu_level_objects DEPENDS ${levels})
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/cpu-levels/origin.txt
    CONTENT "${sources_sum}\n${eliza_compiler}\n")
  set(levels ${levels} PARENT_SCOPE)
endfunction()

# One object file of a level's, with one symbol, where objects are ELF; sets `level` to it.
function(eliza_join_level name objects)
  find_program(ELIZA_OBJCOPY NAMES ${CMAKE_OBJCOPY} objcopy llvm-objcopy REQUIRED)
  set(level ${PROJECT_BINARY_DIR}/cpu-levels/${name}.o)
  set(script ${PROJECT_BINARY_DIR}/cpu-levels/${name}.ld)
  file(CONFIGURE OUTPUT ${script} CONTENT "SECTIONS { .text_${name} : { *(.text .text.*) } }\n")
  add_custom_command(OUTPUT ${level}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${PROJECT_BINARY_DIR}/cpu-levels
    COMMAND ${CMAKE_LINKER} -r --force-group-allocation -T ${script} -o ${level}
      $<TARGET_OBJECTS:${objects}>
    # Two steps: GNU's and LLVM's do them in different orders.
    COMMAND ${ELIZA_OBJCOPY} --redefine-sym ggml_backend_cpu_reg=eliza_cpu_reg_${name} ${level}
    COMMAND ${ELIZA_OBJCOPY} --keep-global-symbol=eliza_cpu_reg_${name} ${level}
    DEPENDS ${objects} $<TARGET_OBJECTS:${objects}> ${script}
    COMMENT "CPU level ${name}" VERBATIM COMMAND_EXPAND_LISTS)
  set(level ${level} PARENT_SCOPE)
endfunction()

# Copies of a level's object files, with symbols of their own; sets `level` to them.
function(eliza_separate_level name objects sources)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  set(separate ${PROJECT_SOURCE_DIR}/cmake/separate_level.py)
  set(folder ${PROJECT_BINARY_DIR}/cpu-levels)
  list(FILTER sources INCLUDE REGEX "\\.(c|cpp)$")  # without headers, which are sources too
  set(level "")
  foreach(source IN LISTS sources)
    list(LENGTH level number)
    list(APPEND level ${folder}/${name}-${number}.o)
  endforeach()
  list(FIND eliza_known_cpu_levels ${name} number)
  add_custom_command(OUTPUT ${level}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${folder}
    COMMAND ${Python3_EXECUTABLE} ${separate} ${name} ${number} ${folder}/${name} $<TARGET_OBJECTS:${objects}>
    DEPENDS ${separate} ${objects} $<TARGET_OBJECTS:${objects}>
    COMMENT "CPU level ${name}" VERBATIM COMMAND_EXPAND_LISTS)
  set(level ${level} PARENT_SCOPE)
endfunction()
