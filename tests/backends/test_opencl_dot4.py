"""Dot products of bytes on OpenCL: a reported extension is used after a correct test result."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from backend_suite import adding
from cases.quantized import POWER, WIDE
from cases.quantized_conv import QuantizedConv
from cases.quantized_matmul import QuantizedMatmul
from litegpu import DeviceLostError, MissingDependencyError
from litegpu.backends.cuda.compiler import compile_source, options_for
from litegpu.backends.opencl import build as opencl_build
from litegpu.backends.opencl import device as opencl
from litegpu.backends.opencl import dot4
from litegpu.backends.opencl.device import OpenCLDevice
from litegpu.codegen.opencl import OpenCLDialect
from litegpu.codegen.opencl_dot4 import ARM, ARM_ACCUMULATE, KHR, PLAIN, PTX, ByteDot
from op_runner import MODES, Outcome, problem_of, run

cl = pytest.importorskip("pyopencl", reason="pyopencl is not installed")

_SUM = "const int4 p = convert_int4(a) * convert_int4(b); return p.x + p.y + p.z + p.w"
_WORDS = "const char4 a = as_char4(left), b = as_char4(right)"
EXTENSIONS = {
    KHR: f"int dot_4x8packed_ss_int(uint left, uint right) {{ {_WORDS}; {_SUM}; }}",
    ARM: f"int arm_dot(char4 a, char4 b) {{ {_SUM}; }}",
    ARM_ACCUMULATE: f"int arm_dot_acc(char4 a, char4 b, int c) {{ {_SUM} + c; }}",
}
"""The functions of the extensions, in plain arithmetic."""


def emulated(dot: ByteDot) -> ByteDot:
    """Return a form whose functions any device has."""
    return replace(dot, words=f"{EXTENSIONS[dot]}\n{dot.words}")


def reporting(monkeypatch: pytest.MonkeyPatch, *dots: ByteDot) -> None:
    """Make devices report these forms of the dot product."""
    monkeypatch.setattr(dot4, "_reported", lambda _: dots)


class Raw:
    """A replacement for a pyopencl device, with the queried properties."""

    def __init__(self, extensions: str, capability: tuple[int, int] = (0, 0)) -> None:
        self.extensions = extensions
        self._facts = dict(zip(("major", "minor"), capability, strict=True))

    def get_info(self, name: str) -> int:
        return self._facts[name]


_NVIDIA = dot4.NVIDIA_FACTS


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (Raw("cl_khr_fp16"), ()),
        (Raw(f"cl_khr_fp16 {KHR.name}"), (KHR,)),
        (Raw(f"{ARM.name} {ARM_ACCUMULATE.name}"), (ARM_ACCUMULATE, ARM)),
        (Raw(ARM.name), (ARM,)),
        (Raw(f"{ARM_ACCUMULATE.name}_and_more"), ()),
        (Raw(_NVIDIA, (6, 0)), ()),
        (Raw(_NVIDIA, (6, 1)), (PTX,)),
        (Raw(f"{_NVIDIA} {KHR.name}", (9, 0)), (KHR, PTX)),
    ],
)
def test_what_devices_report(raw: Raw, expected: Sequence[ByteDot]) -> None:
    names = {f"COMPUTE_CAPABILITY_{name.upper()}_NV": name for name in ("major", "minor")}
    device: Any = SimpleNamespace(
        context=SimpleNamespace(devices=[raw]),
        cl=SimpleNamespace(device_info=SimpleNamespace(**names)),
    )
    assert tuple(dot4._reported(device)) == expected


@pytest.mark.parametrize("dot", EXTENSIONS, ids=lambda dot: dot.name)
def test_the_first_form_that_works_is_taken(
    dot: ByteDot,
    opencl_device: OpenCLDevice,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    reporting(monkeypatch, emulated(dot), PTX)
    with caplog.at_level(logging.WARNING, "litegpu"):
        assert dot4.byte_dot(opencl_device) == emulated(dot)
    assert not caplog.records


_UNSIGNED = (
    "const int4 p = convert_int4(as_uchar4(a)) * convert_int4(as_char4(b));"
    "return c + p.x + p.y + p.z + p.w;"
)
_SATURATED = (
    "const int4 p = convert_int4(as_char4(a)) * convert_int4(as_char4(b));"
    "return add_sat(c, p.x + p.y + p.z + p.w);"
)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (_UNSIGNED, r"returns -?\d+ for \[-128 -128 -128 -128\], .* and -?\d+, not -?\d+"),
        (_SATURATED, "returns 2147483647 for .* and 2147483647, not -2147418113"),
        (
            "return no_such_function(a, b, c);",
            r"a kernel with this instruction fails: Device opencl:\d .* rejects a kernel",
        ),
    ],
    ids=["unsigned", "saturated", "refused"],
)
def test_a_form_that_fails_is_told_and_left(
    body: str,
    reason: str,
    opencl_device: OpenCLDevice,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken = ByteDot("cl_broken", f"int DOT4_S8(int a, int b, int c) {{ {body} }}\n")
    reporting(monkeypatch, broken)
    assert dot4.byte_dot(opencl_device) is PLAIN
    assert [each.levelname for each in caplog.records] == ["WARNING"]
    assert f"{opencl_device.info.title} reports cl_broken, but" in caplog.text
    assert "8-bit products are computed without this instruction." in caplog.text
    assert re.search(reason, caplog.text)


def test_a_device_that_is_lost_on_the_way(
    opencl_device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(*_: object) -> None:
        monkeypatch.setattr(opencl_device, "lost", True)
        raise opencl_device.loss("INVALID_COMMAND")

    reporting(monkeypatch, KHR)
    monkeypatch.setattr(opencl_device, "compile_in", lose)
    with pytest.raises(DeviceLostError, match="is lost: INVALID_COMMAND"):
        dot4.byte_dot(opencl_device)


def test_only_products_of_bytes_are_tried(
    opencl_device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opencl, "byte_dot", lambda _: pytest.fail("it was tried"))
    opencl_device.compile(adding(1)).close()


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """The sources that are compiled, with the options."""
    found: list[tuple[str, str]] = []
    from_source = opencl_build._from_source

    def keep(cl: Any, context: Any, source: str, options: str) -> Any:
        found.append((source, options))
        return from_source(cl, context, source, options)

    monkeypatch.setattr(opencl_build, "_from_source", keep)
    return found


def test_a_device_is_tried_once(
    opencl_device: OpenCLDevice,
    monkeypatch: pytest.MonkeyPatch,
    compiled: list[tuple[str, str]],
) -> None:
    reporting(monkeypatch, emulated(KHR))
    device = OpenCLDevice(opencl_device.info, opencl_device._device)
    for times in (2, 3):
        device.compile(dot4._PROGRAM).close()
        assert len(compiled) == times, "the first time there is a trial as well"
    device.compile(adding(1)).close()
    assert [KHR.words in source for source, _ in compiled] == [True, True, True, False]
    assert [options for _, options in compiled] == ["-cl-std=CL3.0"] * 3 + ["-cl-std=CL1.2"]


PRODUCTS = (
    QuantizedConv(dtype="uint8", kind=WIDE, channels=9, size=(4, 3)),
    QuantizedConv(kind=POWER, per_channel=True, stride=(2, 1), kernel=(1, 1)),
    QuantizedMatmul(left=(2,), right=(2,), depth=33, adj_y=True, kind=POWER),
    QuantizedMatmul(left=(2,), right=(2,), depth=17, adj_x=True),
)


@pytest.mark.parametrize("dot", EXTENSIONS, ids=lambda dot: dot.name)
def test_numbers_are_those_of_plain_arithmetic(
    dot: ByteDot,
    opencl_device: OpenCLDevice,
    monkeypatch: pytest.MonkeyPatch,
    compiled: list[tuple[str, str]],
) -> None:
    """Every form is the same function to the kernels, also in its version of OpenCL C."""
    dialect = OpenCLDialect(emulated(dot))
    monkeypatch.setitem(vars(opencl_device), "_dot_dialect", dialect)
    outcomes = run(PRODUCTS, opencl_device.info, MODES[0])
    for case in PRODUCTS:
        outcome = outcomes[case.name]
        assert isinstance(outcome, Outcome), outcome
        assert problem_of(case, outcome, MODES[0]) == ""
    ((source, options),) = compiled
    assert dot.words in source
    assert options == dialect.options


def test_the_text_of_ptx_assembles() -> None:
    """OpenCL C of NVIDIA takes the assembler's text as CUDA C++ does."""
    source = f"__device__ {PTX.words}"
    source += 'extern "C" __global__ void k(int *x) { x[3] = DOT4_S8(x[0], x[1], x[2]); }\n'
    try:
        compile_source(source, options_for((7, 5)))
    except MissingDependencyError as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize("dot", [PLAIN, KHR, ARM, ARM_ACCUMULATE, PTX], ids=lambda dot: dot.name)
def test_the_dialect_has_one_definition(dot: ByteDot) -> None:
    dialect = OpenCLDialect(dot)
    assert dialect.integers.count("int DOT4_S8(") == 1
    assert dot.words in dialect.integers
    assert dialect.options == f"-cl-std={'CL3.0' if dot is KHR else 'CL1.2'}"
    assert dialect.integers.replace(dot.words, PLAIN.words) == OpenCLDialect().integers
