"""``bundle add-litert``: LiteRT-LM models in bundles, with exact token ids."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any, Callable, Iterator

import pytest

import eliza_ctypes.loader
from eliza_ctypes import BundleInvalid, Context, Library, report
from eliza_ctypes.bundle import MANIFEST
from eliza_ctypes.chat import ChatTemplate

if sys.version_info < (3, 10):
    pytest.skip("litert-lm-builder needs Python 3.10", allow_module_level=True)

import gguf
import litert_lm_builder as builder
import sentencepiece
import tokenizers
from litert_lm_builder.runtime.proto import embedding_metadata_pb2
from sentencepiece import sentencepiece_model_pb2

from eliza_ctypes.litert import add, container, generation, runtime
from eliza_ctypes.litert.add import Added, add_litert
from eliza_ctypes.litert.container import HF_TOKENIZER, LLM_METADATA, SP_TOKENIZER, LitertFile
from litert_files import TINY, Part, build, description_of, parts_of, replaced, with_description

TINY_PARTS = parts_of(TINY)
TINY_TOKENIZER = TINY.with_name("tokenizer.json")
SPACE = "\u2581"
TEXTS = [
    "Hello, world! 12345 tests, 3.14 and don't",
    "  indented\n\n\tcode = {'a': 1}  \n",
    "smile 😀 and wave 👋 to the 世界. café naïve",
    "a" * 50 + " " * 20 + "=" * 30,
]
LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN = LLAMA_3.replace("{1,3}", "")


def with_json(path: Path, described: dict[str, Any]) -> Path:
    """The tiny model under another tokenizer.json."""
    content = json.dumps(described).encode()
    return build(
        path, replaced(HF_TOKENIZER, len(content).to_bytes(8, "little") + zlib.compress(content, 1))
    )


def with_sentencepiece(path: Path, model: Any) -> Path:
    return build(path, replaced(HF_TOKENIZER, model.SerializeToString(), SP_TOKENIZER))


def tiny_json() -> dict[str, Any]:
    described: dict[str, Any] = json.loads(TINY_TOKENIZER.read_text("utf-8"))
    return described


def stop_sequences(tokenizer: Path) -> list[int]:
    field = gguf.GGUFReader(tokenizer).fields["eliza.stop_sequences"]
    return [int(field.parts[place][0]) for place in field.data]


def listing(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return tmp_path / "a bündle"


@pytest.fixture
def quick(library: Library) -> Callable[..., Added]:
    """add_litert without generating."""

    def call(file: Path, directory: Path, tokenizer: Path | None = None) -> Added:
        return add_litert(file, directory, library, tokenizer, verify_by_generating=False)

    return call


Quick = Callable[..., Added]


# The repacked file


def test_everything_but_the_tokenizer_and_the_description_is_copied(
    quick: Quick, tmp_path: Path, bundle: Path
) -> None:
    kinds = container.schema.AnySectionDataType

    def items(**values: str) -> tuple[Any, ...]:
        kind = builder.DType.STRING
        return tuple(builder.Metadata(key, value, kind) for key, value in values.items())

    number = builder.Metadata("answer", 42, builder.DType.UINT32)
    more = [
        Part(kinds.TFLiteModel, b"drafter" * 9000, items(model_type="tf_lite_mtp_drafter")),
        Part(
            kinds.TFLiteModel,
            b"encoder",
            (
                *items(model_type="tf_lite_vision_encoder", backend_constraint="gpu,npu"),
                *items(prefer_activation_type="fp16"),
                number,
            ),
        ),
        Part(kinds.TFLiteWeights, bytes(40_000), items(model_type="tf_lite_vision_encoder")),
        Part(kinds.GenericBinaryData, b""),
        Part(kinds.SP_Tokenizer, b"of another model", items(model_type="tf_lite_text_encoder")),
    ]
    original = build(tmp_path / "many.litertlm", [*more[:2], *TINY_PARTS, *more[2:]])
    made = parts_of(quick(original, bundle).model)
    assert len(made) == len(parts_of(original))
    for before, after in zip(parts_of(original), made):
        assert after.metadata == before.metadata
        if before.kind not in (HF_TOKENIZER, LLM_METADATA):
            assert (after.kind, after.content) == (before.kind, before.content)
    assert {one.begin % 16384 for one in LitertFile(bundle / "text/many.litertlm").sections} == {0}


def test_the_header_keeps_its_version_and_entries_and_gets_another_identity(
    quick: Quick, bundle: Path
) -> None:
    before, after = LitertFile(TINY), LitertFile(quick(TINY, bundle).model)
    assert after.version == before.version
    for old, new in zip(before.system_metadata, after.system_metadata):
        assert (old == new) == (old.key != "uuid")


def test_a_text_of_the_repacked_tokenizer_is_exactly_the_ids_that_it_names(
    quick: Quick, bundle: Path
) -> None:
    parts = {part.kind: part.content for part in parts_of(quick(TINY, bundle).model)}
    assert HF_TOKENIZER not in parts
    processor = sentencepiece.SentencePieceProcessor(model_proto=parts[SP_TOKENIZER])
    ids = [*range(320), 0, 0, 7, 7, 0, 319]
    assert processor.encode("".join(f"<{token}>" for token in ids)) == ids
    assert processor.decode(ids) == "".join(f"<{token}>" for token in ids)


def test_every_id_that_the_model_can_choose_has_a_text(
    quick: Quick, tmp_path: Path, bundle: Path
) -> None:
    described = tiny_json()
    merges = described["model"]["merges"] = described["model"]["merges"][:9]
    tokens = sorted(described["model"]["vocab"].items(), key=lambda item: item[1])
    described["model"]["vocab"] = dict(tokens[: len(tokens) - 59 + len(merges)])
    made = quick(with_json(tmp_path / "narrow.litertlm", described), bundle)
    (content,) = (part.content for part in parts_of(made.model) if part.kind == SP_TOKENIZER)
    processor = sentencepiece.SentencePieceProcessor(model_proto=content)
    assert LitertFile(TINY).logits() == 320
    assert processor.decode([319]) == "<319>"


def test_the_description_keeps_all_but_start_stop_and_padding(
    quick: Quick, tmp_path: Path, bundle: Path
) -> None:
    def change(described: Any) -> None:
        described.start_token.token_str = "<bos>"
        described.llm_model_type.gemma3.start_of_image_token.token_str = "<|user|>"
        described.llm_model_type.gemma3.image_tensor_height = 896
        described.suppress_tokens.ids.extend([3, 4])
        described.sampler_params.k = 40
        described.jinja_prompt_template = "{{ messages }}"

    original = with_description(tmp_path / "described.litertlm", change)
    expected, made = description_of(original), description_of(quick(original, bundle).model)
    for name in ("start_token", "stop_tokens", "pad_token"):
        expected.ClearField(name)
    expected.stop_tokens.add().token_ids.ids.append(2**31 - 1)
    expected.llm_model_type.gemma3.start_of_image_token.token_ids.ids.append(3)
    assert made == expected


def test_a_file_with_exact_ids_is_taken_with_its_tokenizer(
    quick: Quick, tmp_path: Path, bundle: Path
) -> None:
    file = exact_variant(tmp_path / "ids.litertlm")
    made = quick(file, bundle, TINY_TOKENIZER)
    assert stop_sequences(made.tokenizer) == [2, -1]
    ours, expected = parts_of(made.model), parts_of(quick(TINY, tmp_path / "other").model)
    assert [one[:2] for one in ours] == [one[:2] for one in expected]


def exact_variant(path: Path) -> Path:
    """As the recipe of LiteRT-LM's users makes it: the unknown piece is id 0."""
    model = sentencepiece_model_pb2.ModelProto()
    for token in range(320):
        model.pieces.add(piece=f"<{token}>", score=0.0, type=4 if token else 2)
    model.trainer_spec.model_type = model.trainer_spec.BPE
    model.trainer_spec.unk_piece = "<0>"
    rules = model.normalizer_spec
    rules.add_dummy_prefix = rules.escape_whitespaces = rules.remove_extra_whitespaces = False
    return with_sentencepiece(path, model)


# The tokenizer


def test_stop_sequences_are_the_ids_and_the_texts_of_the_description(
    quick: Quick, tmp_path: Path, bundle: Path
) -> None:
    def change(described: Any) -> None:
        described.stop_tokens.add().token_ids.ids.extend([4, 5, 6])
        described.stop_tokens.add().token_str = "<|user|>"
        described.stop_tokens.add().token_str = "the end"
        described.stop_tokens.add().token_ids.ids.append(2)
        described.stop_tokens.add().token_ids.ids.append(99_999)

    original = with_description(tmp_path / "stops.litertlm", change)
    reference = tokenizers.Tokenizer.from_file(str(TINY_TOKENIZER))
    words = reference.encode("the end", add_special_tokens=False).ids
    assert len(words) > 1
    expected = [2, -1, 4, 5, 6, -1, 3, -1, *words, -1]
    assert stop_sequences(quick(original, bundle).tokenizer) == expected


def test_a_start_token_of_the_description_comes_before_the_text(
    quick: Quick, tmp_path: Path, bundle: Path, library: Library
) -> None:
    def change(described: Any) -> None:
        described.start_token.token_ids.ids.append(1)

    quick(with_description(tmp_path / "start.litertlm", change), bundle)
    quick(TINY, tmp_path / "without")
    with Context(bundle, library) as one, Context(tmp_path / "without", library) as other:
        assert one.tokenize("a b") == [1, *other.tokenize("a b")]
        assert one.tokenize("a b", add_special=False) == other.tokenize("a b")


def test_a_chat_template_of_the_description_is_the_bundles(
    quick: Quick, tmp_path: Path, bundle: Path, library: Library
) -> None:
    pytest.importorskip("jinja2", reason="without it there is no chat")
    template = "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"

    def change(described: Any) -> None:
        described.jinja_prompt_template = template
        described.start_token.token_ids.ids.append(1)

    quick(with_description(tmp_path / "tiny.litertlm", change), bundle)
    with Context(bundle, library) as context:
        rendered = ChatTemplate.of_bundle(bundle, context).render(
            [{"role": "user", "content": "a b"}]
        )
    assert rendered == "<bos><user>a b"


def byte_level(kind: str) -> dict[str, Any]:
    """A small trained tokenizer.json with the rules of a family."""
    from tokenizers import Regex, models, normalizers, pre_tokenizers, trainers

    trained = tokenizers.Tokenizer(models.BPE())
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=kind in ("gpt-2", "smollm"))
    first = {
        "gpt-2": [],
        "smollm": [pre_tokenizers.Digits(individual_digits=True)],
        "llama-3": [pre_tokenizers.Split(Regex(LLAMA_3), "isolated")],
        "qwen": [pre_tokenizers.Split(Regex(QWEN), "isolated")],
        "at the letter e": [pre_tokenizers.Split("e", "isolated")],
    }[kind]
    trained.pre_tokenizer = pre_tokenizers.Sequence([*first, level])
    if kind == "qwen":
        trained.normalizer = normalizers.NFC()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<pad>", "<bos>", "<eos>", "<|im_start|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    trained.train_from_iterator([*TEXTS, "123 456 123456 It's we'LL 1234 56"] * 3, trainer)
    described: dict[str, Any] = json.loads(trained.to_str())
    return described


@pytest.mark.parametrize("kind", ["gpt-2", "smollm", "llama-3", "qwen"])
def test_byte_level_tokenizers_give_the_ids_of_the_original(
    quick: Quick, tmp_path: Path, bundle: Path, library: Library, kind: str
) -> None:
    described = byte_level(kind)
    made = quick(with_json(tmp_path / "other.litertlm", described), bundle)
    assert bool(made.notes) == (kind == "qwen")
    reference = tokenizers.Tokenizer.from_str(json.dumps(described))
    with Context(bundle, library) as context:
        for text in [*TEXTS, "1234567 we'LL\r\n\r\n <|im_start|>user\n"]:
            ids = context.tokenize(text, add_special=False, parse_special=True)
            assert ids == reference.encode(text, add_special_tokens=False).ids
            assert context.detokenize(ids, unparse_special=True) == text


def test_rules_that_llama_cpp_has_not_are_refused_with_a_text_that_differs(
    quick: Quick, tmp_path: Path, bundle: Path
) -> None:
    file = with_json(tmp_path / "odd.litertlm", byte_level("at the letter e"))
    with pytest.raises(BundleInvalid, match=r"odd\.litertlm: llama\.cpp has no .* the text '"):
        quick(file, bundle)
    assert not bundle.exists()


def vocabulary_of(path: Path) -> tuple[list[str], list[int], list[float], list[str]]:
    fields = gguf.GGUFReader(path).fields

    def values(name: str, read: Callable[[Any], Any]) -> list[Any]:
        field = fields.get(f"tokenizer.ggml.{name}")
        return [] if field is None else [read(field.parts[place]) for place in field.data]

    def text(part: Any) -> str:
        return bytes(part).decode()

    def number(part: Any) -> Any:
        return part[0].item()

    tokens, types = values("tokens", text), values("token_type", number)
    return tokens, types, values("scores", number), values("merges", text)


def described_json(
    tokens: list[str], types: list[int], merges: list[Any], **parts: Any
) -> dict[str, Any]:
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [
        {"id": number, "content": token, "special": kind == 3, **plain}
        for number, (token, kind) in enumerate(zip(tokens, types))
        if kind in (3, 4)
    ]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    model = {"type": "BPE", "vocab": vocabulary, "merges": merges, **parts.pop("model", {})}
    return {"version": "1.0", "added_tokens": added, "model": model, **parts}


def check_same_ids(library: Library, one: Path, other: Path) -> None:
    with Context(one, library) as first, Context(other, library) as second:
        for text in TEXTS:
            assert first.tokenize(text, False) == second.tokenize(text, False)


@pytest.mark.unsanitized
def test_smollm2s_tokenizer_json_gives_the_ids_of_its_gguf(
    quick: Quick,
    tmp_path: Path,
    bundle: Path,
    library: Library,
    smollm2_gguf: Path,
    smollm2_bundle: Path,
) -> None:
    tokens, types, _, merges = vocabulary_of(smollm2_gguf)
    digits = {"type": "Digits", "individual_digits": True}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    rules = {"type": "Sequence", "pretokenizers": [digits, {**level, "use_regex": True}]}
    file = with_json(
        tmp_path / "smollm2.litertlm", described_json(tokens, types, merges, pre_tokenizer=rules)
    )
    made = quick(file, bundle)
    assert made.rules == "gpt2, smollm"
    assert made.texts > 48_000
    check_same_ids(library, bundle, smollm2_bundle)


def gemma_sentencepiece(gemma3: Path) -> Any:
    tokens, types, scores, _ = vocabulary_of(gemma3)
    model = sentencepiece_model_pb2.ModelProto()
    for token, kind, score in zip(tokens, types, scores):
        piece = token.replace(" ", SPACE) if kind == 4 else token
        model.pieces.add(piece=piece, score=score, type=2 if token == "<unk>" else kind)
    model.trainer_spec.model_type = model.trainer_spec.BPE
    model.trainer_spec.byte_fallback = True
    model.normalizer_spec.add_dummy_prefix = False
    model.normalizer_spec.remove_extra_whitespaces = False
    return model


@pytest.mark.unsanitized
def test_gemma3s_sentencepiece_model_gives_the_ids_of_its_gguf(
    quick: Quick,
    tmp_path: Path,
    bundle: Path,
    library: Library,
    gemma3_gguf: Path,
    gemma3_bundle: Path,
) -> None:
    file = with_sentencepiece(tmp_path / "gemma3.litertlm", gemma_sentencepiece(gemma3_gguf))
    (bundle / "text").mkdir(parents=True)
    (bundle / "text" / gemma3_gguf.name).symlink_to(gemma3_gguf)
    made = quick(file, bundle)
    assert made.rules == "llama, default"
    assert made.texts > 250_000
    alone = tmp_path / "alone"
    (alone / "text").mkdir(parents=True)
    shutil.copy(made.tokenizer, alone / "text")
    check_same_ids(library, alone, gemma3_bundle)


@pytest.mark.slow
def test_gemma3s_tokenizer_json_gives_the_ids_of_the_original(
    quick: Quick, tmp_path: Path, bundle: Path, gemma3_gguf: Path
) -> None:
    tokens, types, scores, _ = vocabulary_of(gemma3_gguf)
    tokens = [one.replace(" ", SPACE) if kind == 4 else one for one, kind in zip(tokens, types)]
    known = set(tokens)
    ranked = [
        (1 if kind == 4 else -score + 2, number, at)
        for number, (token, kind, score) in enumerate(zip(tokens, types, scores))
        if kind in (1, 4)
        for at in range(1, len(token))
        if token[:at] in known and token[at:] in known
    ]
    merges = [(tokens[number][:at], tokens[number][at:]) for _, number, at in sorted(ranked)]
    described = described_json(
        tokens,
        types,
        merges,
        normalizer={"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
        model={"unk_token": "<unk>", "byte_fallback": True, "fuse_unk": True},
    )
    made = quick(with_json(tmp_path / "gemma3.litertlm", described), bundle)
    assert made.rules == "llama, default"


def test_another_vocabulary_than_that_of_the_bundles_gguf_is_refused(
    quick: Quick, bundle: Path, smollm2_gguf: Path
) -> None:
    (bundle / "text").mkdir(parents=True)
    (bundle / "text" / smollm2_gguf.name).symlink_to(smollm2_gguf)
    before = listing(bundle)
    with pytest.raises(BundleInvalid, match=r"another vocabulary: token 0 is '<\|endoftext\|>'"):
        quick(TINY, bundle)
    assert listing(bundle) == before


# The bundle


def test_the_bundle_holds_the_model_its_tokenizer_and_a_manifest_that_names_it(
    quick: Quick, bundle: Path
) -> None:
    made = quick(TINY, bundle)
    assert listing(bundle) == [MANIFEST, "text", "text/tiny.litertlm", "text/tiny.tokenizer"]
    (entry,) = json.loads((bundle / MANIFEST).read_text("utf-8"))["files"]["text"]
    assert (entry["path"], entry["ctx"]) == ("text/tiny.litertlm", 256)
    assert made.model == bundle / "text/tiny.litertlm"


def test_adding_twice_changes_nothing(quick: Quick, bundle: Path) -> None:
    made = quick(TINY, bundle)
    before = {path: path.read_bytes() for path in (made.model, made.tokenizer)}
    assert quick(TINY, bundle) == made
    assert {path: path.read_bytes() for path in before} == before


def test_a_failure_while_writing_leaves_the_bundle_as_it_was(
    quick: Quick, tmp_path: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick(TINY, bundle)
    shutil.rmtree(bundle / "text")
    before = listing(bundle)

    def fail(source: LitertFile, replacements: Any, target: Path) -> None:
        target.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(add, "write_with", fail)
    for directory in (bundle, tmp_path / "new"):
        with pytest.raises(OSError, match="No space left"):
            quick(TINY, directory)
    assert listing(bundle) == before
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["tiny.litertlm", "tiny.tokenizer"])
def test_another_file_in_the_way_is_not_replaced(quick: Quick, bundle: Path, name: str) -> None:
    (bundle / "text").mkdir(parents=True)
    (bundle / "text" / name).write_bytes(b"something else")
    with pytest.raises(BundleInvalid, match=rf"{name} is in the way"):
        quick(TINY, bundle)
    assert listing(bundle) == ["text", f"text/{name}"]


@pytest.mark.parametrize("name", ["other.litertlm", "other.tokenizer"])
def test_a_bundle_has_one_such_model_and_tokenizer(quick: Quick, bundle: Path, name: str) -> None:
    (bundle / "text").mkdir(parents=True)
    (bundle / "text" / name).touch()
    with pytest.raises(BundleInvalid, match=rf"{name} is in the way"):
        quick(TINY, bundle)


# What is refused


@pytest.mark.parametrize("end", [0, 7, 8, 31, 40, 600, 16_390, 49_200, 70_000, 728_927])
def test_a_file_that_is_cut_off_is_refused(
    quick: Quick, tmp_path: Path, bundle: Path, end: int
) -> None:
    file = tmp_path / "cut.litertlm"
    file.write_bytes(TINY.read_bytes()[:end])
    with pytest.raises(BundleInvalid, match=r"cut\.litertlm: is (not a LiteRT-LM file|cut off)"):
        quick(file, bundle)
    assert not bundle.exists()


def test_no_damage_to_the_header_raises_anything_else(tmp_path: Path) -> None:
    content = TINY.read_bytes()
    file = tmp_path / "damaged.litertlm"
    for at in range(8, 760):
        damaged = bytearray(content)
        damaged[at] ^= 0xFF
        file.write_bytes(damaged)
        try:
            LitertFile(file).logits()
        except BundleInvalid as error:
            assert "damaged.litertlm: " in error.message


def unigram(path: Path) -> Path:
    model = sentencepiece_model_pb2.ModelProto()
    model.pieces.add(piece="<unk>", score=0.0, type=2)
    model.pieces.add(piece="a", score=-1.0, type=1)
    return with_sentencepiece(path, model)


def without(kind: int) -> list[Part]:
    return [part for part in TINY_PARTS if part.kind != kind]


def embedding_model(path: Path) -> Path:
    described = embedding_metadata_pb2.EmbeddingMetadata(max_input_length=8).SerializeToString()
    kind = container.EMBEDDING_METADATA
    return build(path, [*without(LLM_METADATA), Part(kind, described)])


def word_piece(path: Path) -> Path:
    model = {"type": "WordPiece", "unk_token": "a", "continuing_subword_prefix": "##"}
    rules = {"max_input_chars_per_word": 100, "vocab": {"a": 0}}
    return with_json(path, {**tiny_json(), "added_tokens": [], "model": {**model, **rules}})


def no_stop(described: Any) -> None:
    described.ClearField("stop_tokens")


REFUSED: dict[str, tuple[Callable[[Path], Path], str]] = {
    "no tokenizer": (lambda path: build(path, without(HF_TOKENIZER)), "holds no tokenizers"),
    "no model": (
        lambda path: build(path, without(container.TFLITE_MODEL)),
        "holds no model that generates text",
    ),
    "no description": (lambda path: build(path, without(LLM_METADATA)), "holds 0 descriptions"),
    "an embedding model": (embedding_model, "is an embedding model"),
    "unigram": (unigram, "of the kind UNIGRAM cannot be converted"),
    "word pieces": (word_piece, "of the kind WordPiece cannot be converted"),
    "no stop tokens": (lambda path: with_description(path, no_stop), "names no stop token"),
    "exact ids": (exact_variant, "name its real tokenizer"),
    "no JSON": (
        lambda path: build(path, replaced(HF_TOKENIZER, bytes(8) + zlib.compress(b"{"))),
        r"is no tokenizer\.json",
    ),
    "not packed": (
        lambda path: build(path, replaced(HF_TOKENIZER, b"12345678no zlib")),
        "cannot be unpacked",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_added_is_refused_by_name(
    quick: Quick, tmp_path: Path, bundle: Path, what: str
) -> None:
    make, message = REFUSED[what]
    with pytest.raises(BundleInvalid, match=rf"refused\.litertlm: .*{message}"):
        quick(make(tmp_path / "refused.litertlm"), bundle)
    assert not bundle.exists()


def test_a_file_that_this_command_made_is_refused(
    quick: Quick, tmp_path: Path, bundle: Path
) -> None:
    made = quick(TINY, bundle)
    with pytest.raises(BundleInvalid, match="was made by this command"):
        quick(made.model, tmp_path / "other", TINY_TOKENIZER)


def test_a_tokenizer_with_more_tokens_than_the_model_has_ids_is_refused(
    quick: Quick, tmp_path: Path, bundle: Path
) -> None:
    (tmp_path / "wide.json").write_text(json.dumps(byte_level("gpt-2")))
    with pytest.raises(BundleInvalid, match=r"wide\.json has \d+ tokens, and .* 320 ids"):
        quick(exact_variant(tmp_path / "ids.litertlm"), bundle, tmp_path / "wide.json")


def test_a_missing_file_and_another_kind_of_file_are_named(
    quick: Quick, tmp_path: Path, bundle: Path
) -> None:
    with pytest.raises(BundleInvalid, match=r"absent\.litertlm does not exist"):
        quick(tmp_path / "absent.litertlm", bundle)
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(BundleInvalid, match=r"must end in \.litertlm"):
        quick(tmp_path / "model.gguf", bundle)


# The command


def run(*arguments: object, code: str = "") -> subprocess.CompletedProcess[str]:
    start = f"import sys; {code or 'pass'}; from eliza_ctypes.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", start, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=120)


def test_the_command_prints_the_model_and_on_stderr_what_is_known(bundle: Path) -> None:
    done = run("bundle", "add-litert", TINY, bundle, "--no-verify")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{bundle / 'text' / 'tiny.litertlm'}\n"
    known, verified = done.stderr.splitlines()
    assert known.startswith("tokenizer: gpt2, gpt-2; the same ids as the original on ")
    assert verified == "not verified by generating: it was not asked for"


def test_the_command_fails_in_one_line(tmp_path: Path, bundle: Path) -> None:
    done = run("bundle", "add-litert", exact_variant(tmp_path / "ids.litertlm"), bundle)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("eliza-ctypes: error: ")
    assert done.stderr.count("\n") == 1


def test_without_the_extra_the_command_says_how_to_install_it(bundle: Path) -> None:
    missing = "sys.modules['tokenizers'] = None"
    done = run("bundle", "add-litert", TINY, bundle, code=missing)
    assert done.returncode == 2
    assert "pip install 'eliza-ctypes[litert]'" in done.stderr
    assert done.stderr.count("\n") == 1


def test_other_commands_import_nothing_of_the_extra(bundle: Path) -> None:
    names = "litert_lm litert_lm_builder sentencepiece tokenizers gguf google.protobuf flatbuffers"
    absent = f"sys.modules.update(dict.fromkeys({names.split()!r}))"
    done = run("bundle", "--help", code=absent)
    assert done.returncode == 0, done.stderr


# The runtime's library


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of an installed litert-lm-api that fails when it is imported."""
    package = tmp_path / "site" / "litert_lm"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError")
    monkeypatch.syspath_prepend(package.parent)
    monkeypatch.delitem(sys.modules, "litert_lm", raising=False)
    # Set and removed: what loading sets is undone after the test.
    monkeypatch.setenv(eliza_ctypes.loader.LITERT_VARIABLE, "")
    monkeypatch.delenv(eliza_ctypes.loader.LITERT_VARIABLE)
    file = package / "liblitert-lm.so"
    file.touch()
    return file


@pytest.fixture
def copied(library_path: Path, tmp_path: Path) -> Path:
    """Our library where nothing lies beside it."""
    return Path(shutil.copy(library_path.resolve(), tmp_path / "libcopied.so"))


def named_runtime() -> str | None:
    return os.environ.get(eliza_ctypes.loader.LITERT_VARIABLE)


def test_loading_names_the_installed_runtime(installed: Path, copied: Path) -> None:
    Library(copied)
    assert named_runtime() == str(installed)
    assert eliza_ctypes.loader.litert_runtime(str(copied)) == str(installed)


@pytest.mark.parametrize("value", ["", "/somewhere/liblitert-lm.so"])
def test_a_runtime_that_was_named_stays(
    installed: Path, copied: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv(eliza_ctypes.loader.LITERT_VARIABLE, value)
    Library(copied)
    assert named_runtime() == value


def test_a_runtime_beside_the_library_comes_before_the_installed_one(
    installed: Path, copied: Path
) -> None:
    beside = copied.with_name("liblitert-lm.so")
    beside.touch()
    Library(copied)
    assert named_runtime() is None
    assert eliza_ctypes.loader.litert_runtime(str(copied)) == str(beside)


def test_where_no_runtime_is_installed_none_is_named(
    installed: Path, copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(name: str) -> None:
        assert name == "litert_lm"

    monkeypatch.setattr(importlib.util, "find_spec", none)
    Library(copied)
    assert named_runtime() is None


# What the library says of its backends


def test_a_backends_remark_is_told_from_its_state(
    library: Library, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing = (
        "no such backend:\n  llama.cpp (rank 0): always available\n"
        "  litert-lm (rank 100): available and able to serve this bundle; would run on cpu, exact "
        "token ids\n  mlx (rank 5): not available on this host"
    )
    monkeypatch.setattr(report, "_refusal", lambda context: listing)
    (bundle / "text").mkdir(parents=True)
    states = report.backend_states(library, bundle)
    assert [state.state for state in states] == [
        "always available",
        "available and able to serve this bundle",
        "not available on this host",
    ]
    assert [state.remark for state in states] == ["", "would run on cpu, exact token ids", ""]
    assert str(states[1]).endswith("this bundle; would run on cpu, exact token ids")
    assert report.serving_backend(states)[0] == "litert-lm"


# Generating


@pytest.fixture
def litert_library(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    path = os.environ.get("ELIZA_TEST_LITERT_LIBRARY", "")
    assert Path(path).is_file(), f"ELIZA_TEST_LITERT_LIBRARY={path} names no file"
    monkeypatch.setenv(eliza_ctypes.loader.LITERT_VARIABLE, path)
    yield path


def test_without_the_backend_nothing_is_generated_and_it_is_said(
    library: Library, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = [report.BackendState("llama.cpp", 0, "always available")]
    monkeypatch.setattr(generation, "backend_states", lambda *_: states)
    made = add_litert(TINY, bundle, library)
    assert not made.verification.generated
    assert "knows no litert-lm" in made.verification.message


@pytest.mark.litert
def test_the_runtimes_own_continuations_are_those_of_the_fixture(litert_library: str) -> None:
    prompts = ["a b c d", "smile"]
    command = [sys.executable, runtime.__file__, litert_library, TINY, "60", *prompts]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stderr == ""
    assert json.loads(done.stdout) == [
        " e f g h i j k l m n o p q r s t u v w x y z",
        " 😀 and wave 👋 to the 世界.",
    ]


@pytest.mark.litert
@pytest.mark.parametrize("exact", [False, True])
def test_a_new_bundle_generates_what_the_runtime_does_from_the_original(
    library: Library, litert_library: str, tmp_path: Path, bundle: Path, exact: bool
) -> None:
    file = exact_variant(tmp_path / "tiny.litertlm") if exact else TINY
    made = add_litert(file, bundle, library, TINY_TOKENIZER if exact else None)
    assert made.verification.compared, made.verification.message


@pytest.mark.litert
def test_a_bundle_that_generates_something_else_is_not_added(
    library: Library, litert_library: str, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [" something else"] * 3, None
    monkeypatch.setattr(generation, "_by_the_runtime", lambda *_: others)
    with pytest.raises(BundleInvalid, match="and LiteRT-LM ' something else'"):
        add_litert(TINY, bundle, library)
    assert not bundle.exists()


@pytest.mark.litert
def test_the_command_generates_without_a_word_of_the_runtime(
    litert_library: str, bundle: Path
) -> None:
    done = run("bundle", "add-litert", TINY, bundle)
    assert done.returncode == 0
    assert done.stderr.splitlines()[1].startswith("verified against LiteRT-LM on the original")
    assert len(done.stderr.splitlines()) == 2
