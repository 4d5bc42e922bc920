"""Dot products of bytes in OpenCL C: plain arithmetic, and extensions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ByteDot:
    """One definition of DOT4_S8: four products of signed bytes, added to an int32 that wraps."""

    name: str
    """The origin of the definition: an extension of OpenCL, or the language."""
    words: str
    """The text that defines DOT4_S8."""
    standard: str = "CL1.2"
    """The version of OpenCL C that the definition needs, as written in the compiler option."""


PLAIN = ByteDot(
    "plain arithmetic",
    """\
/* Dot product of four signed bytes, plus c. */
int DOT4_S8(int a, int b, int c) {
    const int4 p = convert_int4(as_char4(a)) * convert_int4(as_char4(b));
    return c + p.x + p.y + p.z + p.w;
}
""",
)
# Not dot_acc_sat_...: it saturates. Compilers declare these functions from OpenCL C 2.0 or 3.0 on.
KHR = ByteDot(
    "cl_khr_integer_dot_product",
    """\
#pragma OPENCL EXTENSION cl_khr_integer_dot_product : enable
int DOT4_S8(int a, int b, int c) {
    return as_int(as_uint(c) + as_uint(dot_4x8packed_ss_int(as_uint(a), as_uint(b))));
}
""",
    "CL3.0",
)
ARM_ACCUMULATE = ByteDot(
    "cl_arm_integer_dot_product_accumulate_int8",
    """\
#pragma OPENCL EXTENSION cl_arm_integer_dot_product_accumulate_int8 : enable
int DOT4_S8(int a, int b, int c) { return arm_dot_acc(as_char4(a), as_char4(b), c); }
""",
)
ARM = ByteDot(
    "cl_arm_integer_dot_product_int8",
    """\
#pragma OPENCL EXTENSION cl_arm_integer_dot_product_int8 : enable
int DOT4_S8(int a, int b, int c) {
    return as_int(as_uint(c) + as_uint(arm_dot(as_char4(a), as_char4(b))));
}
""",
)
PTX = ByteDot(
    "PTX's dp4a",
    """\
int DOT4_S8(int a, int b, int c) {
    int d;
    asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
""",
)
