"""Small models that run with and without a pass; most have exact arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy.typing as npt

from cases.base import EXACT, HALF
from comparing import mismatch
from litegpu import GpuDelegate
from litegpu.engine import partition
from litegpu.options import GpuDelegateKeywords, InferencePriority
from litegpu.passes import BEFORE_NORMALIZE, PASSES
from litegpu.runtime_abi import interpreter as runtime
from litegpu.zoo.writer import ModelWriter, TensorRef
from random_models import whole_numbers

Shape = tuple[int, ...]
Outputs = dict[str, npt.NDArray[Any]]
_UNKNOWN = (1,)
"""The file's shape of computed tensors: it is inferred."""


@dataclass
class Model:
    """A model being written, with whole numbers for weights."""

    writer: ModelWriter = field(default_factory=ModelWriter)
    inputs: int = 0
    constants: int = 0

    def input(self, *shape: int) -> TensorRef:
        self.inputs += 1
        return self.writer.input(shape, name=f"input_{self.inputs}")

    def constant(self, *shape: int) -> TensorRef:
        self.constants += 1
        return self.writer.constant(whole_numbers(shape, self.constants))

    def number(self, value: float) -> TensorRef:
        return self.writer.constant(value, "float32")

    def integers(self, *data: Any) -> TensorRef:
        """Add a constant of shapes or indices; one number makes a vector of one."""
        return self.writer.constant(data, "int32")

    def op(self, name: str, *inputs: TensorRef, **options: Any) -> TensorRef:
        return self.writer.op(name, inputs, [_UNKNOWN], options=options)

    def conv(
        self, source: TensorRef, shape: tuple[int, int, int, int], padding: str = "SAME"
    ) -> TensorRef:
        """Add a convolution with weights of `shape` [O, H, W, I]."""
        weights, bias = self.constant(*shape), self.constant(shape[0])
        options = {"padding": padding, "stride_h": 1, "stride_w": 1}
        return self.op("CONV_2D", source, weights, bias, **options)

    def depthwise(self, source: TensorRef, channels: int) -> TensorRef:
        """Add a 3x3 depthwise convolution with padding VALID."""
        operands = self.constant(1, 3, 3, channels), self.constant(channels)
        options = {"padding": "VALID", "stride_h": 1, "stride_w": 1, "depth_multiplier": 1}
        return self.op("DEPTHWISE_CONV_2D", source, *operands, **options)

    def max_pool(self, source: TensorRef) -> TensorRef:
        """Add a 2x2 pool of the input's size."""
        sizes = {"filter_height": 2, "filter_width": 2, "stride_h": 1, "stride_w": 1}
        return self.op("MAX_POOL_2D", source, padding="SAME", **sizes)

    def pad(self, source: TensorRef, *pads: tuple[int, int]) -> TensorRef:
        return self.op("PAD", source, self.writer.constant(pads, "int32"))

    def reshape(self, source: TensorRef, *shape: int) -> TensorRef:
        return self.op("RESHAPE", source, self.writer.constant(shape, "int32"))

    def concat(self, axis: int, *parts: TensorRef) -> TensorRef:
        return self.op("CONCATENATION", *parts, axis=axis)

    def rotated(
        self, x: TensorRef, shape: Shape, cosines: TensorRef, sines: TensorRef
    ) -> TensorRef:
        """Add rotary positions to `x` of that shape."""
        half = shape[3] // 2
        low, high = (
            self.writer.op(
                *("SLICE", [x, self.integers(0, 0, 0, begin), self.integers(*shape[:3], half)]),
                [(*shape[:3], half)],
            )
            for begin in (0, half)
        )
        other = self.concat(3, self.op("NEG", high), low)
        return self.op("ADD", self.op("MUL", x, cosines), self.op("MUL", other, sines))

    def transposed(self, x: TensorRef, *order: int) -> TensorRef:
        return self.op("TRANSPOSE", x, self.integers(*order))

    def build(self, *outputs: TensorRef) -> bytes:
        self.writer.output(*outputs)
        return self.writer.build()


Write = Callable[[Model], list[TensorRef]]


def check_numbers(write: Write, name: str, saved: int, tolerance: float = EXACT) -> None:
    """Check that a model gives the CPU's numbers with all passes, and without pass `name`.

    Its values are stored as float32, then as half. `saved` is the number of kernels that the pass
    makes unnecessary; `tolerance` is a relative L2 error at fp32.
    """
    model = Model()
    outputs = write(model)
    content = model.build(*outputs)
    expected = _run(runtime.interpreter(content, builtin_kernels=True))
    counts = []
    for left_out, half in (("", False), ("", True), (name, False)):
        got, count = _on_device(content, left_out, half)
        counts.append(count)
        limit = HALF if half and tolerance > EXACT else tolerance
        for output, values in expected.items():
            problem = mismatch(values, got[output], limit)
            assert not problem, f"{'half' if half else 'float'}, output {output}: {problem}"
    assert counts[2] - counts[0] == saved, f"kernels with and without the pass: {counts[::2]}"


def _on_device(content: bytes, left_out: str, half: bool) -> tuple[Outputs, int]:
    """Return the outputs without a pass, and the number of kernels."""
    options: GpuDelegateKeywords = {"precision": "fp16" if half else "fp32"}
    if half:
        options["inference_priority1"] = InferencePriority.MIN_MEMORY_USAGE
    delegate = GpuDelegate(options)
    late = not left_out or any(run.__name__ == left_out for run in PASSES)
    group, passes = ("PASSES", PASSES) if late else ("BEFORE_NORMALIZE", BEFORE_NORMALIZE)
    remaining = tuple(run for run in passes if run.__name__ != left_out)
    with mock.patch.object(partition, group, remaining):
        target = runtime.interpreter(content, delegate, builtin_kernels=True)
    report = delegate.report
    assert report is not None and report.whole_graph, str(report)
    return _run(target), report.partitions[0].kernels


def _run(target: Any) -> Outputs:
    for seed, detail in enumerate(target.get_input_details()):
        target.set_tensor(detail["index"], whole_numbers(tuple(detail["shape"]), seed))
    target.invoke()
    return {str(i): output.values for i, output in enumerate(runtime.outputs(target))}
