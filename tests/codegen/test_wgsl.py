"""The translation of kernels to WGSL: texts, errors, and results on devices."""

from __future__ import annotations

import re

import numpy as np
import pytest

from backend_suite import FLOATS, GROUP, cell, floats, program, ready, run
from every_backend import needs_device, open_device
from litegpu.backends.program import Launch
from litegpu.codegen import Argument, KernelText, LaunchAttributes
from litegpu.codegen.glsl_integers import INTEGERS
from litegpu.codegen.macros import TranslationError, expand, split_macros, tokens_of
from litegpu.codegen.wgsl import WGSLDialect
from litegpu.codegen.wgsl_words import Words
from litegpu.errors import KernelError

DIALECT = WGSLDialect()
ARGUMENTS = (
    Argument("dst", "F32", False, True),
    Argument("src", "F32", False, False),
    Argument("vectors", "F32", True, False, constant=True),
    Argument("words", "U32", False, False),
)


def kernel(body: str, shared: tuple[tuple[str, str, int], ...] = ()) -> KernelText:
    return KernelText("some_kernel", ARGUMENTS, GROUP, shared, body)


def translated(body: str) -> str:
    """Return the statements of a kernel in WGSL, in one line."""
    text = DIALECT.kernel(kernel(body))
    main = re.search(r"fn main\([^{]*\) \{\n(.*)\}\n$", text, re.DOTALL)
    assert main is not None
    return " ".join(main[1].split())


# Texts


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("const int i = 2;", "let i = 2i;"),
        ("int i = 0x7fu & 3;", "var i: i32 = i32(127u & 3u);"),
        ("float x = 3;", "var x: f32 = 3f;"),
        ("float x; x = GLOBAL_X * 0.5f;", "x = f32(i32(gl_GlobalInvocationID.x)) * 0.5f;"),
        ("float4 v = SPLAT4(2.0f) * 3;", "var v: vec4<f32> = vec4<f32>(2.0f) * 3f;"),
        ("float4 v = MAX4(vectors[0], 0.0f);", "max(vectors[0i], vec4<f32>(0.0f));"),
        ("uint u = words[1] >> 8;", "var u: u32 = words[1i] >> 8u;"),
        ("bool b = src[0] < 1 && src[1] > 2;", "if (chosen_1) { chosen_1 = src[1i] > 2f; }"),
        ("float x = LOCAL_X < 2 ? 1.0f : 0.0f;", "select(0.0f, 1.0f, i32(gl_LocalInvocationID.x)"),
        ("float x = src[0]; x = x > 0.0f ? src[1] : x;", "if (x > 0.0f) { chosen_1 = src[1i];"),
        ("int a = 0, b = 1;", "var a: i32 = 0i; var b: i32 = 1i;"),
        ("float target = 0.0f; dst[0] = target;", "dst[0i] = target_;"),
        ("float x = INFINITY;", "bitcast<f32>(runtime_bits(2139095040u));"),
        ("float t[3] = {1, 2.0f, 3};", "var t: array<f32, 3> = array<f32, 3>(1f, 2.0f, 3f);"),
        ("BARRIER();", "workgroupBarrier();"),
        ("float x = dot(vectors[0], vectors[1]);", "var x: f32 = dot(vectors[0i], vectors[1i]);"),
        ("float x = -1.0f - -2.0f;", "var x: f32 = (-1.0f) - (-2.0f);"),
        ("int d = DOT4_S8(1, 2, 3);", "3i + dot4I8Packed(1u, 2u);"),
    ],
)
def test_statements(body: str, expected: str) -> None:
    assert expected in translated(body)


def test_a_shader_has_what_it_needs_and_nothing_else() -> None:
    plain = DIALECT.kernel(kernel("    dst[0] = src[0];\n"))
    assert "fn " not in plain.replace("fn main", "")
    assert "enable" not in plain and "struct" not in plain and "@builtin" not in plain
    assert "var<storage, read_write> src: array<f32>;" in plain, "memory that a kernel may write"
    assert "var<storage, read> vectors: array<vec4<f32>>;" in plain, "constants"
    text = DIALECT.kernel(kernel("    dst[GLOBAL_X] = TANH4(vectors[0]).x;\n"))
    assert "fn tanh4(v: vec4<f32>) -> vec4<f32> {" in text
    assert "fn main(@builtin(global_invocation_id) gl_GlobalInvocationID: vec3<u32>)" in text
    longs = DIALECT.kernel(kernel("    BARRIER();\n", (("Long4", "longs", 3),)))
    assert "struct Long4 { x: vec2<i32>," in longs
    assert "var<workgroup> longs: array<Long4, 3>;" in longs


def test_halves_are_enabled_where_a_buffer_has_some() -> None:
    text = KernelText(
        *("halves", (Argument("dst", "F16", True, True),), GROUP, ()),
        "    STORE4_F16(dst, GLOBAL_X, SPLAT4(1.0f));\n",
    )
    native = DIALECT.kernel(text)
    assert native.startswith("enable f16;\n")
    assert "array<vec4<f16>>" in native
    packed = WGSLDialect(halves=False).kernel(text)
    assert "enable" not in packed and "pack2x16float" in packed


def test_surplus_groups_of_a_folded_grid_return() -> None:
    text = KernelText(
        *("folded", ARGUMENTS, (8, 4, 2), (), "    dst[GLOBAL_Z] = 1.0f;\n"),
        LaunchAttributes(folded=(5, 7, 3)),
    )
    source = " ".join(DIALECT.kernel(text).split())
    group = "i32((gl_WorkGroupID.y * gl_NumWorkGroups.x) + gl_WorkGroupID.x)"
    assert f"if ({group} >= 105i) {{ return; }}" in source
    assert f"dst[(({group} / 35i) * 2i) + i32(gl_LocalInvocationID.z)]" in source


# What is rejected


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("dst[0] = nothing;", "The name 'nothing' is not defined"),
        ("dst[0] = nothing(1);", "There is no function 'nothing'"),
        ("dst[0] = ", "The name '' is not defined"),
        ("dst[0] = src[0]", "Expected ';' near"),
        ("dst[0] = (src[0];", r"Expected '\)' near"),
        ("for (int i = 0", "Expected ';' near"),
        ("if (GLOBAL_X < 1) {", "A brace is not closed"),
        ("{", "A brace is not closed"),
        ("dst[0] = SPLAT4(1.0f);", "is of type vec4<f32>, not of f32"),
        ("float t[2]; dst[0] = t;", "t is of type array<f32, 2>, not of f32"),
        ("float x = 1.0f; dst[0] = x[0];", "A scalar of type f32 has no elements"),
        ("dst[0] = src[1.0f];", "1.0f is not an index"),
        ("dst[0] = vectors[0].u;", "has no member 'u'"),
        ("dst[0] = vectors.x;", "vectors has no member 'x'"),
        ("Long4 v; dst[0] = v.u;", "v has no member 'u'"),
        ("Long4 v; dst[0] = v + 1;", "Long4 is not a numeric type"),
        ("Long4 v = Long4(1, 2);", "Long4 cannot be constructed from 2 values"),
        ("float4 v = vec4(1.0f, 2.0f);", "vec4<f32> cannot be constructed from 2 values"),
        ("dst[0] = unpackHalf2x16(words[0], 1).x;", "unpackHalf2x16 does not take 2 arguments"),
        ("float4 v = tanh4(vectors[0], 1);", "'tanh4' does not take 2 arguments"),
        ("float t[LOCAL_X];", "The length of 't' is not a number"),
        ("float4 v = MAX4(vectors[0]);", "MAX4 takes 2 arguments, not 1"),
        ("float4 v = MAX4(vectors[0], 1", "A parenthesis is not closed"),
        ("dst[0] = " + "(" * 999 + "1" + ")" * 999 + ";", "some_kernel is nested too deeply"),
    ],
)
def test_reasons(body: str, reason: str) -> None:
    with pytest.raises(TranslationError, match=reason):
        DIALECT.kernel(kernel(body))


def test_a_prelude_that_ends_too_early() -> None:
    with pytest.raises(ValueError, match="A function of the prelude has no end"):
        Words("float half_of(float a) {\n    return a;\n")


def test_every_function_of_the_words_is_translated() -> None:
    for halves in (True, False):
        words = WGSLDialect(halves)._words
        texts = words.definitions(words.symbols.functions, "")
        assert {"tanh4", "round_product"} <= words.symbols.functions.keys()
        assert len(texts) == len(words.symbols.functions) + 2, "with Long4 and runtime_bits"


# Macros


def test_macros() -> None:
    macros, rest = split_macros(
        "#define ONE 1 /* a comment */\n"
        "#define ADD(a, b) \\\n    ((a) + (b))\n"
        "#define NONE() none(ONE)\n"
        "#define CALL(f, a) f(a, a)\n"
        "int after;\n"
    )
    assert rest == "int after;\n"

    def expanded(text: str) -> str:
        return " ".join(expand(tokens_of(text), macros))

    assert expanded("ADD(ONE, f(2, 3)) // ONE") == "( ( 1 ) + ( f ( 2 , 3 ) ) )"
    assert expanded("ADD(ADD(1, 2), x)") == "( ( ( ( 1 ) + ( 2 ) ) ) + ( x ) )"
    assert expanded("CALL(ADD, 2) NONE()") == "( ( 2 ) + ( 2 ) ) none ( 1 )"
    assert expanded("ADD + NONE") == "ADD + NONE", "without parentheses they are no macros"


def test_the_words_of_integers_are_macros_and_functions() -> None:
    macros, rest = split_macros(INTEGERS)
    assert "#define" not in rest
    assert macros["LOAD4_I32"].parameters == ("buffer", "i")


# What a device computes

_COMPUTED = (
    ("float x = 0.0f; int i = 0; while (i < 5) { x += i; ++i; } R(x);", 10),
    ("float x = 0.0f; int i = 7; do { x += 1.0f; i++; } while (i < 5); R(x);", 1),
    ("int n = 0; for (;;) { n += 1; if (n > 6) break; } R(n);", 7),
    ("int n = 0; for (int i = 0, j = 9; i < j; ++i, --j) n += j - i; R(n);", 25),
    ("int n = 0; for (int i = 0; i < 9; ++i) { if (i % 2 == 0) continue; n += i; } R(n);", 16),
    # Conditions that read memory are asked again in each round.
    ("int i = 0; for (; src[i] > 0.0f && i < 63; ++i) { } R(i);", 4),
    ("int i = 0; while (i < 64 && src[i] > 0.0f) i += 1; R(i);", 4),
    ("int i = 0; do { i += 1; } while (src[i] > 0.0f); R(i);", 4),
    # What a condition excludes is not done.
    ("int n = 0; for (int i = 0; i < 3; ++i) n += i > 0 ? words[i - 1] + 1 : 100; R(n);", 103),
    ("bool b = true || src[9999999] > 0.0f; R(b ? 1 : 2);", 1),
    ("bool b = GLOBAL_X > 99 && (src[0] > 0.0f || src[1] > 0.0f); R(b ? 1 : 2);", 2),
    ("int n = src[0] > 9.0f ? 1 : src[1] > 9.0f ? 2 : src[4] == 0.0f ? 3 : 4; R(n);", 3),
    # Types
    ("uint u = 7; int i = -7; R(TO_FLOAT(i / 2) + u % 4);", 0),
    ("int i = TO_INT(2.75f) + TO_INT(-2.75f); R(i);", 0),
    ("uint u = 1 << 31; R(u >> 28);", 8),
    ("int i = -16; i >>= 2; i ^= 1; R(i);", -3),
    ("bool a = src[0] > 0.0f; bool b = !a; R(a != b && !b ? 5 : 6);", 5),
    ("float4 v = MAKE4(1.0f, 2.0f, 3.0f, 4.0f); v.y = 7.0f; v = v * 2 + v; R(v.y + v.zw.x);", 30),
    ("float4 v = SPLAT4(1.0f); for (int k = 0; k < 4; ++k) v[k] += k; R(v.w);", 4),
    ("float t[4]; for (int i = 0; i < 4; ++i) t[i] = i * i; R(t[3] + t[2]);", 13),
    ("const int t[3] = {5, 6, 7}; int n = 0; for (int i = 0; i < 3; ++i) n += t[i]; R(n);", 18),
    ("int x = 1; { int x = 2; x += 1; } R(x);", 1),
    ("int x = 1; if (x == 2) x = 5; else if (x == 1) x = 6; else x = 7; R(x);", 6),
    # Numbers
    ("R(1.0f / INFINITY);", 0),
    ("float x = NAN; R(x == x ? 1.0f : 2.0f);", 2),
    ("R(LANE_MAX(MAKE4(-INFINITY, -3.0f, -4.0f, -INFINITY)));", -3),
    ("R(RINT4(SPLAT4(2.5f)).x + TRUNC4(SPLAT4(-2.5f)).x);", 0),
    ("R(DOT4_S8(0x7f80ff01, 0x02020202, 5));", 5 + 2 * (127 - 128 - 1 + 1)),
    ("R(FLOOR_MOD4_I32(SPLAT4_I32(-7), SPLAT4_I32(3)).x);", 2),
    ("R(CAST4_I64_I32(MUL4_I64(SPLAT4_I64(LONG(0, 70000)), SPLAT4_I64(LONG(0, 3)))).x);", 210000),
)


@needs_device("webgpu")
def test_devices_compute_what_c_means() -> None:
    blocks = (
        "{ " + body.replace("R(", f"STORE1_F32(dst, {number}, ") + " }"
        for number, (body, _) in enumerate(_COMPUTED)
    )
    arguments = (ARGUMENTS[0], ARGUMENTS[1], ARGUMENTS[3])
    text = KernelText("computing", arguments, GROUP, (), "\n".join(blocks))
    launched = Launch("computing", (cell(1), cell(0), cell(2)), GROUP, GROUP)
    given = np.zeros(FLOATS, np.float32)
    given[:4] = 1.0
    context = ready(open_device("webgpu"), program([text], [launched], [0, 2], [1]))
    words = np.arange(FLOATS, dtype=np.uint32).view(np.float32)
    (found,) = run(context, [given, words])
    context.close()
    assert found[: len(_COMPUTED)].tolist() == [expected for _, expected in _COMPUTED]


@needs_device("webgpu")
def test_what_cannot_be_translated_is_named() -> None:
    text = KernelText("broken", ARGUMENTS[:2], GROUP, (), "    dst[0] = unheard_of;\n")
    launched = Launch("broken", (cell(1), cell(0)), GROUP, GROUP)
    with pytest.raises(KernelError, match="broken: The name 'unheard_of' is not defined"):
        ready(open_device("webgpu"), program([text], [launched], [0], [1]))


@needs_device("webgpu")
def test_all_items_of_a_group_wait_for_each_other() -> None:
    """Sums through memory of a whole group of 256: a barrier of subgroups would lose some."""
    body = """\
    scratch[LOCAL_X] = LOAD1_F32(src, GLOBAL_X);
    BARRIER();
    for (int half_items = 128; half_items > 0; half_items /= 2) {
        if (LOCAL_X < half_items) scratch[LOCAL_X] += scratch[LOCAL_X + half_items];
        BARRIER();
    }
    STORE1_F32(dst, GLOBAL_X, scratch[0]);
"""
    local = (256, 1, 1)
    text = KernelText("summing", ARGUMENTS[:2], local, (("float", "scratch", 256),), body)
    launched = Launch("summing", (cell(1), cell(0)), (FLOATS, 1, 1), local)
    context = ready(open_device("webgpu"), program([text], [launched], [0], [1]))
    given = np.round(floats() * 64)
    (found,) = run(context, [given])
    context.close()
    np.testing.assert_array_equal(found, given.reshape(-1, 256).sum(1).repeat(256))
