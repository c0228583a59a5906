"""A native object that cannot be used after it was freed, by any thread."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any, Callable, TypeVar

from .errors import ClosedHandle, ElizaError


class Handle:
    """One native object of the :class:`~eliza_ctypes.Library` layer.

    Every native call borrows the pointer. :meth:`close` interrupts what still runs, waits until
    the last borrower is done and only then frees, so that no call ever meets a freed object.
    Handles are not closed by themselves: ``Context`` and ``Stream`` do that.
    """

    def __init__(
        self,
        kind: str,
        pointer: Any,
        release: Callable[[Any], Any],
        interrupt: Callable[[Any], int] | None = None,
        exclusive: bool = False,
    ) -> None:
        """``exclusive`` objects serve one call at a time; further callers wait."""
        self.kind = kind
        self.keep_alive: list[Any] = []
        self._pointer = pointer
        # A forked child has the memory but not the native threads: there the object is dead.
        self._process = os.getpid()
        self._native_release = release
        self._native_interrupt = interrupt
        self._exclusive = exclusive
        self._closing = False
        self._borrowers: list[int] = []
        # Reentrant, so that a signal handler may cancel whatever its own thread is doing.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)

    @property
    def closed(self) -> bool:
        """Whether the object was closed, or is being closed."""
        return self._closing

    def borrow(self) -> Any:
        """The pointer, until :meth:`give_back`. Raises ClosedHandle."""
        if os.getpid() != self._process:
            raise ClosedHandle(None, f"this {self.kind} belongs to the process that was forked")
        thread = threading.get_ident()
        with self._lock:
            while self._exclusive and self._borrowers and not self._closing:
                self._refuse_callback(thread, "used")
                self._changed.wait()
            if self._closing:
                raise ClosedHandle.because(f"this {self.kind} is closed")
            self._borrowers.append(thread)
            return self._pointer

    def give_back(self) -> None:
        """Ends one :meth:`borrow` of the calling thread."""
        with self._lock:
            self._borrowers.remove(threading.get_ident())
            self._changed.notify_all()

    def interrupt(self) -> int:
        """Cancels what runs, from any thread, without waiting. Nothing happens once closed.

        Returns the library's code.
        """
        if os.getpid() != self._process:
            return 0
        with self._lock:
            if self._pointer is None or self._native_interrupt is None:
                return 0
            return self._native_interrupt(self._pointer)

    def close(self) -> None:
        """Frees the object; a second call does nothing. Returns when the object is gone.

        Raises ElizaError inside a callback of the very call that would have to end first.
        """
        if os.getpid() != self._process:
            self._closing, self._pointer = True, None
            return
        with self._lock:
            self._refuse_callback(threading.get_ident(), "closed")
            if self._borrowers and not self._closing:
                self.interrupt()
            self._closing = True
            while self._borrowers:
                self._changed.wait()
            pointer, self._pointer = self._pointer, None
            if pointer is not None:
                self._native_release(pointer)

    def _refuse_callback(self, thread: int, action: str) -> None:
        if thread in self._borrowers:
            raise ElizaError.because(f"this {self.kind} cannot be {action} inside its own callback")


_Owner = TypeVar("_Owner", bound="HandleOwner")


class HandleOwner:
    """An object that closes its native handle: when told, as a context manager, or if forgotten."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._finalizer = weakref.finalize(self, handle.close)

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._handle.closed

    def close(self) -> None:
        """Frees the native object; returns when the calls that run in other threads have ended.

        Those of a stream are cancelled, those of a context finish.
        """
        self._handle.close()
        self._finalizer.detach()

    def __enter__(self: _Owner) -> _Owner:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()
