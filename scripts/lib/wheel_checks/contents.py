"""The archive: name and tags, size, list of files, licences, traces of the build machine."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path

from eliza_ctypes.report import build_facts
from lib import cache
from lib.building import CHECKOUT
from lib.wheel_checks.wheel import Wheel, fail_with

LARGEST = 6_000_000
NEWEST_GLIBC = (2, 28)
# What the tags of each system's wheels are.
PLATFORMS = {
    "manylinux": r"manylinux_2_\d+_(x86_64|aarch64)",
    "macosx": r"macosx_11_0_(x86_64|arm64)",
    "win": r"win_amd64",
}

# What is inside every library, and how its licence is recognized.
COMPONENTS = {
    "libelizainference": r"Copyright \(c\) [\d-]+ The libelizainference authors",
    "llama.cpp and ggml": r"Copyright \(c\) [\d-]+ The ggml authors",
    "llamafile's matrix multiplication": r"Copyright [\d-]+ Mozilla Foundation",
    "JSON for Modern C++": r"Copyright \(c\) [\d-]+ Niels Lohmann",
    "xxHash": r"Copyright \(c\) [\d-]+ Yann Collet",
}
# What a compiler links in, by the first word of the build fact. The exception in the licence of
# gcc's runtime asks for nothing in what gcc makes; Apple's is part of the system.
RUNTIMES = {
    "Clang": {"libc++, libc++abi, libunwind": r"LLVM Exceptions to the Apache 2\.0 License"},
    "GNU": {},
    "AppleClang": {},
}
# What each of them links in, by system.
SYSTEM_RUNTIMES = {
    "win": {
        "mingw-w64's runtime": r"Copyright \(c\) [\d -]+ by the mingw-w64 project",
        "gdtoa in mingw-w64's runtime": r"Copyright \(C\) [\d, -]+ by Lucent Technologies",
    },
}
# Where people and build services work.
_WORKPLACE = re.compile(rb"/(?:home|root|Users|github|builds?|workspace)/[\w.@+-]+/[\w.@/+-]*")


def check_contents(wheel: Wheel) -> None:
    fail_with(
        wheel,
        [
            *_tags(wheel),
            *_metadata(wheel),
            *_size(wheel),
            *_files(wheel),
            *_record(wheel),
            *_licences(wheel),
            *_places(wheel),
        ],
    )


def _tags(wheel: Wheel) -> Iterator[str]:
    if wheel.python != "py3-none":
        yield f"is for {wheel.python}: it must be py3-none, the package is pure Python"
    for platform in wheel.platforms:
        glibc = re.fullmatch(r"manylinux_(\d+)_(\d+)_\w+", platform)
        if wheel.system not in PLATFORMS:
            yield (
                f"has the tag {platform}, which no package index takes: "
                "build it with scripts/wheel or repair it"
            )
        elif not re.fullmatch(PLATFORMS[wheel.system], platform):
            yield f"has the tag {platform}: expected is {PLATFORMS[wheel.system]}"
        elif glibc and (int(glibc[1]), int(glibc[2])) > NEWEST_GLIBC:
            newest = ".".join(map(str, NEWEST_GLIBC))
            yield f"has the tag {platform}: it must run with glibc {newest}, build it for that"
    path = wheel.folder / wheel.metadata / "WHEEL"
    if not path.is_file():
        yield f"has no {wheel.metadata}/WHEEL"
        return
    fields = Parser().parsestr(path.read_text(encoding="utf-8"))
    named = {f"{wheel.python}-{platform}" for platform in wheel.platforms}
    written = set(fields.get_all("Tag") or ())
    if written != named:
        yield (
            f"is tagged {', '.join(sorted(written))} in {wheel.metadata}/WHEEL, "
            f"but named {', '.join(sorted(named))}"
        )


def _metadata(wheel: Wheel) -> Iterator[str]:
    path = wheel.folder / wheel.metadata / "METADATA"
    if not path.is_file():
        yield f"has no {wheel.metadata}/METADATA"
        return
    fields = Parser().parsestr(path.read_text(encoding="utf-8"))
    named = (fields["Name"], fields["Version"])
    if named != ("eliza-ctypes", wheel.version):
        yield f"is named {wheel.version}, but is {named[0]} {named[1]} in METADATA"


def _size(wheel: Wheel) -> Iterator[str]:
    size = wheel.path.stat().st_size
    if size > LARGEST:
        yield f"has {size} bytes, more than {LARGEST}: strip the library, compress at level 9"


def _files(wheel: Wheel) -> Iterator[str]:
    folders = (Path("eliza_ctypes"), Path(wheel.metadata))
    for name in _names(wheel):
        if not any(folder in Path(name).parents for folder in folders):
            yield f"has {name}, outside {folders[0]}/ and {folders[1]}/: leave it out"
        elif name.endswith((".pyc", ".o", ".a", ".h", ".cmake")):
            yield f"has {name}, which nobody needs at run time: leave it out"
    ours = _package_files()
    for name in sorted(ours - set(_names(wheel))):
        yield f"lacks {name}"
    for name in _names(wheel):
        package_file = name.startswith("eliza_ctypes/") and not name.startswith("eliza_ctypes/lib/")
        if package_file and name not in ours:
            yield f"has {name}, which is not in this checkout"


def _package_files() -> set[str]:
    root = CHECKOUT / "python"
    files = {path.relative_to(root) for path in root.rglob("*") if path.is_file()}
    left_out = {"__pycache__", "lib"}
    return {path.as_posix() for path in files if not left_out.intersection(path.parts)}


def _record(wheel: Wheel) -> Iterator[str]:
    own = f"{wheel.metadata}/RECORD"
    path = wheel.folder / own
    if not path.is_file():
        yield f"has no {own}"
        return
    names = _names(wheel)
    for name, count in Counter(names).items():
        if count > 1:
            yield f"has {name} {count} times"
    rows = [row for row in csv.reader(io.StringIO(path.read_text(encoding="utf-8"))) if row]
    recorded = {row[0]: row[1:] for row in rows}
    for name in sorted(set(names) - set(recorded)):
        yield f"has {name}, which {own} does not list"
    for name in sorted(set(recorded) - set(names)):
        yield f"has no {name}, which {own} lists"
    for name in sorted(set(recorded) & set(names) - {own}):
        content = (wheel.folder / name).read_bytes()
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
        if recorded[name] != [f"sha256={digest}", str(len(content))]:
            yield f"has another {name} than {own} says: write RECORD after the last change"


def _licences(wheel: Wheel) -> Iterator[str]:
    texts = [
        path.read_text(encoding="utf-8", errors="replace")
        for path in wheel.folder.rglob("*")
        if path.is_file() and _is_licence(path)
    ]
    wanted = {**COMPONENTS, **SYSTEM_RUNTIMES.get(wheel.system, {})}
    facts = build_facts(wheel.library) or {}
    compiler = str(facts.get("compiler") or "?").split()[0]
    if compiler in RUNTIMES:
        wanted.update(RUNTIMES[compiler])
    else:
        yield f"was compiled by {compiler}, whose runtime's licence is not known here"
    for component, pattern in wanted.items():
        if not any(re.search(pattern, text) for text in texts):
            yield f"has no licence file for {component}: none has {pattern!r}"


def _is_licence(path: Path) -> bool:
    return path.parent.name == "licenses" or path.name.upper().startswith(("LICENSE", "COPYING"))


def _places(wheel: Wheel) -> Iterator[str]:
    """Paths of the machine that built it: they make builds differ, and tell of their owner."""
    here = {Path.home(), CHECKOUT, cache.root(), Path(tempfile.gettempdir())}
    known = [str(path).encode() + b"/" for path in sorted(here) if len(path.parts) > 1]
    for path in sorted(wheel.folder.rglob("*")):
        if not path.is_file():
            continue
        content = path.read_bytes()
        found = next((place for place in known if place in content), None)
        if found is None and path == wheel.library:
            match = _WORKPLACE.search(content)
            found = match[0] if match else None
        if found is not None:
            start = content.index(found)
            shown = re.split(rb"[\0\s\"']", content[start : start + 120])[0]
            yield (
                f"has a path of the machine that built it in {wheel.inside(path)}: "
                f"{shown.decode(errors='replace')} (compile with -ffile-prefix-map)"
            )


def _names(wheel: Wheel) -> list[str]:
    with zipfile.ZipFile(wheel.path) as archive:
        return [name for name in archive.namelist() if not name.endswith("/")]
