"""A bundle, opened: the model's tokenizer and its streams."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any, AsyncGenerator, Callable, Sequence, Union

from .config import Draft, LlmStreamConfig, configured
from .handle import HandleOwner
from .library import Library, TokenSequence, VerifierEvent
from .loader import PathArgument
from .stream import Generation, Stream

if TYPE_CHECKING:
    from .json_schema import Schema


class Context(HandleOwner):
    """An open bundle directory.

    The model is loaded by the first call that needs it, and shared by all streams. Any number of
    threads may use a context. Everything raises ClosedHandle after :meth:`close`; streams that are
    open then stay usable.
    """

    def __init__(
        self, bundle: PathArgument, library: Union[Library, PathArgument, None] = None
    ) -> None:
        """``library`` is a loaded one, or where to load it from; see ``Library``.

        Raises ElizaError for a directory that is no bundle, LibraryLoadError.
        """
        self.library = library if isinstance(library, Library) else Library(library)
        self.bundle = os.fspath(bundle)
        super().__init__(self.library.create(bundle))

    def open_stream(
        self,
        config: LlmStreamConfig | None = None,
        *,
        json_schema: Schema | None = None,
        cache_key: str | None = None,
        draft: Draft | None = None,
        **fields: Any,
    ) -> Stream:
        """A stream with ``config``, changed by ``fields`` of the same names.

        Text of a stream with ``json_schema`` is JSON that follows it; see ``json_schema.to_gbnf``.
        Streams with the same ``cache_key`` reuse what their prompts begin with in common.
        ``draft`` speculates, which changes the speed only: a number of tokens a step, drafted
        without a second model; a drafter model's file, for 8 tokens; or both as a pair.

        Raises InvalidArgument, TypeError for an unknown field, or ElizaError with the library's
        message.
        """
        chosen = configured(config, fields, json_schema, cache_key, draft)
        return Stream(self.library, self.library.llm_stream_open(self._handle, chosen), chosen)

    def tokenize(
        self, text: str | bytes, add_special: bool = True, parse_special: bool = False
    ) -> list[int]:
        """Token ids of ``text``; see ``Library.tokenize``."""
        return self.library.tokenize(self._handle, text, add_special, parse_special)

    def detokenize(
        self, tokens: TokenSequence, remove_special: bool = False, unparse_special: bool = False
    ) -> str:
        """Text of ``tokens``; see ``Library.detokenize``."""
        return self.library.detokenize(self._handle, tokens, remove_special, unparse_special)

    def generate(
        self,
        prompt: str | TokenSequence,
        *,
        stop: Sequence[str] = (),
        config: LlmStreamConfig | None = None,
        json_schema: Schema | None = None,
        cache_key: str | None = None,
        draft: Draft | None = None,
        **fields: Any,
    ) -> Generation:
        """Opens a stream and continues ``prompt``: text, or token ids taken as they are.

        The prompt runs with the first piece. Leaving the loop early cancels; the stream is closed
        in any case. Everything after ``stop`` is for :meth:`open_stream`. Raises like
        :meth:`tokenize` and :meth:`open_stream`, then like ``Stream``.
        """
        tokens = self.tokenize(prompt) if isinstance(prompt, str) else prompt
        stream = self.open_stream(
            config, json_schema=json_schema, cache_key=cache_key, draft=draft, **fields
        )
        try:
            return Generation(stream, tokens, stop, close_stream=True)
        except BaseException:
            stream.close()
            raise

    async def agenerate(
        self,
        prompt: str | TokenSequence,
        *,
        stop: Sequence[str] = (),
        config: LlmStreamConfig | None = None,
        json_schema: Schema | None = None,
        cache_key: str | None = None,
        draft: Draft | None = None,
        **fields: Any,
    ) -> AsyncGenerator[str, None]:
        """:meth:`generate` for ``async for``; every native call runs on another thread."""
        import asyncio

        fields.update(json_schema=json_schema, cache_key=cache_key, draft=draft)
        start = partial(self.generate, prompt, stop=stop, config=config, **fields)
        generation = await asyncio.get_running_loop().run_in_executor(None, start)
        pieces = generation.__aiter__()
        try:
            async for piece in pieces:
                yield piece
        finally:
            await pieces.aclose()

    def set_verifier_callback(self, callback: Callable[[VerifierEvent], object] | None) -> None:
        """Has ``callback`` called after every verified draft, on the thread of the step.

        None clears it. What it raises comes out of the ``next`` that ran it, once the step is over;
        what the step brought comes with the following ``next``.
        """
        self.library.set_verifier_callback(self._handle, callback)
