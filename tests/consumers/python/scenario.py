"""The scenario of ../README.md through eliza_ctypes: the transcript that all others must equal."""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
import time
from array import array
from functools import partial
from typing import Any, Callable, Sequence

from eliza_ctypes import ElizaError, Library
from eliza_ctypes.abi import FUNCTIONS, PREFIX, RELEASE
from eliza_ctypes.config import LlmStreamConfig
from eliza_ctypes.handle import Handle
from eliza_ctypes.library import LlmStreamHandle, VerifierEvent

PROMPT = "The capital of France is"
SMILEYS = "🙂🙃🙂🙃🙂🙃🙂"
LOOP = "one two three four one two three four one two"
MIXED = "Hello, wörld! 🙂 日本語<|im_end|>"
LONG = "word " * 2000
CANCEL_AFTER_SECONDS = 0.05
Json = dict[str, Any]


class Scenario:
    def __init__(self, library: Library, bundle: str) -> None:
        self.library = library
        self.transcript: Json = {}
        self.cancel_ms: dict[str, float] = {}
        self.before_the_context()
        self.context = library.create(bundle)

    def play(self) -> Json:
        self.without_a_stream()
        self.on_one_stream()
        self.configured_streams()
        self.selection()
        self.cancelled()
        self.nulls()
        return {"transcript": self.transcript, "cancel_ms": self.cancel_ms}

    def before_the_context(self) -> None:
        library, record = self.library, self.transcript
        record["version"] = library.abi_version()
        ending = "_supported"
        record["probes"] = {
            name[len(PREFIX) : -len(ending)]: library.call(name)
            for name in FUNCTIONS
            if name.endswith(ending)
        }
        record["bad_bundle"] = refusal(lambda: library.create("/no/such/bündle-🙂"))

    def without_a_stream(self) -> None:
        library, record, context = self.library, self.transcript, self.context
        silence, text = array("f", [0.0] * 4), ctypes.create_string_buffer(256)
        record["voice"] = failure(
            lambda: library.call("asr_transcribe", context, silence, 4, 16000, text, 64)
        )
        plain = library.tokenize(context, MIXED)
        special = library.tokenize(context, MIXED, parse_special=True)
        record["tokenize"] = {"plain": plain, "special": special}
        ids = array("i", special)
        size = library.call("detokenize", context, ids, len(ids), 0, 1, text, len(text))
        record["detokenize"] = {"size": size, "text": text.value.decode()}
        record["detokenize_small"] = failure(
            lambda: library.call("detokenize", context, ids, len(ids), 0, 1, text, 4)
        )

    def on_one_stream(self) -> None:
        library, record, stream = self.library, self.transcript, self.open()
        prompt, smileys = self.ids(PROMPT), self.ids(SMILEYS)
        record["first"] = self.generate(stream, prompt)
        record["again"] = {"reset": self.reset(stream), **self.generate(stream, prompt)}
        record["kept"] = {
            "reset_keep": library.llm_stream_reset_keep(stream, 3),
            **self.generate(stream, prompt[3:]),
        }
        record["continued"] = self.generate(stream, self.ids(" And then"))
        record["bad_token"] = failure(lambda: library.llm_stream_prefill(stream, [999999]))
        record["no_token"] = failure(lambda: library.llm_stream_prefill(stream, []))
        self.reset(stream)
        record["split"] = self.generate(stream, smileys)
        self.reset(stream)
        record["tiny"] = self.generate(stream, smileys, 1, 5)
        self.reset(stream)
        record["cramped"] = self.generate(stream, smileys, 16, 2)
        record["cramped"]["then"] = self.step(stream)
        self.reset(stream)
        library.llm_stream_prefill(stream, prompt)
        self.steps(stream, 4)
        library.llm_stream_save_slot(stream, "talk.slot")
        second = self.open()
        library.llm_stream_restore_slot(second, "talk.slot")
        record["saved"] = {
            "save": 0,
            "restore": 0,
            **self.generate(second, self.ids(" And then")),
        }
        second.close()
        record["missing_slot"] = failure(
            lambda: library.llm_stream_restore_slot(stream, "missing.slot")
        )
        stream.close()

    def configured_streams(self) -> None:
        record = self.transcript
        record["sampled"] = self.generate_once(
            PROMPT, temperature=0.8, top_p=0.9, top_k=40, repeat_penalty=1.2
        )
        record["grammar"] = self.generate_once(PROMPT, gbnf_grammar='root ::= " yes" | " no"')
        record["keyed"] = [
            self.generate_once(PROMPT, slot_id=3, prompt_cache_key="talk") for _ in range(2)
        ]
        events: list[Json] = []

        def verified(event: VerifierEvent) -> None:
            events.append(
                {
                    "accepted": event.accepted_token_ids,
                    "rejected_from": event.rejected_from,
                    "rejected_to": event.rejected_to,
                    "corrected": event.corrected_token_ids,
                }
            )

        self.library.set_verifier_callback(self.context, verified)
        record["drafted"] = self.generate_once(
            LOOP, max_tokens=40, draft_min=1, draft_max=4, cache_type_k="q8_0", cache_type_v="q8_0"
        )
        record["drafted"]["events"] = events
        self.library.set_verifier_callback(self.context, None)
        wrongs: list[Json] = [
            {"cache_type_k": "q3_9"},
            {"cache_type_v": "q3_9"},
            {"mtp_drafter_path": "/no/such/drafter.gguf"},
            {"gbnf_grammar": "root ::= ("},
        ]
        record["failed_open"] = [refusal(partial(self.open, **wrong)) for wrong in wrongs]

    def selection(self) -> None:
        record = self.transcript
        os.environ["ELIZA_LLM_BACKEND"] = "no-such-runtime"
        refused = refusal(self.open)
        record["hard_select"] = {**refused, "message": refused["message"].partition("\n")[0]}
        os.environ["ELIZA_LLM_BACKEND"] = "LlamaCpp"
        record["selected"] = self.generate_once(PROMPT)
        del os.environ["ELIZA_LLM_BACKEND"]

    def cancelled(self) -> None:
        library, record = self.library, self.transcript
        stream, prompt = self.open(max_tokens=0), self.ids(PROMPT)
        library.llm_stream_prefill(stream, self.ids(LOOP))

        def until_an_error() -> None:
            while True:
                library.llm_stream_next(stream)

        stopped = self.stopped("next", stream, until_an_error)
        record["cancel_next"] = {
            "code": stopped["code"],
            "next": failure(lambda: library.llm_stream_next(stream)),
            "prefill": failure(lambda: library.llm_stream_prefill(stream, prompt)),
            "reset": self.reset(stream),
        }
        library.llm_stream_prefill(stream, prompt)
        record["cancel_next"]["steps"] = self.steps(stream, 4)

        self.reset(stream)
        long = self.ids(LONG)
        stopped = self.stopped("prefill", stream, lambda: library.llm_stream_prefill(stream, long))
        record["cancel_prefill"] = {**stopped, "reset": self.reset(stream)}
        library.llm_stream_prefill(stream, prompt)
        record["cancel_prefill"]["steps"] = self.steps(stream, 4)

        self.reset(stream)
        library.llm_stream_prefill(stream, prompt)
        self.context.close()
        record["outlived"] = {"steps": self.steps(stream, 4)}
        stream.close()

    def nulls(self) -> None:
        for name in filter(None, RELEASE.values()):
            self.library.call(name, None)
        self.library.call("free_string", None)
        self.library.call("free_tokens", None)
        self.transcript["nulls"] = True

    def open(self, **settings: Any) -> LlmStreamHandle:
        config = LlmStreamConfig(**{"max_tokens": 16, "slot_id": -1, **settings})
        return self.library.llm_stream_open(self.context, config)

    def ids(self, text: str) -> list[int]:
        return self.library.tokenize(self.context, text)

    def reset(self, stream: LlmStreamHandle) -> int:
        self.library.llm_stream_reset(stream)
        return 0

    def generate_once(self, text: str, **settings: Any) -> Json:
        stream = self.open(**settings)
        try:
            return self.generate(stream, self.ids(text))
        finally:
            stream.close()

    def generate(
        self,
        stream: LlmStreamHandle,
        tokens: Sequence[int],
        tokens_cap: int = 16,
        text_cap: int = 256,
    ) -> Json:
        self.library.llm_stream_prefill(stream, tokens)
        steps = [self.step(stream, tokens_cap, text_cap)]
        while steps[-1]["code"] == 0:
            steps.append(self.step(stream, tokens_cap, text_cap))
        return {"prefill": 0, "steps": steps}

    def steps(self, stream: LlmStreamHandle, count: int) -> list[Json]:
        return [self.step(stream) for _ in range(count)]

    def step(self, stream: LlmStreamHandle, tokens_cap: int = 16, text_cap: int = 256) -> Json:
        try:
            step = self.library.llm_stream_next(stream, tokens_cap, text_cap)
        except ElizaError as error:
            return {"code": error.code, "message": error.message}
        return {
            "code": int(step.done),
            "tokens": step.tokens,
            "text": step.text,
            "drafted": step.drafter_drafted,
            "accepted": step.drafter_accepted,
        }

    def stopped(self, name: str, stream: LlmStreamHandle, call: Callable[[], object]) -> Json:
        """The failure that ``call`` ends with, since another thread cancels meanwhile."""
        cancelled_at: list[float] = []

        def cancel() -> None:
            cancelled_at.append(time.perf_counter())
            self.library.llm_stream_cancel(stream)

        timer = threading.Timer(CANCEL_AFTER_SECONDS, cancel)
        timer.start()
        outcome = failure(call)
        returned_at = time.perf_counter()
        timer.join()
        self.cancel_ms[name] = 1000 * (returned_at - cancelled_at[0])
        return outcome


def failure(call: Callable[[], object]) -> Json:
    try:
        call()
    except ElizaError as error:
        return {"code": error.code, "message": error.message}
    raise SystemExit("a call succeeded that must fail")


def refusal(call: Callable[[], Handle]) -> Json:
    return {"opened": False, "message": failure(call)["message"]}


def main() -> None:
    _, path, bundle = sys.argv
    print(json.dumps(Scenario(Library(path), bundle).play(), ensure_ascii=False))


main()
