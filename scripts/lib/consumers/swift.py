"""Swift, through `@_silgen_name`. No package registry carries its compiler."""

from __future__ import annotations

import os
import shutil

from lib import cache
from lib.console import run
from lib.consumers import Consumer, Place, Program, Unavailable


def _build(place: Place) -> Program:
    program = place.work / "scenario"
    sources = sorted(place.source.glob("*.swift"))
    linked = ("-L", place.library.parent, "-lelizainference")
    modules = ("-module-cache-path", cache.root() / "swift-modules")
    language = ("-O", "-swift-version", "5")
    command = (_compiler(), *language, *modules, *sources, *linked, "-o", program)
    run(command, "compiling the Swift program")
    return Program((str(program),))


def _compiler() -> str:
    named = os.environ.get("ELIZA_SWIFTC") or "swiftc"
    found = shutil.which(named)
    if found is None:
        raise Unavailable(
            f"no {named}: Swift 5.9 or newer is needed, from swift.org, Xcode or Debian 13 (package"
            " swiftlang); ELIZA_SWIFTC names a swiftc that is not on the PATH"
        )
    return found


CONSUMERS: tuple[Consumer, ...] = (Consumer("swift", "swift", _build),)
