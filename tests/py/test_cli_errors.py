"""The command line: every failure is one line on stderr and an exit status, never a traceback."""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest

import eliza_ctypes
from eliza_ctypes.cli import _parser
from eliza_ctypes.cli.common import config_of

# A library whose model answers "é" twice. A prompt that begins with "~" runs until it is cancelled.
# Forcing the backend "?" lists the backends.
FAKE = r"""
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
typedef struct { int steps, cancelled; } stream_t;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
const char facts[] = "ELIZA_BUILD_FACTS {\"compiler\": \"cc\", \"backends\": [\"a\", \"b\"]}";
const char *eliza_inference_abi_version(void) { return facts[0] ? "8" : 0; }
void *eliza_inference_create(const char *bundle, char **error) { return malloc(1); }
void eliza_inference_destroy(void *context) { free(context); }
void eliza_inference_free_string(char *text) { free(text); }
void eliza_inference_free_tokens(int *ids) { free(ids); }
int eliza_inference_llm_stream_supported(void) { return 1; }
void *eliza_inference_llm_stream_open(void *context, const void *config, char **error) {
  const char *forced = getenv("ELIZA_LLM_BACKEND"), *seed = getenv("ELIZA_LLM_SEED");
  if (forced && !strcmp(forced, "?")) {
    *error = strdup("no such backend:\n  llama.cpp (rank 0): always available\n"
                    "  litert-lm (rank 100): not available on this host\n"
                    "  other (rank 5): available and able to serve this bundle");
    return 0;
  }
  if (seed && !strcmp(seed, "13")) { *error = strdup("seed 13:\n  is bad luck"); return 0; }
  return calloc(1, sizeof(stream_t));
}
int eliza_inference_llm_stream_prefill(stream_t *s, const int *ids, size_t n, char **error) {
  if (n == 0 || ids[0] != '~') return 0;
  fputs("prefill runs\n", stderr);
  pthread_mutex_lock(&mutex);
  while (!s->cancelled) pthread_cond_wait(&changed, &mutex);
  pthread_mutex_unlock(&mutex);
  return -7;
}
int eliza_inference_llm_stream_next(stream_t *s, int *ids, size_t cap, size_t *n, char *text,
                                    size_t text_cap, int *drafted, int *accepted, char **error) {
  *n = 1; ids[0] = 1; strcpy(text, "\xc3\xa9");
  return ++s->steps == 2;
}
int eliza_inference_llm_stream_cancel(stream_t *s) {
  pthread_mutex_lock(&mutex);
  s->cancelled = 1;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&mutex);
  return 0;
}
int eliza_inference_llm_stream_reset_keep(stream_t *s, int keep) {
  fprintf(stderr, "kept %d\n", keep);
  s->steps = s->cancelled = 0;
  return keep;
}
void eliza_inference_llm_stream_close(void *s) { free(s); }
int eliza_inference_tokenize(void *context, const char *text, size_t length, int add, int parse,
                             int **ids, size_t *n, char **error) {
  *n = length;
  *ids = malloc((length + 1) * sizeof(int));
  for (size_t i = 0; i < length; i++) (*ids)[i] = text[i];
  return 0;
}
int eliza_inference_detokenize(void *context, const int *ids, size_t n, int remove, int unparse,
                               char *text, size_t cap, char **error) {
  for (size_t i = 0; i < n; i++) text[i] = ids[i];
  text[n] = 0;
  return n;
}
"""


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    assert compiler, "these tests need a C compiler"
    source = tmp_path_factory.mktemp("fake") / "fake.c"
    source.write_text(FAKE)
    target = source.with_suffix(".so")
    subprocess.run(
        [compiler, "-w", "-shared", "-fPIC", "-pthread", str(source), "-o", str(target)], check=True
    )
    return target


def run(*arguments: str | Path, stdin: str = "", **variables: str) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of the command."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("ELIZA_")}
    env.update(variables, PYTHONPATH=str(Path(eliza_ctypes.__file__).parents[1]))
    done = subprocess.run(
        [sys.executable, "-m", "eliza_ctypes", *map(str, arguments)],
        input=stdin.encode(),
        env=env,
        capture_output=True,
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def assert_one_line_error(result: tuple[int, str, str], status: int, part: str) -> None:
    assert result[0] == status
    assert result[1] == ""
    assert result[2].startswith("eliza-ctypes: error: ")
    assert result[2].count("\n") == 1
    assert part in result[2]


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ([], "COMMAND"),
        (["teleport"], "invalid choice"),
        (["generate"], "BUNDLE"),
        (["generate", "b", "p", "--max-tokens", "many"], "--max-tokens"),
        (["generate", "b", "p", "--raw", "--chat"], "--chat"),
        (["bundle", "x.gguf"], "DIR"),
    ],
)
def test_wrong_usage_is_status_2(arguments: list[str], part: str) -> None:
    assert_one_line_error(run(*arguments), 2, part)


@pytest.mark.parametrize("command", [["generate", "x", "y"], ["tokenize", "x", "y"], ["info"]])
def test_a_missing_library_is_status_1_and_names_the_place(
    tmp_path: Path, command: list[str]
) -> None:
    absent = tmp_path / "absent.so"
    assert_one_line_error(run("--library", absent, *command), 1, f"{absent}: no such file")


def test_a_bundle_that_does_not_exist_is_status_1(fake: Path, tmp_path: Path) -> None:
    result = run("generate", tmp_path / "absent", "x", "--library", fake)
    assert_one_line_error(result, 1, "absent does not exist")


def test_a_message_of_several_lines_becomes_one(fake: Path, tmp_path: Path) -> None:
    result = run("generate", tmp_path, "x", "--seed", "13", "--library", fake)
    assert_one_line_error(result, 1, "seed 13: is bad luck")


def test_a_number_that_does_not_fit_is_status_1(fake: Path, tmp_path: Path) -> None:
    result = run("generate", tmp_path, "x", "--max-tokens", "99999999999", "--library", fake)
    assert_one_line_error(result, 1, "max_tokens is 99999999999")


def test_a_missing_grammar_file_is_status_1(fake: Path, tmp_path: Path) -> None:
    absent = tmp_path / "absent.gbnf"
    result = run("generate", tmp_path, "x", "--grammar-file", absent, "--library", fake)
    assert_one_line_error(result, 1, "absent.gbnf: No such file")


def options(*words: str) -> eliza_ctypes.LlmStreamConfig:
    """The stream settings that the options of a generation come to."""
    return config_of(_parser().parse_args(["generate", "bundle", "prompt", *words]))


@pytest.mark.parametrize(
    ("words", "fields"),
    [
        (["--draft", "5"], {"draft_max": 5}),
        (["--draft", "a.gguf"], {"draft_max": 8, "mtp_drafter_path": Path("a.gguf")}),
        (["--draft", "./5"], {"draft_max": 8, "mtp_drafter_path": Path("5")}),
        (
            ["--draft", "a.gguf", "--draft-max", "0"],
            {"draft_max": 0, "mtp_drafter_path": Path("a.gguf")},
        ),
        (["--cache-key", "a kéy"], {"prompt_cache_key": "a kéy"}),
    ],
)
def test_options_set_the_fields_of_the_stream(words: list[str], fields: dict[str, object]) -> None:
    assert options(*words) == options()._replace(**fields)  # type: ignore[arg-type]


def test_a_schema_from_a_file_becomes_the_grammar(tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text('{"const": "ü"}', "utf-8")
    grammar = options("--json-schema", str(tmp_path / "schema.json")).gbnf_grammar
    assert grammar == 'root ::= "\\"ü\\""\n'


@pytest.mark.parametrize(
    ("words", "status", "part"),
    [
        (["--draft", ""], 2, "a path is empty"),
        (["--draft-max", "3"], 2, "--draft-max goes with"),
        (["--draft", "4", "--draft-max", "3"], 2, "--draft-max goes with"),
        (["--draft", "a.gguf", "--draft-max", "many"], 2, "--draft-max: invalid int value"),
        (["--draft", "99999999999"], 1, "draft_max is 99999999999"),
        (["--json-schema", "absent.json"], 1, "absent.json: No such file"),
        (["--json-schema", "."], 1, ".: Is a directory"),
        (["--json-schema", "text"], 2, "--json-schema: text is not JSON: Expecting value"),
        (["--json-schema", "latin"], 2, "--json-schema: latin is not UTF-8"),
        (["--json-schema", "deep"], 2, "--json-schema: deep is not JSON: maximum recursion"),
        (["--json-schema", "pattern"], 2, "--json-schema: pattern: json_schema at #/pattern: the"),
        (["--json-schema", "pattern", "--grammar", "root ::= x"], 2, "not allowed with argument"),
        (["--restore-slot", "absent"], 1, "restore_slot is not supported by this library"),
        (["--restore-slot", ""], 2, "a path is empty"),
    ],
)
def test_a_bad_option_of_a_generation_is_one_line(
    fake: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    status: int,
    part: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("nothing of the kind")
    (tmp_path / "latin").write_bytes(b'{"const": "\xe9"}')
    (tmp_path / "deep").write_text("[" * 100_000)
    (tmp_path / "pattern").write_text('{"type": "string", "pattern": "a+"}')
    assert_one_line_error(run("generate", ".", "x", "--library", fake, *words), status, part)


def test_a_function_that_the_library_lacks_is_status_1(fake: Path, tmp_path: Path) -> None:
    code = f"""
import sys
from eliza_ctypes.cli import main
from eliza_ctypes import Library
Library.detokenize = lambda self, *_: self.call("vad_supported")
sys.exit(main(["tokenize", "--decode", {str(tmp_path)!r}, "1", "--library", {str(fake)!r}]))
"""
    env = {**os.environ, "PYTHONPATH": str(Path(eliza_ctypes.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    result = done.returncode, done.stdout, done.stderr
    assert_one_line_error(result, 1, "vad_supported is not supported by this library")


def test_a_bundle_without_a_model_has_no_chat_template(fake: Path, tmp_path: Path) -> None:
    result = run("chat", tmp_path, "--library", fake)
    assert_one_line_error(result, 1, "is not a bundle: it has no text/ directory")


def test_without_jinja2_chat_says_what_to_install(fake: Path, tmp_path: Path) -> None:
    code = f"""
import sys
sys.modules["jinja2"] = None
import eliza_ctypes.chat, eliza_ctypes.cli
eliza_ctypes.chat.ChatTemplate.of_bundle = lambda *_: eliza_ctypes.chat.ChatTemplate("x")
sys.exit(eliza_ctypes.cli.main(["chat", {str(tmp_path)!r}, "--library", {str(fake)!r}]))
"""
    env = {**os.environ, "PYTHONPATH": str(Path(eliza_ctypes.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    result = done.returncode, done.stdout, done.stderr
    assert_one_line_error(result, 2, "pip install 'eliza-ctypes[chat]'")


def test_bundle_refuses_what_is_no_gguf(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_text("nothing of the kind")
    result = run("bundle", tmp_path / "x.gguf", tmp_path / "out")
    assert_one_line_error(result, 1, "x.gguf: is not a GGUF file")


def test_decode_refuses_what_is_no_number(fake: Path, tmp_path: Path) -> None:
    result = run("tokenize", "--decode", tmp_path, "1", "two", "--library", fake)
    assert_one_line_error(result, 2, "'two'")


def test_generate_writes_utf8_whatever_the_locale(fake: Path, tmp_path: Path) -> None:
    variables = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    result = run("generate", tmp_path, "ü", "--library", fake, **variables)
    assert result == (0, "éé\n", "")


def test_the_prompt_comes_from_stdin_where_none_is_given(fake: Path, tmp_path: Path) -> None:
    result = run("generate", tmp_path, "--stats", "--library", fake, stdin="abc\n")
    assert result[1] == "éé\n"
    assert "prompt tokens         3\n" in result[2]
    assert "generated tokens      2\n" in result[2]


def test_a_reader_that_goes_away_is_no_error(fake: Path, tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    env = {**os.environ, "PYTHONPATH": str(Path(eliza_ctypes.__file__).parents[1])}
    command = [sys.executable, "-m", "eliza_ctypes", "generate", str(tmp_path), "x"]
    done = subprocess.run(
        [*command, "--library", str(fake)], env=env, stdout=write, stderr=subprocess.PIPE
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


def test_options_may_stand_between_the_bundle_and_the_text(fake: Path, tmp_path: Path) -> None:
    assert run("generate", tmp_path, "--max-tokens", "2", "x", "--library", fake)[1] == "éé\n"
    assert run("tokenize", tmp_path, "--decode", "97", "98", "--library", fake)[1] == "ab\n"
    result = run("generate", tmp_path, "x", "--library", fake, "y")
    assert_one_line_error(result, 2, "unrecognized arguments: y")


def test_tokenize_prints_ids_and_decode_reverses_it(fake: Path, tmp_path: Path) -> None:
    assert run("tokenize", tmp_path, "ab", "c", "--library", fake) == (0, "97 98 32 99\n", "")
    assert run("tokenize", tmp_path, "--decode", "--library", fake, stdin="97, 98")[1] == "ab\n"


def test_info_tells_build_and_backends(fake: Path, tmp_path: Path) -> None:
    status, output, errors = run("info", tmp_path, "--json", "--library", fake)
    facts = json.loads(output)
    assert (status, errors) == (0, "")
    assert facts["build"] == {"compiler": "cc", "backends": ["a", "b"]}
    assert facts["abi"] == "8"
    assert facts["supports"]["llm_stream"] and not facts["supports"]["vad"]
    assert [backend["name"] for backend in facts["bundle"]["backends"]] == [
        "llama.cpp",
        "litert-lm",
        "other",
    ]
    assert facts["bundle"]["served_by"] == "other"


@pytest.mark.parametrize(
    ("forced", "line"),
    [
        ("LlamaCpp", "served by llama.cpp: ELIZA_LLM_BACKEND forces it"),
        ("litert-lm", "served by none: ELIZA_LLM_BACKEND forces litert-lm: not available"),
        ("tpu", "served by none: ELIZA_LLM_BACKEND forces 'tpu', which this library does not"),
    ],
)
def test_info_says_what_a_forced_backend_leads_to(
    fake: Path, tmp_path: Path, forced: str, line: str
) -> None:
    _, output, _ = run("info", tmp_path, "--library", fake, ELIZA_LLM_BACKEND=forced)
    assert line in output


def test_info_reads_the_build_of_a_library_that_cannot_be_loaded(
    fake: Path, tmp_path: Path
) -> None:
    damaged = bytearray(fake.read_bytes())
    damaged[18:20] = (243).to_bytes(2, "little")
    (tmp_path / "foreign.so").write_bytes(damaged)
    status, output, errors = run("info", "--library", tmp_path / "foreign.so")
    assert status == 1
    assert "compiler: cc" in output
    assert "was built for riscv64" in errors


def test_ctrl_c_ends_a_running_prefill_with_status_130(fake: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "eliza_ctypes", "generate", str(tmp_path), "~"]
    env = {**os.environ, "PYTHONPATH": str(Path(eliza_ctypes.__file__).parents[1])}
    process = subprocess.Popen(
        [*command, "--library", str(fake)], env=env, stdout=-1, stderr=-1, text=True
    )
    assert process.stderr is not None
    assert process.stderr.readline() == "prefill runs\n"
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate()
    assert (process.returncode, output, errors) == (130, "\n", "")


def test_chat_keeps_what_two_turns_have_in_common(fake: Path, tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    template = "{% for m in messages %}[{{ m.role[0] }}:{{ m.content }}]{% endfor %}"
    key = "tokenizer.chat_template"
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "tiny.gguf").write_bytes(
        b"GGUF"
        + struct.pack("<IQQQ", 3, 1, 1, len(key))
        + key.encode()
        + struct.pack("<IQ", 8, len(template))
        + template.encode()
    )
    turns = "hi\n/what\n\nho\n/reset\nhi\n/exit\nnever\n"
    status, output, errors = run("chat", tmp_path, "--library", fake, stdin=turns)
    assert (status, output) == (0, "éé\n" * 3)
    kept = [line for line in errors.splitlines() if line.startswith("kept")]
    # The fake knows no reply by its tokens: "[u:hi]" is all that the first two turns share.
    assert kept == ["kept 6", "kept 5"]
    assert "unknown command; /reset forgets" in errors
