"""Write the tiny models of the unit tests: deterministic, each under 2 MB.

usage: make_tiny_models.py OUTDIR

tiny-bpe.gguf    llama, random weights, byte-level BPE vocabulary, ChatML template
tiny-spm.gguf    llama, random weights, SentencePiece vocabulary with byte fallback
tiny-swa.gguf    gemma3, random weights, a sliding window of 16 tokens in every other layer
chain-spm.gguf   llama, scripted: the greedy next token is a fixed function of the current one
chains.json      what chain-spm.gguf says after each of its start tokens
vocab-only.gguf  tiny-bpe without tensors
no-vocab.gguf    tiny-spm's tensors without a vocabulary
bad-norm.gguf    tiny-bpe with its norms in F16, which no kernel takes

tiny-bpe-draft.gguf      llama, a smaller model with tiny-bpe's vocabulary and other weights
tiny-mtp.gguf            hy_v3, a text model that brings a head for multi-token prediction
tiny-eagle3.gguf         eagle3, a drafter that reads three layers of tiny-eagle3-target.gguf
tiny-eagle3-target.gguf  llama, random weights, tiny-bpe's vocabulary

The random models never choose a special token greedily, so a test decides when they stop.
tiny-bpe-draft is hardly ever right about tiny-bpe; the other two drafters are right now and then.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Union

import gguf
import numpy as np

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
TEXT = "the quick brown fox jumps over the lazy dog and then the other dog jumps over the river "

Kind = gguf.TokenType


@dataclass
class Vocabulary:
    model: str
    bos: int
    eos: int
    texts: list[str] = field(default_factory=list)
    kinds: list[Kind] = field(default_factory=list)
    merges: list[str] = field(default_factory=list)
    end_of_turn: int | None = None

    def add(self, text: str, kind: Kind = Kind.NORMAL) -> int:
        self.texts.append(text)
        self.kinds.append(kind)
        return len(self.texts) - 1

    def write(self, writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model(self.model)
        writer.add_token_list(self.texts)
        writer.add_token_types([int(kind) for kind in self.kinds])
        writer.add_bos_token_id(self.bos)
        writer.add_eos_token_id(self.eos)
        if self.end_of_turn is not None:
            writer.add_eot_token_id(self.end_of_turn)
        if self.model == "gpt2":
            writer.add_tokenizer_pre("smollm")
            writer.add_token_merges(self.merges)
            writer.add_add_bos_token(False)
        else:
            writer.add_tokenizer_pre("default")
            # SentencePiece merges the pair with the best score first: earlier pieces win.
            writer.add_token_scores([-float(number) for number in range(len(self.texts))])
            writer.add_unk_token_id(0)
            writer.add_add_bos_token(True)


def bpe_vocabulary(n_merges: int = 64) -> Vocabulary:
    """GPT-2's byte alphabet, merges learned from TEXT, and the special tokens of a chat model."""
    vocabulary = Vocabulary("gpt2", bos=0, eos=1)
    for special in ("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"):
        vocabulary.add(special, Kind.CONTROL)
    vocabulary.end_of_turn = 3
    alphabet = byte_alphabet()
    for byte in range(256):
        vocabulary.add(alphabet[byte])
    words = [["\u0120", *word] for word in TEXT.split()]
    while len(vocabulary.merges) < n_merges:
        pairs = [pair for word in words for pair in zip(word, word[1:])]
        if not pairs:
            break
        best = max(sorted(set(pairs)), key=pairs.count)
        words = [merged(word, best) for word in words]
        vocabulary.merges.append(" ".join(best))
        vocabulary.add("".join(best))
    return vocabulary


def byte_alphabet() -> dict[int, str]:
    """GPT-2's printable stand-in for each byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {
        **{byte: chr(byte) for byte in printable},
        **{byte: chr(256 + number) for number, byte in enumerate(others)},
    }


def merged(word: list[str], pair: tuple[str, str]) -> list[str]:
    result: list[str] = []
    for symbol in word:
        if result and (result[-1], symbol) == pair:
            result[-1] += symbol
        else:
            result.append(symbol)
    return result


def spm_vocabulary() -> Vocabulary:
    """<unk>, <s>, </s>, the 256 byte tokens (byte b has the id 3 + b)."""
    vocabulary = Vocabulary("llama", bos=1, eos=2)
    vocabulary.add("<unk>", Kind.UNKNOWN)
    vocabulary.add("<s>", Kind.CONTROL)
    vocabulary.add("</s>", Kind.CONTROL)
    for byte in range(256):
        vocabulary.add(f"<0x{byte:02X}>", Kind.BYTE)
    return vocabulary


def spm_words() -> Vocabulary:
    """Byte fallback, and every prefix of TEXT's words, so that whole words can be merged."""
    vocabulary = spm_vocabulary()
    words = sorted({"\u2581" + word for word in TEXT.split()})
    prefixes = {word[:length] for word in words for length in range(2, len(word) + 1)}
    characters = {"\u2581", *"abcdefghijklmnopqrstuvwxyz"}
    for piece in [*sorted(prefixes, key=lambda text: (-len(text), text)), *sorted(characters)]:
        vocabulary.add(piece)
    return vocabulary


Shape = tuple[int, ...]


@dataclass(frozen=True)
class Architecture:
    """A small transformer; tensors are listed as name -> shape (rows, columns)."""

    name: str
    n_embd: int = 64
    n_head: int = 4
    n_head_kv: int = 2
    n_ff: int = 96
    n_layer: int = 2
    n_ctx: int = 2048
    window: int = 0

    @property
    def head(self) -> int:
        return self.n_embd // self.n_head

    def write(self, writer: gguf.GGUFWriter) -> None:
        writer.add_context_length(self.n_ctx)
        writer.add_embedding_length(self.n_embd)
        writer.add_block_count(self.n_layer)
        writer.add_feed_forward_length(self.n_ff)
        writer.add_head_count(self.n_head)
        writer.add_head_count_kv(self.n_head_kv)
        writer.add_key_length(self.head)
        writer.add_value_length(self.head)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_rope_freq_base(10000.0)
        writer.add_rope_dimension_count(self.head)
        if self.window:
            writer.add_sliding_window(self.window)
            writer.add_uint32(f"{self.name}.attention.sliding_window_pattern", 2)

    def tensors(self, n_vocab: int) -> dict[str, Shape]:
        embd, kv = self.n_embd, self.n_head_kv * self.head
        shapes: dict[str, Shape] = {"token_embd": (n_vocab, embd), "output_norm": (embd,)}
        for layer in range(self.n_layer):
            block: dict[str, Shape] = {
                "attn_norm": (embd,),
                "attn_q": (embd, embd),
                "attn_k": (kv, embd),
                "attn_v": (kv, embd),
                "attn_output": (embd, embd),
                "ffn_norm": (embd,),
                "ffn_gate": (self.n_ff, embd),
                "ffn_up": (self.n_ff, embd),
                "ffn_down": (embd, self.n_ff),
            }
            if self.name in ("gemma3", "hy_v3"):
                block["attn_q_norm"] = block["attn_k_norm"] = (self.head,)
            if self.name == "gemma3":
                block["post_attention_norm"] = block["post_ffw_norm"] = (embd,)
            shapes.update({f"blk.{layer}.{name}": shape for name, shape in block.items()})
        shapes["output"] = (n_vocab, embd)
        return shapes


@dataclass(frozen=True)
class MultiTokenPrediction(Architecture):
    """A transformer whose last block is no part of it, but the head that drafts."""

    name: str = "hy_v3"
    n_layer: int = 3

    @property
    def head_block(self) -> str:
        return f"blk.{self.n_layer - 1}"

    def write(self, writer: gguf.GGUFWriter) -> None:
        super().write(writer)
        writer.add_uint32(f"{self.name}.nextn_predict_layers", 1)
        writer.add_expert_feed_forward_length(self.n_ff)  # required, also without experts

    def tensors(self, n_vocab: int) -> dict[str, Shape]:
        return {
            **super().tensors(n_vocab),
            f"{self.head_block}.nextn.enorm": (self.n_embd,),
            f"{self.head_block}.nextn.hnorm": (self.n_embd,),
            f"{self.head_block}.nextn.eh_proj": (self.n_embd, 2 * self.n_embd),
        }


@dataclass(frozen=True)
class Eagle3(Architecture):
    """One block that reads three layers of its target and borrows the target's embeddings."""

    name: str = "eagle3"
    n_head_kv: int = 4
    n_layer: int = 1
    target_layers: tuple[int, int, int] = (0, 1, 2)

    def write(self, writer: gguf.GGUFWriter) -> None:
        super().write(writer)
        writer.add_array(f"{self.name}.target_layers", self.target_layers)
        writer.add_uint32(f"{self.name}.target_hidden_size", self.n_embd)

    def tensors(self, n_vocab: int) -> dict[str, Shape]:
        shapes = super().tensors(n_vocab)
        del shapes["token_embd"], shapes["output"]
        shapes["fc"] = (self.n_embd, len(self.target_layers) * self.n_embd)
        shapes["blk.0.attn_norm_2"] = (self.n_embd,)
        for name in ("attn_q", "attn_k", "attn_v"):  # of the token beside the target's state
            rows, columns = shapes[f"blk.0.{name}"]
            shapes[f"blk.0.{name}"] = (rows, 2 * columns)
        return shapes


Weights = dict[str, "np.ndarray[tuple[int, ...], np.dtype[np.floating]]"]


def random_weights(architecture: Architecture, vocabulary: Vocabulary, seed: int) -> Weights:
    generator = np.random.default_rng(seed)
    weights: Weights = {}
    for name, shape in architecture.tensors(len(vocabulary.texts)).items():
        if len(shape) == 1:
            weights[name] = np.ones(shape, dtype=np.float32)
        else:
            # Wider than a trained model: attention has to matter for what comes next.
            scale = 1.0 if name == "token_embd" else 2.0 / np.sqrt(shape[1])
            weights[name] = (generator.standard_normal(shape) * scale).astype(np.float32)
    text = (Kind.NORMAL, Kind.BYTE)
    if "output" in weights:
        weights["output"][[kind not in text for kind in vocabulary.kinds]] = 0.0
    return weights


def shallow(weights: Weights) -> Weights:
    """Blocks that add little, so that a drafter who knows only the last token is often right."""
    return {
        name: values * np.float32(0.02) if name.endswith(("attn_output", "ffn_down")) else values
        for name, values in weights.items()
    }


def passes_on(weights: Weights, name: str, gain: float = 1.0) -> None:
    """Let a projection pass on its first input, in a drafter the last token, and little else."""
    identity = np.eye(*weights[name].shape, dtype=np.float32)
    weights[name] = np.float32(gain) * identity + np.float32(0.05) * weights[name]


def mtp_weights(architecture: MultiTokenPrediction, vocabulary: Vocabulary, seed: int) -> Weights:
    weights = shallow(random_weights(architecture, vocabulary, seed))
    passes_on(weights, f"{architecture.head_block}.nextn.eh_proj")
    return weights


def eagle3_weights(architecture: Eagle3, vocabulary: Vocabulary, seed: int) -> Weights:
    """The token reaches the output through attention, so every token attends to itself."""
    weights = shallow(random_weights(architecture, vocabulary, seed))
    for name in ("attn_q", "attn_k"):
        passes_on(weights, f"blk.0.{name}", gain=2.0)
    for name in ("attn_v", "attn_output"):
        passes_on(weights, f"blk.0.{name}")
    weights["fc"] *= np.float32(0.1)
    return weights


def write_model(
    path: Path,
    architecture: Architecture,
    vocabulary: Vocabulary | None,
    weights: Weights,
    template: str | None = None,
) -> None:
    writer = gguf.GGUFWriter(path, architecture.name)
    writer.add_name(path.stem)
    architecture.write(writer)
    if vocabulary is None:
        writer.add_tokenizer_model("none")
        writer.add_vocab_size(len(weights["output"]))
    else:
        vocabulary.write(writer)
    if template is not None:
        writer.add_chat_template(template)
    for name, values in weights.items():
        writer.add_tensor(f"{name}.weight", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


Said = Union[int, str]


class Chains:
    """A vocabulary in which every token has one successor; by default the end of generation."""

    def __init__(self) -> None:
        self.vocabulary = spm_vocabulary()
        self.successor: dict[int, int] = {}
        self.described: dict[str, dict[str, object]] = {}
        self._unused_bytes = {byte: [3 + byte] for byte in range(256)}

    def add(self, start: str, says: Sequence[Said], loops: bool = False) -> None:
        """After the piece `start`: pieces (str) and byte tokens (int), then the end or again."""
        first = self.vocabulary.add(start, Kind.USER_DEFINED)
        tokens = [self._byte(said) if isinstance(said, int) else self._piece(said) for said in says]
        for token, following in zip([first, *tokens], tokens):
            self.successor[token] = following
        self.successor[tokens[-1]] = tokens[0] if loops else self.vocabulary.eos
        self.described[start] = {
            "start": first,
            "tokens": tokens,
            "bytes": b"".join(map(raw_bytes, says)).hex(),
            "ends": not loops,
        }

    def _piece(self, text: str) -> int:
        """A new piece; a character that has one already comes as its byte."""
        piece = text.replace(" ", "\u2581")
        if piece in self.vocabulary.texts:
            return self._byte(ord(text))
        return self.vocabulary.add(piece)

    def _byte(self, byte: int) -> int:
        """A byte token no chain has used; further ones for the same byte have a longer name."""
        if not self._unused_bytes[byte]:
            number = len(self.vocabulary.texts)
            return self.vocabulary.add(f"<0x{byte:02X}>{number}", Kind.BYTE)
        return self._unused_bytes[byte].pop()

    def weights(self, architecture: Architecture) -> Weights:
        """One-hot embeddings, blocks that add nothing, and an output matrix that permutes."""
        n_vocab = len(self.vocabulary.texts)
        assert n_vocab <= architecture.n_embd
        weights: Weights = {
            name: (np.ones if len(shape) == 1 else np.zeros)(shape, dtype=np.float32)
            for name, shape in architecture.tensors(n_vocab).items()
        }
        for token in range(n_vocab):
            weights["token_embd"][token, token] = 1.0
            weights["output"][self.successor.get(token, self.vocabulary.eos), token] = 4.0
        return {
            name: values.astype(np.float16) if values.ndim > 1 else values
            for name, values in weights.items()
        }


def raw_bytes(said: Said) -> bytes:
    return bytes([said]) if isinstance(said, int) else said.encode()


def chains() -> Chains:
    result = Chains()
    face, hand, world = (text.encode() for text in ("\U0001f600", "\U0001f44b", "\u4e16\u754c"))
    result.add(
        "smile",
        [" ", *face, " and", " wave", " ", *hand, " to", " the", " ", *world, "."],
    )
    result.add("broken", [0xC3, 0x28, 0xF0, 0x9F, "z", 0x80])
    result.add("loop", ["a", "b", "c"], loops=True)
    result.add("half", ["o", "k", *face[:3]])
    result.add("null", ["x", 0x00, "y"])
    return result


def main() -> None:
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)

    llama = Architecture("llama")
    bpe, words = bpe_vocabulary(), spm_words()
    write_model(folder / "tiny-bpe.gguf", llama, bpe, random_weights(llama, bpe, 1), CHATML)
    write_model(folder / "vocab-only.gguf", llama, bpe, {}, CHATML)
    bad = random_weights(llama, bpe, 1)
    halves = {name: bad[name].astype(np.float16) for name in bad if name.endswith("ffn_norm")}
    write_model(folder / "bad-norm.gguf", llama, bpe, {**bad, **halves})
    spm_weights = random_weights(llama, words, 2)
    write_model(folder / "tiny-spm.gguf", llama, words, spm_weights)
    write_model(folder / "no-vocab.gguf", llama, None, spm_weights)

    draft = Architecture("llama", n_head=2, n_ff=64, n_layer=1)
    draft_weights = random_weights(draft, bpe, 4)
    write_model(folder / "tiny-bpe-draft.gguf", draft, bpe, draft_weights, CHATML)
    mtp = MultiTokenPrediction()
    write_model(folder / "tiny-mtp.gguf", mtp, bpe, mtp_weights(mtp, bpe, 5), CHATML)
    target, eagle3 = Architecture("llama", n_layer=3), Eagle3()
    target_weights = shallow(random_weights(target, bpe, 6))
    write_model(folder / "tiny-eagle3-target.gguf", target, bpe, target_weights, CHATML)
    write_model(folder / "tiny-eagle3.gguf", eagle3, bpe, eagle3_weights(eagle3, bpe, 7))

    gemma = Architecture("gemma3", n_layer=4, n_ctx=1024, window=16)
    write_model(folder / "tiny-swa.gguf", gemma, words, random_weights(gemma, words, 3))

    scripted = chains()
    wide = Architecture("llama", n_embd=320, n_head=5, n_head_kv=1, n_ff=32, n_layer=1)
    write_model(folder / "chain-spm.gguf", wide, scripted.vocabulary, scripted.weights(wide))
    (folder / "chains.json").write_text(json.dumps(scripted.described, indent=1) + "\n")


main()
