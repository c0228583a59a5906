"""A C header as the compilers of several platforms see it, by libclang.

No compiler and no system header takes part: the few standard types are made from the parser's own
``__SIZE_TYPE__`` and the like.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Iterable

from . import needed
from .report import Finding

_OURS = re.compile(r"eliza_|Eli[A-Z]")
CODES = re.compile(r"ELIZA_(OK|ERR)(_|$)")
"""Names of constants that only the table may give out."""

_FOLDER = "/eliza-abi-check"
_MAIN = f"{_FOLDER}/main.c"
_VALUE = "value_of_"
_LINES_PER_CONSTANT = 3
_STANDARD_HEADERS = {
    "stddef.h": """
        typedef __SIZE_TYPE__ size_t;
        typedef __PTRDIFF_TYPE__ ptrdiff_t;
        #define NULL ((void *)0)
        #define offsetof(type, field) __builtin_offsetof(type, field)
    """,
    "stdint.h": """
        typedef __INT8_TYPE__ int8_t;
        typedef __INT16_TYPE__ int16_t;
        typedef __INT32_TYPE__ int32_t;
        typedef __INT64_TYPE__ int64_t;
        typedef __INTPTR_TYPE__ intptr_t;
        typedef __UINT8_TYPE__ uint8_t;
        typedef __UINT16_TYPE__ uint16_t;
        typedef __UINT32_TYPE__ uint32_t;
        typedef __UINT64_TYPE__ uint64_t;
        typedef __UINTPTR_TYPE__ uintptr_t;
    """,
    "stdbool.h": """
        #ifndef __cplusplus
        #define bool _Bool
        #define true 1
        #define false 0
        #endif
    """,
}


class HeaderView:
    """What a header declares on one target, as cursors of libclang, by name.

    Raises CheckPackagesMissing.
    """

    def __init__(
        self, header: Path, constants: Iterable[str], target: str, language: str = "c"
    ) -> None:
        with needed("libclang"):
            from clang import cindex

        self.types = cindex.TypeKind
        self.functions: dict[str, list[Any]] = {}
        self.typedefs: dict[str, Any] = {}
        self.tags: dict[str, Any] = {}
        self.macros: dict[str, Any] = {}
        self.scalars: dict[str, Any] = {}
        """Definitions of standard types."""
        self.constants: dict[str, tuple[int | None, Any]] = {}
        """Values, None: not an integer; and where they are defined."""
        self.errors: list[Finding] = []
        self.broken_off = False
        """Whether there was an error that nothing after it was read for."""
        self._clang = cindex
        self._header = str(header)
        self._wanted = list(constants)
        unit = self._parse(target, language)
        if unit is not None:
            self._read(unit.cursor)
            self._read_errors(unit)

    def declares_anything(self) -> bool:
        return bool(self.functions or self.typedefs or self.constants)

    def finding(self, place: Any, message: str) -> Finding:
        """A statement about a location or a cursor, with the file's name where it is another."""
        location = getattr(place, "location", place)
        if location is None or location.file is None:
            return Finding(message)
        if location.file.name != self._header:
            return Finding(f"{message} ({location.file.name}:{location.line})")
        return Finding(message, location.line)

    def is_static(self, function: Any) -> bool:
        return bool(function.storage_class == self._clang.StorageClass.STATIC)

    def argument_types(self, function: Any) -> list[str]:
        """As they are written, but that an array as an argument is a pointer."""
        arrays = self.types.INCOMPLETEARRAY, self.types.CONSTANTARRAY
        return [
            f"{each.element_type.spelling} *" if each.kind in arrays else each.spelling
            for each in function.type.argument_types()
        ]

    def is_interface(self, actual: Any) -> bool:
        """Whether callers share the type: not an alias, nor the array of a static assertion."""
        functions = self.types.FUNCTIONPROTO, self.types.FUNCTIONNOPROTO
        if actual.kind == self.types.POINTER:
            return actual.get_pointee().kind in functions
        return actual.kind in (self.types.RECORD, self.types.ENUM)

    def _parse(self, target: str, language: str) -> Any:
        standard = "c99" if language == "c" else "c++11"
        arguments = ["-x", language, f"-std={standard}", f"--target={target}", "-nostdinc"]
        arguments += ["-isystem", f"{_FOLDER}/include", "-ferror-limit=0"]
        values = (
            f"#ifdef {name}\nenum {{ {_VALUE}{name} = ({name}) }};\n#endif\n"
            for name in self._wanted
        )
        files = [(_MAIN, "".join(values))]
        files += [
            (f"{_FOLDER}/include/{name}", f"#pragma once\n{text}")
            for name, text in _STANDARD_HEADERS.items()
        ]
        try:
            return self._clang.Index.create().parse(
                _MAIN,
                [*arguments, "-include", self._header],
                files,
                self._clang.TranslationUnit.PARSE_DETAILED_PROCESSING_RECORD,
            )
        except self._clang.TranslationUnitLoadError as error:
            self.errors.append(Finding(f"cannot be parsed: {error}"))
            self.broken_off = True
            return None

    def _read_errors(self, unit: Any) -> None:
        severity = self._clang.Diagnostic
        for diagnostic in unit.diagnostics:
            if diagnostic.severity < severity.Error:
                continue
            self.broken_off |= diagnostic.severity >= severity.Fatal
            location = diagnostic.location
            why = f"does not compile: {diagnostic.spelling}"
            if location.file is not None and location.file.name == _MAIN:
                name = self._wanted[(location.line - 1) // _LINES_PER_CONSTANT]
                location = self.macros.get(name)
                self.constants[name] = None, location
                why = f"{name} is no integer constant: {diagnostic.spelling}"
            self.errors.append(self.finding(location, why))

    def _read(self, parent: Any) -> None:
        kinds = self._clang.CursorKind
        for cursor in parent.get_children():
            name = cursor.spelling
            if cursor.kind in (kinds.LINKAGE_SPEC, kinds.UNEXPOSED_DECL):
                self._read(cursor)
            elif cursor.kind == kinds.MACRO_DEFINITION:
                self.macros[name] = cursor
            elif cursor.kind == kinds.ENUM_DECL:
                self._read_enumerators(cursor)
            elif cursor.kind == kinds.TYPEDEF_DECL and name in ("int8_t", "int32_t", "size_t"):
                self.scalars[name] = cursor
            elif not _OURS.match(name):
                continue
            elif cursor.kind == kinds.FUNCTION_DECL:
                self.functions.setdefault(name, []).append(cursor)
            elif cursor.kind == kinds.TYPEDEF_DECL:
                self.typedefs[name] = cursor
            elif cursor.kind in (kinds.STRUCT_DECL, kinds.UNION_DECL):
                self.tags[name] = cursor

    def _read_enumerators(self, enumeration: Any) -> None:
        """Ours hold the value of a macro; the header's own count as constants too."""
        for cursor in enumeration.get_children():
            name: str = cursor.spelling
            if name.startswith(_VALUE):
                name = name[len(_VALUE) :]
                self.constants[name] = cursor.enum_value, self.macros.get(name, cursor)
            elif name in self._wanted or CODES.match(name):
                self.constants.setdefault(name, (cursor.enum_value, cursor))
