"""SmolLM2 as a LiteRT-LM model, converted once from its GGUF file by tests/fixtures/litert."""

from __future__ import annotations

import os
from pathlib import Path

from lib import cache
from lib.assets import ASSETS, fetch
from lib.building import CHECKOUT, Build
from lib.bundles import python_environment
from lib.console import run, say
from lib.environments import TEST, environment

RECIPE = CHECKOUT / "tests" / "fixtures" / "litert"
STEPS = ("make_smollm2_checkpoint.py", "export_litertlm.py")
OPTIONS = (
    *("--prefill-lengths", "1", "8", "32", "128"),
    *("--context", "1280"),
    *("--quantization", "dynamic_wi8_afp32"),
)
FILE = "smollm2.litertlm"


def smollm2_litert() -> Path:
    """The file as LiteRT-LM's own tools make it: 8-bit weights, its tokenizer inside."""
    pins = tuple((RECIPE / "requirements.txt").read_text().split())

    def make(entry: Path) -> None:
        gguf = fetch("smollm2")
        python = environment(pins) / "python"
        say("converting SmolLM2 for LiteRT-LM: some minutes, once")
        checkpoint, export = (RECIPE / name for name in STEPS)
        run([python, checkpoint, gguf, entry / "checkpoint"], checkpoint.name)
        run([python, export, entry / "checkpoint", entry / FILE, *OPTIONS], export.name)
        (entry / "checkpoint" / "model.safetensors").unlink()  # 540 MB that nothing reads again

    return cache.make_once(cache.root() / "models" / f"smollm2-litert-{_key(pins)}", make) / FILE


def smollm2_litert_bundle(made: Build) -> Path:
    """The same with exact token ids, which `made` has generated from."""
    model = smollm2_litert()
    converter = CHECKOUT / "python" / "eliza_ctypes" / "litert"
    sources = [path.read_text() for path in sorted(converter.glob("*.py"))]

    def make(entry: Path) -> None:
        command = [environment(TEST) / "python", "-m", "eliza_ctypes", "bundle", "add-litert"]
        run([*command, model, entry / "bundle"], "bundle add-litert", python_environment(made))

    name = f"smollm2-litert-{cache.key(model, *sources)}"
    return cache.make_once(cache.root() / "bundles" / name, make) / "bundle"


def _key(pins: tuple[str, ...]) -> str:
    scripts = [(RECIPE / name).read_text() for name in STEPS]
    source = os.environ.get("ELIZA_SMOLLM2_GGUF") or ASSETS["smollm2"]
    return cache.key(source, *scripts, *pins, *OPTIONS)
