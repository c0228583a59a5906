"""The ABI check finds each kind of mistake, by name, and none in what this repository holds."""

from __future__ import annotations

import ctypes
import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional

import pytest

from abi_stubs import stub_source
from eliza_ctypes import abi
from eliza_ctypes.abi_check import files
from eliza_ctypes.abi_check.binary import LARGEST, check_library
from eliza_ctypes.abi_check.declarations import check_declarations
from eliza_ctypes.abi_check.header import check_header
from eliza_ctypes.abi_check.image import Image
from eliza_ctypes.abi_check.probe import check_layout_with_compiler
from eliza_ctypes.abi_check.report import Report
from eliza_ctypes.abi_check.table import Table, read_table
from eliza_ctypes.cli import main

# Parsers and compilers, and no code of ours that a sanitizer could watch.
pytestmark = [pytest.mark.build_tree, pytest.mark.unsanitized]

CHECKOUT = Path(__file__).resolve().parents[2]
TABLE_FILE = CHECKOUT / "docs" / "abi" / "abi-v8.json"
HEADER = CHECKOUT / "cpp" / "include" / "eliza-inference-ffi.h"
STUBS = CHECKOUT / "tests" / "fixtures" / "abi"
CONFIG = "eliza_llm_stream_config_t"

Compile = Callable[..., Path]


@pytest.fixture(scope="module")
def table() -> Table:
    return read_table(TABLE_FILE)


@pytest.fixture
def compile_stub(tmp_path: Path) -> Compile:
    """Compiles C into a shared library with the right SONAME, unless told otherwise."""

    def compiled(source: str, *options: str, soname: str = "libelizainference.so") -> Path:
        (tmp_path / "stub.c").write_text(source)
        library = tmp_path / "libelizainference.so"
        command = ["cc", "-shared", "-fPIC", "-w", f"-Wl,-soname,{soname}", "-o", str(library)]
        subprocess.run([*command, str(tmp_path / "stub.c"), *options], check=True)
        return library

    return compiled


def messages(report: Report) -> str:
    return "\n".join(finding.message for finding in report.problems)


def changed(text: str, *changes: tuple[str, str]) -> str:
    """Replaces each first part, which is there once, whatever white space it is written with."""
    for old, new in changes:
        pattern = r"\s+".join(map(re.escape, old.split()))
        text, count = re.subn(pattern, new.replace("\\", r"\\"), text)
        assert count == 1, f"{count} times in the header: {old}"
    return text


# The header


class Mistake(NamedTuple):
    name: str
    changes: tuple[tuple[str, str], ...]
    found: tuple[str, ...]
    """What the parser has to say of it."""
    denied: Optional[str] = None
    """What a compiler has to say of it, where that can tell."""
    line_of: Optional[str] = None
    """What stands in the line that the first of these names."""


HEADER_MISTAKES = [
    Mistake(
        "swapped arguments",
        (
            (
                "eliza_inference_asr_stream_open(EliInferenceContext* ctx, int sample_rate_hz,",
                "eliza_inference_asr_stream_open(int sample_rate_hz, EliInferenceContext* ctx,",
            ),
        ),
        (
            "eliza_inference_asr_stream_open: argument 1 is `int sample_rate_hz`, "
            "the table says `EliInferenceContext *ctx`",
            "eliza_inference_asr_stream_open: argument 2 is `EliInferenceContext *ctx`",
        ),
        "eliza_inference_asr_stream_open",
        "eliza_inference_asr_stream_open(",
    ),
    Mistake(
        "a 32-bit size",
        (
            (
                "eliza_inference_vad_process(EliVad* vad, const float* pcm, size_t n_samples",
                "eliza_inference_vad_process(EliVad* vad, const float* pcm, uint32_t n_samples",
            ),
        ),
        (
            "eliza_inference_vad_process: argument 3 is `uint32_t n_samples`, "
            "the table says `size_t n_samples`",
        ),
        "eliza_inference_vad_process",
    ),
    Mistake(
        "a renamed argument",
        (("eliza_inference_free_tokens(int* tokens)", "eliza_inference_free_tokens(int* ids)"),),
        ("eliza_inference_free_tokens: argument 1 is `int *ids`, the table says `int *tokens`",),
    ),
    Mistake(
        "a missing argument",
        (
            (
                "eliza_inference_cancel_tts(EliInferenceContext* ctx, char** out_error)",
                "eliza_inference_cancel_tts(EliInferenceContext* ctx)",
            ),
        ),
        ("eliza_inference_cancel_tts: takes 1 arguments, `EliInferenceContext *ctx`, not 2",),
        "eliza_inference_cancel_tts",
    ),
    Mistake(
        "no argument list",
        (("eliza_inference_vad_supported(void)", "eliza_inference_vad_supported()"),),
        ("eliza_inference_vad_supported: declares no argument list",),
    ),
    Mistake(
        "a wrong return type",
        (("int eliza_inference_vad_supported(", "long eliza_inference_vad_supported("),),
        ("eliza_inference_vad_supported: returns `long`, the table says `int`",),
        "eliza_inference_vad_supported",
        "eliza_inference_vad_supported",
    ),
    Mistake(
        "an argument that is not const",
        (
            (
                "eliza_inference_create(const char* bundle_dir,",
                "eliza_inference_create(char* bundle_dir,",
            ),
        ),
        (
            "eliza_inference_create: argument 1 is `char *bundle_dir`, "
            "the table says `const char *bundle_dir`",
        ),
        "eliza_inference_create",
    ),
    Mistake(
        "a missing function",
        (("ELIZA_INFERENCE_API void eliza_inference_free_tokens(int* tokens);", ""),),
        ("eliza_inference_free_tokens is missing",),
        "eliza_inference_free_tokens",
    ),
    Mistake(
        "an extra function",
        (("#define ELIZA_OK 0", "#define ELIZA_OK 0\nint eliza_inference_llm_pause(void);"),),
        ("eliza_inference_llm_pause is declared, but not in the table",),
        line_of="eliza_inference_llm_pause",
    ),
    Mistake(
        "a static function",
        (
            (
                "ELIZA_INFERENCE_API int eliza_inference_vad_supported(void);",
                "static int eliza_inference_vad_supported(void) { return 0; }",
            ),
        ),
        ("eliza_inference_vad_supported: is static",),
    ),
    Mistake(
        "a changed constant",
        (("#define ELIZA_ERR_OOM (-5)", "#define ELIZA_ERR_OOM (-6 + ELIZA_OK)"),),
        ("ELIZA_ERR_OOM is -6, the table says -5",),
        "ELIZA_ERR_OOM is -5",
        "#define ELIZA_ERR_OOM",
    ),
    Mistake(
        "a missing constant",
        (("#define ELIZA_ERR_CANCELLED (-7)", ""),),
        ("ELIZA_ERR_CANCELLED is missing: the table says -7",),
        "ELIZA_ERR_CANCELLED is -7",
    ),
    Mistake(
        "a constant that is taken back",
        (("#define ELIZA_ERR_OOM (-5)", "#define ELIZA_ERR_OOM (-5)\n#undef ELIZA_ERR_OOM\n"),),
        ("ELIZA_ERR_OOM is missing: the table says -5",),
        "ELIZA_ERR_OOM is -5",
    ),
    Mistake(
        "an extra constant",
        (("#define ELIZA_OK 0", "#define ELIZA_OK 0\n#define ELIZA_ERR_BUSY (-8)"),),
        ("ELIZA_ERR_BUSY is defined, but not in the table",),
        line_of="ELIZA_ERR_BUSY",
    ),
    Mistake(
        "a constant that is no number",
        (("#define ELIZA_ERR_OOM (-5)", "#define ELIZA_ERR_OOM out_of_memory"),),
        ("ELIZA_ERR_OOM is no integer constant",),
        "ELIZA_ERR_OOM is -5",
        "#define ELIZA_ERR_OOM",
    ),
    Mistake(
        "another ABI version",
        (("#define ELIZA_INFERENCE_ABI_VERSION 8", "#define ELIZA_INFERENCE_ABI_VERSION 9"),),
        ("ELIZA_INFERENCE_ABI_VERSION is 9, the table says 8",),
        "ELIZA_INFERENCE_ABI_VERSION is 8",
    ),
    Mistake(
        "moved fields",
        (
            ("float top_p;", "int32_t moved;"),
            ("int32_t top_k;", "float top_p;"),
            ("int32_t moved;", "int32_t top_k;"),
        ),
        (
            f"{CONFIG}.top_k is at offset 8, the table says 12",
            f"{CONFIG}.top_p is at offset 12, the table says 8",
        ),
        f"{CONFIG}.top_p is at offset 8",
        "int32_t top_k;",
    ),
    Mistake(
        "a renamed field",
        (("float repeat_penalty;", "float penalty;"),),
        (
            f"{CONFIG}.repeat_penalty is missing: the table has it at offset 16, "
            "the header has `penalty` there",
        ),
        f"{CONFIG}.repeat_penalty is at offset 16",
        "float penalty;",
    ),
    Mistake(
        "a field of another type",
        (("int32_t slot_id;", "uint32_t slot_id;"),),
        (f"{CONFIG}.slot_id is `uint32_t`, the table says `int32_t`",),
        f"{CONFIG}.slot_id is int32_t",
    ),
    Mistake(
        "a structure that is too large",
        (("const char* cache_type_v;", "const char* cache_type_v; int32_t context_size;"),),
        (
            f"{CONFIG} takes 88 bytes, the table says 80",
            f"{CONFIG}.context_size at offset 80 is not in the table",
        ),
        f"{CONFIG} takes 80 bytes",
    ),
    Mistake(
        "a changed callback",
        (("size_t n_samples, int is_final, void* user_data", "size_t n_samples, void* user_data"),),
        (
            "eliza_tts_chunk_cb is `int (*)(const float *, size_t, void *)`, "
            "the table says `int (*)(const float *, size_t, int, void *)`",
        ),
        "eliza_tts_chunk_cb",
        "(*eliza_tts_chunk_cb)",
    ),
    Mistake(
        "an extra callback",
        (("#define ELIZA_OK 0", "#define ELIZA_OK 0\ntypedef int (*eliza_log_cb)(void*);"),),
        ("the type eliza_log_cb is not in the table",),
    ),
    Mistake(
        "an extra structure",
        (("#define ELIZA_OK 0", "#define ELIZA_OK 0\nstruct EliUsage { int tokens; };"),),
        ("the type EliUsage is not in the table",),
    ),
    Mistake(
        "an opaque type with fields",
        (("typedef struct EliVad EliVad;", "typedef struct EliVad { int rate; } EliVad;"),),
        ("EliVad is a structure with fields, the table says it is opaque",),
        line_of="EliVad",
    ),
    Mistake(
        "no C linkage for C++",
        (('extern "C" {', 'extern "C++" {'),),
        ('no extern "C" around eliza_inference_abi_version',),
    ),
    Mistake(
        "a syntax error",
        (("void eliza_inference_free_tokens(int* tokens);", "void eliza_inference_free_tokens(;"),),
        ("does not compile: expected", "eliza_inference_free_tokens"),
        line_of="eliza_inference_free_tokens(;",
    ),
]


def by_name(mistake: Mistake) -> str:
    return mistake.name


def test_our_header_is_as_the_table_says(table: Table) -> None:
    report = check_header(HEADER, table)
    assert messages(report) == ""
    assert report.judged[:2] == ["54 functions", "9 constants"]


def test_our_header_is_as_the_table_says_to_a_compiler(table: Table) -> None:
    report = check_layout_with_compiler(HEADER, table, "cc")
    assert messages(report) == ""
    assert report.judged


@pytest.mark.parametrize("mistake", HEADER_MISTAKES, ids=by_name)
def test_a_mistake_in_the_header_is_named(mistake: Mistake, table: Table, tmp_path: Path) -> None:
    header = tmp_path / "mistaken.h"
    text = changed(HEADER.read_text("utf-8"), *mistake.changes)
    header.write_text(text, "utf-8")
    report = check_header(header, table)
    for expected in mistake.found:
        assert expected in messages(report)
    if mistake.line_of is not None:
        line = next(f.line for f in report.problems if mistake.found[0] in f.message)
        assert line is not None
        assert mistake.line_of in text.splitlines()[line - 1]


@pytest.mark.parametrize("mistake", [m for m in HEADER_MISTAKES if m.denied], ids=by_name)
def test_a_mistake_in_the_header_is_named_by_the_compiler(
    mistake: Mistake, table: Table, tmp_path: Path
) -> None:
    header = tmp_path / "mistaken.h"
    header.write_text(changed(HEADER.read_text("utf-8"), *mistake.changes), "utf-8")
    report = check_layout_with_compiler(header, table, "cc")
    assert f"cc denies that {mistake.denied}" in messages(report)


def test_a_layout_that_differs_on_one_platform_names_the_platform(
    table: Table, tmp_path: Path
) -> None:
    header = tmp_path / "mistaken.h"
    change = "size_t n_accepted;", "unsigned long n_accepted;"
    header.write_text(changed(HEADER.read_text("utf-8"), change), "utf-8")
    report = check_header(header, table)
    assert "EliVerifierEvent.n_accepted is `unsigned long`, the table says" in messages(report)
    assert (
        "EliVerifierEvent.rejected_from is at offset 12, the table says 16 "
        "(on x86_64-pc-windows-msvc)" in messages(report)
    )


def test_a_header_that_includes_what_is_not_there_is_one_problem(
    table: Table, tmp_path: Path
) -> None:
    header = tmp_path / "mistaken.h"
    change = "#include <stddef.h>", "#include <elsewhere.h>"
    header.write_text(changed(HEADER.read_text("utf-8"), change), "utf-8")
    report = check_header(header, table)
    (problem,) = report.problems
    assert "elsewhere.h" in problem.message
    assert problem.line is not None
    assert not report.judged


def test_a_header_of_something_else_is_one_problem(table: Table, tmp_path: Path) -> None:
    header = tmp_path / "other.h"
    header.write_text("int main(void);\n")
    assert "declares nothing of the ABI" in messages(check_header(header, table))


def test_a_header_that_does_not_compile_is_a_problem_with_its_line(
    table: Table, tmp_path: Path
) -> None:
    header = tmp_path / "mistaken.h"
    header.write_text("\nint eliza_inference_create(;\n")
    report = check_layout_with_compiler(header, table, "cc")
    assert "does not compile with cc" in report.problems[0].message
    assert report.problems[0].line == 2


def test_a_compiler_that_does_not_run_is_a_problem(table: Table) -> None:
    report = check_layout_with_compiler(HEADER, table, "no-such-compiler")
    assert "no-such-compiler does not run" in messages(report)
    assert not report.judged


def test_a_compiler_that_cannot_be_split_into_words_is_a_problem(table: Table) -> None:
    report = check_layout_with_compiler(HEADER, table, "cc 'unclosed")
    assert "cc 'unclosed does not run" in messages(report)


@pytest.mark.parametrize(
    ("compiler", "said"),
    [("true", "accepts a false assertion"), ("false", "failed with exit status 1")],
)
def test_a_compiler_that_compiles_nothing_judges_nothing(
    compiler: str, said: str, table: Table
) -> None:
    report = check_layout_with_compiler(HEADER, table, compiler)
    assert said in messages(report)
    assert not report.judged


def test_a_header_that_takes_the_assertions_away_is_not_judged_by_the_compiler(
    table: Table, tmp_path: Path
) -> None:
    header = tmp_path / "silencing.h"
    header.write_text(f"{HEADER.read_text('utf-8')}\n#define _Static_assert(...)\n", "utf-8")
    report = check_layout_with_compiler(header, table, "cc")
    assert "accepts a false assertion" in messages(report)
    assert not report.judged


# Libraries


def test_our_library_is_as_the_table_says(table: Table, library_path: Path) -> None:
    report = check_library(library_path, table)
    assert messages(report) == ""
    assert not report.unjudged
    assert "11 answers" in report.judged


def test_a_stub_of_the_table_is_as_the_table_says(table: Table, compile_stub: Compile) -> None:
    assert messages(check_library(compile_stub(stub_source(table)), table)) == ""


LIBRARY_MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "a missing export": (
        {"left_out": ["eliza_inference_llm_stream_cancel"]},
        "eliza_inference_llm_stream_cancel is not exported",
    ),
    "an extra export": (
        {"added": ["eliza_inference_llm_pause"]},
        "eliza_inference_llm_pause is exported, but not in the table",
    ),
    "an export of another library": (
        {"added": ["llama_decode"]},
        "llama_decode is exported, but not in the table",
    ),
    "a variable in place of a function": (
        {
            "left_out": ["eliza_inference_vad_supported"],
            "prologue": "EXPORT int eliza_inference_vad_supported = 1;",
        },
        "eliza_inference_vad_supported is exported, but it is no function",
    ),
    "another ABI version": (
        {"bodies": {"eliza_inference_abi_version": 'return "7";'}},
        'eliza_inference_abi_version answers "7", the table says "8"',
    ),
    "no ABI version": (
        {"bodies": {"eliza_inference_abi_version": "return 0;"}},
        "eliza_inference_abi_version answers NULL",
    ),
    "a probe that answers 2": (
        {"bodies": {"eliza_inference_llm_mtp_supported": "return 2;"}},
        "eliza_inference_llm_mtp_supported answers 2, not 0 or 1",
    ),
    "a socket": (
        {
            "prologue": "int socket(int, int, int);",
            "bodies": {"eliza_inference_vad_reset": "return socket(2, 1, 0);"},
        },
        "imports socket",
    ),
    "another process": (
        {
            "prologue": "int fork(void);",
            "bodies": {"eliza_inference_vad_reset": "return fork();"},
        },
        "imports fork",
    ),
    "too much of it": (
        {"prologue": f"const char weights[{LARGEST}] = {{1}};"},
        f"more than {LARGEST}",
    ),
    "a crash in a function": (
        {"bodies": {"eliza_inference_vad_supported": "__builtin_trap();"}},
        "a process that loads it and asks what it supports dies",
    ),
    "a crash while it loads": (
        {"prologue": "__attribute__((constructor)) static void start(void) { __builtin_trap(); }"},
        "a process that loads it and asks what it supports dies",
    ),
    "a function that nobody defines": (
        {
            "prologue": "int llama_decode(void); int (*const decode)(void) = llama_decode;",
        },
        "does not load: ",
    ),
}


@pytest.mark.parametrize("name", LIBRARY_MISTAKES)
def test_a_mistake_in_a_library_is_named(name: str, table: Table, compile_stub: Compile) -> None:
    faults, expected = LIBRARY_MISTAKES[name]
    library = compile_stub(stub_source(table, **faults))
    assert expected in messages(check_library(library, table))


@pytest.mark.parametrize(
    ("exported", "said"),
    [
        ([], "exports none of the ABI's 54 functions"),
        (
            ["eliza_inference_create", "eliza_inference_destroy"],
            "exports only eliza_inference_create, eliza_inference_destroy "
            "of the ABI's 54 functions",
        ),
    ],
)
def test_a_library_of_something_else_is_one_problem(
    exported: list[str], said: str, table: Table, compile_stub: Compile
) -> None:
    others = [f"llama_{number}" for number in range(100)]
    left_out = table.functions.keys() - set(exported)
    report = check_library(compile_stub(stub_source(table, left_out=left_out, added=others)), table)
    assert messages(report) == said
    assert not report.judged


def test_many_exports_beside_the_table_are_counted(table: Table, compile_stub: Compile) -> None:
    source = stub_source(table, added=[f"llama_{number:03}" for number in range(100)])
    lines = messages(check_library(compile_stub(source), table)).splitlines()
    assert lines[0] == "llama_000 is exported, but not in the table"
    assert lines[20:] == ["80 more names are exported, but not in the table"]


def test_exports_that_are_no_text_are_named_like_others(
    table: Table, compile_stub: Compile
) -> None:
    library = compile_stub(stub_source(table, added=["llama_decode", "llama_encode"]))
    content = library.read_bytes()
    library.write_bytes(content.replace(b"llama_decode", b"llama_\xff\xfe\xfd\xfc\xfb\xfa"))
    said = messages(check_library(library, table))
    assert "llama_\ufffd" in said
    assert "llama_encode is exported, but not in the table" in said


def test_a_probe_that_takes_arguments_is_not_called(compile_stub: Compile) -> None:
    content = json.loads(TABLE_FILE.read_text("utf-8"))
    name = "eliza_inference_vad_supported"
    (function,) = (each for each in content["functions"] if each["name"] == name)
    function["args"] = [{"name": "ctx", "type": "EliInferenceContext *"}]
    table = Table(content)
    source = stub_source(table, bodies={name: "__builtin_trap();"})
    report = check_library(compile_stub(source), table)
    assert messages(report) == ""
    assert "10 answers" in report.judged


def test_a_wrong_soname_is_named(table: Table, compile_stub: Compile) -> None:
    library = compile_stub(stub_source(table), soname="libelizainference.so.8")
    expected = "the SONAME is libelizainference.so.8, not libelizainference.so"
    assert messages(check_library(library, table)) == expected


def test_a_library_that_prints_still_answers(table: Table, compile_stub: Compile) -> None:
    body = 'puts("{\\"answers\\": {}}"); return 2;'
    source = stub_source(
        table,
        prologue="int puts(const char *);",
        bodies={"eliza_inference_vad_supported": body},
    )
    report = check_library(compile_stub(source), table)
    assert "eliza_inference_vad_supported answers 2" in messages(report)


def test_a_library_whose_own_needs_are_missing_here_is_not_asked(
    table: Table, compile_stub: Compile, tmp_path: Path
) -> None:
    (tmp_path / "driver.c").write_text("int driver_call(void) { return 0; }\n")
    driver = tmp_path / "libdriver.so"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", str(driver), str(tmp_path / "driver.c")], check=True
    )
    source = stub_source(
        table,
        prologue="int driver_call(void);",
        bodies={"eliza_inference_vad_reset": "return driver_call();"},
    )
    library = compile_stub(source, f"-L{tmp_path}", "-Wl,--no-as-needed", "-ldriver")
    driver.unlink()
    report = check_library(library, table)
    assert messages(report) == ""
    assert "libdriver.so" in report.unjudged[0].message


def stub_library(name: str, folder: Path) -> Path:
    path = folder / name
    path.write_bytes(gzip.decompress((STUBS / f"{name}.gz").read_bytes()))
    return path


@pytest.mark.parametrize("name", ["good-arm64.dylib", "good-fat.dylib", "good-x86_64.dll"])
def test_libraries_of_other_systems_are_read_but_not_asked(
    name: str, table: Table, tmp_path: Path
) -> None:
    report = check_library(stub_library(name, tmp_path), table)
    assert messages(report) == ""
    assert "54 exports" in report.judged
    assert "what the functions answer" in report.unjudged[0].message


@pytest.mark.parametrize(
    ("name", "own_name", "calls", "of"),
    [
        ("faulty-arm64.dylib", "install name is @rpath/libinference.dylib", "socket fork", ""),
        (
            "faulty-fat.dylib",
            "install name is @rpath/libinference.dylib",
            "socket fork",
            "aarch64: ",
        ),
        ("faulty-x86_64.dll", "DLL name is inference.dll", "WSAStartup CreateProcessA", ""),
    ],
)
def test_mistakes_in_libraries_of_other_systems_are_named(
    name: str, own_name: str, calls: str, of: str, table: Table, tmp_path: Path
) -> None:
    lines = messages(check_library(stub_library(name, tmp_path), table)).splitlines()
    expected = [
        f"{of}eliza_inference_llm_stream_cancel is not exported",
        f"{of}eliza_inference_llm_stream_pause is exported, but not in the table",
        f"{of}the {own_name}, not ",
        *(f"{of}imports {call}: " for call in calls.split()),
    ]
    for beginning in expected:
        assert any(line.startswith(beginning) for line in lines), beginning
    assert all(line.startswith(of) for line in lines)


@pytest.mark.parametrize(
    ("format_", "name", "system", "other"),
    [
        ("PE", "elizainference.dll", "api-ms-win-crt-heap-l1-1-0.dll", "libstdc++-6.dll"),
        (
            "Mach-O",
            "@rpath/libelizainference.dylib",
            "/usr/lib/libc++.1.dylib",
            "/opt/libz.dylib",
        ),
    ],
)
def test_needed_libraries_that_no_system_has_are_problems(
    format_: str,
    name: str,
    system: str,
    other: str,
    table: Table,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exports = set(table.functions)
    image = Image(format_, "riscv64", True, name, exports, set(), [system, other], 1)
    monkeypatch.setattr("eliza_ctypes.abi_check.binary.read_images", lambda path: [image])
    file = tmp_path / "library"
    file.write_bytes(b"")
    assert messages(check_library(file, table)) == f"needs {other}, which is no part of the system"


@pytest.mark.parametrize("name", ["good-arm64.dylib", "good-fat.dylib", "good-x86_64.dll", "ELF"])
def test_a_truncated_library_is_a_problem_and_nothing_else(
    name: str,
    table: Table,
    tmp_path: Path,
    compile_stub: Compile,
    capfd: pytest.CaptureFixture[str],
) -> None:
    whole = compile_stub(stub_source(table)) if name == "ELF" else stub_library(name, tmp_path)
    content = whole.read_bytes()
    cut = tmp_path / "cut"
    for size in {*range(0, len(content), 97), *range(600), len(content) - 1}:
        cut.write_bytes(content[:size])
        report = check_library(cut, table)
        assert report.problems, f"{size} of {len(content)} bytes"
        assert not report.judged
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "content",
    [b"", b"\x7fELF", b"MZ" + bytes(100), b"\xca\xfe\xba\xbe\0\0\0\x34\0\0", b"hello\n"],
    ids=["empty", "ELF mark", "DOS program", "Java class", "text"],
)
def test_a_file_that_is_no_library_is_one_problem(
    content: bytes, table: Table, tmp_path: Path
) -> None:
    path = tmp_path / "libelizainference.so"
    path.write_bytes(content)
    assert len(check_library(path, table).problems) == 1


# This package's declarations


def test_the_packaged_table_is_the_one_in_docs() -> None:
    assert json.loads(TABLE_FILE.read_text("utf-8")) == abi.TABLE


def test_our_declarations_are_as_the_table_says(table: Table) -> None:
    assert messages(check_declarations(table)) == ""


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        (
            ("functions", 3, "args", 0, "type"),
            "size_t",
            "eliza_inference_free_string: argument 1 str is c_void_p, the table says `size_t`",
        ),
        (
            ("functions", 2, "returns"),
            "int",
            "eliza_inference_destroy returns nothing, the table says `int`",
        ),
        (
            ("structs", "EliVerifierEvent", "fields", 2, "offset"),
            20,
            "EliVerifierEvent.rejected_from is at offset 16, the table says 20",
        ),
        (
            ("structs", "EliVerifierEvent", "fields", 1, "type"),
            "int",
            "EliVerifierEvent.n_accepted is c_ulong, the table says `int`",
        ),
        (("structs", CONFIG, "size"), 88, f"{CONFIG} takes 80 bytes, the table says 88"),
        (
            ("callbacks", "eliza_tts_chunk_cb", "args", 2),
            "size_t",
            "eliza_tts_chunk_cb: argument 3 is c_int, the table says `size_t`",
        ),
        (("constants", "ELIZA_ERR_OOM"), -15, "ELIZA_ERR_OOM is -5, the table says -15"),
        (
            ("opaque",),
            [*abi.TABLE["opaque"], "EliEngine"],
            "the opaque type EliEngine is missing",
        ),
        (
            ("functions", 0, "since"),
            2,
            "the packaged abi-v8.json: functions: eliza_inference_abi_version: since is 1",
        ),
    ],
)
def test_a_declaration_that_is_not_as_the_table_says_is_named(
    path: tuple[Any, ...], value: Any, expected: str
) -> None:
    content = json.loads(TABLE_FILE.read_text("utf-8"))
    place = content
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    assert expected in messages(check_declarations(Table(content)))


def test_a_function_that_ctypes_was_told_wrongly_is_named(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "eliza_inference_free_tokens"
    told = abi.FUNCTIONS[name]._replace(arguments=(abi.Argument("tokens", ctypes.c_int64),))
    monkeypatch.setitem(abi.FUNCTIONS, name, told)
    expected = f"{name}: argument 1 tokens is c_long, the table says `int *`"
    assert messages(check_declarations(table)) == expected


# The command


def run(*arguments: object) -> int:
    try:
        return main(["abi-check", *map(str, arguments)])
    except SystemExit as ended:
        assert isinstance(ended.code, int)
        return ended.code


def mistaken_header(folder: Path) -> Path:
    header = folder / "mistaken.h"
    change = "#define ELIZA_ERR_OOM (-5)", "#define ELIZA_ERR_OOM (-15)"
    header.write_text(changed(HEADER.read_text("utf-8"), change), "utf-8")
    return header


def test_the_command_succeeds_where_nothing_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dll = stub_library("good-x86_64.dll", tmp_path)
    assert run(HEADER, "--compiler", "cc", dll, "--table", TABLE_FILE, "--declarations") == 0
    out = capsys.readouterr().out
    for subject in (HEADER, dll, "eliza_ctypes"):
        assert f"{subject}: ok\n" in out
    assert "assertions by cc" in out
    assert out.endswith("3 checked against ABI 8: no problems\n")


def test_the_command_fails_with_file_and_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header = mistaken_header(tmp_path)
    assert run(header, HEADER) == 1
    out = capsys.readouterr().out
    assert re.search(rf"{re.escape(str(header))}:\d+: ELIZA_ERR_OOM is -15", out)
    assert out.endswith("2 checked against ABI 8: 1 problem, in 1 of them\n")


def test_without_a_file_the_library_and_the_declarations_are_checked(
    table: Table,
    compile_stub: Compile,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    library = compile_stub(stub_source(table))
    monkeypatch.setenv("ELIZA_INFERENCE_LIBRARY", str(library))
    assert run() == 0
    assert f"{library}: ok\n" in (out := capsys.readouterr().out)
    assert "eliza_ctypes: ok\n" in out


def test_a_library_that_is_not_there_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ELIZA_INFERENCE_LIBRARY", str(tmp_path / "nowhere.so"))
    assert run() == 1
    assert "nowhere.so: no such file" in capsys.readouterr().out


def test_json_holds_all_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("nothing\n")
    header = mistaken_header(tmp_path)
    assert run("--json", header, tmp_path / "notes.txt") == 1
    said = json.loads(capsys.readouterr().out)
    assert (said["abi_version"], said["ok"]) == (8, False)
    first, second = said["subjects"]
    assert first["subject"] == str(header)
    assert first["problems"][0]["message"] == "ELIZA_ERR_OOM is -15, the table says -5"
    assert isinstance(first["problems"][0]["line"], int)
    assert "54 functions" in first["judged"]
    assert second["ok"] and not second["judged"] and second["unjudged"]


def test_judging_nothing_is_no_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("nothing\n")
    assert run(tmp_path / "notes.txt") == 1
    captured = capsys.readouterr()
    assert "notes.txt: not judged" in captured.out
    assert captured.out.endswith("1 checked against ABI 8: nothing could be judged\n")
    assert "nothing could be judged" in captured.err


def test_what_was_not_judged_is_counted_at_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("nothing\n")
    assert run(tmp_path / "notes.txt", HEADER) == 0
    out = capsys.readouterr().out
    assert out.endswith("2 checked against ABI 8: no problems; 1 not judged\n")


def unreadable(kind: str, folder: Path) -> Path:
    path = folder / f"{kind}.h"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        # A program's memory is a regular file, and begins with what not even root can read.
        path.symlink_to(path.name if kind == "loop" else "/proc/self/mem")
    return path


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["pipe", "loop", "failing"])
def test_a_file_that_cannot_be_read_is_a_problem_and_the_others_are_checked(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = unreadable(kind, tmp_path)
    assert run(path, HEADER) == 1
    out = capsys.readouterr().out
    assert f"{path}: cannot be read: " in out
    assert f"{HEADER}: ok\n" in out
    assert out.endswith("2 checked against ABI 8: 1 problem, in 1 of them\n")


def test_a_file_of_a_folder_that_cannot_be_read_is_a_problem(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = unreadable("failing", tmp_path)
    os.mkfifo(tmp_path / "pipe.ts")
    (tmp_path / "nothing.ts").symlink_to("nowhere")
    (tmp_path / "ffi.h").write_text(HEADER.read_text("utf-8"), "utf-8")
    assert run(tmp_path) == 1
    out = capsys.readouterr().out
    assert f"{path}: cannot be read: " in out
    assert f"{tmp_path / 'ffi.h'}: ok\n" in out
    assert "2 checked" in out


def test_a_file_that_the_check_fails_at_is_a_problem_and_the_others_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(path: Path, table: Table) -> Report:
        raise TypeError("not what was thought of")

    monkeypatch.setattr(files, "check_header", failing)
    dll = stub_library("good-x86_64.dll", tmp_path)
    assert run(HEADER, dll) == 1
    out = capsys.readouterr().out
    assert f"{HEADER}: cannot be checked: TypeError: not what was thought of" in out
    assert f"{dll}: ok\n" in out


def test_a_library_that_is_a_pipe_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "pipe.so")
    monkeypatch.setenv("ELIZA_INFERENCE_LIBRARY", str(tmp_path / "pipe.so"))
    assert run() == 1
    out = capsys.readouterr().out
    assert "pipe.so: cannot be read: it is no regular file" in out
    assert "eliza_ctypes: ok\n" in out


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32"])
def test_a_header_that_compilers_do_not_read_is_one_problem(
    encoding: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header = tmp_path / "wide.h"
    mark = "\ufeff" if encoding.endswith("be") else ""
    header.write_text(mark + HEADER.read_text("utf-8"), encoding)
    assert run(header, "--compiler", "cc") == 1
    out = capsys.readouterr().out
    assert f"{header}: is {encoding[:6].upper()}, which compilers of C do not read" in out
    assert "1 problem" in out


def test_a_header_with_a_mark_of_utf_8_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header = tmp_path / "marked.h"
    header.write_text(HEADER.read_text("utf-8"), "utf-8-sig")
    assert run(header, "--compiler", "cc") == 0
    assert "assertions by cc" in capsys.readouterr().out


def test_a_source_in_utf_16_is_judged_by_its_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "binding.ts"
    source.write_text(
        'import { dlopen } from "bun:ffi";\n'
        'dlopen("libelizainference.so", {\n'
        '  eliza_inference_vad_supported: { args: ["ptr"], returns: "int" },\n});\n',
        "utf-16",
    )
    assert run(source) == 1
    assert f"{source}:3: eliza_inference_vad_supported" in capsys.readouterr().out


def test_a_compiler_without_a_header_is_said_to_have_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dll = stub_library("good-x86_64.dll", tmp_path)
    assert run(dll, "--compiler", "cc") == 0
    assert "cc had no header to compile" in capsys.readouterr().err
    assert run(dll, HEADER, "--compiler", "cc") == 0
    assert capsys.readouterr().err == ""


def test_a_folder_without_any_source_is_not_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path) == 1
    assert f"{tmp_path}: not judged" in capsys.readouterr().out


def test_a_folder_is_walked_but_not_what_was_built_or_downloaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in ("include", "node_modules/other", "target", ".cache"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "ffi.h").write_text(HEADER.read_text("utf-8"), "utf-8")
    assert run(tmp_path) == 0
    out = capsys.readouterr().out
    assert f"{tmp_path / 'include' / 'ffi.h'}: ok\n" in out
    assert "1 checked" in out


def test_a_binding_in_c_is_no_header_of_the_abi(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header = tmp_path / "binding.h"
    header.write_text("struct functions { int (*eliza_inference_vad_supported)(void); };\n")
    run(header, HEADER)
    out = capsys.readouterr().out
    assert f"{header}: " in out
    assert "is missing" not in out


def test_a_header_of_other_things_is_not_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header = tmp_path / "other.h"
    header.write_text("int main(void);\n")
    assert run(header) == 1
    assert f"{header}: not judged: nothing in it" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere.h"], "nowhere.h: no such file or directory"),
        (["--table", "nowhere.json"], "--table nowhere.json: No such file or directory"),
        (["--table", str(HEADER)], "is no ABI table"),
        (["--compiler", "cc"], "--compiler goes with"),
    ],
)
def test_wrong_usage_is_told_apart_from_problems(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 2
    assert said in capsys.readouterr().err


FUNCTION = {"name": "eliza_inference_abi_version", "returns": "const char *", "args": []}
FIELD = {"name": "one", "type": "int", "offset": 0}


def with_struct(**edit: Any) -> dict[str, Any]:
    struct = {"size": 8, "align": 8, "fields": [FIELD], **edit}
    return {"structs": {**abi.TABLE["structs"], "S": struct}}


TABLE_MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"library": 7}, "library is 7, not a name that begins with lib"),
    ({"library": "elizainference"}, "library is 'elizainference', not a name that begins with"),
    ({"abi_version": "8"}, "abi_version is '8', not a version"),
    ({"abi_version": True}, "abi_version is True, not a version"),
    ({"abi_version": {"major": 8}}, "abi_version is {'major': 8}, not a version"),
    ({"pointer_bits": 32}, "pointer_bits is 32, not 64"),
    ({"constants": []}, "constants is [], not an object"),
    ({"constants": {"ELIZA_OK": 0.5}}, "constants.ELIZA_OK is 0.5, not a value of C's int"),
    ({"constants": {"ELIZA_OK": False}}, "constants.ELIZA_OK is False, not a value of C's int"),
    ({"constants": {"ELIZA_OK": 2**31}}, "constants.ELIZA_OK is 2147483648, not"),
    ({"constants": {"A) || (1": 0}}, "a key of constants is 'A) || (1', not a name in C"),
    ({"opaque": "EliVad"}, "opaque is 'EliVad', not a list"),
    ({"opaque": ["EliVad", None]}, "opaque[1] is None, not a name in C"),
    ({"callbacks": {"cb": {"returns": "int"}}}, "callbacks.cb.args is missing"),
    ({"callbacks": {"cb": {"returns": "int", "args": [1]}}}, "callbacks.cb.args[0] is 1, not"),
    ({"structs": {"S": 80}}, "structs.S is 80, not an object"),
    (with_struct(size=-1), "structs.S.size is -1, not a number of bytes"),
    (with_struct(align=0), "structs.S.align is 0, not 1, 2, 4 or 8"),
    (with_struct(size=3), "structs.S: one does not fit into the size"),
    (with_struct(fields=2 * [FIELD]), "structs.S has a field twice"),
    ({"functions": []}, "functions has none that answers the ABI version"),
    ({"functions": [FUNCTION, FUNCTION]}, "functions has a name twice"),
    ({"functions": [{**FUNCTION, "name": 5}]}, "functions[0].name is 5, not a name in C"),
    ({"functions": [{**FUNCTION, "returns": "x *"}]}, "'x *' is no C type of the ABI"),
    ({"functions": [{**FUNCTION, "returns": "int; int *"}]}, "'int; int *' is no C type"),
    (
        {"functions": [{**FUNCTION, "args": [{"name": "one", "type": "void"}]}]},
        "void is the type of an argument or a field",
    ),
    ({"functions": "x" * 1000}, "functions is 'xxxxx"),
]


@pytest.mark.parametrize(("edit", "said"), TABLE_MISTAKES, ids=[said for _, said in TABLE_MISTAKES])
def test_a_table_that_describes_no_abi_is_wrong_usage(
    edit: dict[str, Any], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "table.json"
    path.write_text(json.dumps({**abi.TABLE, **edit}), "utf-8")
    assert run("--table", path, HEADER) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"--table {path}: is no ABI table: " in line
    assert said in line
    assert len(line) < 300 + len(str(path))


@pytest.mark.parametrize("name", sorted(abi.TABLE))
def test_a_table_that_lacks_something_is_wrong_usage(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "table.json"
    content = {key: value for key, value in abi.TABLE.items() if key != name}
    path.write_text(json.dumps(content), "utf-8")
    assert run("--table", path, HEADER) == 2
    assert f"is no ABI table: {name} is missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"null", b"[" * 100_000, b'{"a":' * 100_000, b"\xff\xff", b"\xff\xfe1", b"1e999"],
    ids=["empty", "list", "null", "deep list", "deep object", "no text", "half", "infinite"],
)
def test_a_table_that_is_garbage_is_wrong_usage(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "table.json"
    path.write_bytes(content)
    assert run("--table", path, HEADER) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"--table {path}: is no ABI table: " in line


@pytest.mark.timeout(60)
def test_a_table_that_is_no_file_is_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        assert run("--table", path, HEADER) == 2
        assert f"--table {path}: it is no regular file" in capsys.readouterr().err


def test_a_table_may_be_in_utf_16(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text(TABLE_FILE.read_text("utf-8"), "utf-16")
    assert read_table(path).functions


@pytest.mark.parametrize("package", ["lief", "clang"])
def test_a_missing_package_is_told_with_the_extra_that_brings_it(
    package: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    subject = HEADER if package == "clang" else stub_library("good-x86_64.dll", tmp_path)
    assert run(subject) == 2
    assert "pip install 'eliza-ctypes[abi-check]'" in capsys.readouterr().err
