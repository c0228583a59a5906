"""What streams of real models generate, against an independent driver and against themselves."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from eliza_ctypes import Cancelled, Context, InvalidArgument, Library, LlmStreamConfig, Stream

PROMPT = "The capital of France is"
# Long enough to run past Gemma's window of 512 tokens, without repeating itself.
STORY = " ".join(
    f"On day {day} the crew of the lighthouse counted {day * 7 % 31} ships, wrote down the wind "
    f"and {'slept' if day % 3 else 'repaired the lamp'} until the tide of the green sea turned."
    for day in range(1, 44)
)


@pytest.fixture(scope="module")
def smollm2(smollm2_bundle: Path, library: Library) -> Iterator[Context]:
    with Context(smollm2_bundle, library) as context:
        yield context


@pytest.fixture(scope="module")
def gemma3(gemma3_bundle: Path, library: Library) -> Iterator[Context]:
    with Context(gemma3_bundle, library) as context:
        yield context


def generated(stream: Stream) -> list[int]:
    return [token for step in stream for token in step.tokens]


def reference(driver: Path, gguf: Path, prompt: list[int], count: int) -> list[int]:
    arguments = [driver, gguf, 4096, 512, count, *prompt]
    run = subprocess.run([str(a) for a in arguments], capture_output=True, text=True, check=True)
    return [int(word) for word in run.stdout.split()]


@pytest.mark.build_tree
@pytest.mark.parametrize(
    "prompt",
    [PROMPT, "def fibonacci(n):\n", "1, 2, 3,", "Ein Märchen: 世界"],
    ids=["prose", "code", "digits", "characters"],
)
def test_greedy_tokens_of_smollm2_equal_the_reference(
    smollm2: Context, smollm2_gguf: Path, reference_decode: Path, prompt: str
) -> None:
    tokens = smollm2.tokenize(prompt)
    with smollm2.open_stream(max_tokens=48) as stream:
        stream.prefill(tokens)
        assert generated(stream) == reference(reference_decode, smollm2_gguf, tokens, 48)


@pytest.mark.build_tree
@pytest.mark.parametrize("prompt", [PROMPT, STORY], ids=["short", "beyond the window"])
def test_greedy_tokens_of_gemma3_equal_the_reference(
    gemma3: Context, gemma3_gguf: Path, reference_decode: Path, prompt: str
) -> None:
    tokens = gemma3.tokenize(prompt)
    with gemma3.open_stream(max_tokens=32) as stream:
        stream.prefill(tokens)
        assert generated(stream) == reference(reference_decode, gemma3_gguf, tokens, 32)


def test_the_continuation_names_paris(smollm2: Context) -> None:
    assert "Paris" in "".join(smollm2.generate(PROMPT, max_tokens=16))


def test_text_of_the_steps_is_the_detokenized_sequence(smollm2: Context) -> None:
    generation = smollm2.generate("Three emoji: 😀 🎉", max_tokens=48)
    text = "".join(generation)
    assert text == smollm2.detokenize(generation.tokens)


# The C++ suites go these ways under the sanitizers, with models that take less time.
@pytest.mark.unsanitized
@pytest.mark.parametrize("cut_from_end", [0, 1, 40, 300, 520, 700, 10_000])
def test_reset_keep_continues_like_a_fresh_stream(gemma3: Context, cut_from_end: int) -> None:
    story = gemma3.tokenize(STORY)
    question = gemma3.tokenize("\nIn short, the crew", add_special=False)
    assert len(story) > 1200
    cut = max(0, len(story) - cut_from_end)
    with gemma3.open_stream(max_tokens=16) as stream:
        stream.prefill(story)
        generated(stream)
        kept = stream.reset_keep(cut)
        assert kept <= cut
        stream.prefill(story[kept:cut] + question)
        continued = generated(stream)
    with gemma3.open_stream(max_tokens=16) as fresh:
        fresh.prefill(story[:cut] + question)
        assert continued == generated(fresh)


@pytest.mark.unsanitized
def test_reset_keep_keeps_the_prefix_of_a_model_without_a_window(smollm2: Context) -> None:
    story = smollm2.tokenize(STORY)
    with smollm2.open_stream(max_tokens=8) as stream:
        stream.prefill(story)
        generated(stream)
        assert stream.reset_keep(600) == 600
        stream.prefill(story[600:900])
        continued = generated(stream)
        stream.reset()
        stream.prefill(story[:900])
        assert continued == generated(stream)


def test_cancel_from_another_thread_stops_a_prefill(smollm2: Context) -> None:
    tokens = (smollm2.tokenize(STORY) * 4)[:6000]
    with smollm2.open_stream() as stream:
        timer = threading.Timer(0.2, stream.cancel)
        timer.start()
        with pytest.raises(Cancelled):
            stream.prefill(tokens)
        timer.join()
        with pytest.raises(Cancelled):
            stream.next()
        stream.reset()
        stream.prefill(smollm2.tokenize(PROMPT))
        assert "Paris" in "".join(stream.next().text for _ in range(4))


def test_cancel_from_another_thread_stops_decoding(smollm2: Context) -> None:
    started = threading.Event()
    with smollm2.open_stream() as stream:

        def cancel_when_started() -> None:
            started.wait()
            stream.cancel()

        canceller = threading.Thread(target=cancel_when_started)
        canceller.start()
        stream.prefill(smollm2.tokenize("1, 2, 3, 4,"))
        with pytest.raises(Cancelled):
            for _ in stream:
                started.set()
        canceller.join()


def test_streams_in_two_threads_generate_as_they_do_alone(
    smollm2: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One compute thread for each stream: two for each would fight over a small machine's cores.
    monkeypatch.setenv("ELIZA_LLM_THREADS", "1")
    prompts = [PROMPT, "My favourite animal is"]
    alone = ["".join(smollm2.generate(prompt, max_tokens=32)) for prompt in prompts]
    together: dict[str, str] = {}

    def run(prompt: str) -> None:
        together[prompt] = "".join(smollm2.generate(prompt, max_tokens=32))

    threads = [threading.Thread(target=run, args=(prompt,)) for prompt in prompts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [together[prompt] for prompt in prompts] == alone


JSON_GRAMMAR = r"""
root   ::= "{" ws "\"city\":" ws string "," ws "\"population\":" ws number ws "}"
string ::= "\"" [A-Za-z ]{1,20} "\""
number ::= [1-9] [0-9]{0,8}
ws     ::= " "?
"""


@pytest.mark.parametrize(
    "sampling",
    [LlmStreamConfig(), LlmStreamConfig(temperature=1.5, top_k=20, top_p=0.9)],
    ids=["greedy", "sampled"],
)
def test_a_grammar_forces_json(smollm2: Context, sampling: LlmStreamConfig) -> None:
    config = sampling._replace(gbnf_grammar=JSON_GRAMMAR, max_tokens=64)
    text = "".join(smollm2.generate("The city as JSON: ", config=config))
    assert sorted(json.loads(text)) == ["city", "population"]


@pytest.mark.parametrize("kv_type", ["Q8_0", "bf16", "f32"])
def test_the_cache_type_changes_little(smollm2: Context, kv_type: str) -> None:
    text = "".join(
        smollm2.generate(PROMPT, max_tokens=16, cache_type_k=kv_type, cache_type_v=kv_type)
    )
    assert "Paris" in text


def test_a_seed_repeats_sampled_text(smollm2: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    config = LlmStreamConfig(temperature=1.0, top_k=40, top_p=0.95, max_tokens=24)
    monkeypatch.setenv("ELIZA_LLM_SEED", "7")
    first, second = ("".join(smollm2.generate("Once", config=config)) for _ in range(2))
    monkeypatch.setenv("ELIZA_LLM_SEED", "8")
    other = "".join(smollm2.generate("Once", config=config))
    assert first == second != other


def test_a_prompt_that_does_not_fit_leaves_the_stream_usable(smollm2: Context) -> None:
    tokens = smollm2.tokenize(PROMPT)
    with smollm2.open_stream(max_tokens=4) as stream:
        with pytest.raises(InvalidArgument, match=r"100000 tokens do not fit.* 8192"):
            stream.prefill((tokens * 20_000)[:100_000])
        stream.prefill(tokens)
        assert len(generated(stream)) == 4


def test_async_generation_leaves_the_event_loop_free(smollm2: Context) -> None:
    async def run() -> tuple[str, int]:
        beats = 0
        finished = asyncio.Event()

        async def heartbeat() -> None:
            nonlocal beats
            while not finished.is_set():
                beats += 1
                await asyncio.sleep(0)

        heart = asyncio.create_task(heartbeat())
        text = "".join([piece async for piece in smollm2.agenerate(PROMPT, max_tokens=16)])
        finished.set()
        await heart
        return text, beats

    text, beats = asyncio.run(run())
    assert text == "".join(smollm2.generate(PROMPT, max_tokens=16))
    assert beats > 16


def test_a_stream_outlives_its_context(smollm2_bundle: Path, library: Library) -> None:
    context = Context(smollm2_bundle, library)
    stream = context.open_stream(max_tokens=8)
    tokens = context.tokenize(PROMPT)
    context.close()
    stream.prefill(tokens)
    assert len(generated(stream)) == 8
    stream.close()


@pytest.mark.skipif(sys.platform == "win32", reason="nothing forks on Windows")
def test_a_forked_child_can_leave_an_inherited_stream_alone(
    tiny_bpe_bundle: Path, library_path: Path
) -> None:
    program = f"""
import os, sys
from eliza_ctypes import ClosedHandle, Context
context = Context({str(tiny_bpe_bundle)!r}, {str(library_path)!r})
stream = context.open_stream(max_tokens=4)
stream.prefill([20, 21])
child = os.fork()
if child == 0:
    try:
        stream.next()
    except ClosedHandle:
        stream.close()
        sys.exit(7)
    sys.exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), sum(len(s.tokens) for s in stream))
"""
    # Two compute threads, which the child does not have.
    environment = {**os.environ, "ELIZA_LLM_THREADS": "2"}
    run = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert run.stdout.split() == ["7", "4"]


@pytest.mark.slow
def test_a_thousand_streams_leave_no_memory_behind(tiny_bpe_bundle: Path, library: Library) -> None:
    def resident_kilobytes() -> int:
        (line,) = (
            line
            for line in Path("/proc/self/status").read_text().splitlines()
            if line.startswith("VmRSS")
        )
        return int(line.split()[1])

    with Context(tiny_bpe_bundle, library) as context:
        tokens = context.tokenize("Hello")

        def cycle() -> None:
            with context.open_stream(max_tokens=2) as stream:
                stream.prefill(tokens)
                stream.next()

        for _ in range(50):
            cycle()
        before = resident_kilobytes()
        for _ in range(1000):
            cycle()
        assert resident_kilobytes() - before < 2048
