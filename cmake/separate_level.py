"""Gives a CPU level symbols of its own, in object files of Windows (COFF) and macOS (Mach-O).

    separate_level.py LEVEL NUMBER OUTPUT OBJECT...

Writes OUTPUT-0.o, OUTPUT-1.o and so on: copies of the objects, in which every name that one of them
defines for others ends in ".LEVEL". So no linker can take a C++ template that was compiled with the
level's instructions for the one that the rest of the library calls on every processor, nor one
level's for another's. `ggml_backend_cpu_reg` alone becomes what the library calls,
`eliza_cpu_reg_LEVEL`. Code is put into a section of its own, as on ELF: `.levelNUMBER` on Windows,
where a name has eight characters, `__LEVEL` on macOS.

On ELF, ld -r and objcopy do as much (cmake/CpuLevels.cmake); no linker and no objcopy does it for
both of these formats. Only the standard library: CMake runs it while building.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from pathlib import Path

REGISTRATION = b"ggml_backend_cpu_reg"


class Coff:
    """An object file for Windows."""

    underscore = b""
    _machines = (0x8664, 0xAA64)
    _symbol_size = 18
    _external, _weak = 2, 105

    def __init__(self, content: bytes) -> None:
        self._content = bytearray(content)
        machine, _, _, self._symbols, count = struct.unpack_from("<HHIII", content)
        if machine not in self._machines:
            raise ValueError("is no object file for 64-bit Windows")
        self._strings = self._symbols + count * self._symbol_size
        (size,) = struct.unpack_from("<I", content, self._strings)
        if self._strings + size != len(content):
            raise ValueError("does not end with its string table")
        self._places: list[int] = []
        index = 0
        while index < count:
            place = self._symbols + index * self._symbol_size
            self._places.append(place)
            index += 1 + self._content[place + 17]

    def _name(self, place: int) -> bytes:
        if any(self._content[place : place + 4]):
            return bytes(self._content[place : place + 8]).rstrip(b"\0")
        (offset,) = struct.unpack_from("<I", self._content, place + 4)
        start = self._strings + offset
        return bytes(self._content[start : self._content.index(0, start)])

    def _outer(self) -> list[int]:
        kinds = (self._external, self._weak)
        return [place for place in self._places if self._content[place + 16] in kinds]

    def defined(self) -> set[bytes]:
        return {self._name(place) for place in self._outer() if self._is_defined(place)}

    def _is_defined(self, place: int) -> bool:
        value, section = struct.unpack_from("<Ih", self._content, place + 8)
        if self._content[place + 16] == self._weak and self._content[place + 17]:
            # Stands for another symbol, unless somebody else defines it.
            (other,) = struct.unpack_from("<I", self._content, place + self._symbol_size)
            return self._is_defined(self._symbols + other * self._symbol_size)
        is_common = section == 0 and value > 0  # as C's `int x;` may be
        return bool(section > 0 or is_common)

    def name_code(self, level: str, number: str) -> None:
        """The part of a section's name after a dollar sign, which only sorts, goes as well."""
        code, header_size, section_size = 0x20, 20, 40
        (count,) = struct.unpack_from("<H", self._content, 2)
        (optional,) = struct.unpack_from("<H", self._content, 16)
        for index in range(count):
            place = header_size + optional + index * section_size
            if struct.unpack_from("<I", self._content, place + 36)[0] & code:
                struct.pack_into("<8s", self._content, place, b".level" + number.encode())

    def rename(self, names: dict[bytes, bytes]) -> bytes:
        added = bytearray()
        for place in self._outer():
            new = names.get(self._name(place))
            if new is not None:
                offset = len(self._content) - self._strings + len(added)
                struct.pack_into("<II", self._content, place, 0, offset)
                added += new + b"\0"
        self._content += added
        struct.pack_into("<I", self._content, self._strings, len(self._content) - self._strings)
        return bytes(self._content)


class MachO:
    """An object file for macOS."""

    underscore = b"_"
    _magic = b"\xcf\xfa\xed\xfe"
    _symbol_size = 16
    _symtab, _segment = 2, 0x19

    def __init__(self, content: bytes) -> None:
        self._content = bytearray(content)
        if content[:4] != self._magic:
            raise ValueError("is no object file for 64-bit macOS")
        self._places = range(0)
        commands = dict(self._commands())
        if self._symtab not in commands:
            return  # nothing was compiled for this machine
        place = self._command = commands[self._symtab]
        symbols, count, self._strings, size = struct.unpack_from("<IIII", content, place + 8)
        if self._strings + size != len(content):
            raise ValueError("does not end with its string table")
        self._places = range(symbols, symbols + count * self._symbol_size, self._symbol_size)

    def _commands(self) -> Iterator[tuple[int, int]]:
        """Kind and place of each load command."""
        (count,) = struct.unpack_from("<I", self._content, 16)
        place = 32
        for _ in range(count):
            command, size = struct.unpack_from("<II", self._content, place)
            yield command, place
            place += size

    def _name(self, place: int) -> bytes:
        (offset,) = struct.unpack_from("<I", self._content, place)
        start = self._strings + offset
        return bytes(self._content[start : self._content.index(0, start)])

    def _outer(self) -> list[int]:
        debugging, external = 0xE0, 0x01
        kinds = {place: self._content[place + 4] for place in self._places}
        return [place for place, kind in kinds.items() if not kind & debugging and kind & external]

    def defined(self) -> set[bytes]:
        mask, undefined = 0x0E, 0x00
        return {
            self._name(place)
            for place in self._outer()
            if self._content[place + 4] & mask != undefined
        }

    def name_code(self, level: str, number: str) -> None:
        code, header_size, section_size = 0x80000000, 72, 80
        for command, start in self._commands():
            if command != self._segment:
                continue
            (count,) = struct.unpack_from("<I", self._content, start + 64)
            for index in range(count):
                place = start + header_size + index * section_size
                if struct.unpack_from("<I", self._content, place + 64)[0] & code:
                    struct.pack_into("<16s", self._content, place, b"__" + level.encode())

    def rename(self, names: dict[bytes, bytes]) -> bytes:
        if not self._places:
            return bytes(self._content)
        for place in self._outer():
            new = names.get(self._name(place))
            if new is not None:
                struct.pack_into("<I", self._content, place, len(self._content) - self._strings)
                self._content += new + b"\0"
        struct.pack_into(
            "<I", self._content, self._command + 20, len(self._content) - self._strings
        )
        return bytes(self._content)


def main(level: str, number: str, output: str, *paths: str) -> None:
    objects: list[Coff | MachO] = []
    for path in paths:
        content = Path(path).read_bytes()
        try:
            objects.append(MachO(content) if content[:4] == MachO._magic else Coff(content))
        except (ValueError, struct.error) as error:
            sys.exit(f"{path}: {error}")
    suffix = level.encode()
    names = {name: name + b"." + suffix for each in objects for name in each.defined()}
    underscore = objects[0].underscore
    if underscore + REGISTRATION not in names:
        sys.exit(f"no object defines {REGISTRATION.decode()}")
    names[underscore + REGISTRATION] = underscore + b"eliza_cpu_reg_" + suffix
    for index, each in enumerate(objects):
        each.name_code(level, number)
        Path(f"{output}-{index}.o").write_bytes(each.rename(names))


if __name__ == "__main__":
    main(*sys.argv[1:])
