"""Models with several signatures, and results whose shapes only a run determines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from litegpu import CompiledModel, CompiledModelError
from litegpu.compiled_model.signatures import OtherSignature
from litegpu.zoo.writer import ModelWriter
from small_models import CPU_ONLY, step
from small_models import two_signatures as several

SHAPE = (1, 2, 3)
PLACES: list[dict[str, Any]] = [{}, {"hardware_accel": 1}]


@pytest.mark.parametrize("place", PLACES, ids=["gpu", "cpu"])
def test_each_signature_has_its_names(place: dict[str, Any]) -> None:
    x, y = (np.random.default_rng(n).normal(size=SHAPE).astype(np.float32) for n in (1, 2))
    with CompiledModel.from_buffer(several(), **place) as model:
        assert all(isinstance(each, OtherSignature) for each in model._main.signatures)
        listed = model.get_signature_list()
        assert listed["less"] == {"inputs": ["from", "what"], "outputs": ["rest"]}
        for key, names in listed.items():
            number = model.get_signature_index(key)
            inputs, outputs = (
                model.create_input_buffers(number),
                model.create_output_buffers(number),
            )
            inputs[0].write(x)
            inputs[1].write(y)
            model.run_by_index(number, inputs, outputs)
            np.testing.assert_allclose(outputs[0].array, x - y, rtol=1e-6)
            result = model.create_output_buffer_by_name(key, names["outputs"][0])
            named = dict(zip(names["inputs"], inputs, strict=True))
            model.run_by_name(key, named, {names["outputs"][0]: result})
            np.testing.assert_array_equal(result.array, outputs[0].array)


@pytest.mark.parametrize("place", PLACES, ids=["gpu", "cpu"])
def test_a_signature_is_resized(place: dict[str, Any]) -> None:
    with CompiledModel.from_buffer(several(), **place) as model:
        with pytest.raises(CompiledModelError, match=r"'x' cannot have the shape \[2, 2, 3\]: The"):
            model.resize_input_tensor_by_name("minus", "x", (2, 2, 3))
        model.resize_input_tensor_by_name("minus", "x", (2, 2, 3), strict=False)
        details = model.get_output_tensor_details("minus")["z"]
        assert details["shape"] == [2, 2, 3]
        inputs, outputs = model.create_input_buffers(0), model.create_output_buffers(0)
        inputs[0].array[:] = 3
        inputs[1].array[:] = 1
        model.run_by_index(0, inputs, outputs)
        assert (outputs[0].array == 2).all()
        with pytest.raises(CompiledModelError, match="cannot have the shape"):
            model.resize_input_tensor_by_name("minus", "x", (5, 7), strict=False)


def two_graphs(on_cpu: bool = False) -> bytes:
    """Return a model whose signatures run graphs of their own, with tensors of the same numbers.

    With `on_cpu` the second graph has an operation that no GPU has.
    """
    writer = ModelWriter()
    for key, op, graph in (("plus", "ADD", writer), ("minus", "SUB", writer.subgraph())):
        a, b = graph.input(SHAPE, name="a"), graph.input(SHAPE, name="b")
        result = graph.op(op, [a, b], [SHAPE])
        if on_cpu and graph is not writer:
            result = step(graph, CPU_ONLY, result)
        graph.output(result)
        graph.signature(key, {"x": a, "y": b}, {"z": result})
    return writer.build()


def results(model: Any, x: Any, y: Any) -> dict[str, Any]:
    """Return the results of each signature, in litegpu or LiteRT, for its two inputs."""
    found = {}
    for number, (key, names) in enumerate(model.get_signature_list().items()):
        inputs, outputs = model.create_input_buffers(number), model.create_output_buffers(number)
        for buffer, array in zip(inputs, (x, y), strict=True):
            buffer.write(array)
        model.run_by_index(number, inputs, outputs)
        detail = model.get_output_tensor_details(key)[names["outputs"][0]]
        found[key] = outputs[0].read(x.size, np.dtype(detail["dtype"]).type).copy()
    return found


@pytest.mark.parametrize("content", [several(), two_graphs()], ids=["one graph", "two graphs"])
@pytest.mark.parametrize("contexts", [1, 2])
def test_signatures_run_on_buffers(
    monkeypatch: pytest.MonkeyPatch, content: bytes, contexts: int
) -> None:
    theirs = pytest.importorskip("ai_edge_litert.compiled_model", reason="no LiteRT of today")
    x, y = (np.random.default_rng(n).normal(size=SHAPE).astype(np.float32) for n in (1, 2))
    expected = results(theirs.CompiledModel.from_buffer(content, hardware_accel=1), x, y)
    with CompiledModel.from_buffer(content, contexts=contexts) as model:
        monkeypatch.delattr(OtherSignature, "run")  # no interpreter runs
        assert len({context.instance for context in model._pool.all}) == 1
        found = results(model, x, y)
        assert [*found] == [*expected]
        for key, array in found.items():
            np.testing.assert_allclose(array, expected[key], rtol=1e-6)
        ends = [model.create_input_buffers(1, memory="device"), model.create_output_buffers(1)]
        for buffer, array in zip(ends[0], (x, y), strict=True):
            buffer.write(array)
        futures = [model.submit_by_index(1, *ends) for _ in range(3)]
        assert [future.result() for future in futures] == [None] * 3
        np.testing.assert_allclose(ends[1][0].array, x - y, rtol=1e-6)
        np.testing.assert_allclose(model(x, y), found[model.signature.key].reshape(SHAPE))


@pytest.mark.parametrize("contexts", [1, 2])
def test_a_signature_of_the_cpu_beside_one_of_the_gpu(contexts: int) -> None:
    x, y = (np.random.default_rng(n).normal(size=SHAPE).astype(np.float32) for n in (1, 2))
    with CompiledModel.from_buffer(two_graphs(on_cpu=True), contexts=contexts) as model:
        direct = [*map(model._main.runs_directly, model._main.signatures)]
        assert direct == [True, False]
        for _ in range(contexts):
            found = results(model, x, y)
            np.testing.assert_allclose(found["plus"], (x + y).reshape(-1), rtol=1e-6)
            np.testing.assert_allclose(
                found["minus"].view(np.float32), (x - y).reshape(-1), rtol=1e-6
            )


def test_signatures_of_one_graph_are_resized_together() -> None:
    shape = (4, *SHAPE[1:])
    with CompiledModel.from_buffer(several()) as model:
        before = model.create_input_buffers(1), model.create_output_buffers(1)
        model.run_by_index(1, *before)
        for number in range(2):
            model.resize_input_tensor(number, shape, 0, strict=False)
        with pytest.raises(CompiledModelError, match="Create a new buffer"):
            model.run_by_index(1, *before)
        assert all(map(model._main.runs_directly, model._main.signatures))
        x = np.ones(shape, np.float32)
        assert [(array == 2).all() for array in results(model, 3 * x, x).values()] == [True, True]


def test_signatures_of_two_graphs_are_resized_alone() -> None:
    shape = (4, *SHAPE[1:])
    with CompiledModel.from_buffer(two_graphs()) as model:
        for number in range(2):
            model.resize_input_tensor(number, shape, 1, strict=False)
        assert [each.inputs[0].shape for each in model._main.signatures] == [SHAPE, shape]
        assert all(map(model._main.runs_directly, model._main.signatures))
        x = np.ones(shape, np.float32)
        assert (model(x[:1], x[:1]) == 2).all()
        inputs, outputs = model.create_input_buffers(1), model.create_output_buffers(1)
        inputs[0].write(x)
        model.run_by_index(1, inputs, outputs)
        assert (outputs[0].array == 1).all()


def test_an_output_whose_shape_a_run_tells() -> None:
    writer = ModelWriter()
    x = writer.input((4,), "bool")
    writer.output(writer.op("WHERE", [x], [(-1, 1)], dtype="int64"))
    with CompiledModel.from_buffer(writer.build()) as model:
        inputs, outputs = model.create_input_buffers(), model.create_output_buffers()
        inputs[0].array[:] = (True, False, True, False)
        with pytest.raises(CompiledModelError, match=r"has the shape \[2, 1\] now, and its buffer"):
            model.run_by_index(0, inputs, outputs)
        outputs = model.create_output_buffers()
        model.run_by_index(0, inputs, outputs)
        assert outputs[0].read().tolist() == [[0], [2]]


def test_what_the_cpu_refuses_when_it_runs() -> None:
    writer = ModelWriter()
    x, indices = writer.input((4,)), writer.input((2,), "int32", name="indices")
    writer.output(writer.op("GATHER", [x, indices], [(2,)]))
    content = writer.build()
    with CompiledModel.from_buffer(content, hardware_accel=1) as model:
        assert model(np.arange(4.0, dtype="f4"), np.array([3, 0], "i4")).tolist() == [3, 0]
        with pytest.raises(
            CompiledModelError, match=r"Failed to invoke the compiled model, .*gather"
        ):
            model(np.zeros(4, "f4"), np.array([9, 0], "i4"))


def test_strings_have_no_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    with CompiledModel.from_buffer(several(), hardware_accel=1) as model:
        tensor = model._main.signatures[0].inputs[0]
        texts = type(tensor)(
            tensor.key, tensor.name, tensor.index, np.dtype("S1"), tensor.shape, (4,)
        )
        monkeypatch.setattr(model._main.signatures[0], "inputs", [texts])
        with pytest.raises(CompiledModelError, match="'x' holds strings, for which there are no"):
            model.create_input_buffers(0)
