"""Constants outside of a model's tables are bound to its tensors, and damage is an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from litegpu import GpuDelegate, ModelError
from litegpu.runtime_abi import interpreter as runtime
from litegpu.runtime_abi import outside_weights
from litegpu.runtime_abi.outside_weights import TablesOnly, tables_only
from litegpu.zoo import objects, schema
from litegpu.zoo.writer import ModelWriter, TensorRef
from outside_weights import appended, external

WEIGHTS = np.arange(8 * 16, dtype=np.float32).reshape(8, 16)
INPUT = np.linspace(-1, 1, 16, dtype=np.float32)[None]


def model(dtype: str = "float32") -> bytes:
    """Return a model with two signatures, each a product with the same weights."""
    writer = ModelWriter()
    for number, name in enumerate(("first", "second")):
        graph = writer.subgraph() if number else writer
        x = graph.input((1, 16), name=f"x{number}")
        y = graph.op("FULLY_CONNECTED", [x, _weights(graph, dtype), None], [(1, 8)])
        graph.output(y)
        graph.signature(name, {"x": x}, {"y": y})
    return writer.build()


def _weights(graph: ModelWriter, dtype: str) -> TensorRef:
    if dtype == "float32":
        return graph.constant(WEIGHTS, name="w")
    half = graph.constant(WEIGHTS, dtype, name="w")
    return graph.op("DEQUANTIZE", [half], [WEIGHTS.shape], name="full")


def found_in(content: bytes, weights: bytes = b"") -> TablesOnly:
    found = tables_only(memoryview(content), lambda _: memoryview(weights))
    assert found is not None
    return found


def test_models_whose_constants_are_inside() -> None:
    assert tables_only(memoryview(model()), lambda _: memoryview(b"")) is None


@pytest.mark.parametrize("builtin", [True, False], ids=["builtin", "XNNPACK"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_each_graph_reads_the_weights(dtype: str, builtin: bool) -> None:
    content = model(dtype)
    for found in (found_in(appended(content)), found_in(*external(content))):
        assert len(found) < len(content)
        assert [*found.constants] == [(0, 1), (1, 1)]
        target = runtime.interpreter(found, builtin_kernels=builtin)
        for name in ("first", "second"):
            y = target.get_signature_runner(name)(x=INPUT)["y"]
            np.testing.assert_allclose(y, INPUT @ WEIGHTS.T, rtol=1e-5)


def test_a_delegate_reads_the_weights() -> None:
    delegate = GpuDelegate(backend="opencl", min_nodes_per_partition=0)
    target = runtime.interpreter(found_in(*external(model())), delegate)
    y = target.get_signature_runner("second")(x=INPUT)["y"]
    np.testing.assert_allclose(y, INPUT @ WEIGHTS.T, rtol=1e-5)


def changed(change: Callable[[Any], None], content: bytes) -> bytes:
    found = objects.parse(content)
    change(found)
    return objects.pack(found)


def _computed(found: Any) -> None:
    tensors = found.subgraphs[0].tensors
    tensors[2].externalBuffer, tensors[2].buffer = tensors[1].externalBuffer, 0


def _an_input(found: Any) -> None:
    tensors = found.subgraphs[0].tensors
    tensors[0].externalBuffer, tensors[0].buffer = tensors[1].externalBuffer, 0


def _variable(found: Any) -> None:
    found.subgraphs[0].tensors[1].isVariable = True


def _sparse(found: Any) -> None:
    found.subgraphs[0].tensors[1].sparsity = schema.tables().SparsityParametersT()


def _unlisted(found: Any) -> None:
    found.subgraphs[1].tensors[1].externalBuffer = 77


DAMAGE: tuple[tuple[Callable[[Any], None], str], ...] = (
    (_computed, "tensor '.*' is computed, but has constant weights in a file. Convert the model"),
    (_an_input, "tensor 'x0' is computed, but has constant"),
    (_variable, "tensor 'w' is computed, but has constant"),
    (_sparse, "tensor 'w' is sparse, but its weights are outside .*Convert the model with its"),
    (_unlisted, "tensor 'w' refers to the weights 77, which the model does not list. Download"),
)


@pytest.mark.parametrize(("change", "text"), DAMAGE, ids=range(len(DAMAGE)))
def test_tensors_that_cannot_have_weights(change: Callable[[Any], None], text: str) -> None:
    content, weights = external(model())
    with pytest.raises(ModelError, match=text):
        found_in(changed(change, content), weights)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"packing": "zipped"}, "are packed as 'zipped', which litegpu cannot read. Convert the"),
        ({"group": 1}, "weights 2 of the model are in file 1 of 1. Download or convert the model"),
        ({"offset": 400}, "weights 2 of the model would be at bytes 400 to 912 of 512. Download"),
        ({"offset": 1 << 63}, "would be at bytes 9223372036854775808 to"),
    ],
)
def test_weights_that_cannot_be_read(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ModelError, match=text):
        found_in(*external(model(), **fields))


def test_weights_of_another_size() -> None:
    found = found_in(*external(model(), length=256))
    with pytest.raises(ModelError, match=r"tensor 'w' has 512 bytes, but its weights have 256. Do"):
        runtime.interpreter(found)


def test_a_runtime_without_the_tensor() -> None:
    for place in ((0, 99), (7, 0)):
        found = found_in(*external(model()))
        found.constants = {place: found.constants[0, 1]}
        with pytest.raises(
            ModelError, match=rf"no tensor {place[1]} in graph {place[0]} of the mo"
        ):
            runtime.interpreter(found)


def test_constants_after_the_end_of_the_file() -> None:
    content = appended(model())
    with pytest.raises(ModelError, match=r"Constant \d of the model would be at bytes \d+ to"):
        found_in(content[:-1])


def test_tables_that_are_damaged_or_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    content = appended(model())
    with pytest.raises(ModelError, match=r"its tables have offsets outside of the file. Download"):
        found_in(content[:40])
    with monkeypatch.context() as patch:
        patch.setattr(outside_weights, "_MAX_TABLES", 100)
        with pytest.raises(
            ModelError, match=r"tables of the model have \d+ bytes, more than a tab"
        ):
            found_in(content)
    monkeypatch.setattr(outside_weights, "_MAX_VISITED", 8)
    with pytest.raises(ModelError, match=r"more than 8 tensors, operations and constants. Split"):
        found_in(content)


def test_large_options_after_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = ModelWriter()
    x = writer.input((1, 4))
    writer.output(*writer.custom("Custom", [x, writer.constant(WEIGHTS)], [(1, 4)]))
    large = objects.parse(writer.build())
    large.subgraphs[0].operators[0].largeCustomOptionsOffset = 1 << 40
    monkeypatch.setattr(objects, "_MAX_INSIDE", 0)
    with pytest.raises(ModelError, match=r"options of a custom operation are stored after the mod"):
        found_in(objects.pack(large))
