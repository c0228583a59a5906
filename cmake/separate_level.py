"""Gives a CPU level symbols of its own, in object files of Windows (COFF) and macOS (Mach-O).

    separate_level.py LEVEL OUTPUT OBJECT...

Writes OUTPUT-0.o, OUTPUT-1.o and so on: copies of the objects, in which every name that one of them
defines for others ends in ".LEVEL". So no linker can take a C++ template that was compiled with the
level's instructions for the one that the rest of the library calls on every processor, nor one
level's for another's. `ggml_backend_cpu_reg` alone becomes what the library calls,
`eliza_cpu_reg_LEVEL`.

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
    _symbol_size = 18

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
        external, weak = 2, 105
        return [place for place in self._places if self._content[place + 16] in (external, weak)]

    def defined(self) -> set[bytes]:
        section = {
            place: struct.unpack_from("<h", self._content, place + 12)[0] for place in self._outer()
        }
        return {self._name(place) for place, number in section.items() if number > 0}

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


def main(level: str, output: str, *paths: str) -> None:
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
    for number, each in enumerate(objects):
        Path(f"{output}-{number}.o").write_bytes(each.rename(names))


if __name__ == "__main__":
    main(*sys.argv[1:])
