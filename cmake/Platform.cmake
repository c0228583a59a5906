# What differs between systems: one source file for each concern, behind a header that is the same
# everywhere (cpp/src/platform).
set(eliza_system posix)
set(eliza_processors other)
if(WIN32)
  set(eliza_system windows)
  set(eliza_processors windows)
elseif(CMAKE_SYSTEM_NAME MATCHES "^(Linux|Android)$")
  set(eliza_processors linux)
endif()

add_library(eliza_platform STATIC
  cpp/src/platform/environment_variable_${eliza_system}.cpp
  cpp/src/platform/files_${eliza_system}.cpp
  cpp/src/platform/paths_${eliza_system}.cpp
  cpp/src/platform/processors_${eliza_processors}.cpp)
if(WIN32)
  target_sources(eliza_platform PRIVATE cpp/src/platform/text_windows.cpp)
  target_compile_definitions(eliza_platform PRIVATE WIN32_LEAN_AND_MEAN NOMINMAX)
endif()
if(ELIZA_ENABLE_LITERT)
  target_sources(eliza_platform PRIVATE cpp/src/platform/shared_library_${eliza_system}.cpp)
  target_link_libraries(eliza_platform PUBLIC ${CMAKE_DL_LIBS})
endif()
target_include_directories(eliza_platform PUBLIC cpp/src)
target_link_libraries(eliza_platform PRIVATE eliza_flags)
