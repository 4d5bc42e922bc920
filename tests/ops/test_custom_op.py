"""Custom operations of users run on every backend; each mistake raises a typed error."""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from every_backend import needs_device
from litegpu import (
    CompilationError,
    CompiledModel,
    CompiledModelError,
    CustomNode,
    CustomOp,
    GpuDelegate,
    Launch,
    ModelError,
    OperationError,
    register_op,
)
from litegpu.cache.store import SUFFIX
from litegpu.ops import base
from litegpu.ops.common import plug_ins
from litegpu.runtime_abi.interpreter import interpreter
from litegpu.zoo.writer import ModelWriter
from places import ROOT

SHAPE = (2, 3, 5, 6)
SCALED = """
    const int s = GLOBAL_X;
    const int p = GLOBAL_Y;
    if (s >= {{ dst.channel_blocks }} || p >= {{ dst.rows }}) return;
    float4 value = {{ src.read(at_row("p", src.shape), "s") }} * SPLAT4({{ factor }});
{{ store("s", "value", row="p") }}
"""


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    list(base.all_facts())  # all of litegpu's are there: modules register theirs but once
    monkeypatch.setattr(base, "_REGISTRY", dict(base._REGISTRY))


@pytest.fixture
def example() -> Iterator[ModuleType]:
    path = ROOT / "examples" / "custom_op.py"
    spec = importlib.util.spec_from_file_location("custom_op_example", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def bad(*args: Any, **keywords: Any) -> Any:
    return lambda self, node: Launch(*args, **keywords)


def scaled(**changes: Any) -> type[CustomOp]:
    """Return a class of an operation that multiplies by a number, with other attributes."""
    attributes = {
        "name": "Scaled",
        "template": SCALED,
        "launch": lambda self, node: Launch({"factor": "2.0f"}),
    }
    return type("Scaled", (CustomOp,), {**attributes, **changes})


def model(name: str = "Scaled", inputs: int = 1, options: bytes = b"") -> bytes:
    writer = ModelWriter()
    x = writer.input(SHAPE, name="x")
    found = writer.custom(name, [x] * inputs, [SHAPE], custom_options=options)
    writer.output(*found)
    return writer.build()


def error_of(content: bytes, backend: str | None = None) -> BaseException:
    """Return why a delegate left a model to the CPU, which has no such operation either."""
    delegate = GpuDelegate(backend=backend)
    with pytest.raises(ModelError, match="unresolved custom op"):
        interpreter(content, delegate)
    assert delegate.error is not None
    return delegate.error


def reason_of(content: bytes) -> str:
    delegate = GpuDelegate()
    with pytest.raises(ModelError, match="unresolved custom op"):
        interpreter(content, delegate)
    assert delegate.report is not None
    return delegate.report.rejected[0].reason


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_the_example_runs_on_each_backend(
    backend: str, precision: Any, example: ModuleType
) -> None:
    x = np.random.default_rng(0).normal(size=(1, 5, 4, 12)).astype(np.float32)
    expected = -np.abs(x).reshape(1, 5, 4, 3, 4).swapaxes(3, 4).reshape(x.shape)
    with CompiledModel.from_buffer(example.model(), backend=backend, precision=precision) as found:
        assert found.is_fully_accelerated()
        np.testing.assert_allclose(found(x), expected, rtol=0 if precision == "fp32" else 1e-3)
        profile = found.profile(repeats=1, peaks=False)
        assert "ChannelShuffle" in [each.op for each in profile.by_op()]


def test_a_node_that_the_operation_rejects(example: ModuleType) -> None:
    content = example.model(groups=5)
    assert reason_of(content) == "5 groups do not divide 12 channels."
    text = "op: ChannelShuffle.* On the GPU: ChannelShuffle: 5 groups do not divide"
    with pytest.raises(CompiledModelError, match=text):
        CompiledModel.from_buffer(content)


def test_an_operation_that_nobody_registered() -> None:
    text = r"On the GPU: Scaled: Operation is not supported\. litegpu.register_op makes custom"
    with pytest.raises(CompiledModelError, match=text):
        CompiledModel.from_buffer(model())


def test_odd_channels_and_a_template_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "scaled.jinja"
    path.write_text(SCALED, encoding="utf-8")
    register_op(scaled(template=path))
    x = np.random.default_rng(1).normal(size=SHAPE).astype(np.float32)
    with CompiledModel.from_buffer(model()) as found:
        np.testing.assert_array_equal(found(x), 2 * x)


def test_several_inputs_shapes_and_constants() -> None:
    """A row of constants is read, options are numbers, and the result has another shape."""

    @register_op(replace=False)
    class Picked(CustomOp):
        name = "Picked"
        reads = ("src", "weights")
        template = """
    if (GLOBAL_X > 0 || GLOBAL_Y >= {{ dst.rows }}) return;
    float4 value = SPLAT4(0.0f);
    value.x = {{ src.read1(at_row("GLOBAL_Y", src.shape), first) }} * {{ weights.linear1(first) }};
{{ store("0", "value", row="GLOBAL_Y") }}
"""

        def infer(self, node: CustomNode) -> tuple[int, ...]:
            tensor = node.inputs[0]
            assert tensor is not None and tensor.dtype == "float32" and tensor.data is None
            return (*tensor.shape[:-1], 1)

        def launch(self, node: CustomNode) -> Launch:
            weights = node.inputs[1]
            assert weights is not None and weights.data is not None
            largest = int(np.argmax(weights.data))
            return Launch({"first": str(largest)}, grid=(1, 30, 1), flops=30)

    writer = ModelWriter()
    x = writer.input(SHAPE, name="x")
    weights = writer.constant(np.array([1, 2, 5, 0, 0, 3], np.float32))
    writer.output(*writer.custom("Picked", [x, weights], [(*SHAPE[:-1], 1)]))
    values = np.random.default_rng(2).normal(size=SHAPE).astype(np.float32)
    with CompiledModel.from_buffer(writer.build()) as found:
        np.testing.assert_allclose(found(values), values[..., 2:3] * 5, rtol=1e-6)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"name": "ADD"},
            "There is an operation 'ADD' already: the runtime has a built-in operation of this "
            "name. Use",
        ),
        ({"name": "TransformLandmarks"}, "already: it is litegpu's own. Use another name."),
        ({"name": "COPY"}, "already: it is litegpu's own. Use another name."),
        ({"name": ""}, "Scaled.name is ''. Use the operation's custom code in model files."),
        ({"template": None}, "Scaled.template is None. Use a path, or a text of several lines."),
        ({"template": "nowhere.jinja"}, "'Scaled' cannot be read: nowhere.jinja: No such file or"),
        (
            {"template": "\n{% for %}"},
            "'Scaled' cannot be read: line 2: .* use the syntax of Jinja2.",
        ),
        ({"reads": ()}, "Scaled.reads is \\(\\). Use a tuple of different names"),
        ({"reads": ("a", "a")}, "Use a tuple of different names, one for each input."),
        (
            {"reads": ("dst",)},
            "Scaled.reads has 'dst', which is not an identifier, or is a word of litegpu's",
        ),
    ],
)
def test_what_cannot_be_registered(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(OperationError, match=text):
        register_op(scaled(**changes))
    with pytest.raises(OperationError, match=r"is not a subclass of litegpu\.CustomOp\. Derive"):
        register_op(changes)  # type: ignore[call-overload]


def test_a_name_that_is_taken() -> None:
    first = register_op(scaled())
    register_op(first)  # a module that is imported twice
    other = scaled(template=SCALED.replace("SPLAT4(", "SPLAT4(2.0f * "))
    with pytest.raises(OperationError, match=r"was registered before\. .* replace=True\)"):
        register_op(other)
    x = np.ones(SHAPE, np.float32)
    with CompiledModel.from_buffer(model()) as found:
        assert found(x).max() == 2
        register_op(other, replace=True)
        with CompiledModel.from_buffer(model()) as again:
            assert again(x).max() == 4
        assert found(x).max() == 2


def raising(self: CustomOp, node: CustomNode) -> Any:
    raise KeyError("size")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"launch": lambda self, node: None}, r"Scaled.launch\(\) of 'Scaled' returned None. Re"),
        ({"launch": raising}, r"raising\(\) of 'Scaled' failed for node 0: KeyError: 'size'"),
        ({"launch": bad({"src": 1})}, "has variables with names of inputs"),
        ({"launch": bad({"a b": 1})}, "Launch.variables has 'a b', which"),
        ({"launch": bad([])}, "Launch.variables is a list. Use a dict of"),
        ({"launch": bad(grid=(1, 0, 1))}, r"Launch.grid is \(1, 0, 1\). Use"),
        ({"launch": bad(grid=3)}, "Launch.grid is 3. Use three whole"),
        ({"launch": bad(flops=0)}, "Launch.flops is 0. Use a whole number"),
        (
            {"launch": bad()},
            "custom/Scaled_.* cannot be rendered: UndefinedError: 'factor' is undefined. A t",
        ),
    ],
)
def test_bad_launches(changes: dict[str, Any], text: str) -> None:
    register_op(scaled(**changes))
    error = error_of(model())
    assert isinstance(error, OperationError)
    with pytest.raises(OperationError, match=text):
        raise error
    with pytest.raises(CompiledModelError, match=text):
        CompiledModel.from_buffer(model())


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"check": lambda self, node: None}, "check() of 'Scaled' returned None. Return a reason"),
        ({"infer": lambda self, node: 3}, "infer() of 'Scaled' returned 3. Return a shape: a tup"),
        ({"check": raising}, "raising() of 'Scaled' failed for node 0: KeyError: 'size'"),
        ({"check": lambda self, node: node.options["x"]}, "failed for node 0: ValueError: "),
        ({"reads": ("a", "b")}, "Expected 2 inputs, but node has 1 inputs."),
    ],
)
def test_bad_checks(changes: dict[str, Any], text: str) -> None:
    register_op(scaled(**changes))
    assert text in reason_of(model(options=b"12"))


def test_a_kernel_that_does_not_compile() -> None:
    register_op(scaled(template=SCALED.replace("GLOBAL_Y;", "nonsense;")))
    error = error_of(model())
    assert isinstance(error, CompilationError)
    assert "nonsense" in str(error)


@needs_device("webgpu")
def test_a_template_that_is_not_in_the_dialect(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a kernel that WGSL has no words for, the portable text is printed."""
    monkeypatch.setenv("LITEGPU_DEBUG", "2")
    caplog.set_level(logging.INFO, "litegpu")
    register_op(scaled(template=SCALED.replace("GLOBAL_Y;", "nonsense;")))
    error = error_of(model(), "webgpu")
    assert isinstance(error, CompilationError)
    assert "The name 'nonsense' is not defined" in str(error)
    assert any("const int p = nonsense;" in record.getMessage() for record in caplog.records)


def test_the_cache_knows_template_and_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept of one revision of an operation is not taken for another one."""
    x = np.ones(SHAPE, np.float32)

    def files(op: type[CustomOp], expected: float) -> int:
        register_op(op, replace=True)
        with CompiledModel.from_buffer(model(), cache=tmp_path) as found:
            assert found(x).max() == expected
        return len([*tmp_path.rglob(f"*{SUFFIX}")])

    first = files(scaled(), 2)
    assert files(scaled(), 2) == first
    second = files(scaled(template=SCALED.replace("SPLAT4(", "SPLAT4(2.0f * ")), 4)
    assert second == first + 1
    assert files(scaled(revision=1), 2) == second + 1
    # The class's own module counts, too.
    for number, factor in enumerate((3, 5), start=2):
        path = tmp_path.parent / f"{tmp_path.name}_scaled_{number}.py"
        path.write_text(
            "import litegpu\n"
            "class Scaled(litegpu.CustomOp):\n"
            f"    name, template = 'Scaled', {SCALED!r}\n"
            "    def launch(self, node):\n"
            f"        return litegpu.Launch({{'factor': '{factor}.0f'}})\n",
            encoding="utf-8",
        )
        spec = importlib.util.spec_from_file_location("scaled_module", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "scaled_module", module)
        spec.loader.exec_module(module)
        assert files(module.Scaled, factor) == second + number


def test_plug_ins(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = tmp_path / "a_plug_in.py"
    path.write_text(
        "import litegpu\n"
        "@litegpu.register_op\n"
        "class Scaled(litegpu.CustomOp):\n"
        f"    name, template = 'Scaled', {SCALED!r}\n"
        "    def launch(self, node):\n"
        "        return litegpu.Launch({'factor': '2.0f'})\n",
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    entries = [
        EntryPoint("broken", "a_module_that_is_not_there", plug_ins.PLUG_INS),
        EntryPoint("scaled", "a_plug_in", plug_ins.PLUG_INS),
    ]
    monkeypatch.setattr(plug_ins, "entry_points", lambda group: entries)
    # After the test neither the module nor what was imported is left.
    monkeypatch.setitem(sys.modules, "a_plug_in", None)
    del sys.modules["a_plug_in"]
    request.addfinalizer(plug_ins.import_plug_ins.cache_clear)
    plug_ins.import_plug_ins.cache_clear()
    with caplog.at_level(logging.WARNING), CompiledModel.from_buffer(model()) as found:
        assert found(np.ones(SHAPE, np.float32)).max() == 2
    assert "'broken' are missing, for a_module_that_is_not_there cannot be imported" in caplog.text
