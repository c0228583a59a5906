"""The C ABI as one object: every function under its own name, in Python's types.

This layer owns nothing. It turns arguments, frees what the library hands out, and raises an
exception for every error code.
"""

from __future__ import annotations

import ctypes
import threading
from array import array
from contextlib import suppress
from functools import partial
from typing import Any, Callable, NamedTuple, Sequence, Union

from .abi import CALLBACKS, CONFIG_V8, CONFIG_V9, FUNCTIONS, INTERRUPT, OPAQUE, PREFIX, RELEASE
from .config import LlmStreamConfig, to_native
from .errors import ElizaError, InvalidArgument, NotSupported, error_for
from .handle import Handle
from .loader import PathArgument, load

TokenSequence = Union[Sequence[int], "array[int]"]

_NEXT = f"{PREFIX}llm_stream_next"
_OPAQUE_POINTERS = {ctypes.POINTER(structure): name for name, structure in OPAQUE.items()}
_CALLBACK_TYPES = tuple(CALLBACKS.values())
# Streams and voice sessions serve one thread at a time; a context serves any number.
_SHARED = "EliInferenceContext"
# Bytes of text for each token that detokenize is offered, one attempt after the other.
_TEXT_BYTES_PER_TOKEN = (8, 64)
_MOST_TEXT_BYTES_PER_TOKEN = 1024


class LlmStreamStep(NamedTuple):
    """What one model step brought."""

    tokens: list[int]
    text: str
    """Complete characters only; bytes of an unfinished one come with a later step."""
    done: bool
    """The generation ended: end-of-generation token, ``max_tokens``, or context full."""
    drafter_drafted: int
    drafter_accepted: int


class VerifierEvent(NamedTuple):
    """What the verifier made of one drafted batch."""

    accepted_token_ids: list[int]
    rejected_from: int
    rejected_to: int
    corrected_token_ids: list[int]


class _StepBuffers:
    """Arguments of ``llm_stream_next``, made once for a stream: a step costs microseconds."""

    def __init__(self, tokens_cap: int, text_cap: int) -> None:
        for name, cap in (("tokens_cap", tokens_cap), ("text_cap", text_cap)):
            if not 0 <= cap < 2**31:
                raise InvalidArgument.because(f"{name} is {cap}; it must lie in 0 to {2**31 - 1}")
        self.caps = (tokens_cap, text_cap)
        self.tokens = (ctypes.c_int32 * tokens_cap)()
        self.count = ctypes.c_size_t()
        self.text = ctypes.create_string_buffer(text_cap)
        self.drafted = ctypes.c_int32()
        self.accepted = ctypes.c_int32()
        self.error = ctypes.c_void_p()
        self.arguments = (
            self.tokens,
            tokens_cap,
            ctypes.byref(self.count),
            self.text,
            text_cap,
            ctypes.byref(self.drafted),
            ctypes.byref(self.accepted),
            ctypes.byref(self.error),
        )


class LlmStreamHandle(Handle):
    """The handle of an LLM stream, with its step buffers."""

    buffers: _StepBuffers | None = None
    undelivered: LlmStreamStep | None = None
    """A step whose verifier callback raised."""


class Library:
    """A loaded libelizainference.

    The methods mirror the C functions without their prefix. Those of the voice families
    (``tts_*``, ``asr_*``, ``vad_*``, ``wakeword_*``, ``speaker_*``, ``diariz_*``,
    ``encode_reference``) take the arguments of the C function up to ``out_error``; output
    parameters are ctypes objects or arrays of the caller's, see :meth:`call`.

    Every native call runs without the GIL. Handles stay open until they are closed by hand.
    """

    def __init__(self, path: PathArgument | None = None) -> None:
        """Loads ``path``, else ``ELIZA_INFERENCE_LIBRARY``, else the packaged library.

        Raises LibraryNotFound or LibraryLoadError.
        """
        self._native = load(path)
        self.path = self._native.path
        self.abi = self._native.abi
        self.config_type = CONFIG_V9 if self.abi >= 9 else CONFIG_V8
        # What a verifier callback raised inside the native call that its thread is in.
        self._raised: dict[int, BaseException] = {}

    def __repr__(self) -> str:
        return f"Library({self.path!r})"

    def has(self, function: str) -> bool:
        """Whether the library exports ``function``, a name with or without the prefix."""
        return _full_name(function) in self._native.functions

    # Core

    def abi_version(self) -> str:
        """The version as the library reports it."""
        return self._native.version

    def create(self, bundle_dir: PathArgument) -> Handle:
        """A context on a bundle directory; no weights are loaded yet."""
        handle: Handle = self.call("create", bundle_dir)
        return handle

    def destroy(self, context: Handle) -> None:
        """Frees the context. Its open streams stay usable."""
        context.close()

    def mmap_acquire(self, context: Handle, region_name: str) -> None:
        """Maps a region of the bundle into memory."""
        self.call("mmap_acquire", context, region_name)

    def mmap_evict(self, context: Handle, region_name: str) -> None:
        """Lets the operating system take a region's memory back."""
        self.call("mmap_evict", context, region_name)

    # Streams

    def llm_stream_supported(self) -> bool:
        """Whether the library streams text."""
        return self._supported("llm_stream_supported")

    def llm_mtp_supported(self) -> bool:
        """Whether the library drafts with multi-token prediction."""
        return self._supported("llm_mtp_supported")

    def llm_kv_quant_supported(self) -> bool:
        """Whether the library quantises the KV cache."""
        return self._supported("llm_kv_quant_supported")

    def llm_stream_open(self, context: Handle, config: LlmStreamConfig) -> LlmStreamHandle:
        """Opens a stream; the first one of a context loads the model."""
        handle: LlmStreamHandle = self.call(
            "llm_stream_open", context, config.to_native(self.config_type)
        )
        # The stream may outlive its context, and still calls the context's callback.
        handle.keep_alive.append(context.keep_alive)
        return handle

    def llm_stream_prefill(self, stream: Handle, token_ids: TokenSequence) -> None:
        """Appends tokens to the sequence."""
        tokens = token_array(token_ids)
        self.call("llm_stream_prefill", stream, tokens, len(tokens))

    def llm_stream_next(
        self, stream: LlmStreamHandle, tokens_cap: int = 256, text_cap: int = 8192
    ) -> LlmStreamStep:
        """One model step. ``tokens_cap`` counts tokens, ``text_cap`` bytes with the final NUL.

        What does not fit comes with the next call. What a verifier callback raised is raised here,
        after the native call; the step then comes with the next call, whatever its caps.
        """
        native = self._function(_NEXT)
        pointer = stream.borrow()
        try:
            undelivered, stream.undelivered = stream.undelivered, None
            if undelivered is not None:
                return undelivered
            buffers = stream.buffers
            if buffers is None or buffers.caps != (tokens_cap, text_cap):
                buffers = stream.buffers = _StepBuffers(tokens_cap, text_cap)
            code = native(pointer, *buffers.arguments)
            raised = self._raised.pop(threading.get_ident(), None) if self._raised else None
            if code < 0:
                error = error_for(code, _NEXT, self._take_message(buffers.error))
                raise error if raised is None else raised from error
            step = LlmStreamStep(
                buffers.tokens[: buffers.count.value],
                buffers.text.value.decode("utf-8", "replace"),
                code > 0,
                buffers.drafted.value,
                buffers.accepted.value,
            )
            if raised is not None:
                stream.undelivered = step
                raise raised
            return step
        finally:
            stream.give_back()

    def llm_stream_cancel(self, stream: Handle) -> None:
        """Cancels from any thread, without waiting; a closed stream is left alone."""
        self.call("llm_stream_cancel", stream)

    def llm_stream_save_slot(self, stream: Handle, filename: PathArgument) -> None:
        """Writes the stream's state to a file."""
        self.call("llm_stream_save_slot", stream, filename)

    def llm_stream_restore_slot(self, stream: LlmStreamHandle, filename: PathArgument) -> None:
        """Takes a state that ``llm_stream_save_slot`` wrote."""
        self.call("llm_stream_restore_slot", stream, filename)
        stream.undelivered = None

    def llm_stream_reset(self, stream: LlmStreamHandle) -> None:
        """Starts over on the warm stream."""
        self.call("llm_stream_reset", stream)
        stream.undelivered = None

    def llm_stream_reset_keep(self, stream: LlmStreamHandle, n_keep: int) -> int:
        """Keeps the first ``n_keep`` tokens, or fewer; returns how many were kept."""
        kept: int = self.call("llm_stream_reset_keep", stream, n_keep)
        stream.undelivered = None
        return kept

    def llm_stream_close(self, stream: Handle) -> None:
        """Frees the stream; a running call is cancelled first."""
        stream.close()

    def set_verifier_callback(
        self, context: Handle, callback: Callable[[VerifierEvent], object] | None
    ) -> None:
        """Has ``callback`` called after every verified draft, on the thread of the step.

        None clears it. What it raises is raised by the ``llm_stream_next`` that ran it.
        """
        native = None
        if callback is not None:
            event = partial(_verifier_event, callback, self._raised)
            native = CALLBACKS["eliza_verifier_cb"](event)
            # Never dropped before the context: a step in another thread may be inside the old one.
            context.keep_alive.append(native)
        self.call("set_verifier_callback", context, native, None)

    # Tokenizer

    def tokenize_supported(self) -> bool:
        """Whether the library tokenizes."""
        return self._supported("tokenize_supported")

    def tokenize(
        self,
        context: Handle,
        text: str | bytes,
        add_special: bool = True,
        parse_special: bool = False,
    ) -> list[int]:
        """Token ids of ``text``.

        ``add_special`` adds what the model wants around a text, such as BOS; ``parse_special``
        reads special tokens written out in the text.
        """
        encoded = to_native("text", ctypes.c_char_p, text)
        tokens = ctypes.POINTER(ctypes.c_int)()
        count = ctypes.c_size_t()
        self.call(
            "tokenize",
            context,
            encoded,
            len(encoded),
            int(add_special),
            int(parse_special),
            ctypes.byref(tokens),
            ctypes.byref(count),
        )
        try:
            return tokens[: count.value] if tokens else []
        finally:
            self.call("free_tokens", tokens)

    def detokenize(
        self,
        context: Handle,
        tokens: TokenSequence,
        remove_special: bool = False,
        unparse_special: bool = False,
    ) -> str:
        """Text of ``tokens``; bytes of unfinished characters become U+FFFD.

        ``unparse_special`` writes special tokens out, ``remove_special`` drops those that
        ``add_special`` adds.
        """
        native = token_array(tokens)
        flags = int(remove_special), int(unparse_special)

        def attempt(bytes_per_token: int) -> str:
            text = ctypes.create_string_buffer(bytes_per_token * (len(native) + 8))
            size = self.call("detokenize", context, native, len(native), *flags, text, len(text))
            return ctypes.string_at(text, size).decode("utf-8", "replace")

        for bytes_per_token in _TEXT_BYTES_PER_TOKEN:
            # A buffer that is too small and a bad token share one code.
            with suppress(InvalidArgument):
                return attempt(bytes_per_token)
        return attempt(_MOST_TEXT_BYTES_PER_TOKEN)

    # Everything, by name

    def call(self, name: str, *arguments: Any) -> Any:
        """Calls a C function with its declared arguments, ``out_error`` excepted.

        Handles stand for opaque pointers, ``str`` and paths for C strings, ``array.array`` and
        ctypes arrays for buffers, a Python function for a callback, None for NULL. Returns the
        non-negative integer, or a Handle of the object that was opened.

        Raises NotSupported where the library lacks the function, an ElizaError for a negative
        code or a NULL object, ClosedHandle, InvalidArgument, TypeError.
        """
        name = _full_name(name)
        native = self._function(name)
        declared = FUNCTIONS[name]
        if len(arguments) != len(declared.arguments):
            raise TypeError(
                f"{name} takes {len(declared.arguments)} arguments, {len(arguments)} were given"
            )
        if name in INTERRUPT.values() and isinstance(arguments[0], Handle):
            return self._checked(name, arguments[0].interrupt(), None)
        if name in RELEASE.values() and isinstance(arguments[0], Handle):
            return arguments[0].close()
        error = ctypes.c_void_p()
        borrowed: list[Handle] = []
        try:
            values: list[Any] = []
            for (argument, ctype), value in zip(declared.arguments, arguments):
                if isinstance(value, Handle):
                    if _OPAQUE_POINTERS.get(ctype) != value.kind:
                        raise TypeError(f"{name}: {argument} cannot be an {value.kind}")
                    values.append(value.borrow())
                    borrowed.append(value)
                else:
                    values.append(_to_argument(argument, ctype, value))
            if declared.takes_out_error:
                values.append(ctypes.byref(error))
            result = native(*values)
        finally:
            for handle in reversed(borrowed):
                handle.give_back()
        if declared.returns in _OPAQUE_POINTERS:
            return self._opened(name, _OPAQUE_POINTERS[declared.returns], result, error)
        return self._checked(name, result, error)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if PREFIX + name in FUNCTIONS:
            return partial(self.call, PREFIX + name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _function(self, name: str) -> Callable[..., Any]:
        function = self._native.functions.get(name)
        if function is None:
            raise NotSupported.because(
                f"{name} is not supported by this library ({self.path}, ABI "
                f"{self._native.version})",
            )
        return function

    def _supported(self, name: str) -> bool:
        return self.has(name) and bool(self.call(name))

    def _checked(self, name: str, code: Any, error: ctypes.c_void_p | None) -> Any:
        message = self._take_message(error) if error else None
        if isinstance(code, int) and code < 0:
            raise error_for(code, name, message)
        return code

    def _opened(self, name: str, kind: str, pointer: Any, error: ctypes.c_void_p) -> Handle:
        message = self._take_message(error)
        if not pointer:
            raise ElizaError.because(message or f"{name} failed without a message")
        release, interrupt = RELEASE[kind], INTERRUPT[kind]
        handle_type = LlmStreamHandle if kind == "EliLlmStream" else Handle
        return handle_type(
            kind,
            pointer,
            self._native.functions.get(release or "", _leak),
            self._native.functions.get(interrupt or ""),
            exclusive=kind != _SHARED,
        )

    def _take_message(self, error: ctypes.c_void_p) -> str | None:
        """The message that the library allocated, which is freed and forgotten here."""
        address, error.value = error.value, None
        if not address:
            return None
        try:
            return ctypes.string_at(address).decode("utf-8", "replace")
        finally:
            free = self._native.functions.get(f"{PREFIX}free_string")
            if free is not None:
                free(address)


def _full_name(name: str) -> str:
    return name if name.startswith(PREFIX) else PREFIX + name


def token_array(tokens: TokenSequence) -> ctypes.Array[ctypes.c_int32]:
    """Tokens as the C array that prefill takes, built without a Python loop.

    An ``array('i')`` is shared, not copied. Raises InvalidArgument for ids outside int32.
    """
    if isinstance(tokens, (str, bytes, bytearray)):
        raise TypeError(f"token ids must be a sequence of int, not {type(tokens).__name__}")
    try:
        ids = tokens if isinstance(tokens, array) and tokens.typecode == "i" else array("i", tokens)
    except OverflowError as error:
        raise InvalidArgument.because(f"a token id does not fit 32 bits: {error}") from None
    return (ctypes.c_int32 * len(ids)).from_buffer(ids)


def _to_argument(name: str, ctype: Any, value: Any) -> Any:
    if ctype in _CALLBACK_TYPES:
        if value is None:
            return ctype()
        return value if isinstance(value, ctype) else ctype(value)
    if isinstance(value, array):
        return (ctype._type_ * len(value)).from_buffer(value)
    return to_native(name, ctype, value)


def _verifier_event(
    callback: Any, raised: dict[int, BaseException], event: Any, _user_data: Any
) -> None:
    seen = event.contents
    try:
        callback(
            VerifierEvent(
                seen.accepted_token_ids[: seen.n_accepted],
                seen.rejected_from,
                seen.rejected_to,
                seen.corrected_token_ids[: seen.n_corrected],
            )
        )
    except BaseException as error:
        # No exception can pass through C; ctypes would print it and go on.
        raised.setdefault(threading.get_ident(), error)


def _leak(_pointer: Any) -> None:
    """Stands in for a close function that the library lacks."""
