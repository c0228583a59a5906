"""Conversations written the way a model was trained on: its own chat template.

The template is a Jinja program inside the GGUF file. Jinja is not in the standard library; the
extra ``eliza-ctypes[chat]`` brings it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Sequence

from .bundle import vocabulary_file
from .errors import BundleInvalid
from .gguf import read_metadata

if TYPE_CHECKING:
    from .context import Context
    from .stream import Stream

_TEMPLATE = "tokenizer.chat_template"
_BOS, _EOS = "tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id"

Message = dict[str, str]
"""``{"role": "system" | "user" | "assistant", "content": ...}``"""


class TemplateEngineMissing(Exception):
    """jinja2 is not installed."""

    def __init__(self) -> None:
        super().__init__("chat templates need jinja2: pip install 'eliza-ctypes[chat]'")


class ChatTemplate:
    """The template of one model, compiled."""

    def __init__(self, source: str, bos_token: str = "", eos_token: str = "") -> None:
        """Raises TemplateEngineMissing, BundleInvalid for a template that does not compile."""
        try:
            from jinja2 import TemplateError, nodes, parser
            from jinja2.ext import Extension
            from jinja2.sandbox import ImmutableSandboxedEnvironment
        except ImportError:
            raise TemplateEngineMissing from None

        class GenerationTag(Extension):
            """``{% generation %}`` marks the assistant's text for training; nothing else."""

            tags = {"generation"}  # noqa: RUF012  as jinja2 declares it

            def parse(self, parser: parser.Parser) -> list[nodes.Node]:
                next(parser.stream)
                return parser.parse_statements(("name:endgeneration",), drop_needle=True)

        self._error = TemplateError
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        # Settings, filters and globals as Hugging Face defines them for chat templates.
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", GenerationTag],
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = self._refuse
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise BundleInvalid.because(f"the model's chat template is broken: {error}") from None

    @classmethod
    def of_bundle(cls, bundle: Path, context: Context) -> ChatTemplate:
        """The template in a bundle's vocabulary file.

        Raises BundleInvalid where the model has none, TemplateEngineMissing.
        """
        model = vocabulary_file(bundle)
        values = read_metadata(model, {_TEMPLATE, _BOS, _EOS}).values
        source = values.get(_TEMPLATE)
        if not isinstance(source, str):
            raise BundleInvalid.because(f"{model} carries no chat template")
        bos, eos = (
            context.detokenize([int(values[key])], unparse_special=True) if key in values else ""
            for key in (_BOS, _EOS)
        )
        return cls(source, bos, eos)

    def render(self, messages: Sequence[Message]) -> str:
        """The text of a conversation up to where the assistant's next answer begins.

        Raises BundleInvalid where the template refuses the conversation.
        """
        try:
            return self._template.render(
                messages=list(messages), add_generation_prompt=True, **self._tokens
            )
        except (self._error, TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise BundleInvalid.because(f"the model's chat template failed: {error}") from None

    def tokenize(self, context: Context, messages: Sequence[Message]) -> list[int]:
        """Token ids of :meth:`render`."""
        text = self.render(messages)
        bos = self._tokens["bos_token"]
        # Most templates write BOS themselves; a second one would be seen by the model.
        add_special = not (bos and text.startswith(bos))
        return context.tokenize(text, add_special=add_special, parse_special=True)

    def _refuse(self, message: str) -> NoReturn:
        raise self._error(message)


class Conversation:
    """The turns so far, and the tokens that the model has seen of them."""

    def __init__(self, template: ChatTemplate, context: Context, system: str | None = None) -> None:
        self._template = template
        self._context = context
        self._system: list[Message] = [{"role": "system", "content": system}] if system else []
        self._messages: list[Message] = list(self._system)

    def restart(self) -> None:
        """Forgets every turn; the system message stays."""
        self._messages = list(self._system)

    def ask(self, content: str) -> list[int]:
        """Adds a turn of the user's and returns the tokens of the whole conversation."""
        self._messages.append({"role": "user", "content": content})
        try:
            return self._template.tokenize(self._context, self._messages)
        except BaseException:
            self._messages.pop()
            raise

    def answered(self, content: str) -> None:
        """Adds the assistant's turn, or, for an empty one, takes the question back."""
        if content:
            self._messages.append({"role": "assistant", "content": content})
        else:
            self._messages.pop()


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two sequences begin with in common."""
    pairs = zip(one, other)
    return next(
        (index for index, pair in enumerate(pairs) if pair[0] != pair[1]), min(len(one), len(other))
    )


def continue_from(stream: Stream, held: Sequence[int], tokens: list[int]) -> list[int]:
    """Goes back to what the stream holds of ``tokens``; returns the rest, one token at least.

    ``held`` are the tokens that the stream surely holds; none of a stream that was never used.
    """
    if not held:
        return tokens
    return tokens[stream.reset_keep(min(common_prefix(held, tokens), len(tokens) - 1)) :]


def _to_json(value: Any, indent: int | None = None, **options: Any) -> str:
    """Like Hugging Face's, unlike Jinja's own filter, without HTML escapes."""
    return json.dumps(value, ensure_ascii=False, indent=indent, **options)


def _strftime_now(layout: str) -> str:
    from datetime import datetime

    return datetime.now().strftime(layout)
