"""The container format ``.litertlm``: a header that describes sections, and the sections.

The header is a flatbuffer; its schema and the names of the section types are litert-lm-builder's.
"""

from __future__ import annotations

import contextlib
import io
import mmap
import struct
import uuid
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Sequence

from ..errors import BundleInvalid
from . import needed

with needed("litert-lm-builder"):
    import flatbuffers
    from litert_lm_builder import litertlm_builder, litertlm_core, litertlm_peek
    from litert_lm_builder import litertlm_header_schema_py_generated as schema

SP_TOKENIZER: int = schema.AnySectionDataType.SP_Tokenizer
HF_TOKENIZER: int = schema.AnySectionDataType.HF_Tokenizer_Zlib
LLM_METADATA: int = schema.AnySectionDataType.LlmMetadataProto
EMBEDDING_METADATA: int = schema.AnySectionDataType.EmbeddingMetadataProto
TFLITE_MODEL: int = schema.AnySectionDataType.TFLiteModel

_TEXT_MODEL = litertlm_builder.TfLiteModelType.PREFILL_DECODE.value
_BEGIN: int = litertlm_core.HEADER_BEGIN_BYTE_OFFSET
_MAGIC: bytes = litertlm_core.HEADER_MAGIC_BYTES
# Magic, three numbers of the version, padding, and where the flatbuffer ends.
_PREAMBLE = struct.Struct("<8s12s4xQ")
_CHUNK = 1 << 20


class Section(NamedTuple):
    """One section: where it lies in its file, and what the header says of it."""

    kind: int
    """A value of the schema's ``AnySectionDataType``."""
    metadata: tuple[Any, ...]
    """``litertlm_builder.Metadata``, in the order of the header."""
    begin: int
    end: int

    @property
    def model_type(self) -> str | None:
        """Which model the section is or belongs to; None where the header does not say."""
        values = [item.value for item in self.metadata if item.key == "model_type"]
        return str(values[0]).lower() if values else None

    @property
    def is_of_text_model(self) -> bool:
        """Whether it is, or serves, the model that generates text."""
        return self.model_type in (None, _TEXT_MODEL)


class LitertFile:
    """An open ``.litertlm`` file, the header of which is known to fit it."""

    def __init__(self, path: Path) -> None:
        """Raises BundleInvalid for what is no such file or is cut off, OSError."""
        self.path = path
        with path.open("rb") as file:
            size = file.seek(0, io.SEEK_END)
            file.seek(0)
            preamble = file.read(_PREAMBLE.size)
        if not preamble.startswith(_MAGIC):
            raise self.invalid("is not a LiteRT-LM file")
        if len(preamble) < _PREAMBLE.size:
            raise self.invalid("is cut off inside its header")
        _, self.version, header_end = _PREAMBLE.unpack(preamble)
        if not _BEGIN < header_end <= size:
            raise self.invalid(f"is cut off: its header ends at byte {header_end} of {size}")
        try:
            self.system_metadata, self.sections = _read_header(path)
        except OSError:
            raise
        except Exception as error:  # a flatbuffer is not verified: any damage shows in its own way
            raise self.invalid(f"its header cannot be read: {error}") from None
        for number, section in enumerate(self.sections):
            if not header_end <= section.begin <= section.end:
                raise self.invalid(f"section {number} does not lie behind the header")
            if section.end > size:
                raise self.invalid(
                    f"is cut off: section {number} ends at byte {section.end} of {size}"
                )

    def invalid(self, what: str) -> BundleInvalid:
        """The error that says ``what`` is wrong with this file."""
        return BundleInvalid.because(f"{self.path}: {what}")

    def content(self, section: Section) -> bytes:
        """A whole section: not for models."""
        with self.path.open("rb") as file:
            file.seek(section.begin)
            return file.read(section.end - section.begin)

    def numbers(self, *kinds: int) -> list[int]:
        """The numbers of the text model's sections of these kinds."""
        return [
            number
            for number, section in enumerate(self.sections)
            if section.kind in kinds and section.is_of_text_model
        ]

    def logits(self) -> int:
        """How many ids the text model chooses among; 0 where it does not say."""
        for number in self.numbers(TFLITE_MODEL):
            section = self.sections[number]
            with self.path.open("rb") as file, contextlib.ExitStack() as opened:
                content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                whole = memoryview(opened.enter_context(content))
                opened.enter_context(whole)
                model = opened.enter_context(whole[section.begin : section.end])
                # As above: any damage shows in its own way. The width is of use, but not needed.
                with contextlib.suppress(Exception):
                    return _logits(model)
        return 0


def write_with(source: LitertFile, replaced: dict[int, tuple[int, bytes]], target: Path) -> None:
    """Writes ``source`` with some sections replaced, by number: their kinds and contents.

    Everything else is copied byte for byte. The same input makes the same file. Raises OSError.
    """
    objects = [
        schema.SectionObjectT(
            items=[item.to_key_value_pair() for item in section.metadata],
            # Packing leaves out zeros: with these the header already has its size.
            beginOffset=1,
            endOffset=1,
            dataType=replaced[number][0] if number in replaced else section.kind,
        )
        for number, section in enumerate(source.sections)
    ]
    header = schema.LiteRTLMMetaDataT(
        systemMetadata=schema.SystemMetadataT(
            entries=[item.to_key_value_pair() for item in _renamed(source.system_metadata)]
        ),
        sectionMetadata=schema.SectionMetadataT(objects=objects),
    )
    end = _BEGIN + len(_packed(header))
    with source.path.open("rb") as original, target.open("wb") as file:
        for number, (section, described) in enumerate(zip(source.sections, objects)):
            file.truncate(_next_block(end))
            described.beginOffset = file.seek(0, io.SEEK_END)
            if number in replaced:
                file.write(replaced[number][1])
            else:
                _copy(original, section, file)
            described.endOffset = end = file.tell()
        packed = _packed(header)
        file.seek(0)
        file.write(_PREAMBLE.pack(_MAGIC, source.version, _BEGIN + len(packed)))
        file.write(packed)


def _read_header(path: Path) -> tuple[list[Any], list[Section]]:
    header = litertlm_peek.read_litertlm_header(str(path), io.StringIO())
    system, described = header.SystemMetadata(), header.SectionMetadata()
    entries = [_metadata(system.Entries(at)) for at in range(system.EntriesLength())]
    objects = [described.Objects(at) for at in range(described.ObjectsLength())]
    return entries, [
        Section(
            kind=one.DataType(),
            metadata=tuple(_metadata(one.Items(at)) for at in range(one.ItemsLength())),
            begin=one.BeginOffset(),
            end=one.EndOffset(),
        )
        for one in objects
    ]


def _metadata(pair: Any) -> Any:
    # The schema's own KeyValuePairT cannot be read: VDataCreator is misspelled there.
    known = litertlm_peek.kvp_to_dict(pair)
    kind = litertlm_builder.DType(known["value_type"].lower())
    return litertlm_builder.Metadata(known["key"], known["value"], kind)


def _renamed(system_metadata: Sequence[Any]) -> list[Any]:
    """With another identity, which follows from the old one: caches go by it."""
    named = litertlm_builder.Metadata
    return [
        named(item.key, str(uuid.uuid5(uuid.NAMESPACE_OID, str(item.value))), item.dtype)
        if item.key == "uuid"
        else item
        for item in system_metadata
    ]


def _packed(header: Any) -> bytes:
    builder = flatbuffers.Builder(litertlm_core.BLOCK_SIZE)
    builder.Finish(header.Pack(builder))
    return bytes(builder.Output())


def _next_block(offset: int) -> int:
    block: int = litertlm_core.BLOCK_SIZE
    return (offset + block - 1) // block * block


def _copy(original: BinaryIO, section: Section, target: BinaryIO) -> None:
    original.seek(section.begin)
    left = section.end - section.begin
    while left > 0:
        chunk = original.read(min(left, _CHUNK))
        if not chunk:
            raise OSError(f"{original.name} became shorter while it was copied")
        target.write(chunk)
        left -= len(chunk)


def _logits(model: memoryview) -> int:
    """The last dimension of the signatures' output "logits" in a TFLite flatbuffer.

    Fields by the numbers of tensorflow/compiler/mlir/lite/schema/schema.fbs.
    """
    root = _Table(model, flatbuffers.encode.Get(flatbuffers.packer.uoffset, model, 0))
    subgraphs = root.tables(2)
    for signature in root.tables(7):
        for output in signature.tables(1):
            if output.text(0) == "logits":
                graph = subgraphs[signature.number(4)]
                shape = graph.tables(0)[output.number(1)].numbers(0)
                return shape[-1]
    return 0


class _Table:
    """A flatbuffer table without generated code: fields by their numbers."""

    def __init__(self, content: memoryview, position: int) -> None:
        self._table = flatbuffers.table.Table(content, position)

    def tables(self, field: int) -> list[_Table]:
        at = self._offset(field)
        if not at:
            return []
        start, count = self._table.Vector(at), self._table.VectorLen(at)
        places = [self._table.Indirect(start + 4 * number) for number in range(count)]
        return [_Table(self._table.Bytes, place) for place in places]

    def numbers(self, field: int) -> list[int]:
        at = self._offset(field)
        start, count = self._table.Vector(at), self._table.VectorLen(at)
        kind = flatbuffers.number_types.Int32Flags
        return [self._table.Get(kind, start + 4 * number) for number in range(count)]

    def number(self, field: int) -> int:
        at = self._offset(field)
        kind = flatbuffers.number_types.Uint32Flags
        return self._table.Get(kind, self._table.Pos + at) if at else 0

    def text(self, field: int) -> str:
        at = self._offset(field)
        return bytes(self._table.String(self._table.Pos + at)).decode() if at else ""

    def _offset(self, field: int) -> int:
        offset: int = self._table.Offset(4 + 2 * field)
        return offset
