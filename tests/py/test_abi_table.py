"""The table is the whole ABI: bindings, layouts and constants derive from it and match it."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path

import pytest

import eliza_ctypes
from eliza_ctypes import abi, errors
from eliza_ctypes.config import LlmStreamConfig

TABLE = json.loads(Path(abi.__file__).with_name("abi-v8.json").read_text("utf-8"))


def test_every_function_of_the_table_is_declared_with_all_its_arguments() -> None:
    assert list(abi.FUNCTIONS) == [entry["name"] for entry in TABLE["functions"]]
    for entry in TABLE["functions"]:
        declared = abi.FUNCTIONS[entry["name"]]
        assert len(declared.argtypes) == len(entry["args"])
        names = [argument["name"] for argument in entry["args"]]
        assert declared.takes_out_error == (names[-1:] == ["out_error"])


def test_every_function_of_the_table_is_a_method_of_library() -> None:
    library = object.__new__(eliza_ctypes.Library)
    for name in abi.FUNCTIONS:
        assert callable(getattr(library, name[len(abi.PREFIX) :]))


def test_a_name_outside_the_table_is_no_method_of_library() -> None:
    library = object.__new__(eliza_ctypes.Library)
    with pytest.raises(AttributeError, match="eliza_teleport"):
        library.eliza_teleport  # noqa: B018


@pytest.mark.parametrize("name", TABLE["structs"])
def test_structures_have_the_offsets_and_sizes_of_the_table(name: str) -> None:
    declared, structure = TABLE["structs"][name], abi.STRUCTS[name]
    assert ctypes.sizeof(structure) == declared["size"]
    assert ctypes.alignment(structure) == declared["align"]
    for field in declared["fields"]:
        assert getattr(structure, field["name"]).offset == field["offset"]


def test_a_layout_that_differs_from_the_table_is_refused() -> None:
    field = {"name": "slot_id", "type": "int32_t", "offset": 4}
    with pytest.raises(ImportError, match="slot_id is not at offset 4"):
        abi._layout("wrong", ctypes.Structure, [field], 8)


def test_an_unknown_c_type_is_refused() -> None:
    with pytest.raises(ImportError, match="quaternion"):
        abi._ctype("quaternion *")


def test_the_config_of_abi_9_appends_one_integer_at_offset_80() -> None:
    assert ctypes.sizeof(abi.CONFIG_V9) == 88
    assert abi.CONFIG_V9.context_size.offset == 80
    assert issubclass(abi.CONFIG_V9, abi.CONFIG_V8)


def test_the_config_has_exactly_the_fields_of_the_table() -> None:
    fields = [field["name"] for field in TABLE["structs"]["eliza_llm_stream_config_t"]["fields"]]
    assert list(LlmStreamConfig._fields) == fields


def test_every_error_code_has_its_own_exception() -> None:
    codes = [code for code in TABLE["constants"].values() if code < 0]
    raised = {type(errors.error_for(code, "function", "why")) for code in codes}
    assert len(raised) == len(codes)
    assert eliza_ctypes.ElizaError not in raised


def test_an_error_without_a_message_names_function_and_code() -> None:
    assert str(errors.error_for(-5, "f", None)) == "f failed with ELIZA_ERR_OOM (-5)"
    assert str(errors.error_for(-99, "f", "")) == "f failed with an unknown code (-99)"


def test_every_opaque_object_can_be_released_and_only_llm_streams_are_interrupted() -> None:
    assert all(abi.RELEASE.values())
    interrupted = {kind: name for kind, name in abi.INTERRUPT.items() if name}
    assert interrupted == {"EliLlmStream": "eliza_inference_llm_stream_cancel"}
