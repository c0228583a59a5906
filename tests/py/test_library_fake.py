"""Library, Context and Stream over a fake library that records what reaches it.

The fake's stream answers one step ``[7] "a"`` per call and the third one is final. While
``fake_block(1)`` holds, a call that was entered waits until its stream is cancelled.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import shutil
import struct
import subprocess
import threading
from array import array
from pathlib import Path
from typing import Any, Callable, Iterator

import pytest

from eliza_ctypes import (
    BundleInvalid,
    Cancelled,
    ClosedHandle,
    Context,
    ElizaError,
    Generation,
    InvalidArgument,
    Library,
    LlmStreamConfig,
    LlmStreamStep,
    NotImplementedByLibrary,
    Stream,
    StreamStats,
    VerifierEvent,
)

FAKE = r"""
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
  int32_t max_tokens; float temperature, top_p; int32_t top_k; float repeat_penalty;
  int32_t slot_id; const char *prompt_cache_key; int32_t draft_min, draft_max;
  const char *mtp_drafter_path, *gbnf_grammar; int32_t disable_thinking, n_gpu_layers;
  const char *cache_type_k, *cache_type_v;
} config_t;
typedef struct {
  const int *accepted; size_t n_accepted; int from, to; const int *corrected; size_t n_corrected;
} event_t;
typedef void (*verifier_t)(const event_t *, void *);
typedef struct { int steps, cancelled, running; } stream_t;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static char record[65536];
static int blocking, entered, fail_code, strings, tokens, streams, contexts, used_while_freed;
static verifier_t verifier;

static void note(const char *format, ...) {
  va_list list;
  pthread_mutex_lock(&mutex);
  size_t used = strlen(record);
  va_start(list, format);
  vsnprintf(record + used, sizeof record - used, format, list);
  va_end(list);
  pthread_mutex_unlock(&mutex);
}
static int fail(char **error) {
  if (fail_code && error) { *error = strdup("the message \xc3\xbc"); strings++; }
  return fail_code;
}
static const char *shown(const char *text) { return text ? text : "NULL"; }
/* Waits inside a call until the stream is cancelled, if calls are to block. */
static int busy(stream_t *s) {
  pthread_mutex_lock(&mutex);
  s->running++;
  entered++;
  pthread_cond_broadcast(&changed);
  while (blocking && !s->cancelled) pthread_cond_wait(&changed, &mutex);
  s->running--;
  int cancelled = s->cancelled;
  pthread_mutex_unlock(&mutex);
  return cancelled;
}

const char *fake_record(void) { return record; }
void fake_block(int on) {
  pthread_mutex_lock(&mutex);
  blocking = on; entered = 0;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&mutex);
}
void fake_wait_entered(void) {
  pthread_mutex_lock(&mutex);
  while (!entered) pthread_cond_wait(&changed, &mutex);
  pthread_mutex_unlock(&mutex);
}
void fake_fail(int code) { fail_code = code; }
int fake_open_strings(void) { return strings; }
int fake_open_tokens(void) { return tokens; }
int fake_open_streams(void) { return streams; }
int fake_open_contexts(void) { return contexts; }
int fake_used_while_freed(void) { return used_while_freed; }
void fake_restart(void) {
  record[0] = 0;
  blocking = entered = fail_code = strings = tokens = streams = contexts = used_while_freed = 0;
}

const char *eliza_inference_abi_version(void) { return "8"; }
void eliza_inference_free_string(char *text) { if (text) strings--; free(text); }
void eliza_inference_free_tokens(int *ids) { if (ids) tokens--; free(ids); }
void *eliza_inference_create(const char *bundle, char **error) {
  note("create %s\n", bundle);
  if (fail(error)) return 0;
  contexts++;
  return malloc(1);
}
void eliza_inference_destroy(void *context) { contexts--; free(context); }
int eliza_inference_mmap_acquire(void *context, const char *region, char **error) {
  note("acquire %s\n", region);
  return fail(error);
}
int eliza_inference_mmap_evict(void *context, const char *region, char **error) {
  note("evict %s\n", region);
  return fail(error);
}
int eliza_inference_llm_stream_supported(void) { return 1; }
int eliza_inference_llm_mtp_supported(void) { return 0; }
void *eliza_inference_llm_stream_open(void *context, const config_t *c, char **error) {
  note("open %d %g %g %d %g %d %s %d %d %s %s %d %d %s %s\n", c->max_tokens, c->temperature,
       c->top_p, c->top_k, c->repeat_penalty, c->slot_id, shown(c->prompt_cache_key),
       c->draft_min, c->draft_max, shown(c->mtp_drafter_path), shown(c->gbnf_grammar),
       c->disable_thinking, c->n_gpu_layers, shown(c->cache_type_k), shown(c->cache_type_v));
  if (fail(error)) return 0;
  streams++;
  return calloc(1, sizeof(stream_t));
}
int eliza_inference_llm_stream_prefill(stream_t *s, const int32_t *ids, size_t n, char **error) {
  note("prefill");
  for (size_t i = 0; i < n && i < 8; i++) note(" %d", ids[i]);
  note(" of %zu\n", n);
  if (busy(s)) { fail_code = -7; int code = fail(error); fail_code = 0; return code; }
  return fail(error);
}
int eliza_inference_llm_stream_next(stream_t *s, int32_t *ids, size_t ids_cap, size_t *n,
                                    char *text, size_t text_cap, int32_t *drafted,
                                    int32_t *accepted, char **error) {
  if (busy(s)) return -7;
  if (fail_code) return fail(error);
  if (verifier) {
    const int drafts[] = {4, 5}, right[] = {6};
    const event_t event = {drafts, 2, 3, 4, right, 1};
    verifier(&event, 0);
  }
  note("next %zu %zu\n", ids_cap, text_cap);
  ids[0] = 7; *n = 1; strcpy(text, "a"); *drafted = 4; *accepted = 2;
  return ++s->steps == 3;
}
int eliza_inference_llm_stream_cancel(stream_t *s) {
  pthread_mutex_lock(&mutex);
  s->cancelled = 1;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&mutex);
  note("cancel\n");
  return 0;
}
int eliza_inference_llm_stream_save_slot(stream_t *s, const char *file, char **error) {
  note("save %s\n", file);
  return fail(error);
}
int eliza_inference_llm_stream_restore_slot(stream_t *s, const char *file, char **error) {
  note("restore %s\n", file);
  return fail(error);
}
int eliza_inference_llm_stream_reset(stream_t *s) {
  note("reset\n");
  s->cancelled = s->steps = 0;
  return fail_code;
}
int eliza_inference_llm_stream_reset_keep(stream_t *s, int32_t keep) {
  note("keep %d\n", keep);
  s->cancelled = s->steps = 0;
  return keep - 1;
}
void eliza_inference_llm_stream_close(stream_t *s) {
  pthread_mutex_lock(&mutex);
  if (s->running) used_while_freed++;
  pthread_mutex_unlock(&mutex);
  note("close\n");
  streams--;
  free(s);
}
int eliza_inference_set_verifier_callback(void *context, verifier_t callback, void *user_data,
                                          char **error) {
  verifier = callback;
  return 0;
}
int eliza_inference_tokenize(void *context, const char *text, size_t length, int add_special,
                             int parse_special, int **ids, size_t *n, char **error) {
  note("tokenize %zu %d %d\n", length, add_special, parse_special);
  if (fail_code) return fail(error);
  *n = length;
  *ids = length ? malloc(length * sizeof(int)) : 0;
  tokens += *ids != 0;
  for (size_t i = 0; i < length; i++) (*ids)[i] = (unsigned char)text[i];
  return 0;
}
int eliza_inference_detokenize(void *context, const int *ids, size_t n, int remove_special,
                               int unparse_special, char *text, size_t cap, char **error) {
  note("detokenize %zu %d %d into %zu\n", n, remove_special, unparse_special, cap);
  if (n * 100 + 1 > cap) { fail_code = -2; int code = fail(error); fail_code = 0; return code; }
  for (size_t i = 0; i < n * 100; i++) text[i] = ids[i / 100];
  text[n * 100] = 0;
  return n * 100;
}
int eliza_inference_vad_supported(void) { return 0; }
void *eliza_inference_vad_open(void *context, int rate, char **error) {
  note("vad_open %d\n", rate);
  return fail(error) ? 0 : malloc(1);
}
int eliza_inference_vad_process(void *vad, const float *pcm, size_t n, float *probability,
                                char **error) {
  *probability = pcm[n - 1];
  return fail(error);
}
void eliza_inference_vad_close(void *vad) { note("vad_close\n"); free(vad); }
typedef int (*chunk_t)(const float *, size_t, int, void *);
int eliza_inference_tts_synthesize_stream(void *context, const char *text, size_t length,
                                          const char *speaker, chunk_t on_chunk, void *user_data,
                                          char **error) {
  const float pcm[] = {0.5f, 1.0f};
  note("speak %zu %s\n", length, shown(speaker));
  return on_chunk(pcm, 2, 1, user_data);
}
"""


class Fake:
    """The fake library's own functions."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._native = ctypes.CDLL(str(path))
        self._native.fake_record.restype = ctypes.c_char_p

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, f"fake_{name}")

    def calls(self) -> list[str]:
        """The recorded calls, oldest first."""
        record: bytes = self.record()
        return record.decode().splitlines()


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    assert compiler, "these tests need a C compiler"
    source = tmp_path_factory.mktemp("fake") / "fake.c"
    source.write_text(FAKE)
    target = source.with_suffix(".so")
    command = [compiler, "-w", "-shared", "-fPIC", "-pthread", str(source), "-o", str(target)]
    subprocess.run(command, check=True)
    return target


@pytest.fixture
def fake(compiled: Path) -> Iterator[Fake]:
    fake = Fake(compiled)
    fake.restart()
    yield fake
    fake.block(0)
    fake.fail(0)
    gc.collect()
    assert fake.open_strings() == 0
    assert fake.open_tokens() == 0
    assert fake.open_streams() == 0
    assert fake.used_while_freed() == 0


@pytest.fixture
def library(fake: Fake) -> Library:
    return Library(fake.path)


@pytest.fixture
def context(library: Library) -> Iterator[Context]:
    with Context("bundle", library) as context:
        yield context


@pytest.fixture
def stream(context: Context) -> Iterator[Stream]:
    with context.open_stream() as stream:
        yield stream


def slot_file(path: Path, tokens: list[int]) -> Path:
    """Writes a slot file with no state in it."""
    header = struct.pack("<8sII28xI32x", b"ELIZSLOT", 1, 80, len(tokens))
    assert len(header) == 80
    path.write_bytes(header + struct.pack(f"<{len(tokens)}i", *tokens))
    return path


def in_thread(function: Callable[[], object]) -> Callable[[], BaseException | None]:
    """Starts ``function``; the result waits for its end and returns what it raised."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            function()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def join() -> BaseException | None:
        thread.join()
        return raised[0] if raised else None

    return join


# Arguments


def test_every_config_field_reaches_the_library(fake: Fake, context: Context) -> None:
    config = LlmStreamConfig(
        max_tokens=1,
        temperature=0.5,
        top_p=0.25,
        top_k=2,
        repeat_penalty=1.5,
        slot_id=3,
        prompt_cache_key="käse",
        draft_min=4,
        draft_max=5,
        mtp_drafter_path=Path("/a/drafter"),
        gbnf_grammar="root::=x",
        disable_thinking=1,
        n_gpu_layers=6,
        cache_type_k="q8_0",
        cache_type_v="f16",
    )
    context.open_stream(config).close()
    assert "open 1 0.5 0.25 2 1.5 3 käse 4 5 /a/drafter root::=x 1 6 q8_0 f16" in fake.calls()


def test_a_default_config_is_greedy_without_cap_and_without_extras(
    fake: Fake, context: Context
) -> None:
    context.open_stream().close()
    assert "open 0 0 0 0 0 -1 NULL 0 0 NULL NULL 0 0 NULL NULL" in fake.calls()


def test_keyword_fields_change_a_given_config(fake: Fake, context: Context) -> None:
    context.open_stream(LlmStreamConfig(max_tokens=5, top_k=6), max_tokens=9).close()
    assert fake.calls()[1].startswith("open 9 0 0 6 ")


def test_an_unknown_field_is_a_type_error_that_lists_the_fields(context: Context) -> None:
    with pytest.raises(TypeError, match="no field 'max_token'; there are max_tokens, "):
        context.open_stream(max_token=1)


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ({"cache_key": "käse"}, "-1 käse 0 0 NULL NULL"),
        ({"draft": 5}, "-1 NULL 0 5 NULL NULL"),
        ({"draft": "a/drafter"}, "-1 NULL 0 8 a/drafter NULL"),
        ({"draft": Path("a/drafter"), "draft_min": 2}, "-1 NULL 2 8 a/drafter NULL"),
        ({"draft": ("a/drafter", 4)}, "-1 NULL 0 4 a/drafter NULL"),
        ({"json_schema": {"type": "null"}}, '-1 NULL 0 0 NULL root ::= null null ::= "null"'),
        ({"json_schema": {"const": 1}}, '-1 NULL 0 0 NULL root ::= "1"'),
    ],
)
def test_short_forms_set_the_fields_that_they_stand_for(
    fake: Fake, context: Context, options: dict[str, Any], fields: str
) -> None:
    context.open_stream(**options).close()
    assert " ".join(fake.calls()[1:]).startswith(f"open 0 0 0 0 0 {fields} ")
    context.generate([1], **options).close()

    async def run() -> None:
        assert [piece async for piece in context.agenerate([1], **options)] == ["a"] * 3

    asyncio.run(run())
    assert " ".join(fake.calls()).count(fields) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"json_schema": True, "gbnf_grammar": "root ::= x"}, "json_schema and gbnf_grammar"),
        ({"json_schema": True, "config": LlmStreamConfig(gbnf_grammar="x")}, "json_schema and"),
        ({"cache_key": "a", "prompt_cache_key": "b"}, "cache_key and prompt_cache_key"),
        ({"draft": 1, "draft_max": 2}, "draft and draft_max"),
        ({"draft": "a", "mtp_drafter_path": "b"}, "draft and mtp_drafter_path"),
    ],
)
def test_a_short_form_beside_its_field_is_refused(
    context: Context, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArgument, match=f"{message} .*cannot be given together"):
        context.generate("x", **options)


def test_a_schema_that_cannot_be_followed_opens_no_stream(fake: Fake, context: Context) -> None:
    with pytest.raises(InvalidArgument, match="#/pattern: the keyword pattern is not supported"):
        context.generate("x", json_schema={"type": "string", "pattern": "a+"})
    assert fake.open_streams() == 0


@pytest.mark.parametrize("draft", [1.5, b"drafter"])
def test_a_draft_of_another_type_is_a_type_error(context: Context, draft: Any) -> None:
    with pytest.raises(TypeError):
        context.open_stream(draft=draft)


def test_a_key_of_any_length_reaches_the_library(fake: Fake, context: Context) -> None:
    # That it is too long is for the library to say.
    context.open_stream(cache_key="k" * 1_000_000).close()
    fake.fail(-2)
    with pytest.raises(ElizaError, match="the message"):
        context.open_stream(cache_key="k" * 1_000_000)


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, 10**30])
@pytest.mark.parametrize("field", ["max_tokens", "top_k", "slot_id", "n_gpu_layers"])
def test_integers_outside_int32_are_refused_not_wrapped(
    context: Context, field: str, value: int
) -> None:
    fields: dict[str, Any] = {field: value}
    with pytest.raises(InvalidArgument, match=f"{field} is {value}"):
        context.open_stream(**fields)


@pytest.mark.parametrize("value", [1e39, -1e300, 10**400])
def test_floats_outside_float32_are_refused(context: Context, value: float) -> None:
    with pytest.raises(InvalidArgument, match="temperature is"):
        context.open_stream(temperature=value)


@pytest.mark.parametrize("field", ["prompt_cache_key", "gbnf_grammar", "mtp_drafter_path"])
def test_a_nul_in_a_string_is_a_value_error(context: Context, field: str) -> None:
    fields: dict[str, Any] = {field: "a\0b"}
    with pytest.raises(ValueError, match=f"{field} contains a NUL"):
        context.open_stream(**fields)


def test_a_string_that_utf8_cannot_hold_is_refused(context: Context) -> None:
    with pytest.raises(InvalidArgument, match="cache_type_k cannot be written as UTF-8"):
        context.open_stream(cache_type_k="\ud800")


def test_a_value_of_the_wrong_type_is_a_type_error(context: Context) -> None:
    with pytest.raises(TypeError):
        context.open_stream(max_tokens="many")
    with pytest.raises(TypeError, match="cache_type_k must be a string"):
        context.open_stream(cache_type_k=8)


def test_paths_reach_the_library_as_the_file_system_writes_them(
    fake: Fake, library: Library
) -> None:
    Context(Path("a bündle"), library).close()
    assert fake.calls() == ["create a bündle"]


@pytest.mark.parametrize(
    "tokens", [[1, -2, 3], (1, -2, 3), array("i", [1, -2, 3]), array("q", [1, -2, 3])]
)
def test_any_sequence_of_integers_is_prefilled(fake: Fake, stream: Stream, tokens: Any) -> None:
    stream.prefill(tokens)
    assert fake.calls()[-1] == "prefill 1 -2 3 of 3"


def test_an_empty_prompt_reaches_the_library(fake: Fake, stream: Stream) -> None:
    stream.prefill([])
    assert fake.calls()[-1] == "prefill of 0"


def test_token_ids_outside_int32_are_refused_not_wrapped(stream: Stream) -> None:
    with pytest.raises(InvalidArgument, match="token id"):
        stream.prefill([1, 2**31])


@pytest.mark.parametrize("tokens", [b"abcd", "abcd", [1.5], ["1"]])
def test_what_is_no_token_sequence_is_a_type_error(stream: Stream, tokens: Any) -> None:
    with pytest.raises(TypeError):
        stream.prefill(tokens)


def test_a_step_carries_all_that_the_library_wrote(stream: Stream) -> None:
    step = stream.next()
    assert step == LlmStreamStep([7], "a", False, 4, 2)
    assert [next_step.done for next_step in (stream.next(), stream.next())] == [False, True]


def test_the_caps_of_a_step_reach_the_library(fake: Fake, stream: Stream) -> None:
    stream.next(tokens_cap=1, text_cap=2)
    assert fake.calls()[-1] == "next 1 2"


@pytest.mark.parametrize("cap", [-1, 2**31])
def test_caps_that_are_no_sizes_are_refused(stream: Stream, cap: int) -> None:
    with pytest.raises(InvalidArgument, match="text_cap"):
        stream.next(text_cap=cap)


def test_the_other_stream_functions_pass_their_arguments(fake: Fake, stream: Stream) -> None:
    stream.save("a file")
    stream.reset()
    assert stream.reset_keep(5) == 4
    assert fake.calls()[2:] == ["save a file", "reset", "keep 5"]


def test_restore_returns_the_tokens_of_the_slot_file(
    fake: Fake, stream: Stream, tmp_path: Path
) -> None:
    path = slot_file(tmp_path / "slöt", [5, -6, 2**31 - 1])
    assert stream.restore(path) == [5, -6, 2**31 - 1]
    assert fake.calls()[-1] == f"restore {path}"
    assert stream.restore(str(slot_file(path, []))) == []


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: b"", "is not a slot file"),
        (lambda content: b"X" + content[1:], "is not a slot file"),
        (lambda content: content[:8] + b"\2" + content[9:], "version 2; version 1 is read"),
        (lambda content: content[:-1], "is cut off"),
        (lambda content: content[:44] + b"\xff" * 4 + content[48:], "is cut off"),
    ],
)
def test_what_is_no_slot_file_is_refused_after_the_library_took_it(
    stream: Stream, tmp_path: Path, damage: Callable[[bytes], bytes], message: str
) -> None:
    path = slot_file(tmp_path / "slot", [1, 2])
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(BundleInvalid, match=message):
        stream.restore(path)


def test_a_slot_that_the_library_refuses_is_not_read(
    fake: Fake, stream: Stream, tmp_path: Path
) -> None:
    fake.fail(-2)
    with pytest.raises(InvalidArgument, match="the message"):
        stream.restore(tmp_path / "absent")


def test_text_may_hold_nul_and_is_counted_in_bytes(fake: Fake, context: Context) -> None:
    assert context.tokenize("ä\0", add_special=False, parse_special=True) == [0xC3, 0xA4, 0]
    assert fake.calls()[-1] == "tokenize 3 0 1"
    assert context.tokenize("") == []


def test_detokenize_offers_more_room_until_the_text_fits(fake: Fake, context: Context) -> None:
    assert context.detokenize([65, 66], unparse_special=True) == "A" * 100 + "B" * 100
    assert fake.calls()[-2:] == ["detokenize 2 0 1 into 80", "detokenize 2 0 1 into 640"]


def test_the_core_functions_pass_their_arguments(fake: Fake, library: Library) -> None:
    handle = library.create("bundle")
    library.mmap_acquire(handle, "text")
    library.mmap_evict(handle, "text")
    library.destroy(handle)
    assert fake.calls()[1:] == ["acquire text", "evict text"]
    assert (library.llm_stream_supported(), library.llm_mtp_supported()) == (True, False)


# Functions called by name


def test_a_voice_function_is_called_through_the_table(fake: Fake, library: Library) -> None:
    context = library.create("bundle")
    vad = library.vad_open(context, 16000)
    probability = ctypes.c_float()
    pcm = array("f", [0.0, 0.25])
    assert library.call("vad_process", vad, pcm, 2, ctypes.byref(probability)) == 0
    assert probability.value == 0.25
    library.vad_close(vad)
    library.destroy(context)
    assert fake.calls()[1:] == ["vad_open 16000", "vad_close"]
    with pytest.raises(ClosedHandle):
        library.vad_process(vad, pcm, 2, ctypes.byref(probability))


def test_a_python_function_serves_as_a_callback(fake: Fake, library: Library) -> None:
    context = library.create("bundle")
    heard: list[list[float]] = []

    def on_chunk(pcm: Any, count: int, _final: int, _user_data: object) -> int:
        heard.append(pcm[:count])
        return 5

    assert library.tts_synthesize_stream(context, "hey", 3, None, on_chunk, None) == 5
    assert heard == [[0.5, 1.0]]
    library.destroy(context)


def test_a_handle_of_another_kind_and_a_wrong_count_are_type_errors(
    library: Library, stream: Stream
) -> None:
    with pytest.raises(TypeError, match="ctx cannot be an EliLlmStream"):
        library.mmap_evict(stream._handle, "text")
    with pytest.raises(TypeError, match="takes 2 arguments, 1 were given"):
        library.vad_open(stream._handle)


def test_the_verifier_callback_receives_every_event(context: Context) -> None:
    events: list[VerifierEvent] = []
    context.set_verifier_callback(events.append)
    with context.open_stream() as stream:
        stream.next()
        context.set_verifier_callback(None)
        stream.next()
    assert events == [VerifierEvent([4, 5], 3, 4, [6])]


def test_what_a_verifier_callback_raises_comes_out_of_next_and_the_step_after_it(
    context: Context,
) -> None:
    events: list[VerifierEvent] = []

    def callback(event: VerifierEvent) -> None:
        events.append(event)
        if len(events) == 1:
            raise KeyError("mine")

    context.set_verifier_callback(callback)
    with context.open_stream() as stream:
        with pytest.raises(KeyError, match="mine"):
            stream.next()
        assert stream.stats.generated_tokens == 0
        assert [step.done for step in stream] == [False, False, True]
        assert stream.stats.generated_tokens == 3
        assert len(events) == 3
        context.set_verifier_callback(None)


def test_an_exception_in_a_callback_ends_a_generation_and_closes_its_stream(
    fake: Fake, context: Context, capfd: pytest.CaptureFixture[str]
) -> None:
    def callback(_event: VerifierEvent) -> None:
        raise SystemExit(3)

    context.set_verifier_callback(callback)
    with pytest.raises(SystemExit):
        "".join(context.generate("x"))
    context.set_verifier_callback(None)
    assert fake.open_streams() == 0
    assert capfd.readouterr() == ("", "")


def test_an_exception_of_one_thread_is_not_raised_in_another(context: Context) -> None:
    main = threading.get_ident()

    def callback(_event: VerifierEvent) -> None:
        if threading.get_ident() != main:
            raise KeyError("mine")

    context.set_verifier_callback(callback)
    with context.open_stream() as one, context.open_stream() as other:
        join = in_thread(one.next)
        other.next()
        assert isinstance(join(), KeyError)
        other.next()
        assert one.next().tokens == [7]
        context.set_verifier_callback(None)


def test_going_back_drops_the_step_of_a_callback_that_raised(context: Context) -> None:
    def callback(_event: VerifierEvent) -> None:
        raise KeyError("mine")

    with context.open_stream() as stream:
        for go_back in (stream.reset, lambda: stream.reset_keep(1)):
            context.set_verifier_callback(callback)
            with pytest.raises(KeyError):
                stream.next()
            context.set_verifier_callback(None)
            go_back()
            assert [step.done for step in stream] == [False, False, True]


def test_a_cleared_or_replaced_callback_outlives_a_step_that_is_inside_it(
    context: Context,
) -> None:
    entered, leave = threading.Event(), threading.Event()

    def callback(_event: VerifierEvent) -> None:
        entered.set()
        leave.wait()

    context.set_verifier_callback(callback)
    del callback
    with context.open_stream() as stream:
        join = in_thread(stream.next)
        entered.wait()
        context.set_verifier_callback(None)
        gc.collect()
        leave.set()
        assert join() is None


# Statistics


def test_stats_count_one_generation(stream: Stream) -> None:
    assert stream.stats == StreamStats(0, 0, None, 0, 0, 0, None, None)
    stream.prefill([1, 2])
    stream.prefill([3])
    assert stream.stats == StreamStats(0, 0, None, 3, 0, 0, None, None)
    stream.next()
    first = stream.stats
    assert first[:6] == (4, 2, 0.5, 3, 0, 1)
    assert first.time_to_first_token is not None and first.time_to_first_token > 0
    assert first.tokens_per_second is None
    list(stream)
    last = stream.stats
    assert last[:6] == (12, 6, 0.5, 3, 0, 3)
    assert last.time_to_first_token == first.time_to_first_token
    assert last.tokens_per_second is not None and last.tokens_per_second > 0


def test_the_next_generation_of_a_sequence_reuses_what_is_there(stream: Stream) -> None:
    stream.prefill([1, 2])
    list(stream)
    stream.prefill([3])
    assert stream.stats == StreamStats(0, 0, None, 6, 5, 0, None, None)


def test_stats_know_what_was_kept_or_restored(stream: Stream, tmp_path: Path) -> None:
    stream.prefill([1, 2, 3, 4])
    list(stream)
    assert stream.reset_keep(3) == 2
    stream.prefill([8])
    assert stream.stats[3:5] == (3, 2)
    stream.restore(slot_file(tmp_path / "slot", [1, 2, 3]))
    stream.prefill([8])
    assert stream.stats[3:5] == (4, 3)
    stream.reset()
    assert stream.stats == StreamStats(0, 0, None, 0, 0, 0, None, None)


@pytest.mark.parametrize("options", [{"cache_key": "k"}, {"slot_id": 0}])
def test_what_a_prompt_cache_reuses_is_not_known(context: Context, options: dict[str, Any]) -> None:
    with context.open_stream(**options) as stream:
        stream.prefill([1, 2])
        assert stream.stats[3:5] == (2, None)


def test_a_refused_prefill_is_not_counted_and_stats_outlive_the_stream(
    fake: Fake, stream: Stream
) -> None:
    fake.fail(-2)
    with pytest.raises(InvalidArgument):
        stream.prefill([1])
    fake.fail(0)
    stream.prefill([1, 2])
    stream.close()
    assert stream.stats.prompt_tokens == 2


# Errors


@pytest.mark.parametrize(
    ("code", "expected"),
    [(-1, NotImplementedByLibrary), (-2, InvalidArgument), (-7, Cancelled), (-99, ElizaError)],
)
def test_a_negative_code_raises_its_exception_with_the_librarys_message(
    fake: Fake, stream: Stream, code: int, expected: type[ElizaError]
) -> None:
    fake.fail(code)
    for call in (lambda: stream.prefill([1]), lambda: stream.save("x"), stream.next):
        with pytest.raises(expected, match="the message ü") as caught:
            call()
        assert caught.value.code == code


def test_a_function_without_a_message_names_itself(fake: Fake, stream: Stream) -> None:
    fake.fail(-4)
    with pytest.raises(ElizaError, match="eliza_inference_llm_stream_reset failed with"):
        stream.reset()


def test_null_from_create_and_open_raises_the_message(fake: Fake, library: Library) -> None:
    with Context("bundle", library) as context:
        fake.fail(-3)
        with pytest.raises(ElizaError, match="the message ü"):
            context.open_stream()
        with pytest.raises(ElizaError, match="the message ü"):
            library.create("other")


def test_an_error_of_detokenize_is_reported_once_more_room_does_not_help(
    fake: Fake, context: Context
) -> None:
    fake.fail(-4)
    with pytest.raises(ElizaError, match="the message ü"):
        context.tokenize("x")
    fake.fail(0)


# Lifetime


def test_use_after_close_raises(library: Library) -> None:
    context = Context("bundle", library)
    stream = context.open_stream()
    stream.close()
    for call in (lambda: stream.prefill([1]), stream.next, stream.reset, lambda: list(stream)):
        with pytest.raises(ClosedHandle):
            call()
    context.close()
    for refused in (lambda: context.tokenize("x"), context.open_stream):
        with pytest.raises(ClosedHandle):
            refused()
    assert stream.closed
    assert context.closed


def test_closing_twice_frees_once(fake: Fake, context: Context) -> None:
    stream = context.open_stream()
    stream.close()
    stream.close()
    assert fake.calls().count("close") == 1


def test_cancel_after_close_does_nothing(fake: Fake, stream: Stream) -> None:
    stream.close()
    stream.cancel()
    assert "cancel" not in fake.calls()


def test_a_stream_outlives_its_context(context: Context) -> None:
    with context.open_stream() as stream:
        context.close()
        assert stream.next().text == "a"


def test_forgotten_handles_are_closed(fake: Fake, library: Library) -> None:
    context = Context("bundle", library)
    stream = context.open_stream()
    del stream
    assert fake.open_streams() == 0
    del context
    assert fake.open_contexts() == 0


def test_a_forgotten_generation_closes_its_stream(fake: Fake, context: Context) -> None:
    generation = context.generate("x")
    next(generation)
    del generation
    assert fake.open_streams() == 0


def test_forgotten_handles_are_closed_at_exit(fake: Fake, tmp_path: Path) -> None:
    code = f"""
import ctypes, weakref
from eliza_ctypes import Context, Library
fake = ctypes.CDLL({str(fake.path)!r})
def check(): print(fake.fake_open_streams(), fake.fake_open_contexts())
weakref.finalize(Library, check)
context = Context("bundle", {str(fake.path)!r})
stream = context.open_stream()
"""
    import os
    import sys

    import eliza_ctypes

    env = {**os.environ, "PYTHONPATH": str(Path(eliza_ctypes.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("0 0\n", "")


# Loops


def test_iterating_ends_with_the_final_step(fake: Fake, stream: Stream) -> None:
    assert [step.done for step in stream] == [False, False, True]
    assert "cancel" not in fake.calls()


def test_leaving_a_loop_early_cancels(fake: Fake, stream: Stream) -> None:
    for _ in stream:
        break
    assert fake.calls()[-1] == "cancel"
    with pytest.raises(Cancelled):
        stream.next()
    stream.reset()
    assert stream.next().text == "a"


def test_generate_yields_text_and_closes_its_stream(fake: Fake, context: Context) -> None:
    generation = context.generate("hi", max_tokens=3)
    assert list(generation) == ["a", "a", "a"]
    assert generation.tokens == [7, 7, 7]
    assert generation.prompt == [104, 105]
    assert fake.open_streams() == 0
    assert "cancel" not in fake.calls()


def test_generate_takes_token_ids_as_they_are(fake: Fake, context: Context) -> None:
    assert "".join(context.generate([5, 6])) == "aaa"
    assert "prefill 5 6 of 2" in fake.calls()


@pytest.mark.parametrize(
    ("stop", "expected"),
    [(["aa"], ""), (["ab", "aab"], "aaa"), (["x", "aaa"], ""), (["b"], "aaa")],
)
def test_a_stop_string_ends_the_text_before_it(
    context: Context, stop: list[str], expected: str
) -> None:
    assert "".join(context.generate("x", stop=stop)) == expected


@pytest.mark.parametrize("stop", ["text", [""]])
def test_a_stop_that_is_no_list_of_texts_is_refused(context: Context, stop: Any) -> None:
    with pytest.raises(InvalidArgument, match="stop takes"):
        context.generate("x", stop=stop)


def test_an_error_in_a_generation_closes_the_stream(fake: Fake, context: Context) -> None:
    generation = context.generate([1])
    fake.fail(-2)
    with pytest.raises(InvalidArgument, match="the message"):
        next(generation)
    assert fake.open_streams() == 0


def test_a_generation_on_a_stream_of_ones_own_leaves_it_open(stream: Stream) -> None:
    assert "".join(Generation(stream, [1])) == "aaa"
    assert stream.reset_keep(2) == 1


# Threads


@pytest.mark.parametrize("call", [lambda stream: stream.prefill([1]), lambda stream: stream.next()])
def test_a_native_call_leaves_python_running_and_cancel_ends_it(
    fake: Fake, stream: Stream, call: Callable[[Stream], object]
) -> None:
    fake.block(1)
    join = in_thread(lambda: call(stream))
    fake.wait_entered()
    stream.cancel()
    assert isinstance(join(), Cancelled)


def test_close_cancels_a_running_call_and_frees_after_it(fake: Fake, stream: Stream) -> None:
    fake.block(1)
    join = in_thread(stream.next)
    fake.wait_entered()
    stream.close()
    assert fake.open_streams() == 0
    assert isinstance(join(), Cancelled)
    assert fake.calls()[-2:] == ["cancel", "close"]


def test_two_threads_take_turns_on_one_stream(fake: Fake, stream: Stream) -> None:
    fake.block(1)
    first = in_thread(stream.next)
    fake.wait_entered()
    second = in_thread(stream.next)
    stream.cancel()
    assert isinstance(first(), Cancelled)
    assert isinstance(second(), Cancelled)


def test_waiting_callers_learn_that_the_stream_was_closed(fake: Fake, stream: Stream) -> None:
    fake.block(1)
    first = in_thread(stream.next)
    fake.wait_entered()
    second = in_thread(stream.next)
    stream.close()
    assert isinstance(first(), Cancelled)
    assert isinstance(second(), (Cancelled, ClosedHandle))


@pytest.mark.threads
def test_cancel_and_close_may_race(fake: Fake, context: Context) -> None:
    for _ in range(200):
        stream = context.open_stream()
        barrier = threading.Barrier(3)

        def cancel(stream: Stream = stream, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            for _ in range(5):
                stream.cancel()

        def run(stream: Stream = stream, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            for _ in range(5):
                stream.next()

        joins = [in_thread(cancel), in_thread(run)]
        barrier.wait()
        stream.close()
        cancelled, ran = (join() for join in joins)
        assert cancelled is None
        assert ran is None or isinstance(ran, (Cancelled, ClosedHandle))
    assert fake.open_streams() == 0


def test_a_stream_cannot_be_used_or_closed_inside_its_own_callback(context: Context) -> None:
    raised: list[str] = []

    def callback(_event: VerifierEvent) -> None:
        for call in (opened.next, opened.close):
            try:
                call()
            except ElizaError as error:
                raised.append(str(error))

    context.set_verifier_callback(callback)
    with context.open_stream() as opened:
        opened.next()
        context.set_verifier_callback(None)
    assert len(raised) == 2
    assert all("inside its own callback" in message for message in raised)


# Async


def test_async_iteration_yields_every_step(stream: Stream) -> None:
    async def run() -> list[bool]:
        await stream.aprefill([1])
        return [step.done async for step in stream]

    assert asyncio.run(run()) == [False, False, True]


def test_agenerate_yields_text_and_closes_its_stream(fake: Fake, context: Context) -> None:
    async def run() -> str:
        return "".join([piece async for piece in context.agenerate("hi", stop=["b"])])

    assert asyncio.run(run()) == "aaa"
    assert fake.open_streams() == 0


def test_the_event_loop_runs_while_a_step_does_and_cancelling_the_task_ends_it(
    fake: Fake, context: Context
) -> None:
    async def consume() -> None:
        async for _ in context.agenerate([1]):
            pass

    async def run() -> None:
        task = asyncio.create_task(consume())
        # Only a loop that is not blocked by the step gets to the cancelling below.
        await asyncio.get_running_loop().run_in_executor(None, fake.wait_entered)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    fake.block(1)
    asyncio.run(run())
    assert fake.open_streams() == 0


def test_cancelling_aprefill_cancels_the_stream(fake: Fake, stream: Stream) -> None:
    async def run() -> None:
        task = asyncio.create_task(stream.aprefill([1]))
        await asyncio.get_running_loop().run_in_executor(None, fake.wait_entered)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    fake.block(1)
    asyncio.run(run())
    assert "cancel" in fake.calls()


def test_leaving_an_async_loop_early_closes_the_stream(fake: Fake, context: Context) -> None:
    async def run() -> None:
        async for _ in context.agenerate([1]):
            break

    asyncio.run(run())
    gc.collect()
    assert fake.open_streams() == 0
    assert "cancel" in fake.calls()
