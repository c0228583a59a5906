"""A CPU level's symbols in object files of Windows and macOS: cmake/separate_level.py."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "cmake" / "separate_level.py"
sys.path.insert(0, str(SCRIPT.parent))

from separate_level import Coff, MachO  # noqa: E402

REGISTRATION = b"ggml_backend_cpu_reg"


def coff(defined: list[bytes], used: list[bytes]) -> bytes:
    """An object with one section and these symbols; the first has an auxiliary one behind it."""
    strings, symbols = bytearray(), bytearray()
    for name in [*defined, *used]:
        if len(name) <= 8:
            place = name.ljust(8, b"\0")
        else:
            place = struct.pack("<II", 0, 4 + len(strings))
            strings += name + b"\0"
        auxiliary = not symbols
        section = 1 if name in defined else 0
        symbols += place + struct.pack("<IhHBB", 0, section, 0x20, 2, auxiliary)
        symbols += b"\xff" * 18 * auxiliary
    header = struct.pack("<HHIIIHH", 0x8664, 1, 0, 60, len(symbols) // 18, 0, 0)
    code = struct.pack("<8s28xI", b".text$x", 0x60000020)
    return header + code + symbols + struct.pack("<I", 4 + len(strings)) + strings


def mach_o(defined: list[bytes], used: list[bytes]) -> bytes:
    """An object of no sections with these symbols and a debugging one."""
    strings, symbols = bytearray(b"\0"), bytearray()
    for name, kind in [
        *((name, 0x0F) for name in defined),
        *((name, 0x01) for name in used),
        (defined[0], 0x24),
    ]:
        symbols += struct.pack("<IBBHQ", len(strings), kind, 1, 0, 0)
        strings += name + b"\0"
    count = len(symbols) // 16
    command = struct.pack("<IIIIII", 2, 24, 56, count, 56 + len(symbols), len(strings))
    header = struct.pack("<IIIIIIII", 0xFEEDFACF, 0x100000C, 0, 1, 1, len(command), 0, 0)
    return header + command + symbols + strings


def separated(tmp_path: Path, *objects: bytes) -> list[bytes]:
    paths = [tmp_path / f"{number}.obj" for number in range(len(objects))]
    for path, content in zip(paths, objects):
        path.write_bytes(content)
    command = [sys.executable, str(SCRIPT), "avx2", "2", str(tmp_path / "level"), *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise ValueError(done.stderr)
    return [(tmp_path / f"level-{number}.o").read_bytes() for number in range(len(objects))]


def test_what_coff_objects_define_is_renamed_wherever_it_is_used(tmp_path: Path) -> None:
    first, second = separated(
        tmp_path,
        coff([REGISTRATION, b"short", b"_ZNSt6vectorIiE4pushEv"], [b"malloc"]),
        coff([b"_ZNSt6vectorIiE4pushEv"], [b"short", b"ggml_new_tensor_from_elsewhere"]),
    )
    assert Coff(first).defined() == {
        b"eliza_cpu_reg_avx2",
        b"short.avx2",
        b"_ZNSt6vectorIiE4pushEv.avx2",
    }
    assert Coff(second).defined() == {b"_ZNSt6vectorIiE4pushEv.avx2"}
    assert b"\0short.avx2\0" in second
    assert b"ggml_new_tensor_from_elsewhere.avx2" not in second
    assert b"malloc.avx2" not in first


def test_what_mach_o_objects_define_is_renamed_wherever_it_is_used(tmp_path: Path) -> None:
    first, second = separated(
        tmp_path,
        mach_o([b"_" + REGISTRATION, b"__ZNSt3__16vectorE"], [b"_malloc"]),
        mach_o([b"__ZNSt3__16vectorE"], [b"_ggml_new_tensor"]),
    )
    assert MachO(first).defined() == {b"_eliza_cpu_reg_avx2", b"__ZNSt3__16vectorE.avx2"}
    assert MachO(second).defined() == {b"__ZNSt3__16vectorE.avx2"}
    assert b"_ggml_new_tensor.avx2" not in second


def test_code_gets_a_section_of_its_own(tmp_path: Path) -> None:
    (object_,) = separated(tmp_path, coff([REGISTRATION, b"x"], []))
    assert Coff(object_).section_names() == [b".level2$x.avx2"]


def test_a_weak_or_common_symbol_counts_where_it_is_defined() -> None:
    used, common, weak, alias = (struct.pack("<8s", name) for name in (b"u", b"c", b"w", b"a"))
    symbols = [
        weak + struct.pack("<IhHBB", 0, 0, 0x20, 105, 1),
        struct.pack("<II10x", 2, 3),
        alias + struct.pack("<IhHBB", 0, 1, 0x20, 2, 0),
        used + struct.pack("<IhHBB", 0, 0, 0x20, 2, 0),
        common + struct.pack("<IhHBB", 4, 0, 0, 2, 0),
    ]
    header = struct.pack("<HHIIIHH", 0x8664, 0, 0, 20, len(symbols), 0, 0)
    object_ = Coff(header + b"".join(symbols) + struct.pack("<I", 4))
    assert object_.defined() == {b"w", b"a", b"c"}


def test_an_object_without_symbols_is_left_as_it_is(tmp_path: Path) -> None:
    empty = struct.pack("<IIIIIIII", 0xFEEDFACF, 0x1000007, 3, 1, 0, 0, 0, 0)
    assert separated(tmp_path, mach_o([b"_" + REGISTRATION], []), empty)[1] == empty


@pytest.mark.parametrize("content", [b"", b"\x7fELF" + bytes(60), coff([REGISTRATION], []) + b"\0"])
def test_other_files_are_refused(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"0\.obj: "):
        separated(tmp_path, content)


def test_objects_without_the_registration_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no object defines ggml_backend_cpu_reg"):
        separated(tmp_path, coff([b"short"], []))
