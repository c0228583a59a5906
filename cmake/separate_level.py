"""Gives a CPU level symbols of its own, in object files of Windows (COFF) and macOS (Mach-O).

    separate_level.py LEVEL NUMBER OUTPUT OBJECT...

Writes OUTPUT-0.o, OUTPUT-1.o and so on: copies of the objects, in which every name that one of them
defines for others ends in ".LEVEL". So no linker can take a C++ template that was compiled with the
level's instructions for the one that the rest of the library calls on every processor, nor one
level's for another's. `ggml_backend_cpu_reg` alone becomes what the library calls,
`eliza_cpu_reg_LEVEL`. On Windows the level's code gets a section of its own, as on ELF, named
`.levelNUMBER`, for a name may have eight characters. (In a dylib zig's linker makes one section of
all code, whatever its objects say.)

On ELF, ld -r and objcopy do as much (cmake/CpuLevels.cmake); no linker and no objcopy does it for
both of these formats. Only the standard library: CMake runs it while building.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path

REGISTRATION = b"ggml_backend_cpu_reg"


class Coff:
    """An object file for Windows."""

    underscore = b""
    _machines = (0x8664, 0xAA64)
    _header_size, _section_size, _symbol_size = 20, 40, 18
    _external, _weak = 2, 105

    def __init__(self, content: bytes) -> None:
        self._content = bytearray(content)
        machine, sections, _, self._symbols, count = struct.unpack_from("<HHIII", content)
        (optional,) = struct.unpack_from("<H", content, 16)
        if machine not in self._machines:
            raise ValueError("is no object file for 64-bit Windows")
        first, size = self._header_size + optional, self._section_size
        self._sections = range(first, first + sections * size, size)
        self._strings: int = self._symbols + count * self._symbol_size
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
        return self._string(offset)

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

    def name_code(self, name: bytes) -> None:
        code = 0x20
        for place in self._sections:
            if struct.unpack_from("<I", self._content, place + 36)[0] & code:
                _, dollar, symbol = self._section_name(place).partition(b"$")
                self._name_section(place, name + dollar + symbol)

    def rename(self, names: dict[bytes, bytes]) -> bytes:
        for place in self._sections:
            # By what follows the dollar sign GNU's linker knows the section of a template.
            kind, dollar, symbol = self._section_name(place).partition(b"$")
            if symbol in names:
                self._name_section(place, kind + dollar + names[symbol])
        for place in self._outer():
            new = names.get(self._name(place))
            if new is not None:
                self._name_symbol(place, new)
        struct.pack_into("<I", self._content, self._strings, len(self._content) - self._strings)
        return bytes(self._content)

    def section_names(self) -> list[bytes]:
        return [self._section_name(place) for place in self._sections]

    def _section_name(self, place: int) -> bytes:
        name = bytes(self._content[place : place + 8]).rstrip(b"\0")
        return self._string(int(name[1:])) if name[:1] == b"/" else name

    def _name_section(self, place: int, name: bytes) -> None:
        """And the symbol that stands for the section."""
        number = self._sections.index(place) + 1
        former, static = self._section_name(place), 3
        for symbol in self._places:
            section, _, kind = struct.unpack_from("<hHB", self._content, symbol + 12)
            if (section, kind) == (number, static) and self._name(symbol) == former:
                self._name_symbol(symbol, name)
        if len(name) > 8:
            name = b"/%d" % self._append(name)
        struct.pack_into("<8s", self._content, place, name)

    def _name_symbol(self, place: int, name: bytes) -> None:
        struct.pack_into("<II", self._content, place, 0, self._append(name))

    def _string(self, offset: int) -> bytes:
        start = self._strings + offset
        return bytes(self._content[start : self._content.index(0, start)])

    def _append(self, text: bytes) -> int:
        """The place of a new string in the table of strings, with which the file ends."""
        offset: int = len(self._content) - self._strings
        self._content += text + b"\0"
        return offset


class MachO:
    """An object file for macOS."""

    underscore = b"_"
    _magic = b"\xcf\xfa\xed\xfe"
    _symbol_size = 16

    def __init__(self, content: bytes) -> None:
        self._content = bytearray(content)
        if content[:4] != self._magic:
            raise ValueError("is no object file for 64-bit macOS")
        self._places = range(0)
        (commands,) = struct.unpack_from("<I", content, 16)
        place, symtab = 32, 2
        for _ in range(commands):
            command, size = struct.unpack_from("<II", content, place)
            if command == symtab:
                break
            place += size
        else:
            return  # nothing was compiled for this machine
        self._command = place
        symbols, count, self._strings, size = struct.unpack_from("<IIII", content, place + 8)
        if self._strings + size != len(content):
            raise ValueError("does not end with its string table")
        self._places = range(symbols, symbols + count * self._symbol_size, self._symbol_size)

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
        if isinstance(each, Coff):
            each.name_code(b".level" + number.encode())
        Path(f"{output}-{index}.o").write_bytes(each.rename(names))


if __name__ == "__main__":
    main(*sys.argv[1:])
