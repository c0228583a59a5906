"""What LiteRT-LM itself makes of a file: a program of its own, since the runtime can abort.

Usage: ``runtime.py LIBRARY FILE TOKENS PROMPT...``. Prints a JSON list: the greedy continuation of
each prompt by at most TOKENS tokens. The functions are those of litert-lm-api 0.18.1.
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any

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
    "session_run_prefill": (_NUMBER, [_HANDLE, ctypes.POINTER(_HANDLE), ctypes.c_size_t]),
    "session_run_decode": (_HANDLE, [_HANDLE]),
    "responses_get_response_text_at": (ctypes.c_char_p, [_HANDLE, _NUMBER]),
}


class _Runtime:
    def __init__(self, library: str) -> None:
        native = ctypes.CDLL(library)
        self._functions = {name: native[f"litert_lm_{name}"] for name in _SIGNATURES}
        for name, (returned, taken) in _SIGNATURES.items():
            self._functions[name].restype = returned
            self._functions[name].argtypes = taken

    def call(self, name: str, *arguments: object) -> Any:
        return self._functions[name](*arguments)

    def made(self, name: str, *arguments: object) -> Any:
        """The answer of ``name``, which must not be NULL."""
        answer = self.call(name, *arguments)
        if answer is None:
            said = self.call("get_last_error_message") or b"failed without a message"
            sys.exit(f"{name}: {said.decode('utf-8', 'replace')}")
        return answer


def _continuations(runtime: _Runtime, file: str, tokens: int, prompts: list[str]) -> list[str]:
    """Nothing is freed: the process ends."""
    runtime.call("set_min_log_level", _SILENT)
    settings = runtime.made("engine_settings_create", file.encode(), b"cpu", None, None)
    runtime.call("engine_settings_set_cache_dir", settings, b":nocache")
    engine = runtime.made("engine_create", settings)
    # The runtime's own kind "greedy" is not there for CPUs.
    sampler = runtime.made("sampler_params_create", _TOP_P)
    runtime.call("sampler_params_set_top_k", sampler, 1)
    runtime.call("sampler_params_set_top_p", sampler, 1.0)
    runtime.call("sampler_params_set_temperature", sampler, 0.0)
    config = runtime.made("session_config_create")
    runtime.call("session_config_set_max_output_tokens", config, tokens)
    runtime.call("session_config_set_apply_prompt_template", config, False)
    runtime.call("session_config_set_sampler_params", config, sampler)
    texts = []
    for prompt in prompts:
        session = runtime.made("engine_create_session", engine, config)
        content = prompt.encode()
        given = _HANDLE(runtime.made("input_data_create", _TEXT, content, len(content)))
        if runtime.call("session_run_prefill", session, ctypes.byref(given), 1) != 0:
            said = runtime.call("get_last_error_message") or b"failed without a message"
            sys.exit(f"session_run_prefill: {said.decode('utf-8', 'replace')}")
        answer = runtime.made("session_run_decode", session)
        text = runtime.call("responses_get_response_text_at", answer, 0) or b""
        texts.append(text.decode("utf-8", "replace"))
        runtime.call("session_delete", session)
    return texts


if __name__ == "__main__":
    _, _library, _file, _tokens, *_prompts = sys.argv
    print(json.dumps(_continuations(_Runtime(_library), _file, int(_tokens), _prompts)))
