"""LiteRT-LM itself, for comparing with it; and what it makes of a file, as a program of its own,
since the runtime can abort.

Usage: ``runtime.py LIBRARY FILE TOKENS PROMPT...``. Prints a JSON list: the greedy continuation of
each prompt by at most TOKENS tokens. The functions are those of litert-lm-api 0.18.1.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import sys
from typing import Any, Iterator, NoReturn

_SILENT = 1000
_TOP_P = 2
_TEXT = 0
_HANDLE = ctypes.c_void_p
_NUMBER = ctypes.c_int
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "set_min_log_level": (None, [_NUMBER]),
    "get_last_error_message": (ctypes.c_char_p, []),
    "engine_settings_create": (_HANDLE, [ctypes.c_char_p] * 4),
    "engine_settings_set_cache_dir": (None, [_HANDLE, ctypes.c_char_p]),
    "engine_settings_set_num_threads": (None, [_HANDLE, _NUMBER]),
    "engine_create": (_HANDLE, [_HANDLE]),
    "sampler_params_create": (_HANDLE, [_NUMBER]),
    "sampler_params_set_top_k": (None, [_HANDLE, ctypes.c_int32]),
    "sampler_params_set_top_p": (None, [_HANDLE, ctypes.c_float]),
    "sampler_params_set_temperature": (None, [_HANDLE, ctypes.c_float]),
    "session_config_create": (_HANDLE, []),
    "session_config_set_max_output_tokens": (None, [_HANDLE, _NUMBER]),
    "session_config_set_apply_prompt_template": (None, [_HANDLE, ctypes.c_bool]),
    "session_config_set_sampler_params": (None, [_HANDLE, _HANDLE]),
    "engine_create_session": (_HANDLE, [_HANDLE, _HANDLE]),
    "session_delete": (None, [_HANDLE]),
    "input_data_create": (_HANDLE, [_NUMBER, ctypes.c_char_p, ctypes.c_size_t]),
    "input_data_delete": (None, [_HANDLE]),
    "session_run_prefill": (_NUMBER, [_HANDLE, ctypes.POINTER(_HANDLE), ctypes.c_size_t]),
    "session_run_decode": (_HANDLE, [_HANDLE]),
    "responses_get_response_text_at": (ctypes.c_char_p, [_HANDLE, _NUMBER]),
    "responses_delete": (None, [_HANDLE]),
}


class Runtime:
    """The functions of the C API by their names without ``litert_lm_``; silent."""

    def __init__(self, library: str) -> None:
        native = ctypes.CDLL(library)
        self._functions = {name: native[f"litert_lm_{name}"] for name in _SIGNATURES}
        for name, (returned, taken) in _SIGNATURES.items():
            self._functions[name].restype = returned
            self._functions[name].argtypes = taken
        self.call("set_min_log_level", _SILENT)

    def call(self, name: str, *arguments: object) -> Any:
        return self._functions[name](*arguments)

    def made(self, name: str, *arguments: object) -> Any:
        """The answer of ``name``; ends the process where it is NULL."""
        answer = self.call(name, *arguments)
        if answer is None:
            self.fail(name)
        return answer

    def fail(self, name: str) -> NoReturn:
        said = self.call("get_last_error_message") or b"failed without a message"
        sys.exit(f"{name}: {said.decode('utf-8', 'replace')}")


class GreedyModel:
    """A model file on the CPU, whose sessions continue greedily by at most ``tokens`` tokens."""

    def __init__(self, runtime: Runtime, file: str, tokens: int, threads: int = 0) -> None:
        self._runtime = runtime
        settings = runtime.made("engine_settings_create", file.encode(), b"cpu", None, None)
        runtime.call("engine_settings_set_cache_dir", settings, b":nocache")
        if threads:
            runtime.call("engine_settings_set_num_threads", settings, threads)
        self._engine = runtime.made("engine_create", settings)
        # The runtime's own kind "greedy" is not there for CPUs.
        sampler = runtime.made("sampler_params_create", _TOP_P)
        runtime.call("sampler_params_set_top_k", sampler, 1)
        runtime.call("sampler_params_set_top_p", sampler, 1.0)
        runtime.call("sampler_params_set_temperature", sampler, 0.0)
        self._config = runtime.made("session_config_create")
        runtime.call("session_config_set_max_output_tokens", self._config, tokens)
        runtime.call("session_config_set_apply_prompt_template", self._config, False)
        runtime.call("session_config_set_sampler_params", self._config, sampler)

    @contextlib.contextmanager
    def session(self) -> Iterator[Any]:
        session = self._runtime.made("engine_create_session", self._engine, self._config)
        yield session
        self._runtime.call("session_delete", session)

    def prefill(self, session: Any, text: str) -> None:
        """Ends the process where the runtime refuses it."""
        content = text.encode()
        given = _HANDLE(self._runtime.made("input_data_create", _TEXT, content, len(content)))
        if self._runtime.call("session_run_prefill", session, ctypes.byref(given), 1) != 0:
            self._runtime.fail("session_run_prefill")
        self._runtime.call("input_data_delete", given)

    def decode(self, session: Any) -> str:
        answer = self._runtime.made("session_run_decode", session)
        text = self._runtime.call("responses_get_response_text_at", answer, 0) or b""
        decoded: str = text.decode("utf-8", "replace")
        self._runtime.call("responses_delete", answer)
        return decoded


def _continuations(model: GreedyModel, prompts: list[str]) -> list[str]:
    texts = []
    for prompt in prompts:
        with model.session() as session:
            model.prefill(session, prompt)
            texts.append(model.decode(session))
    return texts


if __name__ == "__main__":
    _, _library, _file, _tokens, *_prompts = sys.argv
    _model = GreedyModel(Runtime(_library), _file, int(_tokens))
    print(json.dumps(_continuations(_model, _prompts)))
