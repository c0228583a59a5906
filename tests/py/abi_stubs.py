"""C sources of stub libraries: they export the ABI table's functions and do nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from eliza_ctypes.abi_check.table import Kind, Signature, Table

# All stubs need is how a value travels; no header takes part, not even a system's.
_C_TYPES = {
    Kind.VOID: "void",
    Kind.INT8: "signed char",
    Kind.INT32: "int",
    Kind.INT64: "unsigned long long",
    Kind.FLOAT32: "float",
    Kind.POINTER: "void *",
}
_EXPORT = (
    "#if defined(_WIN32)\n#define EXPORT __declspec(dllexport)\n"
    '#else\n#define EXPORT __attribute__((visibility("default")))\n#endif\n'
)


def stub_source(
    table: Table,
    *,
    left_out: Collection[str] = (),
    added: Collection[str] = (),
    bodies: Mapping[str, str] | None = None,
    prologue: str = "",
) -> str:
    """The library in C. ``bodies`` replaces what functions do, ``prologue`` comes before them."""
    chosen = {"eliza_inference_abi_version": f'return "{table.version}";', **(bodies or {})}
    functions = [
        f"EXPORT {_prototype(function)} {{ {chosen.get(name) or _nothing(function)} }}\n"
        for name, function in table.functions.items()
        if name not in left_out
    ]
    functions += [f"EXPORT int {name}(void) {{ return 0; }}\n" for name in added]
    return _EXPORT + prologue + "\n" + "".join(functions)


def _prototype(function: Signature) -> str:
    parameters = [
        f"{_C_TYPES[parameter.kind]} {parameter.name}" for parameter in function.parameters
    ]
    returns = "const char *" if function.name.endswith("abi_version") else None
    return (
        f"{returns or _C_TYPES[function.return_kind]} {function.name}"
        f"({', '.join(parameters) or 'void'})"
    )


def _nothing(function: Signature) -> str:
    return "" if function.return_kind is Kind.VOID else "return 0;"
