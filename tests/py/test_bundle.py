"""Making bundle directories, and finding the text model of one."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

from eliza_ctypes import BundleInvalid
from eliza_ctypes.bundle import MANIFEST, bundle_for, make_bundle, text_model


def gguf(architecture: str = "llama", context: int = 2048, tensors: int = 1) -> bytes:
    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    return (
        b"GGUF"
        + struct.pack("<IQQ", 3, tensors, 2)
        + text("general.architecture")
        + struct.pack("<I", 8)
        + text(architecture)
        + text(f"{architecture}.context_length")
        + struct.pack("<II", 4, context)
    )


def write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def manifest_of(bundle: Path) -> Any:
    return json.loads((bundle / MANIFEST).read_text("utf-8"))


def write_manifest(bundle: Path, *entries: dict[str, Any]) -> None:
    (bundle / MANIFEST).write_text(json.dumps({"files": {"text": list(entries)}}))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write(tmp_path / "downloads" / "tiny.gguf", gguf())


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return tmp_path / "a bündle"


def test_a_bundle_holds_the_model_and_a_manifest_that_describes_it(
    model: Path, bundle: Path
) -> None:
    placed = make_bundle(model, bundle)
    assert placed == bundle / "text" / "tiny.gguf"
    assert placed.samefile(model)
    digest = hashlib.sha256(model.read_bytes()).hexdigest()
    entry = {"path": "text/tiny.gguf", "sha256": digest, "ctx": 2048}
    assert manifest_of(bundle) == {"files": {"text": [entry]}}
    assert sorted(path.name for path in bundle.rglob("*")) == [MANIFEST, "text", "tiny.gguf"]


def test_copy_makes_a_file_of_its_own(model: Path, bundle: Path) -> None:
    placed = make_bundle(model, bundle, copy=True)
    assert not placed.samefile(model)
    assert placed.read_bytes() == model.read_bytes()


def test_a_model_on_another_device_is_copied(
    model: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    placed = make_bundle(model, bundle)
    assert not placed.samefile(model)
    assert placed.read_bytes() == model.read_bytes()


def test_the_file_behind_a_symbolic_link_is_placed(
    model: Path, bundle: Path, tmp_path: Path
) -> None:
    link = tmp_path / "cache.gguf"
    link.symlink_to(model)
    placed = make_bundle(link, bundle)
    assert not placed.is_symlink()
    assert placed.samefile(model)


def test_making_a_bundle_twice_changes_nothing(model: Path, bundle: Path) -> None:
    make_bundle(model, bundle)
    before = manifest_of(bundle)
    make_bundle(model, bundle, copy=True)
    assert manifest_of(bundle) == before


def test_an_existing_manifest_is_added_to(model: Path, bundle: Path) -> None:
    bundle.mkdir()
    known = {"path": "text/other.gguf", "sha256": "00", "ctx": 1, "note": "kept"}
    (bundle / MANIFEST).write_text(json.dumps({"id": "x", "files": {"voice": [], "text": [known]}}))
    make_bundle(model, bundle)
    manifest = manifest_of(bundle)
    assert manifest["id"] == "x"
    assert manifest["files"]["voice"] == []
    assert [entry["path"] for entry in manifest["files"]["text"]] == [
        "text/other.gguf",
        "text/tiny.gguf",
    ]
    assert manifest["files"]["text"][0] == known


def test_all_parts_of_a_split_model_go_in_and_the_manifest_names_the_first(
    tmp_path: Path, bundle: Path
) -> None:
    parts = [write(tmp_path / f"m-{number:05}-of-00003.gguf", gguf()) for number in range(1, 4)]
    placed = make_bundle(parts[1], bundle)
    assert placed.name == parts[0].name
    assert sorted(path.name for path in (bundle / "text").iterdir()) == [
        part.name for part in parts
    ]
    assert [entry["path"] for entry in manifest_of(bundle)["files"]["text"]] == [
        f"text/{parts[0].name}"
    ]
    assert text_model(bundle) == placed


def test_a_split_model_with_a_missing_part_is_refused(tmp_path: Path, bundle: Path) -> None:
    part = write(tmp_path / "m-00001-of-00002.gguf", gguf())
    with pytest.raises(BundleInvalid, match=r"m-00002-of-00002\.gguf does not exist"):
        make_bundle(part, bundle)
    assert not bundle.exists()


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("x.gguf", b"nothing of the kind", "not a GGUF"),
        ("x.gguf", gguf(tensors=0), "vocabulary only"),
        ("mmproj-x.gguf", gguf(), "projector"),
        ("x.gguf", gguf("clip"), "projector"),
        ("x.bin", gguf(), "must end in .gguf"),
    ],
)
def test_what_is_no_text_model_is_refused_and_leaves_no_bundle(
    tmp_path: Path, bundle: Path, name: str, content: bytes, reason: str
) -> None:
    with pytest.raises(BundleInvalid, match=reason):
        make_bundle(write(tmp_path / name, content), bundle)
    assert not bundle.exists()


def test_a_directory_named_like_a_model_is_refused(tmp_path: Path, bundle: Path) -> None:
    (tmp_path / "x.gguf").mkdir()
    with pytest.raises(BundleInvalid, match="is a directory"):
        make_bundle(tmp_path / "x.gguf", bundle)


def test_a_different_file_of_the_same_name_is_not_replaced(model: Path, bundle: Path) -> None:
    other = write(bundle / "text" / "tiny.gguf", gguf(context=1))
    with pytest.raises(BundleInvalid, match="another file"):
        make_bundle(model, bundle)
    assert other.read_bytes() == gguf(context=1)


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"files": {"text": {}}}', '{"files": []}', '{"files": {"text": [1]}}']
)
def test_a_manifest_that_cannot_be_read_is_left_alone(
    model: Path, bundle: Path, content: str
) -> None:
    bundle.mkdir()
    (bundle / MANIFEST).write_text(content)
    with pytest.raises(BundleInvalid, match=MANIFEST):
        make_bundle(model, bundle)
    assert (bundle / MANIFEST).read_text() == content


def test_a_failed_copy_leaves_no_file(
    model: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Path, target: Path) -> None:
        target.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("shutil.copyfile", fail)
    with pytest.raises(OSError, match="No space"):
        make_bundle(model, bundle, copy=True)
    assert list((bundle / "text").iterdir()) == []


def test_the_only_model_is_the_text_model_whatever_the_manifest_says(bundle: Path) -> None:
    only = write(bundle / "text" / "one.gguf", gguf())
    write(bundle / "text" / "mmproj-one.gguf", gguf())
    write_manifest(bundle, {"path": "text/gone.gguf"})
    assert text_model(bundle) == only


def test_of_several_models_the_manifest_names_the_one_with_the_largest_context(
    bundle: Path,
) -> None:
    for name in "abc":
        write(bundle / "text" / f"{name}.gguf", gguf())
    write_manifest(
        bundle,
        {"path": "text/a.gguf"},
        {"path": "text/b.gguf", "ctx": 9},
        {"path": "text/c.gguf", "ctx": 9},
    )
    assert text_model(bundle).name == "b.gguf"


def test_several_models_without_a_manifest_are_listed(bundle: Path) -> None:
    for name in "ab":
        write(bundle / "text" / f"{name}.gguf", gguf())
    with pytest.raises(BundleInvalid, match=r"a\.gguf, b\.gguf"):
        text_model(bundle)


@pytest.mark.parametrize("path", ["../x.gguf", "/x.gguf", "text/../../x.gguf"])
def test_a_manifest_path_that_leaves_the_bundle_is_refused(bundle: Path, path: str) -> None:
    for name in "ab":
        write(bundle / "text" / f"{name}.gguf", gguf())
    write_manifest(bundle, {"path": path})
    with pytest.raises(BundleInvalid, match="leaves the bundle"):
        text_model(bundle)


def test_directories_without_models_are_refused(bundle: Path) -> None:
    bundle.mkdir()
    with pytest.raises(BundleInvalid, match="no text/"):
        text_model(bundle)
    (bundle / "text").mkdir()
    with pytest.raises(BundleInvalid, match="no text model"):
        text_model(bundle)


def test_a_model_file_serves_as_a_bundle_for_a_while(model: Path) -> None:
    with bundle_for(model) as bundle:
        assert text_model(bundle).samefile(model)
    assert not bundle.exists()
    assert model.exists()


def test_a_directory_is_its_own_bundle(bundle: Path) -> None:
    bundle.mkdir()
    with bundle_for(bundle) as same:
        assert same == bundle


def test_other_files_are_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(BundleInvalid, match="neither a bundle"):
        bundle_for(write(tmp_path / "x.txt", b"")).__enter__()
    with pytest.raises(BundleInvalid, match="does not exist"):
        bundle_for(tmp_path / "absent").__enter__()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such files")
def test_a_manifest_that_is_a_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    model = write(tmp_path / "model.gguf", gguf())
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    os.mkfifo(bundle / MANIFEST)
    with pytest.raises(BundleInvalid, match="is not a file"):
        make_bundle(model, bundle)


def test_a_name_that_a_manifest_cannot_hold_places_nothing(tmp_path: Path) -> None:
    model = write(tmp_path / os.fsdecode(b"m\xff.gguf"), gguf())
    with pytest.raises(BundleInvalid, match="UTF-8"):
        make_bundle(model, tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()
