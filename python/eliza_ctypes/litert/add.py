"""Adding a LiteRT-LM model to a bundle: checked, converted, tried out, then put in place."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import zlib
from pathlib import Path
from typing import Iterator, NamedTuple

from ..bundle import add_text_model
from ..errors import BundleInvalid
from ..library import Library
from .container import (
    EMBEDDING_METADATA,
    HF_TOKENIZER,
    LLM_METADATA,
    SP_TOKENIZER,
    TFLITE_MODEL,
    LitertFile,
    write_with,
)
from .generation import Verification, not_verified, verify
from .llm_metadata import for_exact_ids, read_llm_metadata, special_tokens
from .tokenizer_file import check_same_vocabulary, write_tokenizer
from .trial import choose
from .vocabulary import (
    Source,
    id_transparent,
    id_transparent_size,
    read_sentencepiece,
    read_tokenizer_json,
)


class Added(NamedTuple):
    """What was put into the bundle, and what is known of it."""

    model: Path
    tokenizer: Path
    rules: str
    """What llama.cpp calls the tokenizer."""
    texts: int
    """On how many texts its ids were compared with those of the model's own tokenizer."""
    notes: tuple[str, ...]
    """Where it differs in every such conversion."""
    verification: Verification


def add_litert(
    file: Path,
    directory: Path,
    library: Library,
    tokenizer: Path | None = None,
    verify_by_generating: bool = True,
) -> Added:
    """Puts a ``.litertlm`` file into a bundle directory, which is made or added to.

    The bundle gets the model under a tokenizer whose texts are token ids, and beside it the real
    tokenizer for ``library``. ``tokenizer`` is a ``tokenizer.json`` or a SentencePiece model; it is
    needed where the file is of that kind already. Every check comes first: the bundle is changed
    only where all of them pass.

    Raises BundleInvalid, LitertPackagesMissing, OSError.
    """
    file, directory = Path(file), Path(directory)
    source = _open(file)
    tokenizer_section, real, least = _tokenizer(source, tokenizer)
    shown = str(tokenizer or file)
    metadata = read_llm_metadata(source)
    special = special_tokens(metadata, real.reference, len(real.tokens), source)
    width = source.logits()
    if least and len(real.tokens) > max(least, width):
        raise BundleInvalid.because(
            f"{tokenizer} has {len(real.tokens)} tokens, and {file} {max(least, width)} ids"
        )
    _check_room(directory, file)
    for model in sorted((directory / "text").glob("*.gguf")):
        if not model.name.startswith("mmproj"):
            check_same_vocabulary(model, real.tokens)
    with _staged(directory) as stage:
        staged = stage / "text" / file.name
        vocabulary_file = staged.with_suffix(".tokenizer")
        chosen = choose(
            real,
            library,
            stage,
            lambda vocabulary: write_tokenizer(
                vocabulary, special, metadata.jinja_prompt_template, file.stem, vocabulary_file
            ),
            shown,
        )
        described = source.numbers(LLM_METADATA)[0]
        ids = id_transparent(max(len(real.tokens), width, least))
        replaced = {
            tokenizer_section: (SP_TOKENIZER, ids),
            described: (LLM_METADATA, for_exact_ids(metadata, real.reference)),
        }
        write_with(source, replaced, staged)
        outcome = (
            verify(library, stage, file, ids=least > 0)
            if verify_by_generating
            else not_verified("it was not asked for")
        )
        context = max(metadata.max_num_tokens, 0)
        model = add_text_model(directory, [staged, vocabulary_file], context)
    return Added(
        model=model,
        tokenizer=model.with_suffix(".tokenizer"),
        rules=chosen.vocabulary.rules,
        texts=chosen.texts,
        notes=tuple(real.notes),
        verification=outcome,
    )


def _open(file: Path) -> LitertFile:
    if not file.is_file():
        what = "is not a file" if file.exists() else "does not exist"
        raise BundleInvalid.because(f"{file} {what}")
    if file.suffix != ".litertlm":
        raise BundleInvalid.because(f"{file}: the name of a LiteRT-LM model must end in .litertlm")
    source = LitertFile(file)
    if not source.numbers(TFLITE_MODEL):
        raise source.invalid("holds no model that generates text")
    if not source.numbers(LLM_METADATA) and source.numbers(EMBEDDING_METADATA):
        raise source.invalid("is an embedding model, which generates no text")
    return source


def _tokenizer(source: LitertFile, given: Path | None) -> tuple[int, Source, int]:
    """The number of the file's tokenizer section, the real tokenizer, and the least ids it has."""
    numbers = source.numbers(HF_TOKENIZER, SP_TOKENIZER)
    if len(numbers) != 1:
        raise source.invalid(f"holds {len(numbers) or 'no'} tokenizers of its text model, not 1")
    section = source.sections[numbers[0]]
    content = source.content(section)
    least = id_transparent_size(content) if section.kind == SP_TOKENIZER else None
    if given is not None:
        return numbers[0], _read_tokenizer(given.read_bytes(), str(given)), least or 0
    if least is not None:
        raise source.invalid("has no texts for its token ids: name its real tokenizer too")
    if section.kind == SP_TOKENIZER:
        return numbers[0], read_sentencepiece(content, str(source.path)), 0
    try:
        # The first 8 bytes are the size of what follows.
        content = zlib.decompress(content[8:])
    except zlib.error as error:
        raise source.invalid(f"its tokenizer cannot be unpacked: {error}") from None
    return numbers[0], read_tokenizer_json(content, str(source.path)), 0


def _read_tokenizer(content: bytes, name: str) -> Source:
    # A SentencePiece model begins with the tag of its first piece, which is a line feed.
    if content.lstrip()[:1] == b"{":
        return read_tokenizer_json(content, name)
    return read_sentencepiece(content, name)


def _check_room(directory: Path, file: Path) -> None:
    """The library reads one vocabulary of a bundle."""
    text = directory / "text"
    if file.exists() and (text / file.name).exists() and (text / file.name).samefile(file):
        raise BundleInvalid.because(f"{file} is in this bundle already, as it is")
    for kind in (".litertlm", ".tokenizer"):
        for other in sorted(text.glob(f"*{kind}")):
            if other.stem != file.stem:
                raise BundleInvalid.because(f"{other} is in the way: a bundle has one {kind} file")


@contextlib.contextmanager
def _staged(directory: Path) -> Iterator[Path]:
    """A bundle on the same file system, which is gone afterwards with all that was not moved."""
    made = [path for path in (directory, directory / "text") if not path.exists()]
    (directory / "text").mkdir(parents=True, exist_ok=True)
    stage = Path(tempfile.mkdtemp(prefix=".add-litert-", dir=directory))
    try:
        (stage / "text").mkdir()
        yield stage
    finally:
        shutil.rmtree(stage, ignore_errors=True)
        for path in reversed(made):
            # Only what stayed empty.
            with contextlib.suppress(OSError):
                path.rmdir()
