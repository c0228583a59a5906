"""What `scripts/wheel-check` says of wheels that are not as they should be.

The library in them is a stub with the whole ABI, a section for each CPU level, and build facts.
"""

from __future__ import annotations

import base64
import csv
import gzip
import hashlib
import io
import json
import platform
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Callable

import pytest

import eliza_ctypes
from abi_stubs import stub_source
from eliza_ctypes.abi_check.table import read_table
from lib.console import Failure
from lib.levels import LEVELS
from lib.wheel_checks.contents import check_contents
from lib.wheel_checks.instructions import check_instructions
from lib.wheel_checks.library import check_library
from lib.wheel_checks.wheel import open_wheel

pytestmark = [
    pytest.mark.build_tree,
    pytest.mark.unsanitized,
    pytest.mark.skipif(
        (sys.platform, platform.machine()) != ("linux", "x86_64"),
        reason="the stubs have instructions of x86-64",
    ),
]

CHECKOUT = Path(__file__).resolve().parents[2]
STUBS = CHECKOUT / "tests" / "fixtures" / "abi"
VERSION = eliza_ctypes.__version__
METADATA = f"eliza_ctypes-{VERSION}.dist-info"
NAME = f"eliza_ctypes-{VERSION}-py3-none-manylinux_2_28_x86_64.whl"
LIBRARY = "eliza_ctypes/lib/libelizainference.so"
ALL_LEVELS = LEVELS["x86_64"]
LICENCES = {
    "LICENSE": "Copyright (c) 2026 The libelizainference authors",
    "LICENSE-llama.cpp": "Copyright (c) 2023-2026 The ggml authors",
    "LICENSE-llamafile": "Copyright 2024 Mozilla Foundation",
    "LICENSE-json": "Copyright (c) 2013-2025 Niels Lohmann",
    "LICENSE-xxhash": "Copyright (c) 2012-2021 Yann Collet",
    "LICENSE-libc++": "LLVM Exceptions to the Apache 2.0 License",
}
FACTS: dict[str, Any] = {
    "library": VERSION,
    "abi": 8,
    "llama_cpp": "pinned, llama-cpp-python 0.3.36",
    "litert": True,
    "mlx": False,
    "compiler": "Clang 22.1.8",
    "build_type": "Release",
    "cpu_native": "OFF",
    "cpu_levels": ", ".join(ALL_LEVELS),
    "sanitizers": "",
}
CHECKS = {
    "contents": check_contents,
    "library": check_library,
    "instructions": check_instructions,
}
AVX, AVX512 = "vaddps %ymm0, %ymm1, %ymm2", "vaddps %zmm0, %zmm1, %zmm2"
# A VEX-encoded instruction of integer registers: AVX by no name.
BMI2 = "mulx %rax, %rbx, %rcx"

Check = Callable[..., str]
MakeLibrary = Callable[..., bytes]


@pytest.fixture(scope="module")
def make_library(tmp_path_factory: pytest.TempPathFactory) -> MakeLibrary:
    """A stub; `code` is what the function in a section has, with None for the usual one."""
    table = read_table(CHECKOUT / "docs" / "abi" / "abi-v8.json")

    def make(
        *options: str,
        facts: dict[str, Any] = FACTS,
        code: dict[str | None, str] | None = None,
        added: Iterable[str] = (),
        levels: Iterable[str] = ALL_LEVELS,
    ) -> bytes:
        folder = tmp_path_factory.mktemp("library")
        usual: dict[str | None, str] = {None: "nop", "sse42": "nop"}
        usual.update(dict.fromkeys(("avx", "avx2", "avx2_vnni"), AVX))
        chosen = {**usual, **(code or {})}
        text = json.dumps("ELIZA_BUILD_FACTS " + json.dumps(facts))
        prologue = f"__attribute__((used)) static const char facts[] = {text};\n"
        for name in (None, *levels):
            section = f'section(".text_{name}"), ' if name else ""
            prologue += f"__attribute__(({section}used)) static void in_{name}(void)"
            prologue += f' {{ __asm__ volatile("{chosen.get(name, AVX512)}"); }}\n'
        source = folder / "stub.c"
        source.write_text(stub_source(table, added=list(added), prologue=prologue))
        library = folder / "libelizainference.so"
        command = ["cc", "-shared", "-fPIC", "-w", "-s", "-Wl,-soname,libelizainference.so"]
        subprocess.run([*command, "-o", str(library), str(source), *options], check=True)
        return library.read_bytes()

    return make


@pytest.fixture(scope="module")
def good_library(make_library: MakeLibrary) -> bytes:
    return make_library()


@pytest.fixture(scope="module")
def good_files(good_library: bytes) -> dict[str, bytes]:
    package = CHECKOUT / "python"
    files = {
        path.relative_to(package).as_posix(): path.read_bytes()
        for path in sorted(package.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    files[LIBRARY] = good_library
    files[f"{METADATA}/METADATA"] = f"Name: eliza-ctypes\nVersion: {VERSION}\n".encode()
    tag = NAME[: -len(".whl")].partition(f"{VERSION}-")[2]
    files[f"{METADATA}/WHEEL"] = f"Root-Is-Purelib: false\nTag: {tag}\n".encode()
    files.update(
        (f"{METADATA}/licenses/{name}", text.encode() + b"\n") for name, text in LICENCES.items()
    )
    return files


def write_wheel(path: Path, files: dict[str, bytes], record: dict[str, bytes] | None) -> None:
    """`record`: the files that RECORD tells of, where these are others."""
    rows = io.StringIO()
    writer = csv.writer(rows, lineterminator="\n")
    for name, content in (files if record is None else record).items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
        writer.writerow([name, f"sha256={digest}", len(content)])
    writer.writerow([f"{METADATA}/RECORD", "", ""])
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        archive.writestr(f"{METADATA}/RECORD", rows.getvalue())


@pytest.fixture
def complaints(tmp_path: Path, good_files: dict[str, bytes]) -> Check:
    """What one step says of a wheel with these changes; nothing where it is content."""

    def check(
        step: str,
        changes: dict[str, bytes | None] | None = None,
        name: str = NAME,
        record: dict[str, bytes] | None = None,
    ) -> str:
        files = {**good_files, **(changes or {})}
        path = tmp_path / name
        whole = {name: content for name, content in files.items() if content is not None}
        write_wheel(path, whole, record)
        return judged(step, path)

    return check


def judged(step: str, path: Path) -> str:
    try:
        CHECKS[step](open_wheel(path, path.parent / "unpacked"))
    except Failure as failure:
        return str(failure)
    return ""


@pytest.mark.parametrize("step", ["contents", "library", "instructions"])
def test_a_good_wheel_passes(complaints: Check, step: str) -> None:
    assert complaints(step) == ""


@pytest.mark.parametrize(
    "name", ["other-1.0-py3-none-any.whl", "eliza_ctypes.whl", f"eliza_ctypes-{VERSION}.tar.gz"]
)
def test_a_file_that_is_named_as_something_else_is_refused(complaints: Check, name: str) -> None:
    assert "is not named as a wheel of this package" in complaints("contents", name=name)


def test_a_file_that_is_no_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / NAME
    path.write_bytes(b"not a wheel")
    assert "is no whole zip archive" in judged("contents", path)


@pytest.mark.parametrize("part", [0.3, 0.9, 0.999])
def test_a_truncated_wheel_is_refused(
    tmp_path: Path, good_files: dict[str, bytes], part: float
) -> None:
    path = tmp_path / NAME
    write_wheel(path, good_files, None)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * part)])
    assert "is no whole zip archive" in judged("contents", path)


def test_a_wheel_that_was_damaged_inside_is_refused(
    tmp_path: Path, good_files: dict[str, bytes]
) -> None:
    path = tmp_path / NAME
    write_wheel(path, good_files, None)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))
    assert "is no whole zip archive" in judged("contents", path)


@pytest.mark.parametrize(
    "platform_tag, message",
    [
        ("linux_x86_64", "tag linux_x86_64, which no package index takes"),
        ("manylinux_2_36_x86_64", "tag manylinux_2_36_x86_64: it must run with glibc 2.28"),
        ("manylinux_2_28_riscv64", r"expected is manylinux_2_\d+_(x86_64|aarch64)"),
        ("macosx_14_0_arm64", r"tag macosx_14_0_arm64: expected is macosx_11_0_(x86_64|arm64)"),
        ("win_arm64", "tag win_arm64: expected is win_amd64"),
    ],
)
def test_a_platform_tag_that_is_not_ours_is_named(
    complaints: Check, platform_tag: str, message: str
) -> None:
    said = complaints("contents", name=NAME.replace("manylinux_2_28_x86_64", platform_tag))
    assert message in said


def test_a_wheel_of_one_interpreter_is_named(complaints: Check) -> None:
    name = NAME.replace("py3-none", "cp311-cp311")
    assert "is for cp311-cp311" in complaints("contents", name=name)


def test_a_renamed_wheel_is_found_by_the_tags_inside(complaints: Check) -> None:
    said = complaints("contents", name=NAME.replace("2_28", "2_17"))
    assert f"is tagged py3-none-manylinux_2_28_x86_64 in {METADATA}/WHEEL, but named" in said


def test_a_tag_for_an_older_glibc_than_auditwheel_finds_is_named(
    complaints: Check, make_library: MakeLibrary, tmp_path: Path
) -> None:
    """gettid() came with glibc 2.30."""
    source = tmp_path / "recent.c"
    source.write_text("int gettid(void); int recent(void) { return gettid(); }")
    hidden = ["-Wl,--no-gc-sections", "-fvisibility=hidden"]
    said = complaints("library", {LIBRARY: make_library(str(source), *hidden)})
    assert "has the tag manylinux_2_28_x86_64, but auditwheel says manylinux_2_3" in said


def test_a_wheel_that_is_too_large_is_named(complaints: Check, good_library: bytes) -> None:
    noise = b"".join(hashlib.sha256(str(i).encode()).digest() for i in range(190_000))
    said = complaints("contents", {LIBRARY: good_library + noise})
    assert "bytes, more than 6000000" in said


@pytest.mark.parametrize("name", ["other/module.py", "script.py", "eliza_ctypes.libs/libgomp.so.1"])
def test_a_file_outside_the_package_is_named(complaints: Check, name: str) -> None:
    said = complaints("contents", {name: b"x"})
    assert f"has {name}, outside eliza_ctypes/" in said or "these native libraries" in said


def test_a_file_that_only_builds_need_is_named(complaints: Check) -> None:
    said = complaints("contents", {"eliza_ctypes/lib/libeliza.a": b"!<arch>"})
    assert "has eliza_ctypes/lib/libeliza.a, which nobody needs" in said


@pytest.mark.parametrize("name", ["eliza_ctypes/stray.py", "eliza_ctypes/Stream.py"])
def test_a_module_that_the_checkout_has_not_is_named(complaints: Check, name: str) -> None:
    assert f"has {name}, which is not in this checkout" in complaints("contents", {name: b"x"})


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        (None, "has no eliza_ctypes-"),
        (f"Name: other\nVersion: {VERSION}\n", f"is other {VERSION} in METADATA"),
        ("Name: eliza-ctypes\nVersion: 0.0.9\n", "is eliza-ctypes 0.0.9 in METADATA"),
    ],
)
def test_metadata_of_something_else_is_named(
    complaints: Check, metadata: str | None, said: str
) -> None:
    changed = None if metadata is None else metadata.encode()
    assert said in complaints("contents", {f"{METADATA}/METADATA": changed})


@pytest.mark.parametrize("name", ["../outside.py", "/outside.py", "eliza_ctypes/../../outside.py"])
def test_a_place_outside_the_wheel_is_refused_before_it_is_unpacked(
    complaints: Check, tmp_path: Path, name: str
) -> None:
    assert f"has {name!r}, which is no place inside it" in complaints("contents", {name: b"x"})
    assert not (tmp_path / "unpacked").exists()


@pytest.mark.parametrize("mode", [0o120777, 0o106755, 0o100666])
def test_a_file_that_is_not_ordinary_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / NAME
    member = zipfile.ZipInfo("eliza_ctypes/odd.py")
    member.external_attr = mode << 16
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, "/etc/passwd")
    assert f"with the mode {mode:o}" in judged("contents", path)


def test_a_wheel_that_unpacks_to_very_much_is_refused(complaints: Check) -> None:
    zeros = {"eliza_ctypes/zeros.py": bytes(60_000_000)}
    assert "unpacks to more than 50000000 bytes" in complaints("contents", zeros)


def test_a_missing_module_is_named(complaints: Check) -> None:
    assert "lacks eliza_ctypes/stream.py" in complaints(
        "contents", {"eliza_ctypes/stream.py": None}
    )


@pytest.mark.parametrize("name", LICENCES)
def test_a_missing_licence_is_named(complaints: Check, name: str) -> None:
    said = complaints("contents", {f"{METADATA}/licenses/{name}": None})
    assert said.count("\n") == 0 and "has no licence file for " in said


def test_licences_are_found_beside_the_library_too(complaints: Check) -> None:
    moved: dict[str, bytes | None] = {}
    for name, text in LICENCES.items():
        moved[f"{METADATA}/licenses/{name}"] = None
        moved[f"eliza_ctypes/lib/licenses/{name.lower()}.txt"] = text.encode()
    assert complaints("contents", moved) == ""


def test_a_record_that_tells_otherwise_is_named(
    complaints: Check, good_files: dict[str, bytes]
) -> None:
    record = {name: content for name, content in good_files.items() if "stream" not in name}
    record.update({LIBRARY: b"before it was stripped", "eliza_ctypes/gone.py": b""})
    said = complaints("contents", record=record)
    assert f"has another {LIBRARY} than {METADATA}/RECORD says" in said
    assert f"has eliza_ctypes/stream.py, which {METADATA}/RECORD does not list" in said
    assert f"has no eliza_ctypes/gone.py, which {METADATA}/RECORD lists" in said


def test_a_path_of_the_machine_that_built_it_is_named(
    complaints: Check, good_library: bytes
) -> None:
    said = complaints("contents", {LIBRARY: good_library + b"\0/home/somebody/llama.cpp/x.cpp\0"})
    assert f"built it in {LIBRARY}: /home/somebody/llama.cpp/x.cpp (compile" in said
    said = complaints("contents", {"eliza_ctypes/abi.py": f"# {CHECKOUT}/x\n".encode()})
    assert "built it in eliza_ctypes/abi.py: " in said


def test_a_second_library_or_none_is_named(complaints: Check, good_library: bytes) -> None:
    for changes in ({"eliza_ctypes/lib/libggml.so": good_library}, {LIBRARY: None}):
        assert "it must have one, in eliza_ctypes/lib" in complaints("library", changes)


def test_an_extra_export_is_named(complaints: Check, make_library: MakeLibrary) -> None:
    said = complaints("library", {LIBRARY: make_library(added=["ggml_init"])})
    assert "the library: ggml_init is exported, but not in the table" in said


@pytest.mark.parametrize("needed", ["libstdc++.so.6", "libgcc_s.so.1", "libgomp.so.1"])
def test_a_library_that_a_linux_may_lack_is_named(
    complaints: Check, make_library: MakeLibrary, needed: str
) -> None:
    said = complaints("library", {LIBRARY: make_library("-Wl,--no-as-needed", f"-l:{needed}")})
    assert f"the library needs {needed}: link it statically" in said


def test_a_search_path_in_the_library_is_named(
    complaints: Check, make_library: MakeLibrary
) -> None:
    for option in ("--enable-new-dtags", "--disable-new-dtags"):
        library = make_library(f"-Wl,{option},-rpath,/opt/lib")
        assert "PATH: it must look for nothing of its own" in complaints(
            "library", {LIBRARY: library}
        )


@pytest.mark.parametrize(
    "fact, value",
    [
        ("library", "0.0.9"),
        ("litert", False),
        ("cpu_levels", "sse42, avx2"),
        ("cpu_native", "ON"),
        ("sanitizers", "address"),
        ("llama_cpp", "a folder"),
    ],
)
def test_a_build_fact_that_is_not_of_a_release_is_named(
    complaints: Check, make_library: MakeLibrary, fact: str, value: object
) -> None:
    library = make_library(facts={**FACTS, fact: value})
    assert f"the build fact {fact} is {value!r}" in complaints("library", {LIBRARY: library})


def test_a_wheel_for_windows_needs_the_licence_of_mingws_runtime(
    complaints: Check, good_library: bytes
) -> None:
    changes = {LIBRARY: None, "eliza_ctypes/lib/elizainference.dll": good_library}
    name = NAME.replace("manylinux_2_28_x86_64", "win_amd64")
    tag = f"{METADATA}/WHEEL"
    changes[tag] = b"Root-Is-Purelib: false\nTag: py3-none-win_amd64\n"
    said = complaints("contents", changes, name)
    assert said.count("\n") == 1 and "has no licence file for mingw-w64's runtime" in said
    changes[f"{METADATA}/licenses/mingw"] = b"Copyright (c) 2009 - 2013 by the mingw-w64 project\n"
    changes[f"{METADATA}/licenses/gdtoa"] = b"Copyright (C) 1998, 1999 by Lucent Technologies\n"
    assert complaints("contents", changes, name) == ""


@pytest.mark.parametrize(
    ("platform_tag", "stub", "problems"),
    [
        ("win_amd64", "good-x86_64.dll", []),
        (
            "win_amd64",
            "faulty-x86_64.dll",
            ["the DLL name is inference.dll", "imports WSAStartup", "the library needs WS2_32.dll"],
        ),
        ("macosx_11_0_arm64", "faulty-arm64.dylib", ["cancel is not exported", "imports fork"]),
        ("macosx_11_0_arm64", "good-arm64.dylib", ["is for macOS 13.0 and later, not macOS 11.0"]),
        ("macosx_11_0_x86_64", "good-arm64.dylib", ["is Mach-O for aarch64, not Mach-O for x86"]),
        ("macosx_11_0_arm64", "good-fat.dylib", ["is Mach-O for x86_64 and Mach-O for aarch64"]),
        ("win_amd64", "good-arm64.dylib", ["is Mach-O for aarch64, not PE for x86_64"]),
        ("manylinux_2_28_x86_64", "good-x86_64.dll", ["is PE for x86_64, not ELF for x86_64"]),
    ],
)
def test_libraries_of_other_systems_are_read(
    complaints: Check, platform_tag: str, stub: str, problems: list[str]
) -> None:
    library = gzip.decompress((STUBS / f"{stub}.gz").read_bytes())
    name = NAME.replace("manylinux_2_28_x86_64", platform_tag)
    said = complaints("library", {LIBRARY: None, f"eliza_ctypes/lib/{stub}": library}, name)
    for problem in problems:
        assert problem in said
    # The stubs have none.
    assert "has no build facts" in said
    assert bool(problems) == ("\n" in said)


@pytest.mark.parametrize("instruction", [AVX, AVX512, BMI2])
@pytest.mark.parametrize("part", [None, "sse42"])
def test_instructions_of_later_processors_below_avx_are_named(
    complaints: Check, make_library: MakeLibrary, part: str | None, instruction: str
) -> None:
    said = complaints("instructions", {LIBRARY: make_library(code={part: instruction})})
    where = f"level {part}" if part else "the code outside the levels"
    assert f"{where} has A" in said and f": {instruction.split()[0]} " in said


def test_wider_registers_than_a_level_has_are_named(
    complaints: Check, make_library: MakeLibrary
) -> None:
    library = make_library(code={"avx2": AVX512, "avx": AVX512, "avx512": "nop"})
    said = complaints("instructions", {LIBRARY: library})
    assert "level avx has AVX-512" in said and "level avx2 has AVX-512" in said
    assert "level avx512 has no AVX-512" in said


def test_levels_that_cannot_be_told_apart_are_named(
    complaints: Check, make_library: MakeLibrary
) -> None:
    said = complaints("instructions", {LIBRARY: make_library(levels=ALL_LEVELS[:-1])})
    assert "the library has no section .text_avx512_bf16" in said


def test_the_command_counts_what_failed(tmp_path: Path, good_files: dict[str, bytes]) -> None:
    write_wheel(tmp_path / NAME, {**good_files, "script.py": b""}, None)
    command = [CHECKOUT / "scripts" / "wheel-check", tmp_path / NAME, "--only", "contents"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == 1
    assert f"{NAME}: has script.py, outside" in done.stderr
    assert "contents manylinux x86_64" in done.stdout and "FAILED" in done.stdout
