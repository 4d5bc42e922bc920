"""Small models for tests of the bridge, and interpreters of them with and without the delegate."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import flatbuffers
import numpy as np
import numpy.typing as npt
from flatbuffers import flexbuffers

from litegpu import GpuDelegate
from litegpu.files import MODEL_IDENTIFIER
from litegpu.options import InferencePriority
from litegpu.runtime_abi import interpreter as runtime
from litegpu.zoo import schema
from litegpu.zoo.writer import ModelWriter, Shape, TensorRef

Array = npt.NDArray[Any]

RUNTIME = runtime.load()
"""The module of the runtime under test."""

CPU_ONLY = "MUL"
"""An operation that litegpu leaves to the CPU: by 1, with an activation that no kernel has."""
CPU_OPTIONS = {"activation": "sign_bit"}
"""Its parameters as litegpu sees them."""
WHY_ON_CPU = "Unsupported fused activation: sign_bit"
"""The reason that the report gives."""


def step(writer: ModelWriter, op: str, x: TensorRef, name: str | None = None) -> TensorRef:
    """Add an operation with one input that keeps the shape."""
    if op == CPU_ONLY:
        one = writer.constant(np.float32(1))
        options = {"fused_activation_function": "SIGN_BIT"}
        return writer.op(op, [x, one], [x.shape], options=options, name=name)
    return writer.op(op, [x], [x.shape], name=name)


def chain(ops: Sequence[str], shape: Shape = (1, 4, 4, 4)) -> bytes:
    """Return a model that applies `ops` one after the other."""
    writer = ModelWriter()
    x = writer.input(shape)
    for op in ops:
        x = step(writer, op, x)
    writer.output(x)
    return writer.build()


def shifted(shape: Shape = (1, 4)) -> bytes:
    """Return a model that adds a list to each row, and so takes rows of one length."""
    writer = ModelWriter()
    x = writer.input(shape)
    row = writer.constant(np.arange(shape[-1], dtype=np.float32), name="row")
    writer.output(step(writer, "ABS", writer.op("ADD", [x, row], [shape])))
    return writer.build()


def convolution(
    writer: ModelWriter, x: TensorRef, channels: int, stride: int = 1, seed: int = 0
) -> TensorRef:
    """Add a 3x3 CONV_2D with padding SAME and RELU6; dimensions of size -1 stay unknown."""
    random = np.random.default_rng(seed)
    weights = random.normal(0, 0.2, (channels, 3, 3, x.shape[3])).astype(np.float32)
    bias = random.normal(0, 0.2, channels).astype(np.float32)
    spatial = [-(-size // stride) if size > 0 else -1 for size in x.shape[1:3]]
    options = {
        "padding": "SAME",
        "stride_h": stride,
        "stride_w": stride,
        "dilation_h_factor": 1,
        "dilation_w_factor": 1,
        "fused_activation_function": "RELU6",
    }
    operands = [x, writer.weights(weights, name="weights"), writer.weights(bias, name="bias")]
    return writer.op("CONV_2D", operands, [(x.shape[0], *spatial, channels)], options=options)


def fully_convolutional(shape: Shape = (1, 9, 7, 3), *, float16_weights: bool = False) -> bytes:
    """Return a model of three convolutions that takes pictures of any size."""
    writer = ModelWriter(float16_weights=float16_weights)
    x = writer.input(shape)
    y = convolution(writer, x, 8, stride=2, seed=1)
    y = convolution(writer, y, 5, seed=2)
    writer.output(step(writer, "LOGISTIC", convolution(writer, y, 6, seed=3)))
    return writer.build()


def classifier() -> bytes:
    """Return a model that classifies pictures, float32[1, 128, 128, 3] to [1, 1001].

    The last weights are large enough to be halves at fp16.
    """
    writer = ModelWriter()
    x = convolution(writer, writer.input((1, 128, 128, 3)), 8, stride=4, seed=1)
    x = pool(writer, convolution(writer, x, 128, stride=2, seed=2))
    axes = writer.constant(np.array([1, 2], np.int32), name="axes")
    mean = writer.op("MEAN", [x, axes], [(1, 128)], options={"keep_dims": False})
    operands = [mean, writer.weights(random(1001, 128), name="weights")]
    scores = writer.op("FULLY_CONNECTED", operands, [(1, 1001)])
    writer.output(writer.op("SOFTMAX", [scores], [scores.shape], options={"beta": 1.0}))
    return writer.build()


def spectrogram(writer: ModelWriter, sound: TensorRef, shape: Shape) -> TensorRef:
    """Add AudioSpectrogram, a custom operation of the runtime that litegpu leaves to the CPU.

    The shape of the result, `[1, steps, frequencies]`, determines windows without overlap.
    """
    window = 2 * (shape[2] - 1)
    options = {"window_size": window, "stride": window, "magnitude_squared": False}
    custom = bytes(flexbuffers.Dumps(options))
    return writer.custom("AudioSpectrogram", [sound], [shape], custom_options=custom)[0]


def keywords() -> bytes:
    """Return a model that classifies a sound by its spectrogram."""
    writer = ModelWriter()
    found = spectrogram(writer, writer.input((1024, 1)), (1, 16, 33))
    picture = writer.constant(np.array([1, 16, 33, 1], np.int32))
    x = writer.op("RESHAPE", [found, picture], [(1, 16, 33, 1)])
    writer.output(step(writer, "SOFTMAX", convolution(writer, x, 8)))
    return writer.build()


def encode_and_decode(encode: str = "ABS", decode: str = "LOGISTIC") -> bytes:
    """Return a model with the signatures `encode` and `decode`, each a graph of one operation."""

    def one(key: str, op: str) -> bytes:
        writer = ModelWriter()
        x = writer.input((1, 2, 2, 4))
        y = step(writer, op, x)
        writer.output(y)
        writer.signature(key, {"x": x}, {"y": y})
        return writer.build()

    return with_subgraphs(one("encode", encode), one("decode", decode))


def two_signatures(shape: Shape = (1, 2, 3)) -> bytes:
    """Return a model that two signatures call by other names."""
    writer = ModelWriter()
    a, b = writer.input(shape, name="a"), writer.input(shape, name="b")
    difference = writer.op("SUB", [a, b], [shape])
    writer.output(difference)
    writer.signature("minus", {"x": a, "y": b}, {"z": difference})
    writer.signature("less", {"from": a, "what": b}, {"rest": difference})
    return writer.build()


def with_subgraphs(model: bytes, *others: bytes) -> bytes:
    """Return `model` with the graphs of `others` as its subgraphs 1, 2 and so on.

    Signatures come along. Buffers of equal contents are shared.
    """
    tables = schema.tables()
    first, *rest = (
        tables.ModelT.InitFromObj(tables.Model.GetRootAs(each, 0)) for each in (model, *others)
    )
    for number, other in enumerate(rest, start=1):
        (graph,) = other.subgraphs
        stored = [_content(buffer) for buffer in first.buffers]
        fresh = [buffer for buffer in other.buffers if _content(buffer) not in stored]
        stored += map(_content, fresh)
        for tensor in graph.tensors:
            tensor.buffer = stored.index(_content(other.buffers[tensor.buffer]))
        for definition in other.signatureDefs or ():
            definition.subgraphIndex = number
        first.signatureDefs = [*(first.signatureDefs or ()), *(other.signatureDefs or ())]
        for operator in graph.operators:
            operator.opcodeIndex += len(first.operatorCodes)
        first.buffers += fresh
        first.operatorCodes += other.operatorCodes
        first.subgraphs.append(graph)
    builder = flatbuffers.Builder(1024)
    builder.Finish(first.Pack(builder), file_identifier=MODEL_IDENTIFIER)
    return bytes(builder.Output())


def _content(buffer: Any) -> bytes:
    return b"" if buffer.data is None else bytes(buffer.data)


def waveform(shape: Sequence[int]) -> bytes:
    """Return a convolution of a waveform by windows of 200 samples; the file states fewer."""
    writer = ModelWriter()
    row = writer.constant([1, 1, -1, 1], "int32")
    x = writer.op("RESHAPE", [writer.input(tuple(shape)), row], [(1, 1, -1, 1)])
    weights = writer.constant(random(5, 1, 200, 1), name="windows")
    options = {"stride_h": 1, "stride_w": 50, "padding": "VALID"}
    operands = [x, weights, writer.constant(random(5), name="bias")]
    writer.output(writer.op("CONV_2D", operands, [(1, 1, -1, 5)], options=options))
    return writer.build()


def interpreter(model: bytes, *delegates: GpuDelegate, builtin: bool = True) -> Any:
    """Return an interpreter with tensors allocated; `builtin` off lets XNNPACK take the rest."""
    kinds = RUNTIME.OpResolverType
    result = RUNTIME.Interpreter(
        model_content=model,
        experimental_delegates=list(delegates) or None,
        experimental_op_resolver_type=(
            kinds.BUILTIN_WITHOUT_DEFAULT_DELEGATES if builtin else kinds.AUTO
        ),
    )
    result.allocate_tensors()
    return result


def run(target: Any, *inputs: Array) -> list[Array]:
    """Set the inputs, invoke, and return copies of all outputs."""
    for detail, value in zip(target.get_input_details(), inputs, strict=True):
        target.set_tensor(detail["index"], value)
    target.invoke()
    return [target.get_tensor(detail["index"]) for detail in target.get_output_details()]


def reference(model: bytes, *inputs: Array) -> list[Array]:
    """Return what the runtime's own CPU kernels make of `inputs`, of whatever shape they are."""
    target = RUNTIME.Interpreter(
        model_content=model,
        experimental_op_resolver_type=RUNTIME.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
    )
    for detail, value in zip(target.get_input_details(), inputs, strict=True):
        if value.shape != tuple(detail["shape"]):
            target.resize_tensor_input(detail["index"], value.shape)
    target.allocate_tensors()
    return run(target, *inputs)


def random(*shape: int, seed: int = 0) -> Array:
    """Return normally distributed float32 values."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def assert_close(got: Sequence[Array], expected: Sequence[Array], tolerance: float = 1e-5) -> None:
    """Compare lists of outputs: shapes exactly, values by the norm of the difference."""
    assert [g.shape for g in got] == [e.shape for e in expected]
    for number, (g, e) in enumerate(zip(got, expected, strict=True)):
        error = float(np.linalg.norm(g - e)) / (float(np.linalg.norm(e)) or 1.0)
        assert error <= tolerance, f"output {number} is {error:.2e} away, {tolerance:.0e} allowed"


def in_threads(work: Callable[[int], None], count: int = 4) -> None:
    """Call work(0), work(1), ... each in a thread of its own; fail if one fails or never ends."""
    failures: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(n,), daemon=True) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert not any(thread.is_alive() for thread in threads), "the threads block each other"
    assert not failures, failures


ALL_HALF: dict[str, Any] = {
    "precision": "fp16",
    "inference_priority1": InferencePriority.MIN_MEMORY_USAGE,
}
"""Options with which every value is stored as half."""
ONE: Shape = (1, 1, 1, 1)


def times(writer: ModelWriter, x: TensorRef, factor: TensorRef, name: str) -> TensorRef:
    return writer.op("MUL", [x, factor], [x.shape], name=name)


def pool(writer: ModelWriter, x: TensorRef, name: str | None = None) -> TensorRef:
    """Add a mean of 2x2 pixels, which has a kernel of its own."""
    n, height, width, channels = x.shape
    size = {"stride_h": 2, "stride_w": 2, "filter_height": 2, "filter_width": 2}
    shape = (n, -(-height // 2), -(-width // 2), channels)
    options = {"padding": "SAME", **size}
    return writer.op("AVERAGE_POOL_2D", [x], [shape], options=options, name=name)


def scaled(shape: Shape = (1, 8, 8, 12)) -> bytes:
    """Return a model whose tensor 'scaled' is an input times a second one."""
    writer = ModelWriter()
    x, up, down = writer.input(shape), writer.input(ONE), writer.input(ONE)
    x = convolution(writer, step(writer, "ABS", x), 16)
    writer.output(step(writer, "LOGISTIC", there_and_back(writer, x, up, down)))
    return writer.build()


def there_and_back(writer: ModelWriter, x: TensorRef, up: TensorRef, down: TensorRef) -> TensorRef:
    x = times(writer, pool(writer, x), up, "scaled")
    return times(writer, pool(writer, x), down, "back")
