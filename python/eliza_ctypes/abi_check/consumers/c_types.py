"""How C and C++ declarations travel: base types, declarators, aliases, function pointers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Sequence

from ..table import Kind, Table
from .signatures import LONG_DOUBT, Type
from .syntax import child, children, field, line, of_type, parse, text

if TYPE_CHECKING:
    from tree_sitter import Node

_SIGNED = {
    Kind.INT8: "char signed_char int8_t BOOL jbyte int8",
    Kind.INT16: "short short_int int16_t jshort int16",
    Kind.INT32: "int int32_t jint jsize wint_t int32 i32 GLint SInt32 INT INT32",
    Kind.INT64: """
        long_long long_long_int int64_t ssize_t ptrdiff_t intptr_t intmax_t jlong int64 i64 isize
        NSInteger SSIZE_T INT_PTR INT64 longlong intptr
        """,
}
_UNSIGNED = {
    Kind.INT8: "bool _Bool unsigned_char uint8_t jboolean uint8 uchar BYTE",
    Kind.INT16: "unsigned_short unsigned_short_int uint16_t jchar char16_t uint16 ushort WORD",
    Kind.INT32: "unsigned unsigned_int uint32_t char32_t uint32 u32 uint DWORD UINT32",
    Kind.INT64: """
        size_t unsigned_long_long unsigned_long_long_int uint64_t uintptr_t uintmax_t uint64 u64
        usize NSUInteger SIZE_T UINT_PTR UINT64 ulonglong uintptr
        """,
}
_OTHERS = {
    Kind.VOID: "void",
    Kind.FLOAT32: "float jfloat float32 f32 float32_t",
    Kind.FLOAT64: "double jdouble float64 f64 CGFloat float64_t",
    Kind.POINTER: """
        jobject jstring jclass jarray jbyteArray jintArray jlongArray jfloatArray jthrowable
        nullptr_t va_list id SEL HANDLE HMODULE LPCSTR LPSTR LPVOID FARPROC PVOID
        jshortArray jobjectArray jbooleanArray jdoubleArray jweak
        """,
}
_LONG = frozenset({"long", "long_int", "unsigned_long", "unsigned_long_int", "ulong"})
_SPELLINGS: dict[str, tuple[Kind, bool]] = {
    name: (kind, group is not _UNSIGNED)
    for group in (_SIGNED, _UNSIGNED, _OTHERS)
    for kind, names in group.items()
    for name in names.split()
}
POINTER_LIKE = ("pointer_declarator", "abstract_pointer_declarator", "reference_declarator")
_REFERENCES = ("reference_declarator", "abstract_reference_declarator")
_ARRAYS = ("array_declarator", "abstract_array_declarator")
FUNCTION_DECLARATORS = ("function_declarator", "abstract_function_declarator")
_NAMES = (
    "identifier",
    "field_identifier",
    "type_identifier",
    "qualified_identifier",
    "primitive_type",
    "operator_name",
    "destructor_name",
)


def spelled(name: str) -> Type:
    """A type by its name alone; without a kind where that is no name of C's."""
    plain = "_".join(_in_order(name.replace("std::", "").split()))
    if plain in _LONG:
        return Type(name, None, doubt=LONG_DOUBT)
    kind, signed = _SPELLINGS.get(plain, (None, True))
    return Type(name, kind, signed)


def _in_order(words: list[str]) -> list[str]:
    """``long unsigned int`` as ``unsigned long int``."""
    kept = [word for word in words if word not in ("const", "volatile", "struct", "enum", "union")]
    order = ("unsigned", "signed", "long", "short", "char", "int")
    if len(kept) > 1 and set(kept) <= set(order):
        kept.sort(key=order.index)
        if kept[0] == "signed" and "char" not in kept:
            kept.pop(0)
    elif kept == ["signed"]:
        return ["int"]
    return kept


class Shape(NamedTuple):
    """A declared type: ``base``, or a ``pointer``, ``array`` or ``function`` of another one."""

    how: str
    inner: Any = None
    node: Any = None
    """The base's type, or the function's parameters."""
    written: str = ""
    length: Optional[int] = None
    """Of an array."""


class Function(NamedTuple):
    """A function type."""

    returns: Type
    parameters: Sequence[Type]
    variadic: bool
    line: int = 0


class Declared(NamedTuple):
    name: str
    shape: Shape


class Types:
    """The types of one source, whose reader fills ``aliases``, ``enums`` and ``variables``."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.aliases: dict[str, Shape] = {}
        self.enums: dict[str, Type] = {}
        self.structs: set[str] = set(table.structs)
        """Structures that are passed by their address only: those of more than one field."""
        self.variables: dict[str, list[Shape]] = {}
        """The variables and members of each name."""

    # ------------------------------------------------------------------ declarations

    def declared(self, declaration: Node) -> list[Declared]:
        """The names that a declaration declares, with their types."""
        base = self.base(declaration)
        declarators = declaration.children_by_field_name("declarator")
        return [self.apply(each, base) for each in declarators]

    def described(self, descriptor: Node) -> Shape:
        """The type of a parameter, of a type_descriptor, or of anything that may have no name."""
        base = self.base(descriptor)
        declarator = field(descriptor, "declarator")
        return base if declarator is None else self.apply(declarator, base).shape

    def base(self, declaration: Node) -> Shape:
        node = field(declaration, "type")
        if node is None:
            return Shape("base", written="?")
        return Shape("base", node=node, written=text(node))

    def apply(self, declarator: Node, shape: Shape) -> Declared:
        """What a declarator makes of a type: read from its outside to the name inside."""
        node: Optional[Node] = declarator
        while node is not None:
            if node.type in _NAMES:
                return Declared(text(node), shape)
            if node.type in POINTER_LIKE or node.type in _REFERENCES:
                shape = Shape("pointer", shape, written=f"{shape.written} *")
            elif node.type in _ARRAYS:
                shape = Shape("array", shape, written=f"{shape.written}[]", length=_length(node))
            elif node.type in FUNCTION_DECLARATORS:
                parameters = field(node, "parameters")
                shape = Shape("function", shape, parameters, f"{shape.written} (..)")
            node = _inner(node)
        return Declared("", shape)

    # ------------------------------------------------------------------ what they travel as

    def travels(self, shape: Shape) -> Type:
        """How a value of this type is passed."""
        if shape.how != "base":
            return Type(shape.written, Kind.POINTER)
        return self._base_travels(shape, 0)

    def _base_travels(self, shape: Shape, depth: int) -> Type:
        node, written = shape.node, shape.written
        if node is None or depth > 20:
            return Type(written)
        if node.type == "decltype":
            return Type(written, Kind.POINTER if "&" in written else None)
        if node.type == "enum_specifier":
            base = field(node, "base")
            return spelled(text(base))._replace(written=written) if base else self._enum(written)
        if node.type == "struct_specifier":
            by_value = text(field(node, "name")) in self.structs
            return Type(written, None, doubt="a structure by value", by_value=by_value)
        alias = self._alias(written)
        if alias is not None:
            if alias.how != "base":
                return Type(written, Kind.POINTER)
            return self._base_travels(alias, depth + 1)._replace(written=written)
        name = written.rsplit("::", 1)[-1]
        if name in self.enums:
            return self.enums[name]._replace(written=written)
        if name in self.table.callbacks:
            return Type(written, Kind.POINTER)
        if name in self.structs:
            return Type(written, None, doubt="a structure by value", by_value=True)
        return spelled(written)

    def _enum(self, written: str) -> Type:
        return Type(written, Kind.INT32)

    def _alias(self, written: str) -> Optional[Shape]:
        found = self.aliases.get(written.rsplit("::", 1)[-1])
        # typedef struct X X; says nothing.
        if found is not None and found.how == "base" and found.written.split()[-1:] == [written]:
            return None
        return found

    def function(self, shape: Optional[Shape]) -> Optional[Function]:
        """The function type that this is, or points to, or None."""
        for _ in range(20):
            if shape is None:
                return None
            if shape.how == "function":
                return self._function(shape)
            shape = shape.inner if shape.how in ("pointer", "array") else self._named(shape)
        return None

    def _named(self, shape: Shape) -> Optional[Shape]:
        """What a base type stands for: an alias, or the declared type of an expression."""
        if shape.node is not None and shape.node.type == "decltype":
            return self.type_of(child(shape.node, *_EXPRESSIONS))
        return self._alias(shape.written)

    def type_of(self, expression: Optional[Node]) -> Optional[Shape]:
        """The declared type of a variable or member, where all of its name agree."""
        names = [expression, *([field(expression, "field")] if expression is not None else [])]
        name = text(names[-1]) or text(names[0])
        found = self.variables.get(name, [])
        if not found or len({shape.written for shape in found}) > 1:
            return None
        return found[0]

    def meant_function(self, shape: Optional[Shape]) -> Optional[str]:
        """``f`` of ``decltype(&f)``, which is right by construction where f is declared."""
        while shape is not None and shape.how in ("pointer", "array"):
            shape = shape.inner
        for _ in range(20):
            if shape is None or shape.node is None:
                return None
            if shape.node.type == "decltype":
                inner = text(child(shape.node, *_EXPRESSIONS)).lstrip("&: ")
                if inner.startswith("eliza_"):
                    return inner
            shape = self._named(shape)
        return None

    def _function(self, shape: Shape) -> Function:
        parameters, variadic = [], False
        for each in children(shape.node):
            if each.type == "variadic_parameter":
                variadic = True
            elif each.type in ("parameter_declaration", "optional_parameter_declaration"):
                declared = self.described(each)
                written = " ".join(text(each).split())
                travels = self.travels(declared)
                parameters.append(travels._replace(written=written, line=line(each)))
            else:
                parameters.append(Type(text(each), line=line(each)))
        if len(parameters) == 1 and parameters[0].kind is Kind.VOID:
            parameters = []
        variadic = variadic or any(text(each) == "..." for each in shape.node.children)
        return Function(self.travels(shape.inner), parameters, variadic, line(shape.node))


def parsed_prototype(source: str, types: Types, at: int = 1) -> Optional[tuple[str, Function]]:
    """The function that a single C declaration, which begins on line ``at``, declares."""
    declaration = "\n" * (at - 1) + source.rstrip().rstrip(";") + ";"
    root = parse("cpp", declaration.encode("utf-8", "replace"))
    for node in of_type(root, "declaration"):
        for name, shape in types.declared(node):
            function = types.function(shape)
            if function is not None and name:
                return name, function
    return None


def parsed_type(source: str, types: Types) -> Type:
    """How a type such as ``const char *`` travels."""
    root = parse("cpp", f"using type = {source};".encode("utf-8", "replace"))
    descriptor = next(of_type(root, "type_descriptor"), None)
    if descriptor is None or root.has_error:
        return spelled(source)
    return types.travels(types.described(descriptor))._replace(written=source)


_EXPRESSIONS = (
    "identifier",
    "field_expression",
    "pointer_expression",
    "qualified_identifier",
    "parenthesized_expression",
)


def _inner(node: Node) -> Optional[Node]:
    """The declarator inside one."""
    found = field(node, "declarator")
    if found is not None:
        return found
    if node.type in FUNCTION_DECLARATORS:
        return None
    inside = [each for each in children(node) if "declarator" in each.type or each.type in _NAMES]
    return inside[-1] if inside and node.type not in _ARRAYS else None


def _length(node: Node) -> Optional[int]:
    size = field(node, "size")
    try:
        return int(text(size), 0)
    except ValueError:
        return None
