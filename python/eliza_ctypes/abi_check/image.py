"""What a shared library's file says of itself, read without loading it: ELF, Mach-O, PE.

The three formats become one description, so that the checks know nothing of them.
"""

from __future__ import annotations

import os
import re
import struct
import warnings
from dataclasses import dataclass, field
from typing import Any, Iterable

from . import needed
from .reading import open_regular

_FAT = {b"\xca\xfe\xba\xbe", b"\xca\xfe\xba\xbf"}
_MACHO = {b"\xfe\xed\xfa\xce", b"\xce\xfa\xed\xfe", b"\xfe\xed\xfa\xcf", b"\xcf\xfa\xed\xfe"}
# Such as connect$NOCANCEL, which is connect.
_VARIANT = re.compile(r"\$(NOCANCEL|UNIX2003|DARWIN_EXTSN|INODE64)\b.*")
# A Java class begins like a universal file; where that counts slices, it has its version.
_MOST_SLICES = 30
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
_ABSOLUTE = 0xFFF1
# Addresses of the file itself, which some linkers of Mach-O export unasked.
_SYNTHETIC = {"_mh_dylib_header", "__dso_handle"}


class Unreadable(ValueError):
    """A file that is no complete library of its format."""


@dataclass
class Image:
    """One library; a universal Mach-O file holds several."""

    format: str
    machine: str
    """As Linux names it, such as ``aarch64``."""
    wide: bool
    """Whether pointers have 64 bits."""
    name: str | None
    """Its own name: SONAME, install name, the export directory's name."""
    exports: set[str]
    imports: set[str]
    libraries: list[str]
    loaded: int
    """Bytes of the file up to the end of what is loaded: what stripping would leave."""
    no_functions: set[str] = field(default_factory=set)
    """Exports that are known to be something else, such as variables."""
    oldest_system: str | None = None
    """Such as ``macOS 11.0``; None where the file does not say."""


def format_of(head: bytes) -> str | None:
    """The format that a file's first 8 bytes announce, None: not a library's."""
    if head.startswith(b"\x7fELF"):
        return "ELF"
    if head[:4] in _MACHO:
        return "Mach-O"
    if head[:4] in _FAT and len(head) >= 8 and 0 < _slices(head) < _MOST_SLICES:
        return "Mach-O"
    return "PE" if head.startswith(b"MZ") else None


def read_images(path: str | os.PathLike[str]) -> list[Image]:
    """The libraries in a file.

    Raises OSError, CheckPackagesMissing, and Unreadable for every file that is none or not whole.
    """
    with open_regular(path) as file:
        head = file.read(8)
        size = file.seek(0, os.SEEK_END)
    announced = format_of(head)
    if announced is None:
        raise Unreadable("is no ELF, Mach-O or PE file")
    with needed("lief"):
        import lief
    # What it finds wrong it writes to the terminal.
    lief.logging.disable()
    read = {"ELF": _elf, "Mach-O": _macho, "PE": _pe}[announced]
    try:
        with warnings.catch_warnings():
            # Of numbers that no name is known for.
            warnings.simplefilter("ignore")
            return read(lief, os.fspath(path), head, size)
    except Unreadable:
        raise
    except Exception as error:
        # Anything may be wrong in a damaged file, and each part is read when it is asked for.
        raise Unreadable(f"is a damaged {announced} file: {error}") from error


def _elf(lief: Any, path: str, head: bytes, size: int) -> list[Image]:
    binary = lief.ELF.parse(path)
    if binary is None:
        raise Unreadable("is no readable ELF file")
    header = binary.header
    loaded = _end(
        (segment.file_offset, segment.physical_size)
        for segment in binary.segments
        if segment.type == lief.ELF.Segment.TYPE.LOAD
    )
    sections = header.section_header_offset, header.numberof_sections * header.section_header_size
    _complete(_end([(0, loaded), sections]), size)
    if header.file_type != lief.ELF.Header.FILE_TYPE.DYN or not loaded:
        raise Unreadable("is an ELF file, but no shared library")
    symbol = lief.ELF.Symbol
    named = [(_text(each.name), each) for each in binary.dynamic_symbols if each.name]
    exported = [
        (name, each)
        for name, each in named
        # An absolute symbol is the name of a version of symbols.
        if each.shndx not in (0, _ABSOLUTE)
        and each.binding != symbol.BINDING.LOCAL
        and each.visibility in (symbol.VISIBILITY.DEFAULT, symbol.VISIBILITY.PROTECTED)
    ]
    callable_ = symbol.TYPE.FUNC, symbol.TYPE.GNU_IFUNC
    soname = binary.get(lief.ELF.DynamicEntry.TAG.SONAME)
    return [
        Image(
            format="ELF",
            machine=_machine(header.machine_type),
            wide=header.identity_class == lief.ELF.Header.CLASS.ELF64,
            name=None if soname is None else _text(soname.name),
            exports={name for name, _ in exported},
            imports={name for name, each in named if each.shndx == 0},
            libraries=[_text(name) for name in binary.libraries],
            loaded=loaded,
            no_functions={name for name, each in exported if each.type not in callable_},
        )
    ]


def _macho(lief: Any, path: str, head: bytes, size: int) -> list[Image]:
    binaries = lief.MachO.parse(path)
    if binaries is None:
        raise Unreadable("is no readable Mach-O file")
    count = _slices(head) if head[:4] in _FAT else 1
    if len(binaries) != count:
        raise Unreadable(f"is cut off: {len(binaries)} of {count} architectures can be read")
    return [_macho_slice(lief, binary, size) for binary in binaries]


def _macho_slice(lief: Any, binary: Any, size: int) -> Image:
    loaded = _end((segment.file_offset, segment.file_size) for segment in binary.segments)
    _complete(binary.fat_offset + loaded, size)
    header = binary.header
    if len(binary.commands) != header.nb_cmds:
        raise Unreadable(f"is cut off: {len(binary.commands)} of {header.nb_cmds} load commands")
    if header.file_type != lief.MachO.Header.FILE_TYPE.DYLIB:
        raise Unreadable("is a Mach-O file, but no dynamic library")
    symbol = lief.MachO.Symbol
    if binary.has_dyld_exports_trie:
        exports = {each.symbol.name for each in binary.dyld_exports_trie.exports if each.has_symbol}
    elif binary.has_dyld_info:
        exports = {each.symbol.name for each in binary.dyld_info.exports if each.has_symbol}
    else:
        exports = {
            each.name for each in binary.symbols if each.category == symbol.CATEGORY.EXTERNAL
        }
    commands = lief.MachO.LoadCommand.TYPE
    libraries = [(each.command, _text(each.name)) for each in binary.libraries]
    imports = (each for each in binary.symbols if each.category == symbol.CATEGORY.UNDEFINED)
    return Image(
        format="Mach-O",
        machine=_machine(header.cpu_type),
        wide=header.magic in (lief.MachO.MACHO_TYPES.MAGIC_64, lief.MachO.MACHO_TYPES.CIGAM_64),
        name=next((name for command, name in libraries if command == commands.ID_DYLIB), None),
        exports={_without_underscore(name) for name in exports} - _SYNTHETIC,
        imports={_VARIANT.sub("", _without_underscore(each.name)) for each in imports},
        libraries=[name for command, name in libraries if command != commands.ID_DYLIB],
        loaded=loaded,
        oldest_system=_oldest_macos(lief, binary),
    )


def _oldest_macos(lief: Any, binary: Any) -> str | None:
    if not binary.has_build_version:
        return None
    build = binary.build_version
    if build.platform != lief.MachO.BuildVersion.PLATFORMS.MACOS:
        return None
    major, minor = build.minos[:2]
    return f"macOS {major}.{minor}"


def _pe(lief: Any, path: str, head: bytes, size: int) -> list[Image]:
    binary = lief.PE.parse(path)
    if binary is None:
        raise Unreadable("is no readable PE file")
    places = [
        (section.name, section.pointerto_raw_data, section.sizeof_raw_data)
        for section in binary.sections
    ]
    signature = binary.data_directory(lief.PE.DataDirectory.TYPES.CERTIFICATE_TABLE)
    # The one directory that is placed by its position in the file.
    signed = (signature.rva, signature.size) if signature is not None else (0, 0)
    _complete(_end([*(place[1:] for place in places), signed]), size)
    if not binary.header.has_characteristic(lief.PE.Header.CHARACTERISTICS.DLL) or not places:
        raise Unreadable("is a PE file, but no DLL")
    export = binary.get_export()
    imported = [*binary.imports, *binary.delay_imports]
    return [
        Image(
            format="PE",
            machine=_machine(binary.header.machine),
            wide=binary.optional_header.magic == lief.PE.PE_TYPE.PE32_PLUS,
            name=None if export is None else _text(export.name) or None,
            exports=set() if export is None else {_text(entry.name) for entry in export.entries},
            imports={
                _text(entry.name)
                for library in imported
                for entry in library.entries
                if not entry.is_ordinal
            },
            libraries=[_text(library.name) for library in imported],
            # Debug sections, whose long names begin with a slash, are not loaded.
            loaded=_end(
                place[1:] for place in places if not _text(place[0]).startswith(("/", ".debug"))
            ),
        )
    ]


def _end(places: Iterable[tuple[int, int]]) -> int:
    """Where the last of these (position, size) ends."""
    return max((start + size for start, size in places if size), default=0)


def _complete(wanted: int, size: int) -> None:
    if wanted > size:
        raise Unreadable(f"is cut off: {size} bytes of {wanted}")


def _slices(head: bytes) -> int:
    count: int = struct.unpack(">I", head[4:8])[0]
    return count


def _machine(value: Any) -> str:
    name: str = value.name.lower()
    return _MACHINES.get(name, name)


def _without_underscore(name: str | bytes) -> str:
    """C names have an underscore in front of them in Mach-O files."""
    text = _text(name)
    return text[1:] if text.startswith("_") else text


def _text(name: str | bytes) -> str:
    """The parser gives bytes where a damaged file has no UTF-8."""
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else name
