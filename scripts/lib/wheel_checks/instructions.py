"""Which instructions each part of the library has.

The code of a CPU level is in a section of its own, which stripping leaves (cmake/CpuLevels.cmake,
cmake/separate_level.py).
Everything else runs on every processor and must be without the levels' instructions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import lief

from lib.levels import LEVELS
from lib.wheel_checks.wheel import Wheel, fail_with

_EVERYWHERE = "the code outside the levels"
_AVX, _AVX512 = "AVX or another VEX-encoded instruction", "AVX-512 (EVEX encoding)"
_DOT, _MATRIX, _HALVES = "dot product", "int8 matrix multiplication", "half-precision arithmetic"
# What a part must not have. `None`: the code outside the levels.
FORBIDDEN: dict[str, dict[str | None, set[str]]] = {
    "x86_64": {
        None: {_AVX, _AVX512},
        "sse42": {_AVX, _AVX512},
        "avx": {_AVX512},
        "avx2": {_AVX512},
        "avx2_vnni": {_AVX512},
    },
    "aarch64": {
        None: {_DOT, _MATRIX, _HALVES},
        "armv8": {_DOT, _MATRIX, _HALVES},
        "dotprod": {_MATRIX},
    },
}
# What a part must have, or the forbidden would not be seen elsewhere either.
PRESENT = {"avx": _AVX, "avx512": _AVX512, "dotprod": _DOT, "i8mm": _MATRIX}

_AT_ONCE = 100_000
_X86_PREFIXES = frozenset(b"\x26\x2e\x36\x3e\x64\x65\x66\x67\xf0\xf2\xf3")
_X86_KINDS = {0xC4: _AVX, 0xC5: _AVX, 0x62: _AVX512}
_ARM_MATRIX = re.compile(r"([su]|us|bf)mmla")
_ARM_DOT = re.compile(r"[su]dot")
_ARM_HALF = re.compile(r"\bh\d+\b|\.[48]h\b")


def check_instructions(wheel: Wheel) -> None:
    fail_with(wheel, _problems(wheel))


def _problems(wheel: Wheel) -> Iterator[str]:
    kinds = {"x86_64": _x86_kinds, "aarch64": _arm_kinds}[wheel.machine]
    sections = _code(wheel)
    for level in LEVELS[wheel.machine]:
        if level not in sections:
            yield (
                f"the library has no section {_section_of(level, wheel)}: its levels cannot be "
                "told apart, build it with this checkout's cmake/CpuLevels.cmake"
            )
    for part, codes in sections.items():
        forbidden = FORBIDDEN[wheel.machine].get(part, set())
        wanted = PRESENT.get(part or "")
        if not forbidden and not wanted:
            continue
        where = f"level {part}" if part else _EVERYWHERE
        found: dict[str, str] = {}
        for address, code in codes:
            for kind, example in kinds(code, address):
                found.setdefault(kind, example)
        for kind in sorted(forbidden & set(found)):
            yield f"{where} has {kind}: {found[kind]}"
        if wanted and wanted not in found:
            yield f"{where} has no {wanted}: it was compiled without its flags"


def _code(wheel: Wheel) -> dict[str | None, list[tuple[int, bytes]]]:
    """Executable sections by the level that they belong to."""
    levels = {_section_of(level, wheel): level for level in LEVELS[wheel.machine]}
    parts: dict[str | None, list[tuple[int, bytes]]] = {}
    for name, address, content in _executable(wheel):
        parts.setdefault(levels.get(name), []).append((address, content))
    return parts


def _section_of(level: str, wheel: Wheel) -> str:
    number = LEVELS[wheel.machine].index(level)
    return f".level{number}" if wheel.system == "win" else f".text_{level}"


def _executable(wheel: Wheel) -> Iterator[tuple[str, int, bytes]]:
    path = str(wheel.library)
    parsed: Any = lief
    if wheel.system == "win":
        executable = parsed.PE.Section.CHARACTERISTICS.MEM_EXECUTE
        sections = parsed.PE.parse(path).sections
        found = [section for section in sections if section.has_characteristic(executable)]
    else:
        executable = parsed.ELF.Section.FLAGS.EXECINSTR
        sections = parsed.ELF.parse(path).sections
        found = [section for section in sections if section.has(executable)]
    for section in found:
        yield section.name, section.virtual_address, bytes(section.content)


Kinds = Iterator[tuple[str, str]]
Instruction = tuple[int, int, str, str]


def _x86_kinds(code: bytes, address: int) -> Kinds:
    """By encoding: what begins with VEX or EVEX, whichever registers it uses, needs AVX's state or
    an extension from after it. In 64-bit code those three bytes begin nothing else."""
    for at, _, mnemonic, operands in _instructions("X86", "64", code, address):
        first = at - address
        while code[first] in _X86_PREFIXES and first + 1 < len(code):
            first += 1
        kind = _X86_KINDS.get(code[first])
        if kind is not None and mnemonic != ".byte":
            yield kind, f"{at:x}: {mnemonic} {operands}"


def _arm_kinds(code: bytes, address: int) -> Kinds:
    for at, _, mnemonic, operands in _instructions("ARM64", "ARM", code, address):
        shown = f"{at:x}: {mnemonic} {operands}"
        if _ARM_MATRIX.fullmatch(mnemonic):
            yield _MATRIX, shown
        elif _ARM_DOT.fullmatch(mnemonic):
            yield _DOT, shown
        elif mnemonic[0] == "f" and mnemonic[:4] != "fcvt" and _ARM_HALF.search(operands):
            yield _HALVES, shown


def _instructions(architecture: str, mode: str, code: bytes, address: int) -> Iterator[Instruction]:
    """Address, length, name, operands; the bytes that are no instruction are named .byte."""
    # Not above: it cannot be loaded under the address sanitizer, and this module is imported there.
    import capstone  # type: ignore[import-untyped]

    kind = getattr(capstone, f"CS_ARCH_{architecture}"), getattr(capstone, f"CS_MODE_{mode}")
    disassembler = capstone.Cs(*kind)
    disassembler.skipdata = True
    start = 0
    while start < len(code):
        # A part at a time: capstone makes all objects before it gives the first.
        instruction = None
        for instruction in disassembler.disasm_lite(code[start:], address + start, _AT_ONCE):
            yield instruction
        if instruction is None:
            return
        start = instruction[0] + instruction[1] - address
