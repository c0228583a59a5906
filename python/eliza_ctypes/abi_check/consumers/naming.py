"""What names mean: which structure, field or constant a consumer's identifier stands for."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Iterable

from ..table import Struct, StructField, Table
from .syntax import word_set

CONFIG = "eliza_llm_stream_config_t"
EVENT = "EliVerifierEvent"
LATER_FIELD = "context_size"
"""What the configuration of the next ABI has at offset 80, in a structure of 88 bytes."""

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_PREFIX = "eliza_"
_CONFIG_WORDS = frozenset({"cfg", "config", "configuration", "conf"})
_CLUES = {CONFIG: _CONFIG_WORDS, EVENT: frozenset({"event", "evt", "ev", "verifier"})}
# What a mirrored type is called, "eliza" and words such as "native" aside.
_MIRRORS = {
    CONFIG: [frozenset({"llm", "stream"}) | {word} for word in _CONFIG_WORDS]
    + [frozenset({"stream", word}) for word in _CONFIG_WORDS],
    EVENT: [frozenset({"verifier", "event"})],
}
_AFFIXES = word_set("abi c eli eliza ffi inference layout native raw struct t 8 9 v")
# Words that say how a thing is held, not what it is: "configBuf" is a config, "configPath" is not.
_NEUTRAL = _AFFIXES | word_set("""
    a ab addr address alloc allocate allocation apply arena args array as b base buf buffer
    build builder byte bytes create current d data dataview decode default dest do dst dv emit
    encode encoder f fill for from get handle i in init into it len length llama llm local make
    map marshal mem memory mut my new node of off offset offsets open options opts out p pack
    packed params parse pin pinned pointer prepare ptr read ref s seg segment serialise
    serialize set size sizeof slice st storage store stream structure the to typed u uint unpack
    unsafe update value values view w with write writer zero 16 32 64
    """)
_OFFSET_WORDS = frozenset({"off", "offs", "offset", "offsets"})
_SIZE_WORDS = frozenset({"size", "sizeof", "bytes", "len", "length"})
_HOLDERS = word_set("pointer ptr addr address buf buffer bytes c cstr cstring str string")
_CONSTANT_AFFIXES = word_set("code e eli eliza err error inference k llm rc result ret status")
_OURS = frozenset({"eliza", "eli"})
_ERRORS = frozenset({"err", "error"})

_LOOKUPS = word_set(
    """
    address bind downcall entry fn find func function get handle import invoke load lookup must
    of optional proc procedure require resolve sym symbol symbols
    """
)
_FINDERS = word_set("dlfunc dlsym dlvsym find get getprocaddress lookup sym symbol")
_LIBRARIES = word_set("addon dll dlopen library module plugin")
_SYNONYMS = {"invalidargument": "invalidarg", "outofmemory": "oom", "canceled": "cancelled"}


@lru_cache(maxsize=8192)
def words(name: str) -> tuple[str, ...]:
    """``nGpuLayers`` and ``N_GPU_LAYERS`` are both n, gpu, layers."""
    return tuple(word.lower() for word in _WORD.findall(name))


def key(name: str) -> str:
    """What the spellings of one name have in common."""
    return "".join(words(name))


def is_abi_name(name: str) -> bool:
    """Whether this could only be meant as a function of the library."""
    return name.startswith(_PREFIX) and name.isidentifier() and name[-1] != "_"


def mentions_the_abi(source: bytes) -> bool:
    """Whether there can be anything to judge."""
    lowered = source.lower()
    clues = (b"eliza", b"eliverifier", b"llm_stream", b"llmstream", b"verifier")
    return any(clue in lowered for clue in clues)


def topics(source: bytes) -> frozenset[str]:
    """The structures that a source is about."""
    lowered = source.lower().replace(b"_", b"")
    found = {CONFIG} if b"llmstream" in lowered else set()
    return frozenset(found | ({EVENT} if b"verifier" in lowered else set()))


def struct_held(name: str, table: Table) -> Struct | None:
    """The structure that a variable of this name holds: ``configBuf``, but not ``configPath``."""
    found = frozenset(words(name))
    return _only(
        struct
        for struct in table.structs.values()
        for clues in [_CLUES.get(struct.name, frozenset())]
        if found & clues and found <= clues | _NEUTRAL
    )


def struct_hinted(name: str, table: Table) -> Struct | None:
    """The structure that a function or a class of this name is about, perhaps."""
    found = frozenset(words(name))
    return _only(s for s in table.structs.values() if found & _CLUES.get(s.name, frozenset()))


def is_clue(name: str) -> bool:
    """Whether a name has to do with one of the structures at all."""
    return any(frozenset(words(name)) & clues for clues in _CLUES.values())


def says_nothing(name: str) -> bool:
    """Whether a name tells only how something is held: ``view``, ``buf``, ``ptr``."""
    return frozenset(words(name)) <= _NEUTRAL


def struct_mirrored(name: str, table: Table) -> tuple[Struct | None, bool]:
    """The structure that a type of this name mirrors, and whether the name is exactly its own."""
    for struct in table.structs.values():
        if key(name) in (
            key(struct.name),
            key(struct.name[:-2]) if struct.name[-2:] == "_t" else 0,
        ):
            return struct, True
    core = frozenset(words(name)) - _AFFIXES
    found = _only(s for s in table.structs.values() if core in _MIRRORS.get(s.name, ()))
    return found, False


def struct_sized(name: str, table: Table) -> Struct | None:
    """The structure whose size a constant of this name holds: ``CONFIG_SIZE``."""
    found = frozenset(words(name))
    if not found & _SIZE_WORDS or found & _OFFSET_WORDS:
        return None
    return struct_held(name, table)


def field_named(name: str, struct: Struct) -> StructField | None:
    """The field whose name this is exactly, in whatever spelling."""
    return next((field for field in struct.fields if key(field.name) == key(name)), None)


def field_held(name: str, struct: Struct) -> StructField | None:
    """The field that a variable holds, also as ``promptCacheKeyPtr``."""
    left = list(words(name))
    while left:
        found = field_named("_".join(left), struct)
        if found is not None:
            return found
        if left[-1] not in _HOLDERS:
            return None
        left.pop()
    return None


def field_at_offset_named(name: str, struct: Struct) -> StructField | None:
    """The field that an offset's name means: ``OFF_SLOT_ID``, ``SLOT_ID_OFFSET``, ``slotId``."""
    found = field_named(name, struct)
    if found is not None:
        return found
    left = [word for word in words(name) if word not in _OFFSET_WORDS]
    clues = _CLUES.get(struct.name, frozenset()) | _AFFIXES | {"llm", "stream", "field", "k"}
    while left:
        found = field_named("_".join(left), struct)
        if found is not None:
            return found
        if left[0] not in clues:
            return None
        left.pop(0)
    return None


def is_offset_name(name: str) -> bool:
    return bool(frozenset(words(name)) & _OFFSET_WORDS)


def looks_up(name: str) -> bool:
    """Whether a function of this name finds symbols: ``dlsym``, but not ``loadLibrary``."""
    found = frozenset(words(name))
    by_name = found & _LOOKUPS or name.lower().endswith(("sym", "proc"))
    return bool(by_name) and not found & _LIBRARIES


def finds_or_not(name: str) -> bool:
    """Whether a function of this name itself says that a symbol is missing, and goes on."""
    return name.lower() in _FINDERS


def callback_hinted(name: str, table: Table) -> str | None:
    """The callback that a variable, a type or a function of this name is about."""
    found = frozenset(words(name))
    hints = {"eliza_verifier_cb": {"verifier"}, "eliza_tts_chunk_cb": {"tts", "chunk"}}
    meant = [each for each in table.callbacks if found & hints.get(each, set())]
    return meant[0] if len(meant) == 1 else None


def constant_named(name: str, table: Table) -> str | None:
    """The constant whose whole name this is, in whatever spelling."""
    plain = "".join(words(name)[1:] if words(name)[:1] == ("k",) else words(name))
    return next((each for each in table.constants if key(each) == plain), None)


def constant_in(container: str, name: str, table: Table) -> str | None:
    """The constant that a member of an enumeration or object such as ``ElizaStatus`` may mean."""
    return constant_meant(name, table) if _OURS & frozenset(words(container)) else None


def constant_meant(name: str, table: Table) -> str | None:
    """The constant that a name such as ``ERR_CANCELLED`` or ``cancelled`` may mean."""
    core = _constant_core(name)
    return next((each for each in table.constants if core and _constant_core(each) == core), None)


def is_error(name: str) -> bool:
    return bool(_ERRORS & frozenset(words(name)))


def _constant_core(name: str) -> str:
    core = "".join(word for word in words(name) if word not in _CONSTANT_AFFIXES)
    return _SYNONYMS.get(core, core)


def _only(structs: Iterable[Struct]) -> Struct | None:
    found = {struct.name: struct for struct in structs}
    return next(iter(found.values())) if len(found) == 1 else None
