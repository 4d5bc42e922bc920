"""Translates kernels to WGSL compute shaders, which wgpu compiles for WebGPU.

The macros and functions of the dialect are those of GLSL. The module translates kernels and the
functions that they call, since WGSL has no macros, no `?:` and no implicit conversions. Each WGSL
kernel is a separate shader.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from functools import cached_property

from litegpu.codegen.dialect import Argument, Dialect, KernelText
from litegpu.codegen.glsl import PACKED_HALF, WORDS
from litegpu.codegen.glsl_integers import INTEGERS
from litegpu.codegen.macros import Macro, TranslationError, tokens_of
from litegpu.codegen.wgsl_names import renamed
from litegpu.codegen.wgsl_types import Type, Value, type_text
from litegpu.codegen.wgsl_words import Words

_BARRIER = "#define BARRIER() workgroupBarrier()\n"

_NATIVE_HALF = """\
#define LOAD4_F16(buffer, i) vec4(buffer[i])
#define LOAD1_F16(buffer, i) float(buffer[i])
#define LANE4_F16(buffer, i) float(buffer[(i) >> 2][(i) & 3])
#define STORE4_F16(buffer, i, value) buffer[i] = f16vec4(to_half_range4(value))
#define STORE4_F16_BOUNDED(buffer, i, value) buffer[i] = f16vec4(value)
#define STORE1_F16(buffer, i, value) buffer[i] = float16_t(to_half_range4(vec4(value)).x)
"""

_DOT = "#define DOT4_S8(a, b, c) ((c) + dot4I8Packed(uint(a), uint(b)))\n"

_UINT3 = Type("u32", 3)
_ITEM_VALUES = {
    "gl_GlobalInvocationID": "global_invocation_id",
    "gl_LocalInvocationID": "local_invocation_id",
    "gl_WorkGroupID": "workgroup_id",
    "gl_NumWorkGroups": "num_workgroups",
}
"""Maps each built-in index of work items and groups to its name in WGSL."""

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


class WGSLDialect(Dialect):
    """Translates kernels to WGSL, with or without the native f16 type."""

    name = "wgsl"
    integers = _DOT + INTEGERS

    def __init__(self, halves: bool = True) -> None:
        """Use the type f16, which the device must support, or 32-bit words with pairs of halves.

        Without f16, a kernel cannot store a single half of a pair.
        """
        self._elements = _NATIVE_ELEMENTS if halves else _PACKED_ELEMENTS
        self.prelude = _BARRIER + WORDS + (_NATIVE_HALF if halves else PACKED_HALF)
        self._lock = threading.Lock()

    @cached_property
    def _words(self) -> Words:
        return Words(self.prelude + self.integers)

    def source(self, kernels: Sequence[KernelText]) -> str:
        """Return the shader of one kernel, with the functions that it uses; see `kernel`."""
        (text,) = kernels
        return self.kernel(text)

    def kernel(self, text: KernelText) -> str:
        """Return a complete shader.

        Raises TranslationError for constructs that the portable dialect does not have.
        """
        with self._lock:  # words are translated when first used
            try:
                return self._kernel(text)
            except RecursionError as error:
                raise TranslationError(f"Kernel {text.name} is nested too deeply.") from error

    def _kernel(self, text: KernelText) -> str:
        words = self._words
        variables = {name: Value(name, _UINT3) for name in _ITEM_VALUES}
        declared = []
        for binding, argument in enumerate(text.arguments):
            element = self._elements[argument.kind, argument.vector]
            value = Value(renamed(argument.name), element._replace(length=-1))
            variables[argument.name] = value
            access = "read" if self.fixed(argument) else "read_write"
            declared.append(
                f"@group(0) @binding({binding}) var<storage, {access}> {value.text}: "
                f"{type_text(value.type)};"
            )
        for kind, name, length in text.shared:
            value = Value(renamed(name), words.type_of(kind)._replace(length=length))
            variables[name] = value
            declared.append(f"var<workgroup> {value.text}: {type_text(value.type)};")
        statements = words.statements(_begin(text) + text.body, _folded_words(text), variables)
        body = statements.body()
        parameters = ", ".join(
            f"@builtin({value}) {name}: {type_text(_UINT3)}"
            for name, value in _ITEM_VALUES.items()
            if name in body
        )
        x, y, z = text.local_size
        main = [f"@compute @workgroup_size({x}, {y}, {z})", f"fn main({parameters}) {{", body, "}"]
        halves = any("f16" in each for each in declared)
        enabled = ["enable f16;"] if halves else []
        whole = "\n".join((*declared, *main))
        defined = words.definitions(statements.called, whole)
        return "\n".join((*enabled, f"// {text.name}", *defined, whole, ""))

    def fixed(self, argument: Argument) -> bool:
        """Whether the shader declares a buffer as read-only.

        A buffer that the kernel writes through any argument must not be declared read-only
        elsewhere.
        """
        return argument.constant


def _begin(text: KernelText) -> str:
    """Return the statements before a kernel's body: surplus work groups return early."""
    folded = text.attributes.folded
    return "" if folded is None else f"if (GROUP >= {math.prod(folded)}) return;\n"


def _folded_words(text: KernelText) -> dict[str, Macro]:
    found: dict[str, Macro] = {}
    for axis, index, size in text.grid_indices():
        item = f"int(gl_LocalInvocationID.{axis.lower()})"
        found[f"GROUP_{axis}"] = Macro(None, tuple(tokens_of(index)))
        found[f"GLOBAL_{axis}"] = Macro(None, tuple(tokens_of(f"({index} * {size} + {item})")))
    return found
