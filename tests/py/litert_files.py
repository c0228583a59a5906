"""LiteRT-LM files for tests, built of the tiny model's sections with the runtime's own builder."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, NamedTuple

import litert_lm_builder as builder
from litert_lm_builder.runtime.proto import llm_metadata_pb2

from eliza_ctypes.litert.container import LLM_METADATA, LitertFile

TINY = Path(__file__).parents[1] / "fixtures" / "litert" / "tiny.litertlm"


class Part(NamedTuple):
    """A section of a file to be built."""

    kind: int
    content: bytes
    metadata: tuple[Any, ...] = ()


def parts_of(path: Path) -> list[Part]:
    file = LitertFile(path)
    return [Part(one.kind, file.content(one), one.metadata) for one in file.sections]


def build(path: Path, parts: list[Part]) -> Path:
    """Writes a file of these sections with the builder of LiteRT-LM itself."""
    made = builder.LitertLmFileBuilder()
    made.add_system_metadata(
        builder.Metadata(key="Authors", value="a test", dtype=builder.DType.STRING)
    )
    make = type("Section", (), {})
    for part in parts:
        section = make()
        section.metadata, section.data_type = list(part.metadata), part.kind
        section.data_writer = lambda stream, content=part.content: stream.write(content)
        made._sections.append(section)
    with path.open("wb") as file:
        made.build(file)
    return path


def replaced(
    kind: int, content: bytes, new_kind: int | None = None, source: Path = TINY
) -> list[Part]:
    """The sections of ``source`` with another content in the section of ``kind``."""
    return [
        Part(new_kind or kind, content, one.metadata) if one.kind == kind else one
        for one in parts_of(source)
    ]


def with_description(path: Path, change: Callable[[Any], None], source: Path = TINY) -> Path:
    """The model of ``source`` under a changed description."""
    described = description_of(source)
    change(described)
    return build(path, replaced(LLM_METADATA, described.SerializeToString(), source=source))


def description_of(path: Path) -> Any:
    (content,) = (part.content for part in parts_of(path) if part.kind == LLM_METADATA)
    described = llm_metadata_pb2.LlmMetadata()
    described.ParseFromString(content)
    return described
