"""Streaming text generation by libelizainference, through ctypes alone.

Three layers, each usable by itself:

* :class:`Library` mirrors the C ABI function by function.
* :class:`Context` and :class:`Stream` own native objects and close them.
* :class:`Generation` is the text of one answer, piece by piece.

>>> from eliza_ctypes import Context
>>> with Context("path/to/bundle") as context:
...     for piece in context.generate("The capital of France is", max_tokens=16):
...         print(piece, end="", flush=True)
"""

from __future__ import annotations

from .config import LlmStreamConfig
from .context import Context
from .errors import (
    AbiMismatch,
    BundleInvalid,
    Cancelled,
    ClosedHandle,
    ElizaError,
    FfiFault,
    InvalidArgument,
    LibraryLoadError,
    LibraryNotFound,
    NotImplementedByLibrary,
    NotSupported,
    OutOfMemory,
)
from .handle import Handle
from .library import Library, LlmStreamStep, VerifierEvent
from .stats import StreamStats
from .stream import Generation, Stream

__version__ = "0.1.0"

__all__ = [
    "AbiMismatch",
    "BundleInvalid",
    "Cancelled",
    "ClosedHandle",
    "Context",
    "ElizaError",
    "FfiFault",
    "Generation",
    "Handle",
    "InvalidArgument",
    "Library",
    "LibraryLoadError",
    "LibraryNotFound",
    "LlmStreamConfig",
    "LlmStreamStep",
    "NotImplementedByLibrary",
    "NotSupported",
    "OutOfMemory",
    "Stream",
    "StreamStats",
    "VerifierEvent",
    "__version__",
]
