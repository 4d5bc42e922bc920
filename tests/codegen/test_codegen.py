"""Templates, dialects and rendered kernels; needs no device."""

from __future__ import annotations

import ast
import functools
import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import resources
from itertools import product
from pathlib import Path

import jinja2
import jinja2.meta
import pytest

from litegpu.codegen import (
    FLOAT,
    INT,
    LONG,
    Argument,
    Dialect,
    Epilogue,
    EpilogueText,
    KernelText,
    Register,
    Storage,
    TensorRef,
)
from litegpu.codegen import render as render_kernel
from litegpu.codegen.dialect import SHARED_SIZES
from litegpu.codegen.registers import KINDS
from litegpu.codegen.sources import templates
from litegpu.codegen.wgsl import WGSLDialect
from litegpu.engine.layout import assign
from litegpu.engine.program import BuiltProgram
from litegpu.graph import DType
from litegpu.numeric_policy import FP32
from litegpu.ops.common.functions import BINARY, FUNCTIONS, STABLEHLO, UNARY
from paper_device import build
from passes.graphs import RELU, GraphBuilder
from places import python_path

KERNELS = Path(str(resources.files("litegpu.kernels")))
CODEGEN = Path(str(resources.files("litegpu.codegen")))
OPS = Path(str(resources.files("litegpu.ops")))
TEMPLATES = sorted(
    name.removesuffix(".jinja")
    for name, path in templates().items()
    if not path.name.startswith("_")  # what templates share
)


def dialects() -> dict[str, Dialect]:
    """Return one object of every dialect in the package."""
    for path in CODEGEN.glob("*.py"):
        importlib.import_module(f"litegpu.codegen.{path.stem}")
    return {dialect.name: dialect() for dialect in Dialect.__subclasses__()}


DIALECTS = dialects()
TEXTUAL = {name: dialect for name, dialect in DIALECTS.items() if name != "wgsl"}
"""Dialects whose words and kernels are passed to a compiler unchanged."""


# Words


def source(template: str) -> str:
    """Return a template without its comments."""
    text = templates()[f"{template}.jinja"].read_text(encoding="utf-8")
    return re.sub(r"\{#.*?#\}", "", text, flags=re.DOTALL)


def own_names(text: str) -> set[str]:
    """Return the words that a template gets from the op or another template, or sets for itself."""
    tree = jinja2.Environment().parse(text)
    names = {name.name for name in tree.find_all(jinja2.nodes.Name)}
    names |= {found.attr for found in tree.find_all(jinja2.nodes.Getattr)}
    return names | jinja2.meta.find_undeclared_variables(tree)


def with_kinds(words: set[str]) -> set[str]:
    """Replace words that end in the kind of a buffer by one for each kind."""
    kinds = {word for word in words if re.fullmatch(r"(LOAD|STORE|LANE)[14]_?", word)}
    of_bytes = {word for word in words if re.fullmatch(r"(TO_)?WORD4_", word)}
    named = {f"{w.rstrip('_')}_{kind}" for w in kinds for kind in ("F32", "F16")}
    named |= {f"{word}{kind}" for word in of_bytes for kind in ("S8", "U8")}
    return (words - kinds - of_bytes) | named


def words_of_template(template: str) -> set[str]:
    text = source(template)
    words = set(re.findall(r"\b[A-Z][A-Z0-9_]*[A-Z0-9]\w*", text))
    return with_kinds(words - own_names(text))


def words_of_accessors() -> set[str]:
    """Return the words of loads and stores, and of element-wise expressions."""
    text = (CODEGEN / "storage.py").read_text(encoding="utf-8")
    words = with_kinds(set(re.findall(r"\b[A-Z]+1?[14]_?(?![A-Z0-9])", text)))
    for name, function in FUNCTIONS.items():
        for ending in endings(name):
            text = function.expression.replace("{k}", ending)
            words |= set(re.findall(r"\b[A-Z][A-Z_]*1?4(?:_\w+)?\b", text))
    return words


def endings(name: str) -> tuple[str, ...]:
    """Return the possible suffixes of words in a function's expression."""
    plain = {**UNARY, **BINARY, **STABLEHLO}.get(name.removeprefix("INTEGER_"))
    if name == "SELECT":
        return "", "_I32", "_I64"
    of_floats = plain is None or DType.FLOAT32 in plain.takes.dtypes
    if not name.startswith("INTEGER_") and of_floats:
        return ("",)
    short = plain is not None and DType.INT64 not in plain.takes.dtypes
    return ("_I32",) if short else ("_I32", "_I64")


def defined_words(dialect: Dialect) -> set[str]:
    text = dialect.prelude + dialect.integers
    macros = re.findall(r"#define (\w+)", text)
    functions = re.findall(r"^(?:\w+ )+(\w+)\(", text, re.MULTILINE)
    return {*macros, *functions, *_OF_THE_LANGUAGE.get(dialect.name, ())}


_OF_THE_LANGUAGE = {"opencl": ("INFINITY", "NAN")}


def test_words_are_found() -> None:
    """The scans that the next tests use find the expected words."""
    assert words_of_template("softmax") >= {"LANES4", "EXP4", "BARRIER", "GROUP_Y", "INFINITY"}
    assert words_of_template("conv_2d") >= {"LOAD4_F16", "LOAD4_F32", "FMA4"}
    assert "ITEMS" not in words_of_template("softmax")
    assert words_of_accessors() >= {"LANE4_F16", "STORE1_F32", "MASK4", "EXPM14", "WHERE4"}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_dialect_defines_every_word(dialect: str) -> None:
    needed = words_of_accessors() | {"INFINITY", "NAN"}
    for template in TEMPLATES:
        if template.startswith(f"{dialect}/") or "/" not in template:
            needed |= words_of_template(template)
    assert needed - defined_words(DIALECTS[dialect]) == set()


def test_special_templates_belong_to_a_dialect() -> None:
    assert {name.split("/")[0] for name in TEMPLATES if "/" in name} <= DIALECTS.keys()


_RESERVED = {
    *("active", "asm", "attribute", "buffer", "cast", "common", "enum", "extern", "filter"),
    *("fixed", "flat", "half", "in", "inout", "input", "inline", "interface", "layout"),
    *("long", "noinline", "out", "output", "partial", "patch", "precise", "precision", "public"),
    *("resource", "restrict", "sample", "sampler", "shared", "short", "smooth", "static"),
    *("superp", "texture", "this", "union", "unsigned", "using", "varying", "volatile"),
}
"""Reserved words of some language: no variable may have such a name."""


@pytest.mark.parametrize("template", [name for name in TEMPLATES if "/" not in name])
def test_portable_templates_keep_to_what_all_languages_have(template: str) -> None:
    text = source(template)
    assert re.findall(r"\((?:float|int|uint|bool)4?\)", text) == [], "casts are TO_FLOAT, TO_INT"
    assert set(re.findall(r"\b(?:float4?|u?int|bool) (\w+)", text)) & _RESERVED == set()
    assert "->" not in text and " *)" not in text, "there are no pointers"


# Templates


@functools.cache
def texts_of_ops_and_kernels() -> set[str]:
    """Return all constant texts in modules of operations and kernels."""
    return {
        node.value
        for path in (*OPS.glob("*.py"), *KERNELS.rglob("*.py"), OPS.parent / "engine" / "peaks.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


@pytest.mark.parametrize("template", TEMPLATES)
def test_every_template_is_used(template: str) -> None:
    assert template in texts_of_ops_and_kernels()


def render(template: str, **variables: object) -> KernelText:
    """Render a kernel from one value [1, 4, 4, 8] to another."""
    storage = Storage.create(0, DType.FLOAT32, (1, 4, 4, 8), 4)
    dst, src = TensorRef("dst", storage), TensorRef("src", storage)
    arguments = (Argument("dst", "F32", True, True), Argument("src", "F32", True, False))
    tensors = {"dst": dst, "src": src}
    return render_kernel(template, variables, tensors, Epilogue(dst, ()), arguments, (8, 8, 1))


@pytest.mark.parametrize("template", TEMPLATES)
def test_undefined_words_are_errors(template: str) -> None:
    dst = TensorRef("dst", Storage.create(0, DType.FLOAT32, (1, 4, 4, 8), 4))
    with pytest.raises(jinja2.UndefinedError, match="is undefined"):
        render_kernel(template, {}, {}, Epilogue(dst, ()), (), (1, 1, 1))


def test_a_kernel_stores_what_it_makes() -> None:
    dst = TensorRef("dst", Storage.create(0, DType.INT64, (1, 4, 4, 8), 4))
    with pytest.raises(
        ValueError, match="dst is written from Long4, but the kernel computes float4"
    ):
        Epilogue(dst, ())
    with pytest.raises(ValueError, match="dst is written from Long4, but the kernel computes int4"):
        Epilogue(dst, (EpilogueText("CAST4_F32_I32({x})", (), register=INT),))


def test_steps_that_change_the_type_have_variables_of_their_own() -> None:
    dst = TensorRef("dst", Storage.create(0, DType.INT32, (1, 4, 4, 8), 4))
    ops = (EpilogueText("{x} * {x}", ()), EpilogueText("CAST4_F32_I32({x})", (), register=INT))
    lines = Epilogue(dst, ops).store("s", "value", row="p").splitlines()
    assert lines[1:-2] == [
        "int4 result;",
        "{",
        "const float4 result_0 = value;",
        "const float4 result_1 = result_0 * result_0;",
        "const int4 result_2 = CAST4_F32_I32(result_1);",
        "result = result_2;",
        "}",
    ]


@pytest.mark.parametrize(
    ("dtype", "limits", "cut"),
    [
        (DType.INT8, (-128, 127), False),
        (DType.UINT8, (0, 255), False),
        (DType.INT8, (0, 127), True),
        (DType.UINT8, (-128, 127), True),
        (DType.INT16, (-128, 127), True),
    ],
)
def test_what_stores_cut_is_not_cut_before(
    dtype: DType, limits: tuple[int, int], cut: bool
) -> None:
    dst = TensorRef("dst", Storage.create(0, dtype, (1, 4, 4, 8), 4))
    ops = (EpilogueText("CUT({x})", (), register=INT, limits=limits),)
    assert ("CUT(" in Epilogue(dst, ops, INT).store("s", "value", row="p")) is cut
    # What is done to a result after that needs it cut.
    more = (*ops, EpilogueText("TABLE({x})", (), register=INT))
    assert "CUT(" in Epilogue(dst, more, INT).store("s", "value", row="p")


@pytest.mark.parametrize("length", [4, 8])
def test_operands_of_bytes_may_be_read_before(length: int) -> None:
    """Return the operands with a byte for each element of the result, without broadcast ones."""
    dst = TensorRef("dst", Storage.create(0, DType.INT8, (1, 4, 4, 8), 4))
    other = TensorRef("e0_0", Storage.create(1, DType.INT8, (1, 4, 4, length), 4))
    ops = (EpilogueText("ADD4_I32({x}, {0})", (other,), register=INT),)
    epilogue = Epilogue(dst, ops, INT)
    assert epilogue.byte_operands == ((other,) if length == 8 else ())
    text = epilogue.finish("s", "value", "result", "p", ["word"] * len(epilogue.byte_operands))
    assert ("FROM_WORD4_S8(word)" in text) is (length == 8)
    assert ("LOAD4_S8(e0_0" in text) is (length == 4)


def test_what_an_epilogue_reads_may_be_read_before() -> None:
    """Each operand once: whole ones, and those that are broadcast."""
    dst = TensorRef("dst", Storage.create(0, DType.FLOAT32, (1, 4, 4, 8), 4))
    other = TensorRef("e0_0", Storage.create(1, DType.FLOAT32, (1, 4, 4, 8), 4))
    scale = TensorRef("e1_0", Storage.create(2, DType.FLOAT32, (1, 1, 1, 8), 4))
    ops = (
        EpilogueText("{x} + {0} * {1}", (other, scale)),
        EpilogueText("{x} + {0} + {1}", (other, "SPLAT4(2.0f)")),
    )
    epilogue = Epilogue(dst, ops)
    assert epilogue.operands == (other, scale)
    assert epilogue.read(0, "s", "p") == "LOAD4_F32(e0_0, (p) * 2 + s)"
    assert "e1_0" in epilogue.read(1, "s", "p")
    late, ahead = (epilogue.store("s", "value", row="p", ahead=text) for text in ("", "ahead_{}"))
    assert late.count("LOAD4_F32") == 3
    assert "LOAD4_F32" not in ahead
    assert "result + ahead_0 * ahead_1" in ahead and "result + ahead_0 + SPLAT4(2.0f)" in ahead


def test_the_words_of_integers_come_with_kernels_that_have_some() -> None:
    for dialect in TEXTUAL.values():
        texts = [
            KernelText(name, (), (1, 1, 1), (), f"    {body}\n")
            for name, body in (("plain", "float4 v;"), ("whole", "int4 v;"))
        ]
        assert dialect.integers not in dialect.source(texts[:1])
        assert dialect.source(texts).startswith(dialect.prelude + dialect.integers)


@pytest.mark.parametrize(
    ("register", "number", "text"),
    [
        (INT, -(2**31), "(-2147483647 - 1)"),
        (INT, 7.0, "7"),
        (INT, -7, "(-7)"),
        (LONG, -1, "LONG((-1), (-1))"),
        (LONG, 2**31, "LONG(0, (-2147483647 - 1))"),
        (LONG, 2**32 + 5, "LONG(1, 5)"),
        (FLOAT, 0.5, "0.5f"),
    ],
)
def test_numbers_of_every_register(register: Register, number: float, text: str) -> None:
    assert register.literal(number) == text


def test_one_missing_word_is_an_error_that_names_it() -> None:
    words = {"ITEMS": 1, "maximum": True, "kernel": (2, 2), "stride": (2, 2), "pads": (0, 0)}
    words |= {"outside": None}
    render("pool_2d", **words)
    del words["stride"]
    with pytest.raises(jinja2.UndefinedError, match="'stride' is undefined"):
        render("pool_2d", **words)


def test_epilogues_are_applied_before_the_result_is_stored() -> None:
    storage = Storage.create(0, DType.FLOAT32, (1, 4, 4, 8), 4)
    dst, other = TensorRef("dst", storage), TensorRef("e0_0", storage)
    ops = (EpilogueText("{x} * {0}", (other,)), EpilogueText("MAX4({x}, {0})", ("SPLAT4(1.0f)",)))
    lines = Epilogue(dst, ops).store("s", "value", row="p").splitlines()
    assert lines == [
        "{",
        "float4 result;",
        "result = value;",
        "result = result * LOAD4_F32(e0_0, (p) * 2 + s);",
        "result = MAX4(result, SPLAT4(1.0f));",
        "STORE4_F32(dst, (p) * 2 + s, result);",
        "}",
    ]


# Kernels


def build_network() -> BuiltProgram:
    """Lower four equal convolutions and one with a step."""
    builder = GraphBuilder()
    value = builder.input(1, 4, 4, 8)
    for _ in range(4):
        value = builder.conv(value, 8, 3)
    out = builder.conv(value, 8, 3, epilogue=[RELU])
    return build(assign(builder.graph(out), FP32))


def test_equal_layers_share_a_kernel() -> None:
    built = build_network()
    names = [launch.kernel for launch in built.program.launches]
    assert len(names) == 5
    assert len(set(names[:4])) == 1
    assert names[4] != names[0]
    assert sorted(kernel.name for kernel in built.program.kernels) == sorted(set(names))


def test_names_are_words_and_tell_the_template() -> None:
    for kernel in build_network().program.kernels:
        assert re.fullmatch(r"conv_2d(_split|_tiles)?_[0-9a-f]{12}", kernel.name)


def test_names_depend_on_all_that_makes_the_kernel() -> None:
    storage = Storage.create(0, DType.FLOAT32, (1, 4, 4, 8), 4)
    dst = TensorRef("dst", storage)

    def name(
        arguments: tuple[Argument, ...] = (Argument("dst", "F32", True, True),),
        local: tuple[int, int, int] = (8, 8, 1),
        shared: tuple[tuple[str, str, int], ...] = (),
        ops: tuple[EpilogueText, ...] = (),
    ) -> str:
        tensors = {"dst": dst, "src": dst}
        words = {"plain": True}
        epilogue = Epilogue(dst, ops)
        return render_kernel("copy", words, tensors, epilogue, arguments, local, shared).name

    variants = [
        name(),
        name(arguments=(Argument("dst", "F16", True, True),)),
        name(local=(4, 8, 1)),
        name(shared=(("float", "scratch", 8),)),
        name(ops=(EpilogueText("-{x}", ()),)),
    ]
    assert len(set(variants)) == len(variants)
    assert name() == variants[0]


def names_in_a_process(seed: str) -> str:
    """Return the names of the network's kernels in a process of its own."""
    code = "import test_codegen as t; print([k.name for k in t.build_network().program.kernels])"
    path = python_path(Path(__file__).parent)
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": seed}
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    return result.stdout


def test_names_are_the_same_in_every_process() -> None:
    """Compiled kernels are cached by their text, so names must be the same in each process."""
    expected = str([kernel.name for kernel in build_network().program.kernels])
    for seed in ("1", "2"):
        assert names_in_a_process(seed).strip() == expected


# Dialects


def kernels() -> Iterator[KernelText]:
    yield from build_network().program.kernels
    shared = tuple((kind, f"scratch_{kind}", 8) for kind in SHARED_SIZES)
    for kind, vector in [("U32", False), *product(KINDS.values(), (True, False))]:
        arguments = tuple(
            Argument(f"a{written}", kind, vector, bool(written)) for written in (0, 1)
        )
        yield KernelText("kernel", arguments, (8, 4, 2), shared, "body;\n")


FLAVOURS = (*DIALECTS.values(), WGSLDialect(halves=False))


@pytest.mark.parametrize("dialect", TEXTUAL.values(), ids=TEXTUAL)
def test_every_dialect_writes_every_kind_of_argument(dialect: Dialect) -> None:
    for kernel in kernels():
        text = dialect.kernel(kernel)
        assert kernel.name in text
        assert kernel.body in text
        for argument in kernel.arguments:
            pointer = re.search(rf"([\w ]+)(?:\*|buffer )(?:\w+ |block_)?{argument.name}\b", text)
            assert pointer is not None
            fixed = bool(re.search("const |readonly ", pointer[1]))
            assert fixed is (not argument.written)
        for kind, name, length in kernel.shared:
            assert re.search(rf"\b{kind}\b.* {name}\[{length}\]", text)


@pytest.mark.parametrize("dialect", FLAVOURS, ids=(*DIALECTS, "packed"))
def test_dialects_differ_in_no_word(dialect: Dialect) -> None:
    """All dialects have the words of OpenCL C for each element type, except those in `_ABSENT`."""
    expected = {word for word in defined_words(DIALECTS["opencl"]) if _KIND.search(word)}
    absent = {word for kind, word in _ABSENT if dialect.name == kind}
    assert expected - defined_words(dialect) <= absent
    assert {"LOAD4_I64", "CAST4_I64_F32", "STORE1_F16", "WHERE4_I32"} <= expected


_KIND = re.compile(r"^[A-Z].*_(F32|F16|U32|BOOL8|[SUI](8|16|32|64))")
_ABSENT = (("glsl", "FLOOR_DIV4_I64"), ("wgsl", "STORE1_F16"))
"""Words that no kernel of a dialect needs, or that some devices do not support."""
