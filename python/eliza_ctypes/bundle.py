"""Bundle directories: making one from a GGUF file, and finding its text model.

A bundle holds ``text/*.gguf`` and, at its root, a manifest that names the models.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import tempfile
from pathlib import Path, PurePosixPath
from typing import Any, Iterator

from .errors import BundleInvalid
from .gguf import GgufMetadata, read_metadata

MANIFEST = "eliza-1.manifest.json"

_SPLIT = re.compile(r"(?P<stem>.+)-(?P<part>\d{5})-of-(?P<parts>\d{5})\.gguf")
# What a file system answers that has no hard links, or none to where the file is.
_NO_HARD_LINK = {errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS}
if os.name == "nt":
    _NO_HARD_LINK.add(errno.EINVAL)  # FAT


def make_bundle(gguf: Path, directory: Path, copy: bool = False) -> Path:
    """Puts a text model into a bundle directory, which is made or added to; returns the model.

    ``gguf`` may be any part of a split model: all parts go in. Files are hard-linked where that is
    possible, and copied otherwise or with ``copy``. The manifest names the model, its SHA-256 (of
    the first part) and its context size in tokens; entries of other models stay.

    Raises BundleInvalid for what is no text model, or where a different file is in the way;
    OSError.
    """
    gguf, directory = Path(gguf), Path(directory)
    if not _is_utf8(gguf.name):
        raise BundleInvalid.because(f"{gguf.name!r}: the manifest can only hold names in UTF-8")
    sources = model_parts(gguf)
    metadata = _text_model_metadata(sources[0])
    return add_text_model(directory, sources, _context_length(metadata), copy)


def add_text_model(directory: Path, sources: list[Path], context: int, copy: bool = False) -> Path:
    """Puts the files of a text model, the first of which is the model, into a bundle directory.

    They are placed and the manifest, made where there is none, names the model; or nothing changes.
    ``context`` is its context size in tokens. Raises BundleInvalid where a different file is in the
    way; OSError.
    """
    manifest = _read_manifest(directory)
    text = directory / "text"
    text.mkdir(parents=True, exist_ok=True)
    targets = [text / source.name for source in sources]
    for source, target in zip(sources, targets):
        _check_way(source, target)
    placed: list[Path] = []
    try:
        for source, target in zip(sources, targets):
            if not target.exists():
                _place(source, target, copy)
                placed.append(target)
        entry = {"path": f"text/{targets[0].name}", "sha256": _sha256(targets[0]), "ctx": context}
        _add_to_manifest(manifest, entry)
        _write_atomically(directory / MANIFEST, json.dumps(manifest, indent=2, ensure_ascii=False))
    except BaseException:
        for target in placed:
            target.unlink()
        raise
    return targets[0]


def text_model(bundle: Path) -> Path:
    """The text model that the library loads from a bundle; of a split one the first part.

    Raises BundleInvalid where there is none, or several and the manifest does not decide.
    """
    bundle = Path(bundle)
    if not (bundle / "text").is_dir():
        raise BundleInvalid.because(f"{bundle} is not a bundle: it has no text/ directory")
    models = sorted(
        path
        for path in (bundle / "text").glob("*.gguf")
        if not path.name.startswith("mmproj") and _part_number(path) == 1
    )
    if not models:
        raise BundleInvalid.because(f"{bundle} has no text model: no text/*.gguf file")
    if len(models) == 1:
        return models[0]
    entries = [
        entry
        for entry in _text_entries(_read_manifest(bundle))
        if entry["path"].endswith(".gguf")
        and not PurePosixPath(entry["path"]).name.startswith("mmproj")
    ]
    if not entries:
        names = ", ".join(path.name for path in models)
        raise BundleInvalid.because(
            f"{bundle} has several text models ({names}); keep one, or name it in {MANIFEST}"
        )
    return _inside(bundle, max(entries, key=_stated_context)["path"])


def vocabulary_file(bundle: Path) -> Path:
    """The GGUF file that holds the bundle's vocabulary and chat template.

    That is ``text/*.tokenizer`` where there is one, else the text model. Raises BundleInvalid.
    """
    files = sorted((Path(bundle) / "text").glob("*.tokenizer"))
    return files[0] if len(files) == 1 else text_model(bundle)


def model_parts(gguf: Path) -> list[Path]:
    """All parts of the model that ``gguf`` belongs to, in order. Raises BundleInvalid."""
    split = _SPLIT.fullmatch(gguf.name)
    if split is None:
        parts = [gguf]
    else:
        count = int(split["parts"])
        parts = [
            gguf.with_name(f"{split['stem']}-{number:05}-of-{count:05}.gguf")
            for number in range(1, count + 1)
        ]
    for part in parts or [gguf]:
        if not part.is_file():
            what = "is a directory" if part.is_dir() else "does not exist"
            raise BundleInvalid.because(f"{part} {what}")
    if not parts:
        raise BundleInvalid.because(f"{gguf}: a split model of 0 parts")
    return parts


@contextlib.contextmanager
def bundle_for(path: Path) -> Iterator[Path]:
    """``path`` itself where it is a directory; for a .gguf file a bundle that is gone afterwards.

    Raises BundleInvalid for anything else.
    """
    if path.is_dir():
        yield path
        return
    if not path.is_file():
        state = "is not a file" if path.exists() else "does not exist"
        raise BundleInvalid.because(f"{path} {state}")
    if path.suffix != ".gguf":
        raise BundleInvalid.because(f"{path} is neither a bundle directory nor a .gguf file")
    with tempfile.TemporaryDirectory(prefix="eliza-bundle-") as directory:
        text = Path(directory) / "text"
        text.mkdir()
        for part in model_parts(path):
            link = text / part.name
            with contextlib.suppress(OSError):  # Windows keeps them for administrators
                link.symlink_to(part.resolve())
            if not link.exists():  # Wine makes none and says nothing
                _place(part, link, copy=False)
        yield Path(directory)


def _is_utf8(name: str) -> bool:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _text_model_metadata(gguf: Path) -> GgufMetadata:
    if gguf.suffix != ".gguf":
        raise BundleInvalid.because(f"{gguf}: the name of a model file must end in .gguf")
    metadata = read_metadata(gguf)
    if gguf.name.startswith("mmproj") or metadata.values.get("general.architecture") == "clip":
        raise BundleInvalid.because(f"{gguf} is a multimodal projector, not a text model")
    if metadata.tensor_count == 0:
        raise BundleInvalid.because(f"{gguf} holds a vocabulary only, no weights")
    return metadata


def _context_length(metadata: GgufMetadata) -> int:
    architecture = metadata.values.get("general.architecture")
    length = metadata.values.get(f"{architecture}.context_length", 0)
    return int(length) if isinstance(length, (int, float)) else 0


def _check_way(source: Path, target: Path) -> None:
    there = target.exists() or target.is_symlink()
    if there and not _same_content(source, target):
        raise BundleInvalid.because(f"{target} is in the way: it is another file")


def _place(source: Path, target: Path, copy: bool) -> None:
    """Makes ``target`` the same file as ``source``, or leaves no trace."""
    # The link of a link would break with it; caches keep models as symbolic links.
    original = source.resolve()
    if not copy:
        try:
            os.link(original, target)
            return
        except OSError as error:
            if error.errno not in _NO_HARD_LINK:
                raise
    partial = target.with_name(f".{target.name}.partial-{os.getpid()}")
    try:
        shutil.copyfile(original, partial)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def _same_content(one: Path, other: Path) -> bool:
    if not other.is_file():
        return False
    if one.samefile(other):
        return True
    return one.stat().st_size == other.stat().st_size and _sha256(one) == _sha256(other)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _read_manifest(bundle: Path) -> dict[str, Any]:
    path = bundle / MANIFEST
    if path.exists() and not path.is_file():
        # Reading a pipe would wait for a writer.
        raise BundleInvalid.because(f"{path} is not a file")
    try:
        content = path.read_text("utf-8")
    except FileNotFoundError:
        return {}
    except UnicodeDecodeError:
        raise BundleInvalid.because(f"{path} is not UTF-8") from None
    try:
        manifest = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise BundleInvalid.because(f"{path} is not JSON: {error}") from None
    if not isinstance(manifest, dict):
        raise BundleInvalid.because(f"{path} does not hold an object")
    _text_entries(manifest)
    return manifest


def _text_entries(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """The list ``files.text``, every entry of which has a path."""
    files = manifest.get("files", {})
    entries = files.get("text", []) if isinstance(files, dict) else None
    if not isinstance(entries, list):
        raise BundleInvalid.because(f"{MANIFEST}: files.text is not a list")
    for entry in entries:
        if not isinstance(entry, dict) or not isinstance(entry.get("path"), str):
            raise BundleInvalid.because(f"{MANIFEST}: an entry of files.text has no path")
    return entries


def _add_to_manifest(manifest: dict[str, Any], entry: dict[str, Any]) -> None:
    entries = manifest.setdefault("files", {}).setdefault("text", [])
    for known in entries:
        if known["path"] == entry["path"]:
            known.update(entry)
            return
    entries.append(entry)


def _write_atomically(path: Path, content: str) -> None:
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        partial.write_text(content + "\n", "utf-8")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _inside(bundle: Path, entry: str) -> Path:
    relative = Path(os.path.normpath(entry))
    if not entry or relative.anchor or relative.parts[:1] == ("..",):
        raise BundleInvalid.because(f"{MANIFEST}: path {entry!r} leaves the bundle")
    return bundle / relative


def _stated_context(entry: dict[str, Any]) -> float:
    context = entry.get("ctx")
    return context if isinstance(context, (int, float)) else 0


def _part_number(path: Path) -> int:
    split = _SPLIT.fullmatch(path.name)
    return int(split["part"]) if split else 1
