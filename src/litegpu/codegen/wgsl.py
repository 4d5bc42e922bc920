"""WGSL for compute shaders, compiled by wgpu for WebGPU.

The words are those of GLSL, and so are kernels: `Statements` translates them, and the functions
that they call, to WGSL. Each kernel is a separate shader.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Iterable, Sequence
from functools import cached_property

from litegpu.codegen.dialect import Argument, Dialect, KernelText
from litegpu.codegen.glsl import PACKED_HALF, WORDS
from litegpu.codegen.glsl_integers import INTEGERS
from litegpu.codegen.macros import Macro, expand, split_macros, tokens_of
from litegpu.codegen.wgsl_builtins import RUNTIME_BITS
from litegpu.codegen.wgsl_expressions import Signature, Symbols
from litegpu.codegen.wgsl_names import renamed
from litegpu.codegen.wgsl_statements import Statements
from litegpu.codegen.wgsl_types import TYPES, Type, Value, type_text

_BARRIER = "#define BARRIER() workgroupBarrier()\n"

_NATIVE_HALF = """\
#define LOAD4_F16(buffer, i) vec4(buffer[i])
#define LOAD1_F16(buffer, i) float(buffer[i])
#define LANE4_F16(buffer, i) float(buffer[(i) >> 2][(i) & 3])
#define STORE4_F16(buffer, i, value) buffer[i] = f16vec4(to_half_range4(value))
#define STORE4_F16_BOUNDED(buffer, i, value) buffer[i] = f16vec4(value)
#define STORE1_F16(buffer, i, value) buffer[i] = float16_t(to_half_range4(vec4(value)).x)
"""

_RUNTIME_BITS = f"""\
fn {RUNTIME_BITS}(bits: u32) -> u32 {{
    var found = bits;
    return found;
}}"""

_UINT3 = Type("u32", 3)
_BUILTIN_VALUES = {
    "gl_GlobalInvocationID": "global_invocation_id",
    "gl_LocalInvocationID": "local_invocation_id",
    "gl_WorkGroupID": "workgroup_id",
    "gl_NumWorkGroups": "num_workgroups",
}
_ELEMENTS = {
    ("F32", False): Type("f32"),
    ("F32", True): Type("f32", 4),
    ("U32", False): Type("u32"),
    **{(kind, vector): Type("u32") for kind in ("BOOL8", "S8", "U8") for vector in (False, True)},
    **{(kind, False): Type("u32") for kind in ("S16", "U16")},
    **{(kind, True): Type("u32", 2) for kind in ("S16", "U16")},
    ("I32", False): Type("i32"),
    ("I32", True): Type("i32", 4),
    ("I64", False): Type("i32", 2),
    ("I64", True): Type("i32", 2),
}
_PACKED_ELEMENTS = {**_ELEMENTS, ("F16", False): Type("u32"), ("F16", True): Type("u32", 2)}
_NATIVE_ELEMENTS = {**_ELEMENTS, ("F16", False): Type("f16"), ("F16", True): Type("f16", 4)}

_FUNCTION = re.compile(r"^(\w+) (\w+)\(([^)]*)\) \{", re.MULTILINE)
_STRUCT = re.compile(r"^struct (\w+) \{([^}]*)\};", re.MULTILINE)


class WGSLDialect(Dialect):
    """WGSL, with or without the language's own halves."""

    name = "wgsl"
    integers = INTEGERS

    def __init__(self, halves: bool = False) -> None:
        """Use the type f16, which the device must support, or pairs of halves in words.

        Without it single halves cannot be stored.
        """
        self._halves = halves
        self._elements = _NATIVE_ELEMENTS if halves else _PACKED_ELEMENTS
        self.prelude = _BARRIER + WORDS + (_NATIVE_HALF if halves else PACKED_HALF)
        self._lock = threading.Lock()

    @cached_property
    def _words(self) -> _Words:
        return _Words(self.prelude + self.integers)

    def source(self, kernels: Sequence[KernelText]) -> str:
        """Return a shader for each kernel, with the functions that it needs.

        Raises TranslationError for a kernel that is not in the dialect.
        """
        return "\n".join(map(self.kernel, kernels))

    def kernel(self, text: KernelText) -> str:
        """Return the source of a whole shader. Raises TranslationError."""
        with self._lock:  # the words are translated when they are needed first
            return self._kernel(text)

    def _kernel(self, text: KernelText) -> str:
        words = self._words
        buffers = {each.name: self._elements[each.kind, each.vector] for each in text.arguments}
        variables = {name: Value(name, _UINT3) for name in _BUILTIN_VALUES}
        variables |= {
            name: Value(renamed(name), Type(kind.kind, kind.size, -1))
            for name, kind in buffers.items()
        }
        shared = {
            name: _shared_type(words.type_of(kind), length) for kind, name, length in text.shared
        }
        variables |= {name: Value(renamed(name), kind) for name, kind in shared.items()}
        tokens = expand(tokens_of(_begin(text) + text.body), words.macros | _folded_words(text))
        main = Statements(tokens, words.symbols._replace(variables=variables))
        lines = main.body()
        used = {token for token in tokens if token in _BUILTIN_VALUES}
        head = [f"// {text.name}"]
        if any(kind.kind == "f16" for kind in buffers.values()):
            head.insert(0, "enable f16;")
        head += words.definitions(main.called, lines, shared.values())
        head += [
            f"@group(0) @binding({binding}) {self._access(argument)} {renamed(argument.name)}: "
            f"{type_text(variables[argument.name].type)};"
            for binding, argument in enumerate(text.arguments)
        ]
        head += [
            f"var<workgroup> {renamed(name)}: {type_text(kind)};" for name, kind in shared.items()
        ]
        parameters = ", ".join(
            f"@builtin({_BUILTIN_VALUES[name]}) {name}: {type_text(_UINT3)}"
            for name in sorted(used)
        )
        x, y, z = text.local_size
        head.append(f"@compute @workgroup_size({x}, {y}, {z})\nfn main({parameters}) {{")
        return "\n".join((*head, *lines, "}\n"))

    def fixed(self, argument: Argument) -> bool:
        """Whether a buffer is declared read-only.

        A buffer that an argument of a kernel writes must not be read-only for another argument.
        """
        return argument.constant

    def _access(self, argument: Argument) -> str:
        return f"var<storage, {'read' if self.fixed(argument) else 'read_write'}>"


class _Words:
    """The macros and functions of a prelude; functions are translated when they are needed."""

    def __init__(self, text: str) -> None:
        """Take a prelude in GLSL."""
        self.macros, rest = split_macros(text)
        structs = {}
        for name, members in _STRUCT.findall(rest):
            pairs = (each.split() for each in members.split(";") if each.strip())
            structs[name] = {member: TYPES[kind] for kind, member in pairs}
        types = {**TYPES, **{name: Type(name, 0) for name in structs}}
        self._structs = structs
        self._bodies: dict[str, tuple[list[str], str]] = {}
        """For each function, the names of its parameters and its body."""
        functions: dict[str, Signature] = {}
        self.symbols = Symbols({}, functions, structs, types)
        for found in _FUNCTION.finditer(rest):
            result, name, parameters = found.groups()
            pairs = [each.split() for each in parameters.split(",")]
            signature = tuple(self.type_of(kind) for kind, _ in pairs)
            functions[name] = Signature(self.type_of(result), signature)
            end = _end_of_body(rest, found.end())
            self._bodies[name] = ([parameter for _, parameter in pairs], rest[found.end() : end])
        self._translated: dict[str, tuple[str, frozenset[str]]] = {}

    def type_of(self, name: str) -> Type:
        """Return the type of a name, which may be a macro."""
        macro = self.macros.get(name)
        return self.symbols.types[macro.body[0] if macro is not None else name]

    def definitions(
        self, called: Iterable[str], lines: Sequence[str], shared: Iterable[Type]
    ) -> list[str]:
        """Return the functions and structs that a kernel needs."""
        found: dict[str, str] = {}
        open_names = sorted(called)
        while open_names:
            name = open_names.pop()
            if name not in found:
                text, further = self._function(name)
                found[name] = text
                open_names += sorted(further)
        texts = [*found.values()]
        whole = "\n".join((*texts, *lines))
        if f"{RUNTIME_BITS}(" in whole:
            texts.insert(0, _RUNTIME_BITS)
        kinds = {kind.kind for kind in shared}
        for name, members in self._structs.items():
            if name in kinds or name in whole:
                fields = ", ".join(f"{key}: {type_text(kind)}" for key, kind in members.items())
                texts.insert(0, f"struct {name} {{ {fields} }}")
        return texts

    def _function(self, name: str) -> tuple[str, frozenset[str]]:
        """Return a function in WGSL, and the names of those that it calls."""
        if name not in self._translated:
            signature = self.symbols.functions[name]
            names, body = self._bodies[name]
            statements = Statements(
                expand(tokens_of(body), self.macros), self.symbols, signature.result
            )
            parameters = []
            for parameter, kind in zip(names, signature.parameters, strict=True):
                text = renamed(parameter)
                statements.scope[parameter] = Value(text, kind)
                if statements.assigned(parameter):
                    statements.lines.append(f"var {text} = given_{text};")
                    text = f"given_{text}"
                parameters.append(f"{text}: {type_text(kind)}")
            lines = statements.body()
            head = f"fn {renamed(name)}({', '.join(parameters)}) -> {type_text(signature.result)} {{"
            called = frozenset(statements.called)
            self._translated[name] = "\n".join((head, *lines, "}")), called
        return self._translated[name]


def _end_of_body(text: str, start: int) -> int:
    """Return where the brace is that closes the one before `start`."""
    depth = 1
    for found in re.compile(r"[{}]").finditer(text, start):
        depth += 1 if found[0] == "{" else -1
        if not depth:
            return found.start()
    raise ValueError("a function has no end")


def _shared_type(kind: Type, length: int) -> Type:
    return Type(kind.kind, kind.size, length)


def _begin(text: KernelText) -> str:
    """Return statements before those of a kernel: a folded grid may have surplus groups."""
    folded = text.attributes.folded
    return "" if folded is None else f"if (GROUP >= {math.prod(folded)}) return;\n"


def _folded_words(text: KernelText) -> dict[str, Macro]:
    found: dict[str, Macro] = {}
    for axis, index, size in text.grid_indices():
        item = f"int(gl_LocalInvocationID.{axis.lower()})"
        found[f"GROUP_{axis}"] = Macro(None, tuple(tokens_of(index)))
        found[f"GLOBAL_{axis}"] = Macro(None, tuple(tokens_of(f"({index} * {size} + {item})")))
    return found
