"""A built library against the table: by its file, and where this machine can load it, by calls."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from typing import Any

from .. import report as _facts
from . import answers as _answers
from .image import Image, Unreadable, read_images
from .reading import reason
from .report import Report
from .table import Table

LARGEST = 8 * 1024 * 1024
# What each further CPU level of a portable library may add.
LARGEST_LEVEL = 5 * 1024 * 1024 // 4

# A library that exports a smaller part of the ABI is another library.
_LEAST_EXPORTED = 0.1
_MOST_NAMED = 20

_SECONDS = 60
_HERE = {"linux": "ELF", "darwin": "Mach-O", "win32": "PE"}
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
_FORBIDDEN = re.compile(
    # Sockets, on POSIX systems and on Windows.
    r"socket(pair)?|connect|bind|listen|accept4?|send(to|m?msg)?|recv(from|m?msg)?"
    r"|getaddrinfo|getnameinfo|gethostby(name2?|addr)(_r)?|WSA\w+|GetAddrInfo\w+"
    r"|OBJC_CLASS_\$_NS(URL(Session|Connection|Download)|Task)"
    # Processes.
    r"|_*v?fork|forkpty|daemon|clone3?|posix_spawnp?"
    r"|_?w?exec[lv]p?e?|execvpe|fexecve|execveat|_?w?spawn[lv]p?e?|_?w?popen|_?w?system"
    r"|(Nt)?CreateProcess\w*|NtCreateUserProcess|ShellExecute\w*|WinExec"
)
_NETWORK_LIBRARIES = re.compile(
    r"(ws2_32|wsock32|mswsock|winhttp|wininet|urlmon)\.dll"
    r"|lib(curl|ssl|nghttp2)\b.*|.*/(CFNetwork|Network)\.framework/.*",
    re.IGNORECASE,
)
# Compilers' own libraries, which no Windows has; those of the system lie in two folders of a Mac.
_NO_SYSTEM_LIBRARIES = {
    "PE": re.compile(
        r"lib(gcc_s|stdc\+\+|c\+\+|winpthread|unwind|[gi]?omp)(?!\w).*\.dll", re.IGNORECASE
    ),
    "Mach-O": re.compile(r"(?!/usr/lib/|/System/Library/).*"),
}
# What loaders say where the library itself is not to blame.
_OTHERS_MISSING = re.compile(r"Library not loaded|one of its dependencies|image not found")


def check_library(path: str | os.PathLike[str], table: Table) -> Report:
    """Exports, own name, imports and size of every architecture in the file, then its answers.

    A file that cannot be read is a problem. Raises CheckPackagesMissing.
    """
    report = Report(str(path))
    try:
        images = read_images(path)
    except Unreadable as error:
        report.problem(str(error))
        return report
    except OSError as error:
        report.problem(f"cannot be read: {reason(error)}")
        return report
    largest = _largest(path)
    for image in images:
        before = len(report.problems)
        _check_image(image, table, largest, report)
        if len(images) > 1:
            report.problems[before:] = [
                finding._replace(message=f"{image.machine}: {finding.message}")
                for finding in report.problems[before:]
            ]
    images = [image for image in images if not _is_another(image, table)]
    if not images:
        return report
    report.judged.append(" and ".join(map(_described, images)))
    report.judged += [f"{len(table.functions)} exports", "its name", "imports", "size"]
    here = _MACHINES.get(platform.machine().lower(), platform.machine().lower())
    if any((image.format, image.machine) == (_HERE.get(sys.platform), here) for image in images):
        _check_answers(os.path.abspath(path), table, report)
    else:
        report.cannot_judge(
            f"what the functions answer: the library is for another machine than this one, "
            f"{here} {platform.system()}"
        )
    return report


def _described(image: Image) -> str:
    since = f" for {image.oldest_system} and later" if image.oldest_system else ""
    return f"{image.machine} {image.format}{since}"


def _largest(path: str | os.PathLike[str]) -> int:
    levels = (_facts.build_facts(path) or {}).get("cpu_levels")
    further = levels.count(",") if isinstance(levels, str) else 0
    return LARGEST + further * LARGEST_LEVEL


def _exported(image: Image, table: Table) -> list[str]:
    return [name for name in table.functions if name in image.exports]


def _is_another(image: Image, table: Table) -> bool:
    """Whether the library is of something else, about which each name would be a problem."""
    return len(_exported(image, table)) < _LEAST_EXPORTED * len(table.functions)


def _check_image(image: Image, table: Table, largest: int, report: Report) -> None:
    if _is_another(image, table):
        few = _exported(image, table)
        some = f"only {', '.join(few)}" if few else "none"
        report.problem(f"exports {some} of the ABI's {len(table.functions)} functions")
        return
    if not image.wide:
        report.problem("is a 32-bit library: the ABI has 64-bit pointers")
    for name in table.functions:
        if name not in image.exports:
            report.problem(f"{name} is not exported")
        elif name in image.no_functions:
            report.problem(f"{name} is exported, but it is no function")
    others = sorted(image.exports - table.functions.keys())
    for name in others[:_MOST_NAMED]:
        report.problem(f"{name} is exported, but not in the table")
    if len(others) > _MOST_NAMED:
        more = len(others) - _MOST_NAMED
        report.problem(f"{more} more names are exported, but not in the table")
    _check_name(image, table.library, report)
    for name in sorted(filter(_FORBIDDEN.fullmatch, image.imports)):
        report.problem(f"imports {name}: the library may use no network and start no process")
    for name in filter(_NETWORK_LIBRARIES.fullmatch, image.libraries):
        report.problem(f"needs {name}: the library may use no network")
    no_system = _NO_SYSTEM_LIBRARIES.get(image.format)
    for name in filter(no_system.fullmatch, image.libraries) if no_system else ():
        report.problem(f"needs {name}, which is no part of the system")
    if image.loaded > largest:
        report.problem(f"{image.loaded} bytes are loaded of it, more than {largest}")


def _check_name(image: Image, library: str, report: Report) -> None:
    """The name by which programs that were linked with the library look for it."""
    found = image.name or "none"
    if image.format == "ELF":
        what, wanted = "SONAME", f"{library}.so"
        right = found == wanted
    elif image.format == "Mach-O":
        what, wanted = "install name", f"@rpath/{library}.dylib"
        right = found.rpartition("/")[2] == f"{library}.dylib"
    else:
        what, wanted = "DLL name", f"{library[3:]}.dll"
        right = found.lower() in (wanted, f"{library}.dll")
    if not right:
        report.problem(f"the {what} is {found}, not {wanted}")


def _check_answers(path: str, table: Table, report: Report) -> None:
    version = table.questions("_abi_version", "const char *")[0]
    supported = table.questions("_supported", "int")
    answers = _ask(path, [version, *supported], report)
    if answers is None:
        return
    if answers.get(version, str(table.version)) != str(table.version):
        said = "NULL" if answers[version] is None else f'"{answers[version]}"'
        report.problem(f'{version} answers {said}, the table says "{table.version}"')
    for name in supported:
        if answers.get(name, 0) not in (0, 1):
            report.problem(f"{name} answers {answers[name]}, not 0 or 1")
    report.judged.append(f"{len(answers)} answers")


def _ask(path: str, functions: list[str], report: Report) -> dict[str, Any] | None:
    """What the functions answer in a process of their own; None with the reason reported."""
    # -I: only the standard library, whatever lies beside the program or in the environment.
    command = [sys.executable, "-I", _answers.__file__, path, *functions]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired:
        report.problem(f"loading it and asking what it supports takes more than {_SECONDS} s")
        return None
    if done.returncode != 0 or not done.stdout:
        last = done.stderr.strip().splitlines()[-1:]
        how = ": ".join([f"exit status {done.returncode}", *last])
        report.problem(f"a process that loads it and asks what it supports dies ({how})")
        return None
    said: dict[str, Any] = json.loads(done.stdout)
    if "error" not in said:
        answers: dict[str, Any] = said["answers"]
        return answers
    reason = " ".join(said["error"].split())
    blamed = reason.startswith((path, f"Error relocating {path}")) or sys.platform != "linux"
    if _OTHERS_MISSING.search(reason) or not blamed:
        # Something that it needs is not on this machine.
        report.cannot_judge(f"what the functions answer: it does not load here: {reason}")
    else:
        report.problem(f"does not load: {reason}")
    return None
