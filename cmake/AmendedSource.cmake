# Compiles an amended copy of a third-party source file instead of the file itself.
#
#   eliza_amend_source(TARGET FILE NAME FROM TO [FROM TO]...)
#
# FILE is the path of one of TARGET's sources, NAME how TARGET lists it. Every FROM must occur in it
# exactly once and becomes TO; anything else stops the configuration, so that another version of the
# source is never amended by luck. The copy lies in the build folder; `eliza_amended_source` is its
# path, for properties of its own.
function(eliza_amend_source target file name)
  file(READ "${file}" text)
  math(EXPR last_argument "${ARGC} - 1")
  foreach(index RANGE 3 ${last_argument} 2)  # by number: a list would break at the semicolons
    math(EXPR next "${index} + 1")
    set(from "${ARGV${index}}")
    set(to "${ARGV${next}}")
    string(FIND "${text}" "${from}" first)
    string(FIND "${text}" "${from}" last REVERSE)
    if(first EQUAL -1 OR NOT first EQUAL last)
      message(FATAL_ERROR "'${file}' is not the source this amendment was written for; it must hold "
        "once:\n${from}")
    endif()
    string(REPLACE "${from}" "${to}" text "${text}")
  endforeach()

  get_filename_component(folder "${file}" DIRECTORY)
  get_filename_component(base "${file}" NAME)
  set(copy "${PROJECT_BINARY_DIR}/amended/${base}")
  file(CONFIGURE OUTPUT "${copy}" CONTENT "${text}" @ONLY)  # written only where it changes
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${file}")

  get_target_property(sources ${target} SOURCES)
  list(FIND sources "${name}" index)
  if(index EQUAL -1)
    message(FATAL_ERROR "'${name}' is not a source of ${target}")
  endif()
  list(REMOVE_AT sources ${index})
  set_property(TARGET ${target} PROPERTY SOURCES ${sources})
  target_sources(${target} PRIVATE "${copy}")
  set_property(SOURCE "${copy}" TARGET_DIRECTORY ${target} APPEND PROPERTY
    INCLUDE_DIRECTORIES "${folder}")
  set(eliza_amended_source "${copy}" PARENT_SCOPE)
endfunction()
