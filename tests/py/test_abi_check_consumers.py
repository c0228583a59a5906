"""The readers of bindings find each kind of mistake, by name and line, and none in correct ones.

tests/fixtures/bindings holds two correct bindings for each way to bind, in different styles. A
mistake is one snippet of such a binding, replaced.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import NamedTuple

import pytest

from eliza_ctypes.abi_check.consumers import can_read, check_consumer, rust, syntax
from eliza_ctypes.abi_check.report import Report
from eliza_ctypes.abi_check.table import Table, read_table

# Parsers, and no code of ours that a sanitizer could watch.
pytestmark = pytest.mark.unsanitized

CHECKOUT = Path(__file__).resolve().parents[2]
BINDINGS = CHECKOUT / "tests" / "fixtures" / "bindings"
SUFFIXES = [".cjs", ".cpp", ".h", ".java", ".js", ".mm", ".rs", ".swift", ".ts", ".tsx"]


@pytest.fixture(scope="module")
def table() -> Table:
    return read_table(CHECKOUT / "docs" / "abi" / "abi-v8.json")


def check(name: str, source: str | bytes, table: Table) -> Report:
    return check_consumer(Path(name), source.encode() if isinstance(source, str) else source, table)


def messages(report: Report) -> list[str]:
    return [finding.message for finding in report.problems]


def unjudged(report: Report) -> str:
    return "\n".join(finding.message for finding in report.unjudged)


# ------------------------------------------------------------------ correct bindings

CONFIG_FIELDS = "15 fields of eliza_llm_stream_config_t"
EVENT_FIELDS = "6 fields of EliVerifierEvent"
JUDGED = {
    "bun-desktop.ts": [
        "54 of 54 functions",
        "1 callback",
        "16 places in eliza_llm_stream_config_t",
    ],
    "bun-offsets.ts": [
        "23 of 54 functions",
        "15 offsets of eliza_llm_stream_config_t",
        "6 places in EliVerifierEvent",
        "6 constants",
    ],
    "deno-buffer.ts": ["54 of 54 functions", "1 callback", "6 places in eliza_llm_stream_config_t"],
    "deno-shared.ts": [
        "23 of 54 functions",
        "5 places in eliza_llm_stream_config_t",
        "the size of 1 structure",
    ],
    "koffi-prototypes.mjs": ["54 of 54 functions", CONFIG_FIELDS, EVENT_FIELDS, "2 callbacks"],
    "koffi-arrays.cjs": ["51 of 54 functions", CONFIG_FIELDS, "2 callbacks", "4 constants"],
    "jni-table.cpp": ["23 of 54 functions", CONFIG_FIELDS, EVENT_FIELDS, "2 constants"],
    "jni-casts.c": ["16 of 54 functions", "4 constants", "1 offset of eliza_llm_stream_config_t"],
    "silgen.swift": ["54 of 54 functions", CONFIG_FIELDS, EVENT_FIELDS, "6 constants"],
    "dlsym.swift": ["16 of 54 functions", "4 places in eliza_llm_stream_config_t"],
    "rust-extern.rs": ["54 of 54 functions", CONFIG_FIELDS, EVENT_FIELDS, "3 constants"],
    "rust-loading.rs": ["17 of 54 functions", "5 constants"],
    "FfmHandles.java": ["54 of 54 functions", CONFIG_FIELDS, EVENT_FIELDS, "3 constants"],
    "FfmOffsets.java": ["16 of 54 functions", "6 places in eliza_llm_stream_config_t"],
}


@pytest.mark.parametrize("name", JUDGED)
def test_a_correct_binding_is_judged_and_has_no_problems(name: str, table: Table) -> None:
    report = check(name, (BINDINGS / name).read_bytes(), table)
    assert (report.problems, report.unjudged) == ([], [])
    assert not set(JUDGED[name]) - set(report.judged)


def test_every_fixture_is_a_case() -> None:
    assert sorted(path.name for path in BINDINGS.iterdir()) == sorted(JUDGED)


@pytest.mark.parametrize(
    "path",
    [
        path
        for path in sorted((CHECKOUT / "tests" / "consumers").rglob("*"))
        if can_read(path) and not {"node_modules", "target"} & set(path.parts)
    ],
    ids=lambda path: str(path.relative_to(CHECKOUT)),
)
def test_the_consumers_of_this_repository_have_no_problems(path: Path, table: Table) -> None:
    assert check_consumer(path, path.read_bytes(), table).problems == []


# ------------------------------------------------------------------ mistakes


class Mistake(NamedTuple):
    binding: str
    right: str
    wrong: str
    says: tuple[str, ...]
    """The problems that it makes, all of them, the first on the line of the snippet's start."""


MISTAKES = [
    Mistake(
        "bun-desktop.ts",
        "eliza_inference_llm_stream_reset_keep: { args: [FFIType.ptr, FFIType.i32]",
        "eliza_inference_llm_stream_reset_keep: { args: [FFIType.i32, FFIType.ptr]",
        (
            "eliza_inference_llm_stream_reset_keep: parameter 1 (stream) is FFIType.i32, a "
            "32-bit integer; the table says EliLlmStream *, a pointer",
            "eliza_inference_llm_stream_reset_keep: parameter 2 (n_keep) is FFIType.ptr, a "
            "pointer; the table says int32_t, a 32-bit integer",
        ),
    ),
    Mistake(
        "bun-desktop.ts",
        "eliza_inference_vad_open: { args: [FFIType.ptr, FFIType.i32, FFIType.ptr], returns: "
        "FFIType.ptr }",
        "eliza_inference_vad_open: { args: [FFIType.ptr, FFIType.i32, FFIType.ptr], returns: "
        "FFIType.i32 }",
        (
            "eliza_inference_vad_open returns FFIType.i32, a 32-bit integer; the table says "
            "EliVad *, a pointer",
        ),
    ),
    Mistake(
        "bun-desktop.ts",
        "eliza_inference_llm_stream_cancel: { args: [FFIType.ptr], returns: FFIType.i32 }",
        "eliza_inference_llm_stream_cancel: { args: [FFIType.ptr], returns: FFIType.u32 }",
        (
            "eliza_inference_llm_stream_cancel returns FFIType.u32, in which negative error "
            "codes are lost; the table says int",
        ),
    ),
    Mistake(
        "bun-desktop.ts",
        "eliza_inference_vad_reset: { args: [FFIType.ptr, FFIType.ptr]",
        "eliza_inference_vad_reset: { args: [FFIType.ptr]",
        ("eliza_inference_vad_reset is bound with 1 parameter; the table has 2: vad, out_error",),
    ),
    Mistake(
        "bun-desktop.ts",
        "eliza_inference_destroy: {",
        "eliza_inference_destory: {",
        (
            "eliza_inference_destory is not exported by ABI 8; did you mean "
            "eliza_inference_destroy?",
        ),
    ),
    Mistake(
        "bun-desktop.ts",
        "eliza_inference_free_string: {",
        "eliza_inference_llm_stream_pause: {",
        ("eliza_inference_llm_stream_pause is not exported by ABI 8",),
    ),
    Mistake(
        "bun-desktop.ts",
        "view.setInt32(20, config.slotId ?? -1, true);",
        "view.setInt32(24, config.slotId ?? -1, true);",
        (
            "eliza_llm_stream_config_t.slot_id is written at offset 24, where "
            "prompt_cache_key is; the table says 20",
        ),
    ),
    Mistake(
        "bun-desktop.ts",
        "view.setFloat32(4, config.temperature, true);",
        "view.setInt32(4, config.temperature, true);",
        (
            "eliza_llm_stream_config_t.temperature at offset 4 is written by setInt32, a "
            "32-bit integer; the table says float, a 32-bit float",
        ),
    ),
    Mistake(
        "bun-desktop.ts",
        "view.setFloat32(8, config.topP, true);",
        "view.setFloat64(8, config.topP, true);",
        (
            "eliza_llm_stream_config_t.top_p at offset 8 is written by setFloat64, a 64-bit "
            "float; the table says float, a 32-bit float",
        ),
    ),
    Mistake(
        "bun-desktop.ts",
        "view.setInt32(36, config.draftMax, true);",
        "view.setInt32(36, config.draftMax);",
        ("setInt32 at offset 36 of eliza_llm_stream_config_t is big-endian",),
    ),
    Mistake(
        "bun-desktop.ts",
        "view.setInt32(36, config.draftMax, true);",
        "view.setInt32(36, config.draftMax, false);",
        ("setInt32 at offset 36 of eliza_llm_stream_config_t is big-endian",),
    ),
    Mistake(
        "bun-desktop.ts",
        "LLM_STREAM_CONFIG_SIZE = 88",
        "LLM_STREAM_CONFIG_SIZE = 72",
        ("LLM_STREAM_CONFIG_SIZE is 72 bytes; the table says 80 for eliza_llm_stream_config_t",),
    ),
    Mistake(
        "bun-desktop.ts",
        "ELIZA_ERR_CANCELLED = -7",
        "ELIZA_ERR_CANCELLED = -8",
        ("ELIZA_ERR_CANCELLED is -8; the table says -7",),
    ),
    Mistake(
        "bun-desktop.ts",
        "eliza_inference_llm_stream_reset_keep(stream, count)",
        "eliza_inference_llm_stream_reset_keep(stream)",
        (
            "eliza_inference_llm_stream_reset_keep is called with 1 argument; the table has "
            "2: stream, n_keep",
        ),
    ),
    Mistake(
        "bun-desktop.ts",
        "const verifier = new JSCallback(\n        (event: number) => report(read.i32(event, "
        "16), read.i32(event, 20)),\n        { args: [FFIType.ptr, FFIType.ptr]",
        "const verifier = new JSCallback(\n        (event: number) => report(read.i32(event, "
        "16), read.i32(event, 20)),\n        { args: [FFIType.ptr]",
        (
            "eliza_verifier_cb is bound with 1 parameter; the table has 2: const "
            "EliVerifierEvent *, void *",
        ),
    ),
    Mistake(
        "bun-offsets.ts",
        'eliza_inference_llm_stream_prefill: { args: ["ptr", "ptr", "usize", "ptr"]',
        'eliza_inference_llm_stream_prefill: { args: ["ptr", "ptr", "i32", "ptr"]',
        (
            'eliza_inference_llm_stream_prefill: parameter 3 (num_tokens) is "i32", a 32-bit '
            "integer; the table says size_t, a 64-bit integer",
        ),
    ),
    Mistake(
        "bun-offsets.ts",
        "  draft_min: 32,",
        "  draft_min: 28,",
        (
            "OFFSETS.draft_min puts eliza_llm_stream_config_t.draft_min at offset 28; the "
            "table says 32",
        ),
    ),
    Mistake(
        "bun-offsets.ts",
        "  Cancelled = -7",
        "  Cancelled = -6",
        ("ElizaStatus.Cancelled is -6; the table says -7 for ELIZA_ERR_CANCELLED",),
    ),
    Mistake(
        "bun-offsets.ts",
        "CONFIG_BYTES = 80",
        "CONFIG_BYTES = 64",
        ("CONFIG_BYTES is 64 bytes; the table says 80 for eliza_llm_stream_config_t",),
    ),
    Mistake(
        "bun-offsets.ts",
        "config.setInt32(OFFSETS.slot_id",
        "config.setFloat32(OFFSETS.slot_id",
        (
            "eliza_llm_stream_config_t.slot_id at offset 20 is written by setFloat32, a "
            "32-bit float; the table says int32_t, a 32-bit integer",
        ),
    ),
    Mistake(
        "bun-offsets.ts",
        "view.getBigUint64(8, true)",
        "view.getUint32(8, true)",
        (
            "EliVerifierEvent.n_accepted at offset 8 is read by getUint32, a 32-bit integer; "
            "the table says size_t, a 64-bit integer",
        ),
    ),
    Mistake(
        "deno-buffer.ts",
        'eliza_inference_vad_supported: { parameters: [], result: "i32" }',
        'eliza_inference_vad_supported: { parameters: [], result: "void" }',
        (
            'eliza_inference_vad_supported returns "void", nothing; the table says int, a '
            "32-bit integer",
        ),
    ),
    Mistake(
        "deno-buffer.ts",
        'eliza_inference_llm_stream_reset: { parameters: ["pointer"], result: "i32" }',
        'eliza_inference_llm_stream_reset: { parameters: ["pointer", "pointer"], result: "i32" }',
        ("eliza_inference_llm_stream_reset is bound with 2 parameters; the table has 1: stream",),
    ),
    Mistake(
        "deno-buffer.ts",
        "view.setInt32(0x3c, options.nGpuLayers, little); // n_gpu_layers",
        "view.setInt32(0x38, options.nGpuLayers, little); // n_gpu_layers",
        (
            "eliza_llm_stream_config_t.n_gpu_layers is written at offset 56, where "
            "disable_thinking is; the table says 60",
        ),
    ),
    Mistake(
        "deno-buffer.ts",
        'eliza_inference_vad_open: { parameters: ["pointer", "i32", "buffer"]',
        'eliza_inference_vad_open: { parameters: ["i32", "pointer", "buffer"]',
        (
            'eliza_inference_vad_open: parameter 1 (ctx) is "i32", a 32-bit integer; the '
            "table says EliInferenceContext *, a pointer",
            'eliza_inference_vad_open: parameter 2 (sample_rate_hz) is "pointer", a pointer; '
            "the table says int, a 32-bit integer",
        ),
    ),
    Mistake(
        "deno-buffer.ts",
        "view.setInt32(0x14, options.slotId, little)",
        "view.setInt32(0x14, options.slotId, false)",
        ("setInt32 at offset 20 of eliza_llm_stream_config_t is big-endian",),
    ),
    Mistake(
        "deno-buffer.ts",
        "eliza_inference_diariz_close: {",
        "eliza_inference_diarize_close: {",
        (
            "eliza_inference_diarize_close is not exported by ABI 8; did you mean "
            "eliza_inference_diariz_close?",
        ),
    ),
    Mistake(
        "deno-shared.ts",
        "eliza_inference_llm_stream_prefill: { parameters: [P, P, SIZE, P]",
        "eliza_inference_llm_stream_prefill: { parameters: [P, P, INT, P]",
        (
            'eliza_inference_llm_stream_prefill: parameter 3 (num_tokens) is "i32", a 32-bit '
            "integer; the table says size_t, a 64-bit integer",
        ),
    ),
    Mistake(
        "deno-shared.ts",
        "const RELEASE = { parameters: [P], result: NOTHING }",
        "const RELEASE = { parameters: [INT], result: NOTHING }",
        (
            'eliza_inference_destroy: parameter 1 (ctx) is "i32", a 32-bit integer; the '
            "table says EliInferenceContext *, a pointer",
            'eliza_inference_free_string: parameter 1 (str) is "i32", a 32-bit integer; the '
            "table says char *, a pointer",
            'eliza_inference_free_tokens: parameter 1 (tokens) is "i32", a 32-bit integer; '
            "the table says int *, a pointer",
            'eliza_inference_llm_stream_close: parameter 1 (stream) is "i32", a 32-bit '
            "integer; the table says EliLlmStream *, a pointer",
        ),
    ),
    Mistake(
        "deno-shared.ts",
        "OFF_SLOT_ID = 20",
        "OFF_SLOT_ID = 16",
        ("OFF_SLOT_ID puts eliza_llm_stream_config_t.slot_id at offset 16; the table says 20",),
    ),
    Mistake(
        "deno-shared.ts",
        "ELIZA_ERR_FFI_FAULT = -4",
        "ELIZA_ERR_FFI_FAULT = -5",
        ("ELIZA_ERR_FFI_FAULT is -5; the table says -4",),
    ),
    Mistake(
        "deno-shared.ts",
        "CONFIG_SIZE = 80",
        "CONFIG_SIZE = 40",
        ("CONFIG_SIZE is 40 bytes; the table says 80 for eliza_llm_stream_config_t",),
    ),
    Mistake(
        "koffi-prototypes.mjs",
        '"int eliza_inference_vad_process(EliVad *vad, const float *pcm, size_t n_samples',
        '"int eliza_inference_vad_process(EliVad *vad, const float *pcm, uint32_t n_samples',
        (
            "eliza_inference_vad_process: parameter 3 (n_samples) is uint32_t n_samples, a "
            "32-bit integer; the table says size_t, a 64-bit integer",
        ),
    ),
    Mistake(
        "koffi-prototypes.mjs",
        '  top_p: "float",',
        '  top_p: "double",',
        (
            'eliza_llm_stream_config_t.top_p is "double", a 64-bit float; the table says '
            "float, a 32-bit float",
            "eliza_llm_stream_config_t.top_k is at offset 16; the table says 12",
            "eliza_llm_stream_config_t.prompt_cache_key is at offset 32; the table says 24",
        ),
    ),
    Mistake(
        "koffi-prototypes.mjs",
        '"int eliza_inference_llm_stream_cancel(EliLlmStream *stream)"',
        '"unsigned int eliza_inference_llm_stream_cancel(EliLlmStream *stream)"',
        (
            "eliza_inference_llm_stream_cancel returns unsigned int, in which negative error "
            "codes are lost; the table says int",
        ),
    ),
    Mistake(
        "koffi-prototypes.mjs",
        '"void eliza_verifier_cb(const EliVerifierEvent *event, void *user_data)"',
        '"int eliza_verifier_cb(const EliVerifierEvent *event, void *user_data)"',
        ("eliza_verifier_cb returns int, a 32-bit integer; the table says void, nothing",),
    ),
    Mistake(
        "koffi-prototypes.mjs",
        '"void eliza_inference_llm_stream_close(',
        '"void eliza_inference_llm_stream_closed(',
        (
            "eliza_inference_llm_stream_closed is not exported by ABI 8; did you mean "
            "eliza_inference_llm_stream_close?",
        ),
    ),
    Mistake(
        "koffi-prototypes.mjs",
        'koffi.struct("eliza_llm_stream_config_t", {\n  max_tokens: "int32_t",\n  '
        'temperature: "float",\n  top_p: "float",\n  top_k: "int32_t",\n  repeat_penalty: '
        '"float",\n  slot_id: "int32_t",\n',
        'koffi.struct("eliza_llm_stream_config_t", {\n  max_tokens: "int32_t",\n  '
        'temperature: "float",\n  top_p: "float",\n  top_k: "int32_t",\n  repeat_penalty: '
        '"float",\n',
        ("eliza_llm_stream_config_t has padding in place of slot_id",),
    ),
    Mistake(
        "koffi-arrays.cjs",
        'lib.func("eliza_inference_vad_supported", "int", [])',
        'lib.func("eliza_inference_vad_supported", "int", ["void *"])',
        ("eliza_inference_vad_supported is bound with 1 parameter; the table has none",),
    ),
    Mistake(
        "koffi-arrays.cjs",
        "CANCELLED: -7",
        "CANCELLED: 7",
        ("Eliza.CANCELLED is 7; the table says -7 for ELIZA_ERR_CANCELLED",),
    ),
    Mistake(
        "koffi-arrays.cjs",
        '  nGpuLayers: "int32_t",',
        '  nGpuLayers: "float",',
        (
            'StreamConfig.nGpuLayers is "float", a 32-bit float; the table says int32_t, a '
            "32-bit integer",
        ),
    ),
    Mistake(
        "koffi-arrays.cjs",
        'lib.func("eliza_inference_llm_stream_cancel", "int", ["void *"])',
        'lib.func("eliza_inference_llm_stream_cancel", "int", ["float"])',
        (
            'eliza_inference_llm_stream_cancel: parameter 1 (stream) is "float", a 32-bit '
            "float; the table says EliLlmStream *, a pointer",
        ),
    ),
    Mistake(
        "koffi-arrays.cjs",
        'lib.func("eliza_inference_llm_stream_reset_keep", "int", [\n    "void *", "int32_t"',
        'lib.func("eliza_inference_llm_stream_reset_keep", "int", [\n    "int32_t", "void *"',
        (
            'eliza_inference_llm_stream_reset_keep: parameter 1 (stream) is "int32_t", a '
            "32-bit integer; the table says EliLlmStream *, a pointer",
            'eliza_inference_llm_stream_reset_keep: parameter 2 (n_keep) is "void *", a '
            "pointer; the table says int32_t, a 32-bit integer",
        ),
    ),
    Mistake(
        "koffi-arrays.cjs",
        'lib.func("eliza_inference_diariz_supported"',
        'lib.func("eliza_inference_diarise_supported"',
        (
            "eliza_inference_diarise_supported is not exported by ABI 8; did you mean "
            "eliza_inference_diariz_supported?",
        ),
    ),
    Mistake(
        "jni-table.cpp",
        "int (*llm_stream_prefill)(void *, const int32_t *, size_t, char **)",
        "int (*llm_stream_prefill)(void *, size_t, const int32_t *, char **)",
        (
            "eliza_inference_llm_stream_prefill: parameter 3 (num_tokens) is const int32_t "
            "*, a pointer; the table says size_t, a 64-bit integer (bound on line 92)",
        ),
    ),
    Mistake(
        "jni-table.cpp",
        "int (*llm_stream_reset_keep)(void *, int32_t)",
        "int (*llm_stream_reset_keep)(void *, float)",
        (
            "eliza_inference_llm_stream_reset_keep: parameter 2 (n_keep) is float, a 32-bit "
            "float; the table says int32_t, a 32-bit integer (bound on line 98)",
        ),
    ),
    Mistake(
        "jni-table.cpp",
        "int (*llm_stream_prefill)(void *, const int32_t *, size_t, char **)",
        "int (*llm_stream_prefill)(void *, const int32_t *, int, char **)",
        (
            "eliza_inference_llm_stream_prefill: parameter 3 (num_tokens) is int, a 32-bit "
            "integer; the table says size_t, a 64-bit integer (bound on line 92)",
        ),
    ),
    Mistake(
        "jni-table.cpp",
        "  int32_t slot_id;\n",
        "  int64_t slot_id;\n",
        (
            "StreamConfig.slot_id is int64_t, a 64-bit integer; the table says int32_t, a "
            "32-bit integer",
            "StreamConfig.slot_id is at offset 24; the table says 20",
            "StreamConfig.prompt_cache_key is at offset 32; the table says 24",
        ),
    ),
    Mistake(
        "jni-table.cpp",
        "sizeof(StreamConfig) == 80",
        "sizeof(StreamConfig) == 72",
        ("sizeof(StreamConfig) is 72 bytes; the table says 80 for eliza_llm_stream_config_t",),
    ),
    Mistake(
        "jni-table.cpp",
        "offsetof(StreamConfig, prompt_cache_key) == 24",
        "offsetof(StreamConfig, prompt_cache_key) == 28",
        (
            "offsetof(StreamConfig, prompt_cache_key) puts "
            "eliza_llm_stream_config_t.prompt_cache_key at offset 28; the table says 24",
        ),
    ),
    Mistake(
        "jni-table.cpp",
        "ELIZA_ERR_CANCELLED = -7",
        "ELIZA_ERR_CANCELLED = -2",
        ("ELIZA_ERR_CANCELLED is -2; the table says -7",),
    ),
    Mistake(
        "jni-table.cpp",
        '"eliza_inference_llm_stream_cancel"',
        '"eliza_inference_llm_stream_cancle"',
        (
            "eliza_inference_llm_stream_cancle is not exported by ABI 8; did you mean "
            "eliza_inference_llm_stream_cancel?",
        ),
    ),
    Mistake(
        "jni-table.cpp",
        "struct VerifierEvent {\n  const int *accepted_token_ids;\n  size_t n_accepted;\n  "
        "int rejected_from;\n  int rejected_to;\n",
        "struct VerifierEvent {\n  const int *accepted_token_ids;\n  size_t n_accepted;\n  "
        "int rejected_from;\n",
        ("VerifierEvent has padding in place of rejected_to",),
    ),
    Mistake(
        "jni-casts.c",
        "typedef int (*pfn_llm_stream_cancel)(void *)",
        "typedef uint32_t (*pfn_llm_stream_cancel)(void *)",
        (
            "eliza_inference_llm_stream_cancel returns uint32_t, in which negative error "
            "codes are lost; the table says int (bound on line 61)",
        ),
    ),
    Mistake(
        "jni-casts.c",
        "typedef void (*pfn_free_string)(char *)",
        "typedef int (*pfn_free_string)(char *)",
        (
            "eliza_inference_free_string returns int, a 32-bit integer; the table says void, "
            "nothing (bound on line 54)",
        ),
    ),
    Mistake(
        "jni-casts.c",
        "typedef int (*pfn_llm_stream_reset_keep)(void *, int32_t)",
        "typedef int (*pfn_llm_stream_reset_keep)(void *)",
        (
            "eliza_inference_llm_stream_reset_keep is bound with 1 parameter; the table has "
            "2: stream, n_keep (bound on line 63)",
        ),
    ),
    Mistake(
        "jni-casts.c",
        "#define ELIZA_ERR_CANCELLED (-7)",
        "#define ELIZA_ERR_CANCELLED (-9)",
        ("ELIZA_ERR_CANCELLED is -9; the table says -7",),
    ),
    Mistake(
        "jni-casts.c",
        "#define OFFSET_SLOT_ID 20",
        "#define OFFSET_SLOT_ID 24",
        ("OFFSET_SLOT_ID puts eliza_llm_stream_config_t.slot_id at offset 24; the table says 20",),
    ),
    Mistake(
        "jni-casts.c",
        "#define CONFIG_SIZE 80",
        "#define CONFIG_SIZE 76",
        ("CONFIG_SIZE is 76 bytes; the table says 80 for eliza_llm_stream_config_t",),
    ),
    Mistake(
        "jni-casts.c",
        "ELIZA_ERR_OOM = -5",
        "ELIZA_ERR_OOM = -6",
        ("ELIZA_ERR_OOM is -6; the table says -5",),
    ),
    Mistake(
        "silgen.swift",
        "func eliza_inference_llm_stream_reset_keep(_ stream: OpaquePointer?, _ nKeep: "
        "Int32) -> Int32",
        "func eliza_inference_llm_stream_reset_keep(_ stream: OpaquePointer?, _ nKeep: Int) "
        "-> Int32",
        (
            "eliza_inference_llm_stream_reset_keep: parameter 2 (n_keep) is _ nKeep: Int, a "
            "64-bit integer; the table says int32_t, a 32-bit integer",
        ),
    ),
    Mistake(
        "silgen.swift",
        "func eliza_inference_llm_stream_cancel(_ stream: OpaquePointer?) -> Int32",
        "func eliza_inference_llm_stream_cancel(_ stream: OpaquePointer?) -> UInt32",
        (
            "eliza_inference_llm_stream_cancel returns UInt32, in which negative error codes "
            "are lost; the table says int",
        ),
    ),
    Mistake(
        "silgen.swift",
        "func eliza_inference_vad_supported() -> Int32",
        "func eliza_inference_vad_supported()",
        (
            "eliza_inference_vad_supported returns Void, nothing; the table says int, a "
            "32-bit integer",
        ),
    ),
    Mistake(
        "silgen.swift",
        '@_silgen_name("eliza_inference_vad_close")',
        '@_silgen_name("eliza_inference_vad_shut")',
        ("eliza_inference_vad_shut is not exported by ABI 8",),
    ),
    Mistake(
        "silgen.swift",
        "  var topP: Float = 0",
        "  var topP: Double = 0",
        (
            "StreamConfig.topP is Double, a 64-bit float; the table says float, a 32-bit float",
            "StreamConfig.topK is at offset 16; the table says 12",
            "StreamConfig.promptCacheKey is at offset 32; the table says 24",
        ),
    ),
    Mistake(
        "silgen.swift",
        "MemoryLayout<StreamConfig>.size == 80",
        "MemoryLayout<StreamConfig>.size == 72",
        (
            "MemoryLayout<StreamConfig>.size is 72 bytes; the table says 80 for "
            "eliza_llm_stream_config_t",
        ),
    ),
    Mistake(
        "silgen.swift",
        "  case cancelled = -7",
        "  case cancelled = -6",
        ("ElizaError.cancelled is -6; the table says -7 for ELIZA_ERR_CANCELLED",),
    ),
    Mistake(
        "silgen.swift",
        "  var rejectedTo: Int32",
        "  var rejectedTo: Int",
        (
            "VerifierEvent.rejectedTo is Int, a 64-bit integer; the table says int, a 32-bit "
            "integer",
            "VerifierEvent.rejectedTo is at offset 24; the table says 20",
            "VerifierEvent.correctedTokenIds is at offset 32; the table says 24",
        ),
    ),
    Mistake(
        "dlsym.swift",
        "typealias LlmStreamCancel = @convention(c) (OpaquePointer?)",
        "typealias LlmStreamCancel = @convention(c) (OpaquePointer?, Int32)",
        (
            "eliza_inference_llm_stream_cancel is bound with 2 parameters; the table has 1: "
            "stream (bound on line 54)",
        ),
    ),
    Mistake(
        "dlsym.swift",
        'dlsym(handle, "eliza_inference_llm_stream_close")',
        'dlsym(handle, "eliza_inference_llm_stream_colse")',
        (
            "eliza_inference_llm_stream_colse is not exported by ABI 8; did you mean "
            "eliza_inference_llm_stream_close?",
        ),
    ),
    Mistake(
        "dlsym.swift",
        "config.storeBytes(of: topP, toByteOffset: 8, as: Float.self)",
        "config.storeBytes(of: topP, toByteOffset: 12, as: Float.self)",
        (
            "eliza_llm_stream_config_t.top_p is written at offset 12, where top_k is; the "
            "table says 8",
        ),
    ),
    Mistake(
        "dlsym.swift",
        "config.storeBytes(of: slotId, toByteOffset: 20, as: Int32.self)",
        "config.storeBytes(of: slotId, toByteOffset: 20, as: Int64.self)",
        (
            "eliza_llm_stream_config_t.slot_id at offset 20 is written by storeBytes, a "
            "64-bit integer; the table says int32_t, a 32-bit integer",
        ),
    ),
    Mistake(
        "dlsym.swift",
        "configSize = 88",
        "configSize = 64",
        ("configSize is 64 bytes; the table says 80 for eliza_llm_stream_config_t",),
    ),
    Mistake(
        "dlsym.swift",
        "typealias LlmStreamResetKeep = @convention(c) (OpaquePointer?, Int32)",
        "typealias LlmStreamResetKeep = @convention(c) (Int32, OpaquePointer?)",
        (
            "eliza_inference_llm_stream_reset_keep: parameter 1 (stream) is Int32, a 32-bit "
            "integer; the table says EliLlmStream *, a pointer (bound on line 56)",
            "eliza_inference_llm_stream_reset_keep: parameter 2 (n_keep) is OpaquePointer?, "
            "a pointer; the table says int32_t, a 32-bit integer (bound on line 56)",
        ),
    ),
    Mistake(
        "dlsym.swift",
        "typealias FreeString = @convention(c) (UnsafeMutablePointer<CChar>?) -> Void",
        "typealias FreeString = @convention(c) (UnsafeMutablePointer<CChar>?) -> Int32",
        (
            "eliza_inference_free_string returns Int32, a 32-bit integer; the table says "
            "void, nothing (bound on line 47)",
        ),
    ),
    Mistake(
        "rust-extern.rs",
        "pub fn eliza_inference_llm_stream_reset_keep(stream: *mut EliLlmStream, n_keep: i32)",
        "pub fn eliza_inference_llm_stream_reset_keep(n_keep: i32, stream: *mut EliLlmStream)",
        (
            "eliza_inference_llm_stream_reset_keep: parameter 1 (stream) is i32, a 32-bit "
            "integer; the table says EliLlmStream *, a pointer",
            "eliza_inference_llm_stream_reset_keep: parameter 2 (n_keep) is *mut "
            "EliLlmStream, a pointer; the table says int32_t, a 32-bit integer",
        ),
    ),
    Mistake(
        "rust-extern.rs",
        "pub fn eliza_inference_llm_stream_cancel(stream: *mut EliLlmStream) -> c_int;",
        "pub fn eliza_inference_llm_stream_cancel(stream: *mut EliLlmStream) -> u32;",
        (
            "eliza_inference_llm_stream_cancel returns u32, in which negative error codes "
            "are lost; the table says int",
        ),
    ),
    Mistake(
        "rust-extern.rs",
        "pub fn eliza_inference_vad_close(vad: *mut EliVad);",
        "pub fn eliza_inference_vad_close(vad: *mut EliVad, force: bool);",
        ("eliza_inference_vad_close is bound with 2 parameters; the table has 1: vad",),
    ),
    Mistake(
        "rust-extern.rs",
        "pub fn eliza_inference_vad_supported(",
        "pub fn eliza_inference_vad_suported(",
        (
            "eliza_inference_vad_suported is not exported by ABI 8; did you mean "
            "eliza_inference_vad_supported?",
        ),
    ),
    Mistake(
        "rust-extern.rs",
        "pub top_p: f32,",
        "pub top_p: f64,",
        (
            "LlmStreamConfig.top_p is f64, a 64-bit float; the table says float, a 32-bit float",
            "LlmStreamConfig.top_k is at offset 16; the table says 12",
            "LlmStreamConfig.prompt_cache_key is at offset 32; the table says 24",
        ),
    ),
    Mistake(
        "rust-extern.rs",
        "pub n_accepted: usize,",
        "pub n_accepted: c_int,",
        (
            "EliVerifierEvent.n_accepted is c_int, a 32-bit integer; the table says size_t, "
            "a 64-bit integer",
            "EliVerifierEvent.rejected_from is at offset 12; the table says 16",
        ),
    ),
    Mistake(
        "rust-extern.rs",
        "size_of::<LlmStreamConfig>() == 80",
        "size_of::<LlmStreamConfig>() == 72",
        (
            "size_of::<LlmStreamConfig>() is 72 bytes; the table says 80 for "
            "eliza_llm_stream_config_t",
        ),
    ),
    Mistake(
        "rust-extern.rs",
        "offset_of!(LlmStreamConfig, prompt_cache_key) == 24",
        "offset_of!(LlmStreamConfig, prompt_cache_key) == 32",
        (
            "offset_of!(LlmStreamConfig, prompt_cache_key) puts "
            "eliza_llm_stream_config_t.prompt_cache_key at offset 32; the table says 24",
        ),
    ),
    Mistake(
        "rust-extern.rs",
        "ELIZA_ERR_INVALID_ARG: c_int = -2",
        "ELIZA_ERR_INVALID_ARG: c_int = -3",
        ("ELIZA_ERR_INVALID_ARG is -3; the table says -2",),
    ),
    Mistake(
        "rust-extern.rs",
        "#[repr(C)]\n#[derive(Clone, Copy, Debug)]\npub struct LlmStreamConfig {",
        "pub struct LlmStreamConfig {",
        ("LlmStreamConfig has no #[repr(C)]: its fields may be in another order",),
    ),
    Mistake(
        "rust-extern.rs",
        "pub fn eliza_inference_vad_close(vad: *mut EliVad);",
        "pub fn eliza_inference_vad_close(vad: f64);",
        (
            "eliza_inference_vad_close: parameter 1 (vad) is f64, a 64-bit float; the table "
            "says EliVad *, a pointer",
        ),
    ),
    Mistake(
        "rust-loading.rs",
        'type LlmStreamPrefillFn = unsafe extern "C" fn(*mut c_void, *const i32, usize,',
        'type LlmStreamPrefillFn = unsafe extern "C" fn(*mut c_void, *const i32, c_int,',
        (
            "eliza_inference_llm_stream_prefill: parameter 3 (num_tokens) is c_int, a 32-bit "
            "integer; the table says size_t, a 64-bit integer (bound on line 70)",
        ),
    ),
    Mistake(
        "rust-loading.rs",
        'Symbol<unsafe extern "C" fn() -> c_int>',
        'Symbol<unsafe extern "C" fn() -> f32>',
        (
            "eliza_inference_llm_stream_supported returns f32, a 32-bit float; the table "
            "says int, a 32-bit integer (bound on line 59)",
        ),
    ),
    Mistake(
        "rust-loading.rs",
        "    Cancelled = -7",
        "    Cancelled = -8",
        ("ElizaStatus.Cancelled is -8; the table says -7 for ELIZA_ERR_CANCELLED",),
    ),
    Mistake(
        "rust-loading.rs",
        'b"eliza_inference_llm_stream_next\\0"',
        'b"eliza_inference_llm_stream_nxt\\0"',
        (
            "eliza_inference_llm_stream_nxt is not exported by ABI 8; did you mean "
            "eliza_inference_llm_stream_next?",
        ),
    ),
    Mistake(
        "FfmHandles.java",
        'bind("eliza_inference_llm_stream_prefill", FunctionDescriptor.of(JAVA_INT, ADDRESS, '
        "ADDRESS, JAVA_LONG",
        'bind("eliza_inference_llm_stream_prefill", FunctionDescriptor.of(JAVA_INT, ADDRESS, '
        "ADDRESS, JAVA_INT",
        (
            "eliza_inference_llm_stream_prefill: parameter 3 (num_tokens) is JAVA_INT, a "
            "32-bit integer; the table says size_t, a 64-bit integer",
        ),
    ),
    Mistake(
        "FfmHandles.java",
        'bind("eliza_inference_wakeword_open", FunctionDescriptor.of(ADDRESS, ADDRESS, '
        "JAVA_INT, ADDRESS",
        'bind("eliza_inference_wakeword_open", FunctionDescriptor.of(ADDRESS, JAVA_INT, '
        "ADDRESS, ADDRESS",
        (
            "eliza_inference_wakeword_open: parameter 1 (ctx) is JAVA_INT, a 32-bit integer; "
            "the table says EliInferenceContext *, a pointer",
            "eliza_inference_wakeword_open: parameter 2 (sample_rate_hz) is ADDRESS, a "
            "pointer; the table says int, a 32-bit integer",
        ),
    ),
    Mistake(
        "FfmHandles.java",
        'bind("eliza_inference_vad_close", FunctionDescriptor.ofVoid(ADDRESS))',
        'bind("eliza_inference_vad_close", FunctionDescriptor.of(JAVA_INT, ADDRESS))',
        (
            "eliza_inference_vad_close returns JAVA_INT, a 32-bit integer; the table says "
            "void, nothing",
        ),
    ),
    Mistake(
        "FfmHandles.java",
        'bind("eliza_inference_vad_close", FunctionDescriptor.ofVoid(ADDRESS))',
        'bind("eliza_inference_vad_close", FunctionDescriptor.ofVoid())',
        ("eliza_inference_vad_close is bound with no parameters; the table has 1: vad",),
    ),
    Mistake(
        "FfmHandles.java",
        'bind("eliza_inference_vad_close"',
        'bind("eliza_inference_vad_cloze"',
        (
            "eliza_inference_vad_cloze is not exported by ABI 8; did you mean "
            "eliza_inference_vad_close?",
        ),
    ),
    Mistake(
        "FfmHandles.java",
        'JAVA_FLOAT.withName("top_p")',
        'JAVA_DOUBLE.withName("top_p")',
        (
            'FfmHandles.STREAM_CONFIG.top_p is JAVA_DOUBLE.withName("top_p"), a 64-bit '
            "float; the table says float, a 32-bit float",
            "FfmHandles.STREAM_CONFIG.top_k is at offset 16; the table says 12",
        ),
    ),
    Mistake(
        "FfmHandles.java",
        'JAVA_INT.withName("rejected_to")',
        'JAVA_LONG.withName("rejected_to")',
        (
            'FfmHandles.VERIFIER_EVENT.rejected_to is JAVA_LONG.withName("rejected_to"), a '
            "64-bit integer; the table says int, a 32-bit integer",
            "FfmHandles.VERIFIER_EVENT.corrected_token_ids is at offset 28; the table says 24",
        ),
    ),
    Mistake(
        "FfmHandles.java",
        "ELIZA_ERR_CANCELLED = -7",
        "ELIZA_ERR_CANCELLED = -1",
        ("ELIZA_ERR_CANCELLED is -1; the table says -7",),
    ),
    Mistake(
        "FfmOffsets.java",
        "SLOT_ID_OFFSET = 20",
        "SLOT_ID_OFFSET = 24",
        ("SLOT_ID_OFFSET puts eliza_llm_stream_config_t.slot_id at offset 24; the table says 20",),
    ),
    Mistake(
        "FfmOffsets.java",
        "CONFIG_SIZE = 88",
        "CONFIG_SIZE = 60",
        ("CONFIG_SIZE is 60 bytes; the table says 80 for eliza_llm_stream_config_t",),
    ),
    Mistake(
        "FfmOffsets.java",
        "config.set(ValueLayout.JAVA_FLOAT, 4, 0.7f); // temperature",
        "config.set(ValueLayout.JAVA_INT, 4, 1); // temperature",
        (
            "eliza_llm_stream_config_t.temperature at offset 4 is written by set, a 32-bit "
            "integer; the table says float, a 32-bit float",
        ),
    ),
    Mistake(
        "FfmOffsets.java",
        "config.set(ValueLayout.JAVA_FLOAT, 8, 0.9f); // top_p",
        "config.set(ValueLayout.JAVA_FLOAT, 12, 0.9f); // top_p",
        (
            "eliza_llm_stream_config_t.top_p is written at offset 12, where top_k is; the "
            "table says 8",
        ),
    ),
    Mistake(
        "FfmOffsets.java",
        "event.get(ValueLayout.JAVA_INT, 20)",
        "event.get(ValueLayout.JAVA_INT, 24)",
        (
            "EliVerifierEvent.rejected_to is read at offset 24, where corrected_token_ids "
            "is; the table says 20",
        ),
    ),
    Mistake(
        "FfmOffsets.java",
        "event.get(ValueLayout.JAVA_LONG, 8)",
        "event.get(ValueLayout.JAVA_INT, 8)",
        (
            "EliVerifierEvent.n_accepted at offset 8 is read by get, a 32-bit integer; the "
            "table says size_t, a 64-bit integer",
        ),
    ),
    Mistake(
        "FfmHandles.java",
        "        LLM_STREAM_OPEN.invokeExact(context, config, MemorySegment.NULL)",
        "        LLM_STREAM_OPEN.invokeExact(context, config)",
        (
            "eliza_inference_llm_stream_open is called with 2 arguments; the table has 3: ctx, "
            "cfg, out_error",
        ),
    ),
    Mistake(
        "FfmOffsets.java",
        "llmStreamOpen.invokeExact(context, config, MemorySegment.NULL)",
        "this.llmStreamOpen.invoke(context, config, MemorySegment.NULL, 0)",
        (
            "eliza_inference_llm_stream_open is called with 4 arguments; the table has 3: ctx, "
            "cfg, out_error",
        ),
    ),
    Mistake(
        "koffi-prototypes.mjs",
        '"void eliza_verifier_cb(const EliVerifierEvent *event,',
        '"void eliza_verifier_cb(EliVerifierEvent event,',
        (
            "eliza_verifier_cb: parameter 1 is EliVerifierEvent event, a structure by value; the "
            "table says const EliVerifierEvent *, a pointer",
        ),
    ),
    Mistake(
        "FfmOffsets.java",
        "ValueLayout.JAVA_INT, SLOT_ID_OFFSET",
        "ValueLayout.JAVA_LONG, SLOT_ID_OFFSET",
        (
            "eliza_llm_stream_config_t.slot_id at offset 20 is written by set, a 64-bit "
            "integer; the table says int32_t, a 32-bit integer",
        ),
    ),
]


@pytest.mark.parametrize(
    "mistake", MISTAKES, ids=lambda mistake: f"{mistake.binding}: {mistake.wrong.strip()[:60]}"
)
def test_a_mistake_is_found_by_name_and_line(mistake: Mistake, table: Table) -> None:
    source = (BINDINGS / mistake.binding).read_text("utf-8")
    assert source.count(mistake.right) == 1
    line = source[: source.index(mistake.right)].count("\n") + 1
    report = check(mistake.binding, source.replace(mistake.right, mistake.wrong), table)
    assert messages(report) == list(mistake.says)
    assert report.problems[0].line == line


# ------------------------------------------------------------------ other names

RENAMED = [
    ("rust-extern.rs", {"LlmStreamConfig": "Config"}, "Config", "pub top_p: f32", "pub top_p: f64"),
    (
        "rust-extern.rs",
        {"EliVerifierEvent": "Raw"},
        "Raw",
        "pub n_accepted: usize",
        "pub n_accepted: i32",
    ),
    ("silgen.swift", {"StreamConfig": "Params"}, "Params", "var topP: Float", "var topP: Double"),
    ("silgen.swift", {"VerifierEvent": "Raw"}, "Raw", "var nAccepted: Int", "var nAccepted: Int32"),
    ("jni-table.cpp", {"StreamConfig": "Params"}, "Params", "float top_p;", "double top_p;"),
    ("jni-table.cpp", {"VerifierEvent": "Raw"}, "Raw", "size_t n_accepted", "int n_accepted"),
    ("koffi-arrays.cjs", {"StreamConfig": "Params"}, "Params", 'topP: "float"', 'topP: "double"'),
    (
        "koffi-prototypes.mjs",
        {"eliza_llm_stream_config_t": "GenerationConfig"},
        "GenerationConfig",
        'top_p: "float"',
        'top_p: "double"',
    ),
]


@pytest.mark.parametrize("binding, names, own, right, wrong", RENAMED)
def test_a_structure_of_any_name_is_judged(
    binding: str, names: dict[str, str], own: str, right: str, wrong: str, table: Table
) -> None:
    source = (BINDINGS / binding).read_text("utf-8")
    for name, other in names.items():
        source = source.replace(name, other)
    assert check(binding, source, table).problems == []
    assert source.count(right) == 1
    found = messages(check(binding, source.replace(right, wrong), table))
    assert found and all(each.startswith(f"{own}.") for each in found)


# Each has one mistake in it, of which the line and the message follow.
SMALL_MISTAKES = [
    (
        "few-fields.rs",
        """
        #[repr(C)] pub struct Config { max_tokens: i32, temperature: f64 }
        extern "C" {
          fn eliza_inference_llm_stream_open(c: *mut X, p: ConfigPtr, e: *mut E) -> *mut S; }
        type ConfigPtr = *const Config;
        """,
        2,
        "Config.temperature is f64, a 64-bit float; the table says float, a 32-bit float",
    ),
    (
        "passed.rs",
        """
        struct Config { max_tokens: i32, temperature: f32 }
        extern "C" {
          fn eliza_inference_llm_stream_open(c: *mut X, p: *const Config, e: *mut E) -> *mut S; }
        """,
        2,
        "Config has no #[repr(C)]: its fields may be in another order",
    ),
    (
        "event.rs",
        """
        #[repr(C)] struct Seen { accepted_token_ids: *const i32, n_accepted: u32 }
        type OnVerify = extern "C" fn(*const Seen, *mut c_void);
        extern "C" {
            fn eliza_inference_set_verifier_callback(
                c: *mut X, f: Option<OnVerify>, u: *mut c_void, e: *mut *mut c_char) -> c_int;
        }
        """,
        2,
        "Seen.n_accepted is u32, a 32-bit integer; the table says size_t, a 64-bit integer",
    ),
    (
        "ref-struct.js",
        """
        const Config = StructType({ max_tokens: "int32", temperature: "float",
          top_p: "double" });
        ffi.Library("elizainference", { eliza_inference_llm_stream_open:
          ["pointer", ["pointer", ref.refType(Config), "pointer"]] });
        """,
        3,
        'Config.top_p is "double", a 64-bit float; the table says float, a 32-bit float',
    ),
    (
        "pairs.js",
        """
        const Event = new Struct([["accepted_token_ids", "int *"], ["n_accepted", "int32"],
          ["rejected_from", "int"], ["rejected_to", "int"], ["corrected_token_ids", "int *"],
          ["n_corrected", "size_t"]]); // the verifier's
        """,
        2,
        'Event.n_accepted is "int32", a 32-bit integer; the table says size_t, a 64-bit integer',
    ),
    (
        "event-by-value.mjs",
        """
        const Seen = koffi.struct("Seen", { accepted_token_ids: "int *", n_accepted: "size_t",
          rejected_from: "int", rejected_to: "int", corrected_token_ids: "int *", n: "size_t" });
        const OnVerify = koffi.proto("void OnVerify(Seen seen, void *user_data)");
        lib.func(
          "int eliza_inference_set_verifier_callback(void *c, OnVerify *f, void *u, void *e)");
        """,
        4,
        "eliza_verifier_cb: parameter 1 is Seen seen, a structure by value; "
        "the table says const EliVerifierEvent *, a pointer",
    ),
    (
        "event-by-value-in-a-list.mjs",
        """
        const Seen = koffi.struct("Seen", { accepted_token_ids: "int *", n_accepted: "size_t" });
        const OnVerify = koffi.proto("OnVerify", "void", [Seen, "void *"]);
        lib.func("eliza_inference_set_verifier_callback", "int",
          ["void *", koffi.pointer(OnVerify), "void *", "void *"]);
        """,
        3,
        "eliza_verifier_cb: parameter 1 is Seen, a structure by value; "
        "the table says const EliVerifierEvent *, a pointer",
    ),
    (
        "registered.mjs",
        """
        const Cb = koffi.proto("Cb", "int", ["void *", "void *"]);
        const set = lib.func(
          "int eliza_inference_set_verifier_callback(void *c, void *f, void *u, void *e)");
        const held = koffi.register(f, koffi.pointer(Cb));
        set(context, held, null, null);
        """,
        2,
        'eliza_verifier_cb returns "int", a 32-bit integer; the table says void, nothing',
    ),
    (
        "async.mjs",
        """
        const close = lib.func("void eliza_inference_llm_stream_close(void *s)");
        close.async(stream, true, (error) => {});
        """,
        3,
        "eliza_inference_llm_stream_close is called with 2 arguments; the table has 1: stream",
    ),
    (
        "async-member.mjs",
        """
        const api = { close: lib.func("eliza_inference_llm_stream_close", "void", ["void *"]) };
        api.close.async((error) => {});
        """,
        3,
        "eliza_inference_llm_stream_close is called with no arguments; the table has 1: stream",
    ),
    (
        "its-own-name.mjs",
        """
        const eliza_inference_create = lib.func("void *eliza_inference_create(str d, void *e)");
        eliza_inference_create("bundle");
        """,
        3,
        "eliza_inference_create is called with 1 argument; the table has 2: bundle_dir, out_error",
    ),
    (
        "Local.java",
        """
        class A { void f() throws Throwable {
          MemorySegment symbol = lookup.find("eliza_inference_llm_stream_cancel").orElseThrow();
          MethodHandle h = linker.downcallHandle(symbol, FunctionDescriptor.of(JAVA_INT, ADDRESS));
          int status = (int) h.invoke();
        } void g(MethodHandle h) throws Throwable { h.invoke(1, 2, 3); } }
        """,
        5,
        "eliza_inference_llm_stream_cancel is called with no arguments; the table has 1: stream",
    ),
    (
        "by-value.c",
        """
        extern EliLlmStream *eliza_inference_llm_stream_open(
            EliInferenceContext *ctx, eliza_llm_stream_config_t cfg, char **error);
        """,
        3,
        "eliza_inference_llm_stream_open: parameter 2 (cfg) is eliza_llm_stream_config_t cfg, "
        "a structure by value; the table says const eliza_llm_stream_config_t *, a pointer",
    ),
    (
        "required.c",
        """
        static const struct name names[] = {
          {"eliza_inference_create", &api.create}, {"eliza_inference_llm_pause", &api.pause} };
        """,
        3,
        "eliza_inference_llm_pause is not exported by ABI 8",
    ),
    (
        "required.rs",
        """
        fn load(lib: &Library) -> Result<Api, Error> {
          let supported = unsafe { lib.get::<F>(b"eliza_inference_llm_stream_supported\\0") }?;
          let pause = unsafe { lib.get::<F>(b"eliza_inference_llm_pause\\0") }?;
        }
        type F = unsafe extern "C" fn() -> c_int;
        """,
        4,
        "eliza_inference_llm_pause is not exported by ABI 8",
    ),
]


@pytest.mark.parametrize(
    "name, source, line, says", SMALL_MISTAKES, ids=[each[0] for each in SMALL_MISTAKES]
)
def test_a_mistake_in_a_few_lines_is_found(
    name: str, source: str, line: int, says: str, table: Table
) -> None:
    assert (line, says) in [(f.line, f.message) for f in check(name, source, table).problems]


CONSTANTS = {
    "enum.ts": "enum Status { Ok = 0, InvalidArg = -2, FfiFault = -4, Cancelled = -8 }",
    "object.ts": "const S = { ERR_INVALID_ARG: -2, ERR_OOM: -5, ERR_CANCELLED: -8 } as const;",
    "top.ts": "const ERR_INVALID_ARG = -2; const ERR_OOM = -5; const ERR_CANCELLED = -8;",
    "module.rs": "mod rc { const OOM: T = -5; const CANCELLED: T = -8; const FFI_FAULT: T = -4; }",
    "top.rs": """
        const ERR_OOM: i32 = -5; const ERR_CANCELLED: i32 = -8; const ERR_FFI_FAULT: i32 = -4;
        const A: i32 = 1; const B: i32 = 1; const C: i32 = 1; const D: i32 = 1;
        """,
    "Status.java": "class S { static final int OOM = -5, FFI_FAULT = -4, CANCELLED = -8; }",
    "enum.swift": "enum Status: Int32 { case ok = 0, invalidArg = -2, oom = -5, cancelled = -8 }",
    "top.swift": "let errFfiFault: Int32 = -4\nlet errOom: Int32 = -5\nlet errCancelled = -8",
    "define.c": "#define ERR_OOM (-5)\n#define ERR_FFI_FAULT -4\n#define ERR_CANCELLED (-8)\n",
    "namespace.cpp": "namespace rc { constexpr int kOom = -5, kFfiFault = -4, kCancelled = -8; }",
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_constants_are_judged_where_most_beside_them_are_the_abis(name: str, table: Table) -> None:
    source = f"// llm_stream\n{CONSTANTS[name]}\n"
    (found,) = messages(check(name, source, table))
    assert found.endswith("is -8; the table says -7 for ELIZA_ERR_CANCELLED")
    assert check(name, source.replace("-8", "-7"), table).problems == []


# ------------------------------------------------------------------ what cannot be judged


class Unclear(NamedTuple):
    name: str
    source: str
    says: str


UNCLEAR = [
    Unclear(
        "spread.ts",
        'const s = { eliza_inference_create: { args: [...more], returns: "ptr" } };',
        "eliza_inference_create: its parameters are not written out",
    ),
    Unclear(
        "computed.ts",
        'dlopen(p, { [prefix + "create"]: { args: ["ptr"], returns: "ptr" } }); // eliza',
        "of a bound function",
    ),
    Unclear(
        "offsets.ts",
        "function packLlmStreamConfig(at: number) {\n"
        "  const config = new DataView(new ArrayBuffer(80));\n"
        "  config.setInt32(at, 1, true);\n}\n",
        "the offset in eliza_llm_stream_config_t is not a constant",
    ),
    Unclear(
        "built.cjs",
        "const f = lib.func(`int eliza_inference_${name}(void *ctx)`);",
        "a prototype that is put together at run time",
    ),
    Unclear(
        "paste.c",
        '#define FIND(name) table.name = dlsym(lib, "eliza_inference_" #name)\n',
        "FIND pastes names of functions together",
    ),
    Unclear(
        "untyped.cpp",
        'void* create = dlsym(lib, "eliza_inference_create");',
        "eliza_inference_create: the type that it is bound to is not clear",
    ),
    Unclear(
        "untyped.swift",
        'let create = dlsym(handle, "eliza_inference_create")',
        "eliza_inference_create: the type that it is bound to is not clear",
    ),
    Unclear(
        "long.rs",
        'extern "C" { fn eliza_inference_llm_stream_reset_keep(s: *mut S, n: c_long) -> c_int; }',
        "a long has 32 bits on Windows and 64 elsewhere",
    ),
    Unclear(
        "elsewhere.rs",
        'extern "C" { fn eliza_inference_llm_stream_cancel(s: Handle) -> c_int; }',
        "the type Handle is not known here",
    ),
    Unclear(
        "Computed.java",
        'class B { Object h = find("eliza_inference_destroy", descriptorFor(1)); }',
        "eliza_inference_destroy: its FunctionDescriptor is not clear",
    ),
    Unclear(
        "bytes.rs",
        "#[repr(C)] struct Config { bytes: [u8; 80] }\n"
        'extern "C" {\n'
        "fn eliza_inference_llm_stream_open(c: *mut X, p: *const Config, e: *mut E) -> *mut S; }",
        "the structure Config is not judged",
    ),
    Unclear(
        "elsewhere.cpp",
        "struct Seen { IntPointer accepted_token_ids; size_t n_accepted; int rejected_from;\n"
        "  int rejected_to; }; // of the verifier",
        "the structure Seen is not judged: the size of IntPointer is not known here",
    ),
    Unclear(
        "proto.mjs",
        'const F = koffi.proto("int F(void *a)"); // eliza',
        "which callback F is",
    ),
    Unclear(
        "promised.mjs",
        'const close = lib.func("void eliza_inference_llm_stream_close(void *stream)");\n'
        "const closed = promisify(close.async);",
        "how many arguments eliza_inference_llm_stream_close.async is called with",
    ),
    Unclear(
        "Curried.java",
        'class A { static final MethodHandle H = bind("eliza_inference_llm_stream_cancel",\n'
        "FunctionDescriptor.of(JAVA_INT, ADDRESS)).bindTo(S);\nvoid f() { H.invoke(); }}",
        "which functions are called through handles, 1 time",
    ),
    Unclear(
        "Listed.java",
        'class A { static final MethodHandle H = bind("eliza_inference_llm_stream_cancel",\n'
        "FunctionDescriptor.of(JAVA_INT, ADDRESS)); void f() { H.invokeWithArguments(list); }}",
        "which functions are called through handles, 1 time",
    ),
    Unclear(
        "constants.ts",
        "const S = { OK: 0, INVALID_ARG: -2, CANCELLED: -8 }; // eliza",
        "CANCELLED is -8; whether ELIZA_ERR_CANCELLED is meant, -7, is not clear",
    ),
    Unclear(
        "Jni.java",
        "class Eliza { static native long open(long ctx); static native void close(long s); }",
        "2 native methods: what calls the library is their half in C or C++",
    ),
]


@pytest.mark.parametrize("unclear", UNCLEAR, ids=lambda unclear: unclear.name)
def test_what_cannot_be_resolved_is_said_and_is_no_problem(unclear: Unclear, table: Table) -> None:
    report = check(unclear.name, unclear.source, table)
    assert report.problems == []
    assert unclear.says in unjudged(report)


def test_names_of_a_later_abi_in_a_table_of_their_own_are_not_judged(table: Table) -> None:
    source = (
        'const now = { eliza_inference_destroy: { args: ["ptr"], returns: "void" } };\n'
        'const later = { eliza_inference_embed_text: { args: ["ptr"], returns: "i32" } };\n'
    )
    report = check("later.ts", source, table)
    assert report.problems == []
    assert "eliza_inference_embed_text is not exported by ABI 8" in unjudged(report)


@pytest.mark.parametrize(
    "name, source",
    [
        ("dlsym.c", 'void *more = dlsym(h, "NAME"), *create = dlsym(h, "eliza_inference_create");'),
        ("find.java", 'class A { Object more = lookup.find("NAME"); }'),
        ("get.rs", 'fn f() { let more = lib.get::<unsafe extern "C" fn() -> i32>(b"NAME").ok(); }'),
        ("dlsym.swift", 'let more = dlsym(h, "NAME")\nlet it = dlsym(h, "eliza_inference_create")'),
        (
            "try.mjs",
            'lib.func("int eliza_inference_llm_stream_supported(void)");\n'
            'try { more = lib.func("int NAME(void *stream)"); } catch {}',
        ),
    ],
)
@pytest.mark.parametrize(
    "absent",
    ["eliza_inference_llm_context_length", "eliza_inference_llm_stream_open_v9"],
)
def test_a_lookup_that_may_find_nothing_is_not_judged(
    name: str, source: str, absent: str, table: Table
) -> None:
    report = check(name, source.replace("NAME", absent), table)
    assert report.problems == []
    assert f"{absent} is not exported by ABI 8" in unjudged(report)
    misspelt = check(name, source.replace("NAME", "eliza_inference_llm_stream_opn"), table)
    assert "did you mean eliza_inference_llm_stream_open?" in messages(misspelt)[0]


def test_a_name_that_extends_a_known_one_is_no_misspelling(table: Table) -> None:
    entry = '{ args: ["ptr", "ptr", "ptr"], returns: "ptr" }'
    source = (
        f"const now = {{ eliza_inference_llm_stream_open: {entry} }};\n"
        f"const later = {{ eliza_inference_llm_stream_open_v9: {entry} }};\n"
    )
    report = check("later.ts", source, table)
    assert report.problems == []
    assert "eliza_inference_llm_stream_open_v9 is not exported by ABI 8" in unjudged(report)


# ------------------------------------------------------------------ what only looks like the ABI

LOOKALIKES = {
    "other-structs.ts": """
        // The llm_stream config and verifier of an eliza agent, beside structures of its own.
        function wavHeader(rate: number) {
          const header = Buffer.alloc(44);
          header.writeUInt32BE(0x52494646, 0);
          header.writeUInt32LE(rate, 24);
          const view = new DataView(new ArrayBuffer(88));
          view.setUint32(20, rate);
          view.setUint16(24, 2);
        }
        function encodeEvent(kind: number) {
          const event = new DataView(new ArrayBuffer(12));
          event.setUint8(0, kind);
          event.setUint32(4, Date.now());
        }
        function packSamplerConfig(cfg: Sampler) {
          const sampler = new DataView(new ArrayBuffer(16));
          sampler.setFloat32(0, cfg.temperature, true);
          sampler.setInt32(4, cfg.topK, true);
        }
        const DEFAULT_CONFIG = { maxTokens: 256, temperature: 1, topP: 1, topK: 40, slotId: -1 };
        const CONFIG_SIZE_LIMIT = 64;
        enum ElizaState { Ok, Loading, Cancelled, Oom }
        """,
    "wrappers.ts": """
        export const mock = {
          eliza_inference_create: (dir: string) => 1n,
          eliza_inference_llm_stream_next(stream: bigint) { return 0; },
          eliza_inference_of_our_own: () => 0,
        };
        mock.eliza_inference_create("bundle");
        imported.eliza_inference_create("bundle");
        interface Symbols { eliza_inference_create(dir: Pointer): bigint }
        throw new Error("eliza_inference_of_a_later_abi");
        loadAddon("eliza_inference_addon");
        """,
    "wrappers.cpp": """
        #include "eliza-inference-ffi.h"
        struct LlmStreamConfig { int max_tokens; double top_p; std::string prompt_cache_key; };
        struct StreamConfig { int max_tokens; double temperature; };
        enum class ElizaState { Ok, Busy, Cancelled };
        static void eliza_inference_log(const char* message) {}
        extern "C" int eliza_jni_start(void* env);
        void f(const eliza_llm_stream_config_t& cfg) {
          eliza_inference_log("eliza_inference_of_a_later_abi");
          std::unique_ptr<EliLlmStream, decltype(&eliza_inference_llm_stream_close)> stream(
              eliza_inference_llm_stream_open(ctx, &cfg, nullptr),
              eliza_inference_llm_stream_close);
          throw std::runtime_error("eliza_inference_of_a_later_abi");
        }
        """,
    "options.swift": """
        import CElizaInference
        struct LlmStreamConfig { var maxTokens: Int = 256; var promptCacheKey: String? }
        struct ElizaLlmStreamConfig: Codable { let maxTokens: Int; let slotId: Int }
        enum ElizaPhase: Int { case ok, busy, cancelled }
        func f() throws {
          eliza_inference_set_verifier_callback(ctx, { event, _ in }, nil, &error)
          eliza_inference_tts_synthesize_stream(ctx, text, count, nil, nil, nil) { pcm in 0 }
          throw Failure("eliza_inference_of_a_later_abi")
        }
        """,
    "options.rs": """
        pub struct LlmStreamConfig { pub max_tokens: u32, pub prompt_cache_key: Option<String> }
        pub enum ElizaError { Ok, Cancelled, Oom }
        fn f() -> Error {
            tracing::info!("eliza_inference_of_a_later_abi {}", 1);
            Error::new("eliza_inference_of_a_later_abi")
        }
        #[no_mangle]
        pub extern "C" fn eliza_plugin_register() {}
        """,
    "Options.java": """
        class Options {
          static { System.loadLibrary("eliza_inference_jni"); }
          enum ElizaState { OK(0), CANCELLED(1), OOM(2); ElizaState(int order) {} }
          record StreamConfig(int maxTokens, float temperature) {}
          void f(Map<String, Integer> config, ByteBuffer wire) {
            config.put("maxTokens", 3);
            wire.putInt(20, 3);
            ByteBuffer header = ByteBuffer.allocate(80);
            header.putInt(0, 0x52494646);
            Log.e("eliza_inference_of_a_later_abi", "failed");
          }
        }
        """,
    "real-type.cpp": """
        #include "eliza-inference-ffi.h"
        struct Options { const char *prompt_cache_key, *mtp_drafter_path, *gbnf_grammar;
          int max_tokens, top_k, slot_id, draft_min, draft_max; double temperature, top_p; };
        eliza_llm_stream_config_t to_c(const Options &options);
        enum Phase { Ok, Cancelled = -2, Oom = -3 };
        """,
    "borrowed.rs": """
        // What a caller of the llm_stream may set.
        pub struct Options<'a> { prompt_cache_key: &'a str, mtp_drafter_path: &'a str, top_k: i32,
          gbnf_grammar: &'a str, max_tokens: i32, slot_id: i32, draft_min: i32, draft_max: i32,
          temperature: f64, top_p: f64 }
        """,
    "owned.ts": """
        // llm_stream
        const DEFAULTS = defineStructure({ max_tokens: 1, temperature: 1, top_p: 1, top_k: 40,
          repeat_penalty: 1, slot_id: -1, prompt_cache_key: "k", draft_min: 0, draft_max: 0 });
        const HTTP = { OK: 200, CANCELLED: 499, NOT_IMPLEMENTED: 501 };
        const SIGNALS = { OK: 0, CANCELLED: 1, OOM: 2 };
        """,
    "Reflected.java": """
        class A {
          static final MethodHandle H = bind("eliza_inference_llm_stream_cancel", D);
          static final MethodHandle GETPID = bind("getpid", FunctionDescriptor.of(JAVA_INT));
          void f(Method method, MethodHandle H) { method.invoke(this, 1, 2); H.invokeExact(); }
          int g() { return (int) GETPID.invokeExact(); }
        }
        """,
    "wav.ts": "const wav = Buffer.alloc(44); // eliza llmStream\nwav.writeUInt32BE(1, 20);",
    "Handles.java": """
        class A { Object h = of("eliza_inference_destroy", FunctionDescriptor.ofVoid(JAVA_LONG)); }
        """,
}


@pytest.mark.parametrize("name", LOOKALIKES)
def test_what_only_looks_like_the_abi_is_no_problem(name: str, table: Table) -> None:
    assert check(name, LOOKALIKES[name], table).problems == []


def test_a_helper_with_rest_parameters_is_followed(table: Table) -> None:
    source = (
        "const entry = (returns, ...args) => ({ args, returns });\n"
        'const s = { eliza_inference_llm_stream_reset_keep: entry("i32", "ptr", "f32") };\n'
    )
    report = check("rest.js", source, table)
    assert [(finding.line, finding.message) for finding in report.problems] == [
        (
            2,
            'eliza_inference_llm_stream_reset_keep: parameter 2 (n_keep) is "f32", a 32-bit float; '
            "the table says int32_t, a 32-bit integer",
        )
    ]


# ------------------------------------------------------------------ odd files

NAMES = b"// eliza_inference_create llm_stream verifier\n"
ODD = {
    "empty": b"",
    "only names": NAMES,
    "binary": NAMES + bytes(range(256)) * 100,
    "not UTF-8": NAMES + bytes(range(128, 256)) * 50,
    "cut off": b'extern "C" { int eliza_inference_create(const char *bundle_dir, {{{ "',
    "brackets": NAMES + b"x = " + b"([{" * 3000,
    "deep call": NAMES + b"const config = " + b"f(" * 5000 + b'"x"' + b")" * 5000 + b";",
    "deep array": NAMES + b"const x = " + b"[" * 5000 + b"1" + b"]" * 5000 + b";",
    "long sum": NAMES + b"const CONFIG_SIZE: i32 = " + b"1 + " * 5000 + b"1;",
    "long chain": b"eliza" + b".a" * 5000,
    "huge": NAMES + b"view.setInt32(20, slotId, true);\n" * 100_000,
}


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("what", ODD)
def test_an_odd_file_raises_nothing_and_has_no_problems(
    what: str, suffix: str, table: Table
) -> None:
    report = check(f"odd{suffix}", ODD[what], table)
    assert report.problems == []
    assert what not in ("binary", "huge") or "could not be read" in unjudged(report)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-8-sig"])
def test_a_source_with_a_byte_order_mark_is_read(encoding: str, table: Table) -> None:
    source = "// eliza\nexport const ELIZA_ERR_CANCELLED = -8;\n".encode(encoding)
    report = check("marked.ts", source, table)
    assert [(f.line, f.message) for f in report.problems] == [
        (2, "ELIZA_ERR_CANCELLED is -8; the table says -7")
    ]


@pytest.mark.parametrize(
    "source", [NAMES.decode().encode("utf-16-le"), NAMES.decode().encode("utf-16")[:-1]]
)
def test_a_source_that_is_not_decoded_says_so(source: bytes, table: Table) -> None:
    report = check("wide.ts", source, table)
    assert report.problems == []
    assert "could not be read: it is no" in unjudged(report)


@pytest.mark.parametrize("suffix", [".cpp", ".java", ".rs", ".swift", ".ts"])
def test_a_file_that_is_nested_too_deeply_is_not_judged(suffix: str, table: Table) -> None:
    report = check(f"deep{suffix}", ODD["deep call"], table)
    assert "could not be read: TooDeep" in unjudged(report)


def test_a_source_whose_parsing_takes_too_long_is_not_judged(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(syntax, "_PATIENCE", 0.05)
    junk = random.Random(3)
    letters = b"abcdefghijk (){}[];=,.\n'\"/*<>+-0123eliza_"
    source = NAMES + bytes(junk.choice(letters) for _ in range(100_000))
    assert "could not be read: Garbled" in unjudged(check("junk.ts", source, table))


def test_a_fault_of_a_reader_is_named_and_is_no_problem(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("type_item")

    monkeypatch.setattr(rust, "check", fail)
    report = check("a.rs", NAMES, table)
    assert (report.problems, report.judged) == ([], [])
    assert unjudged(report) == "could not be read: KeyError: 'type_item'"


@pytest.mark.parametrize("name", sorted(JUDGED))
def test_a_binding_cut_anywhere_raises_nothing(name: str, table: Table) -> None:
    source = (BINDINGS / name).read_bytes()
    for end in range(1, len(source), max(1, len(source) // 20)):
        assert "could not be read" not in unjudged(check(name, source[:end], table))


def test_a_source_that_has_nothing_to_do_with_the_abi_is_not_judged(table: Table) -> None:
    report = check(
        "other.ts", 'dlopen("libc.so", { getpid: { args: [], returns: "i32" } });', table
    )
    assert report == Report("other.ts")


def test_a_language_that_is_not_read_is_refused(table: Table) -> None:
    assert not can_read(Path("eliza.go"))
    with pytest.raises(ValueError, match="no language that is read"):
        check("eliza.go", "package eliza", table)
