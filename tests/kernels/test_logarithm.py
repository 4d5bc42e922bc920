"""Integer logarithms equal the C library's logf in every bit, on every device."""

from __future__ import annotations

from fractions import Fraction

import jinja2
import numpy as np
import pytest

from backend_suite import ready
from every_backend import open_device
from litegpu import GpuDelegate
from litegpu.backends import BACKENDS
from litegpu.backends.buffers import Bindings
from litegpu.backends.program import BufferRange, Launch, Program
from litegpu.codegen import Argument, KernelText
from litegpu.codegen.sources import templates
from litegpu.graph import Quantization
from litegpu.ops.exact import c_library, logarithms
from litegpu.zoo.writer import ModelWriter
from small_models import interpreter

COUNT = 1 << 16
GROUP = (64, 1, 1)
SUMS, LOGS = BufferRange(False, 0, 4 * COUNT), BufferRange(False, 4 * COUNT, 4 * COUNT)


def program() -> Program:
    """Return a program that makes COUNT floats of as many."""
    text = templates()["_logarithm.jinja"].read_text(encoding="utf-8")
    template = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(text)
    computed = template.module.logarithm(  # type: ignore[attr-defined]
        "found", "LOAD1_F32(src, GLOBAL_X)", "logs", logarithms.template_words()
    )
    arguments = (
        Argument("dst", "F32", False, True),
        Argument("src", "F32", False, False),
        Argument("logs", "I32", True, False, constant=True),
    )
    body = f"{computed}\n    STORE1_F32(dst, GLOBAL_X, found);\n"
    table = logarithms.table(logarithms.MOST).ravel().view(np.uint8)
    launch = Launch(
        "logarithm", (LOGS, SUMS, BufferRange(True, 0, table.size)), (COUNT, 1, 1), GROUP
    )
    kernel = KernelText("logarithm", arguments, GROUP, (), body)
    return Program((kernel,), (launch,), 8 * COUNT, table, (SUMS,), (LOGS,))


@pytest.mark.parametrize("backend", BACKENDS)
def test_logarithms_of_floats(backend: str) -> None:
    random = np.random.default_rng(7)
    ends = 2.0 ** np.arange(25)
    near_one = 1 + np.arange(256) * 2.0**-23
    drawn = 2 ** random.uniform(0, 24, COUNT - len(ends) - len(near_one))
    sums = np.concatenate([ends, near_one, drawn]).astype(np.float32)
    found = np.empty_like(sums)
    context = ready(open_device(backend), program())
    context.run(Bindings.of([sums], [found]))
    context.close()
    wrong = found.view(np.int32) != c_library.logf(sums).view(np.int32)
    assert not wrong.any(), sums[wrong][:8]


def test_numbers_have_two_words() -> None:
    high, low = logarithms.words(-Fraction(3, 2**41))
    assert (high, low) == (-1, 2**30 - 3 * 2**20)
    assert Fraction(high, 2**31) + Fraction(low, 2**61) == -Fraction(3, 2**41)


def test_another_c_library_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ModelWriter()
    source, result = Quantization((0.1,), (3,)), Quantization((1 / 16,), (127,))
    x = model.input((2, 5), "int8", quantization=source)
    y = model.op("LOG_SOFTMAX", [x], [(2, 5)], version=2, dtype="int8", quantization=result)
    model.output(y)
    nearest = lambda floats: np.log(floats.astype(np.float64)).astype(np.float32)  # noqa: E731
    monkeypatch.setattr(c_library, "logf", nearest)
    monkeypatch.setattr(logarithms, "known", logarithms.known.__wrapped__)
    delegate = GpuDelegate()
    interpreter(model.build(), delegate)
    assert "the last bit of logf" in str(delegate.report)
