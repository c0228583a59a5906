"""Where the library comes from, and what becomes of files that are none."""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Callable

import pytest

import eliza_ctypes.loader
from eliza_ctypes import Library, LibraryLoadError, LibraryNotFound, LlmStreamConfig, NotSupported

VERSION = 'const char *eliza_inference_abi_version(void) { return "%s"; }\n'
CONTEXT = """
    void *eliza_inference_create(const char *bundle, char **error) { return (void *)1; }
    void eliza_inference_destroy(void *context) {}
    int eliza_inference_llm_stream_supported(void) { return 1; }
    void eliza_inference_llm_stream_close(void *stream) {}
"""
# Opening fails unless the 4 bytes at offset 80 are the zero that the 88-byte config has there.
OPEN_88 = """
    void *eliza_inference_llm_stream_open(void *context, const char *config, char **error) {
      return *(const int *)(config + 80) == 0 && *(const int *)config == 7 ? (void *)2 : 0;
    }
"""

Compile = Callable[[str], Path]


@pytest.fixture
def compile_library(tmp_path: Path) -> Compile:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    assert compiler, "these tests need a C compiler"

    def compile_text(text: str) -> Path:
        folder = tmp_path / "compiled"
        folder.mkdir(exist_ok=True)
        source = folder / f"fake{len(list(folder.iterdir()))}.c"
        source.write_text(text)
        target = source.with_suffix(".so")
        command = [compiler, "-w", "-shared", "-fPIC", str(source), "-o", str(target)]
        subprocess.run(command, check=True)
        return target

    return compile_text


@pytest.fixture(autouse=True)
def no_library_anywhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ELIZA_INFERENCE_LIBRARY", raising=False)
    packaged = tmp_path / "package" / "lib" / "libelizainference.so"
    monkeypatch.setattr(eliza_ctypes.loader, "PACKAGED_LIBRARY", str(packaged))


def test_the_explicit_path_wins_over_the_environment(
    compile_library: Compile, monkeypatch: pytest.MonkeyPatch
) -> None:
    explicit, other = compile_library(VERSION % 8), compile_library(VERSION % 8)
    monkeypatch.setenv("ELIZA_INFERENCE_LIBRARY", str(other))
    assert Library(explicit).path == str(explicit)
    assert Library().path == str(other)


def test_the_packaged_library_is_used_where_nothing_is_named(
    compile_library: Compile, monkeypatch: pytest.MonkeyPatch
) -> None:
    packaged = compile_library(VERSION % 8)
    monkeypatch.setattr(eliza_ctypes.loader, "PACKAGED_LIBRARY", str(packaged))
    assert Library().path == str(packaged)


def test_an_editable_installation_has_the_library_in_its_second_folder(tmp_path: Path) -> None:
    source = Path(eliza_ctypes.__file__).parent
    package = tmp_path / "checkout" / source.name
    shutil.copytree(source, package, ignore=shutil.ignore_patterns("lib"))
    library = tmp_path / "lib" / "libelizainference.so"
    library.parent.mkdir()
    library.touch()
    program = f"""
import sys
from importlib.util import module_from_spec, spec_from_file_location
init, folders = {str(package / "__init__.py")!r}, [{str(package)!r}, {str(tmp_path)!r}]
spec = spec_from_file_location("eliza_ctypes", init, submodule_search_locations=folders)
sys.modules["eliza_ctypes"] = package = module_from_spec(spec)
spec.loader.exec_module(package)
print(package.loader.PACKAGED_LIBRARY)
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(library)


def test_an_explicit_path_that_fails_is_not_replaced_by_another(
    compile_library: Compile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ELIZA_INFERENCE_LIBRARY", str(compile_library(VERSION % 8)))
    with pytest.raises(LibraryNotFound, match="absent"):
        Library(tmp_path / "absent.so")


def test_an_environment_path_that_fails_is_not_replaced_by_the_packaged_library(
    compile_library: Compile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(eliza_ctypes.loader, "PACKAGED_LIBRARY", str(compile_library(VERSION % 8)))
    monkeypatch.setenv("ELIZA_INFERENCE_LIBRARY", str(tmp_path / "absent.so"))
    with pytest.raises(LibraryNotFound, match=r"ELIZA_INFERENCE_LIBRARY, .*absent\.so: no such"):
        Library()


def test_a_library_in_the_working_directory_is_never_found(
    compile_library: Compile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compile_library(VERSION % 8).rename(tmp_path / "libelizainference.so")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LibraryNotFound):
        Library()


def test_a_bare_name_is_not_left_to_the_dynamic_linker(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LibraryNotFound, match=str(tmp_path / "libc.so.6")):
        Library("libc.so.6")


@pytest.mark.parametrize("by_environment", [False, True])
def test_a_relative_path_that_was_named_is_made_absolute(
    compile_library: Compile,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    by_environment: bool,
) -> None:
    library = compile_library(VERSION % 8)
    monkeypatch.chdir(tmp_path)
    relative = str(library.relative_to(tmp_path))
    if by_environment:
        monkeypatch.setenv("ELIZA_INFERENCE_LIBRARY", relative)
    assert Library(None if by_environment else relative).path == str(library)


def test_the_error_lists_every_place_and_why_it_failed() -> None:
    with pytest.raises(LibraryNotFound) as caught:
        Library()
    message = str(caught.value)
    assert "no path was given" in message
    assert "ELIZA_INFERENCE_LIBRARY is not set" in message
    assert f"{eliza_ctypes.loader.PACKAGED_LIBRARY}: no such file" in message
    assert "\n" not in message


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LibraryLoadError, match="is a directory"):
        Library(tmp_path)


@pytest.mark.parametrize("content", [b"", b"#!/bin/sh\necho no\n", b"MZ\x90\0", b"\x7fELF"])
def test_a_file_that_is_no_library_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "library.so"
    path.write_bytes(content)
    with pytest.raises(LibraryLoadError, match=r"library\.so: "):
        Library(path)


def test_a_library_of_another_architecture_is_named_as_such(tmp_path: Path) -> None:
    path = tmp_path / "library.so"
    header = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHI", 3, 243, 1) + bytes(40)
    path.write_bytes(header)
    with pytest.raises(LibraryLoadError, match="was built for riscv64"):
        Library(path)


def test_a_library_without_our_version_function_is_refused(compile_library: Compile) -> None:
    with pytest.raises(LibraryLoadError, match="does not export eliza_inference_abi_version"):
        Library(compile_library("int unrelated;"))


def test_abi_8_takes_the_80_byte_config(compile_library: Compile) -> None:
    library = Library(compile_library(VERSION % 8 + CONTEXT))
    assert (library.abi_version(), library.abi) == ("8", 8)
    assert LlmStreamConfig().to_native(library.config_type).__class__.__name__.endswith("config_t")


@pytest.mark.parametrize("version", [9, 10])
def test_abi_9_and_later_take_the_88_byte_config(compile_library: Compile, version: int) -> None:
    library = Library(compile_library(VERSION % version + CONTEXT + OPEN_88))
    context = library.create("bundle")
    stream = library.llm_stream_open(context, LlmStreamConfig(max_tokens=7))
    library.llm_stream_close(stream)
    library.destroy(context)


def test_an_older_library_serves_what_it_has_and_names_what_it_lacks(
    compile_library: Compile,
) -> None:
    path = compile_library(VERSION % 7 + CONTEXT + OPEN_88.replace("config + 80", '"\\0\\0\\0"'))
    library = Library(path)
    assert library.llm_stream_supported()
    stream = library.llm_stream_open(library.create("bundle"), LlmStreamConfig(max_tokens=7))
    with pytest.raises(NotSupported) as caught:
        library.llm_stream_reset_keep(stream, 0)
    expected = f"llm_stream_reset_keep is not supported by this library ({path}, ABI 7)"
    assert expected in str(caught.value)


def test_a_missing_supported_function_means_no(compile_library: Compile) -> None:
    library = Library(compile_library(VERSION % 3))
    assert not library.llm_stream_supported()
    assert not library.llm_mtp_supported()
    assert not library.tokenize_supported()
    assert not library.has("tokenize")


def test_a_version_that_is_no_number_is_kept_and_the_functions_still_serve(
    compile_library: Compile,
) -> None:
    library = Library(compile_library(VERSION % "eight" + CONTEXT))
    assert (library.abi_version(), library.abi) == ("eight", 0)
    assert library.llm_stream_supported()
    with pytest.raises(NotSupported, match="ABI eight"):
        library.vad_supported()
