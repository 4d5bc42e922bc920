"""A kernel that a device rejects is replaced; all other kernels remain."""

from __future__ import annotations

import dataclasses
import gc
import html
import io
import logging
import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from fake_cuda import Status
from litegpu import GpuDelegate, backends
from litegpu.backends.base import DeviceInfo
from litegpu.backends.cuda import driver as cuda_driver
from litegpu.backends.failures import Failures
from litegpu.backends.program import Program
from litegpu.codegen import KernelText, render
from litegpu.engine import compiled, lethal, lowering, partition
from litegpu.engine.fallback import _templates, reject
from litegpu.engine.lethal import lethal_kernel
from litegpu.errors import DeviceLostError, KernelError
from litegpu.kernels.base import Plan, Rejected
from litegpu.kernels.portable.conv import ConvPortable
from litegpu.kernels.selector import IMPLEMENTATIONS
from litegpu.ops.common.conv_spec import ConvSpec
from litegpu.zoo.writer import ModelWriter
from simulated_cuda import SimulatedDriver
from small_models import assert_close, convolution, interpreter, random, reference, run

on_opencl = pytest.mark.parametrize("backend", ["opencl"], indirect=True)
on_cuda = pytest.mark.parametrize("backend", ["cuda"], indirect=True)
Broken = Callable[[KernelText], KernelText]


class ConvBroken(ConvPortable):
    """The portable convolution, of which no device takes the kernel."""

    name = "conv_broken"
    general = False

    def plan(self, spec: ConvSpec, target: Any) -> Plan | Rejected:
        plan = super().plan(spec, target)
        return plan if isinstance(plan, Rejected) else _Renamed(plan)


class _Renamed(Plan):
    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def lower(self, node: Any, ctx: Any) -> Any:
        return dataclasses.replace(self._plan.lower(node, ctx), template=ConvBroken.name)


def no_kernel(kernel: KernelText) -> KernelText:
    return dataclasses.replace(kernel, body="    this is no kernel;\n")


def too_much_memory(kernel: KernelText) -> KernelText:
    """Ask for 64 MiB that a work group shares."""
    return dataclasses.replace(kernel, shared=(*kernel.shared, ("float4", "huge", 1 << 22)))


class Breaking:
    """Breaks the kernels of a template as they are rendered, and counts them."""

    def __init__(self, template: str, broken: Broken = no_kernel) -> None:
        self.template, self.broken = template, broken
        self.rendered = 0

    def __call__(self, template: str, *arguments: Any) -> KernelText:
        known = "conv_2d" if template == ConvBroken.name else template
        kernel = render(known, *arguments)
        if template != self.template:
            return kernel
        self.rendered += 1
        return dataclasses.replace(self.broken(kernel), name=f"broken_{kernel.name}")


@pytest.fixture
def failures(backend: str) -> Iterator[Failures]:
    """What has failed on the device of a backend: nothing, before the test and after it."""
    device = backends.BACKENDS[backend].open(0)
    with mock.patch.dict(device.__dict__, failures=Failures()):
        yield device.failures


@pytest.fixture
def breaking(monkeypatch: pytest.MonkeyPatch, failures: Failures) -> Callable[..., Breaking]:
    """Returns a function that breaks a template for the rest of the test."""

    def begin(template: str, broken: Broken = no_kernel) -> Breaking:
        result = Breaking(template, broken)
        monkeypatch.setattr(lowering, "render", result)
        if template == ConvBroken.name:
            ways = (ConvBroken(), *IMPLEMENTATIONS[ConvSpec])
            monkeypatch.setitem(IMPLEMENTATIONS, ConvSpec, ways)
        return result

    return begin


def convolutions(size: int, seed: int = 0, *, softmax: bool = True) -> bytes:
    """Return a model of a convolution, and of an operation that one kernel alone computes."""
    writer = ModelWriter()
    x = convolution(writer, writer.input((1, size, size, 4)), 4, seed=seed)
    if softmax:
        x = writer.op("SOFTMAX", [x], [x.shape], options={"beta": 1.0})
    writer.output(x)
    return writer.build()


def lines_of(delegate: GpuDelegate) -> list[str]:
    assert delegate.report is not None
    return [line for part in delegate.report.partitions for line in part.replaced]


@pytest.mark.parametrize("broken", [no_kernel, too_much_memory])
def test_a_broken_kernel_is_replaced_and_nothing_else(
    backend: str,
    broken: Broken,
    breaking: Callable[..., Breaking],
    caplog: pytest.LogCaptureFixture,
) -> None:
    broke = breaking(ConvBroken.name, broken)
    model, x = convolutions(6, softmax=False), random(1, 6, 6, 4)
    with caplog.at_level(logging.WARNING, "litegpu"):
        delegate = GpuDelegate(backend=backend)
        assert_close(run(interpreter(model, delegate), x), reference(model, x))
        assert delegate.error is None
        assert delegate.report is not None and delegate.report.whole_graph
        (line,) = lines_of(delegate)
        assert line.startswith("conv_2d in place of conv_broken (node 0): ")
        assert line in str(delegate.report)
        assert html.escape(line) in delegate.report._repr_html_()
        assert delegate.report.to_dict()["partitions"][0]["replaced"] == (line,)
        found = [each.message for each in caplog.records if "kernel failed" in each.message]
        assert len(found) == 1 and line in found[0], caplog.text
        # Another model of the same shapes does not try again, and its report has the reason, too.
        assert broke.rendered == 1
        model, delegate = convolutions(6, seed=1, softmax=False), GpuDelegate(backend=backend)
        assert_close(run(interpreter(model, delegate), x), reference(model, x))
        assert broke.rendered == 1
        assert lines_of(delegate) == [line]
    assert len([each for each in caplog.records if "kernel failed" in each.message]) == 1


@on_opencl
def test_an_implementation_that_keeps_failing_is_left_alone(
    backend: str, breaking: Callable[..., Breaking]
) -> None:
    broke = breaking(ConvBroken.name)
    for size in (5, 6, 7, 8, 9):
        delegate = GpuDelegate(backend=backend)
        target = interpreter(convolutions(size), delegate)
        x = random(1, size, size, 4)
        assert_close(run(target, x), reference(convolutions(size), x))
        assert len(lines_of(delegate)) == 1
    assert broke.rendered == 3


@on_opencl
def test_all_that_fail_are_replaced_at_once(
    backend: str, breaking: Callable[..., Breaking], monkeypatch: pytest.MonkeyPatch
) -> None:
    broke, attempts = breaking(ConvBroken.name), mock.Mock(wraps=reject)
    monkeypatch.setattr(partition, "reject", attempts)
    writer = ModelWriter()
    given = y = writer.input((1, 16, 16, 4))
    for seed in range(3):
        y = convolution(writer, y, 4, stride=2, seed=seed)
    writer.output(y)
    delegate, x = GpuDelegate(backend=backend), random(*given.shape)
    assert_close(run(interpreter(writer.build(), delegate), x), reference(writer.build(), x))
    assert (broke.rendered, attempts.call_count) == (3, 1)
    (line,) = lines_of(delegate)
    assert line.startswith("conv_2d in place of conv_broken (nodes 0, 1, 2): ")


def attention() -> bytes:
    """Return a model of one head, which is one kernel where the device takes it."""
    writer = ModelWriter()
    query, keys, values = (writer.input((1, 1, count, 8)) for count in (5, 7, 7))
    turned = {"adj_x": False, "adj_y": True}
    scores = writer.op("BATCH_MATMUL", [query, keys], [(1, 1, 5, 7)], options=turned)
    shares = writer.op("SOFTMAX", [scores], [scores.shape], options={"beta": 1.0})
    plain = {"adj_x": False, "adj_y": False}
    writer.output(writer.op("BATCH_MATMUL", [shares, values], [(1, 1, 5, 8)], options=plain))
    return writer.build()


@on_opencl
def test_what_was_fused_is_left_apart(backend: str, breaking: Callable[..., Breaking]) -> None:
    broke = breaking("attention")
    delegate, inputs = GpuDelegate(backend=backend), [random(1, 1, n, 8) for n in (5, 7, 7)]
    assert_close(run(interpreter(attention(), delegate), *inputs), reference(attention(), *inputs))
    assert delegate.report is not None and delegate.report.whole_graph, delegate.error
    assert broke.rendered == 1
    (line,) = lines_of(delegate)
    assert line.startswith("kernels for each operation in place of attention (nodes 0, 1, 2): ")


@on_opencl
def test_what_only_one_kernel_computes_goes_to_the_cpu(
    backend: str, breaking: Callable[..., Breaking]
) -> None:
    breaking("softmax")
    delegate, x = GpuDelegate(backend=backend), random(1, 6, 6, 4)
    assert_close(run(interpreter(convolutions(6), delegate), x), reference(convolutions(6), x))
    assert isinstance(delegate.error, KernelError)
    assert [name.startswith("broken_") for name in delegate.error.reasons] == [True]
    assert delegate.report is not None and delegate.report.partitions == ()
    assert "broken_softmax" in delegate.report.notes[0]


@on_opencl
def test_the_last_implementation_that_fails_is_told(
    backend: str, breaking: Callable[..., Breaking]
) -> None:
    """Nothing computes a convolution any more: the error is the compiler's."""
    breaking("conv_2d")
    ways = [each for each in IMPLEMENTATIONS[ConvSpec] if each.name == "conv_2d"]
    delegate, x = GpuDelegate(backend=backend), random(1, 6, 6, 4)
    with mock.patch.dict(IMPLEMENTATIONS, {ConvSpec: tuple(ways)}):
        target = interpreter(convolutions(6), delegate)
    assert_close(run(target, x), reference(convolutions(6), x))
    assert isinstance(delegate.error, KernelError)
    assert delegate.report is not None and delegate.report.partitions == ()


@on_opencl
def test_what_was_replaced_is_kept_with_the_reason(
    backend: str,
    breaking: Callable[..., Breaking],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    failures: Failures,
) -> None:
    broke = breaking(ConvBroken.name)
    model, x = convolutions(6), random(1, 6, 6, 4)

    def lines() -> list[str]:
        delegate = GpuDelegate(backend=backend, serialization_dir=str(tmp_path), cache=True)
        assert_close(run(interpreter(model, delegate), x), reference(model, x))
        return lines_of(delegate)

    first = lines()
    assert broke.rendered == len(first) == 1
    # As in another process.
    vars(failures).update(vars(Failures()))
    caplog.clear()
    gc.collect()
    assert lines() == first
    assert broke.rendered == 1, "it is loaded"
    assert first[0] in caplog.text


# Kernels that a device is lost with


class Deadly:
    """Lets the simulated driver's context die of broken kernels, as after a wild write."""

    def __init__(self) -> None:
        driver: SimulatedDriver = cuda_driver.driver()
        self.armed = False
        self.contexts = set[int]()
        """Those that are dead."""
        self.opens = True
        """Whether further contexts may be made."""
        self._driver, self._launch = driver, driver._own["cuGraphLaunch"]
        driver._own["cuGraphLaunch"] = self._launch_graph
        driver.before = self._before

    def _launch_graph(self, graph: int, stream: int) -> tuple[Status]:
        names = [name for _, (_, name), _ in self._driver._nodes[graph]]
        if self.armed and any(name.startswith("broken_") for name in names):
            self.contexts.add(self._driver.contexts[-1])
            return (Status.CUDA_ERROR_ILLEGAL_ADDRESS,)
        found: tuple[Status] = self._launch(graph, stream)
        return found

    def _before(self, name: str) -> Status | None:
        known = self._driver.contexts
        fails = known and known[-1] in self.contexts and name != "cuGetErrorString"
        closed = not self.opens and name in ("cuCtxCreate", "cuDevicePrimaryCtxReset")
        return Status.CUDA_ERROR_ILLEGAL_ADDRESS if fails or closed else None


@on_cuda
@pytest.mark.parametrize("late", [True, False], ids=["in an invoke", "in the first run"])
def test_a_kernel_that_kills_its_device_is_not_used_again(
    late: bool,
    backend: str,
    breaking: Callable[..., Breaking],
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    broke, deadly = breaking(ConvBroken.name, lambda kernel: kernel), Deadly()
    model, x = convolutions(6, softmax=False), random(1, 6, 6, 4)
    expected = reference(model, x)

    def delegate() -> GpuDelegate:
        return GpuDelegate(backend="cuda", serialization_dir=str(tmp_path), cache=True)

    deadly.armed = not late
    first = delegate()
    targets = [interpreter(model, first) for _ in range(1 + late)]
    assert len(deadly.contexts) == (not late)
    if late:
        assert_close(run(targets[0], x), expected)
        assert lines_of(first) == []
    deadly.armed = True
    for target in (*targets, *targets):
        assert_close(run(target, x), expected)
    assert (first.error, len(deadly.contexts)) == (None, 1)
    (line,) = lines_of(first)
    assert line.startswith(
        "conv_2d in place of conv_broken (node 0): it may have caused the loss of "
    )
    assert "CUDA_ERROR_ILLEGAL_ADDRESS (700)" in line and "Make" not in line
    assert "is lost: " in caplog.text and "Continuing with cuda:0 Test GPU" in caplog.text
    rendered = broke.rendered
    again = delegate()
    assert_close(run(interpreter(model, again), x), expected)
    assert lines_of(again) == [line]
    assert (broke.rendered, len(deadly.contexts)) == (rendered, 1)


class ConvSound(ConvBroken):
    """The same for images of an even size, with a kernel that works."""

    name = "conv_sound"

    def plan(self, spec: ConvSpec, target: Any) -> Plan | Rejected:
        plan = ConvPortable.plan(self, spec, target)
        return Rejected("its image is odd") if spec.dst.shape[1] % 2 else plan


@on_cuda
def test_only_the_kernel_that_kills_its_device_is_replaced(
    backend: str,
    breaking: Callable[..., Breaking],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    breaking(ConvBroken.name, lambda kernel: kernel)
    ways = (ConvSound(), *IMPLEMENTATIONS[ConvSpec])
    monkeypatch.setitem(IMPLEMENTATIONS, ConvSpec, ways)
    monkeypatch.setattr(ConvSound, "templates", ("conv_2d",))
    tried = list[Sequence[str]]()

    def lethal(program: Program, info: DeviceInfo, kernels: Sequence[str]) -> str:
        tried.append(kernels)
        return next(name for name in kernels if name.startswith("broken_"))

    monkeypatch.setattr(compiled, "lethal_kernel", lethal)
    writer = ModelWriter()
    x = convolution(writer, writer.input((1, 6, 6, 4)), 4)
    writer.output(convolution(writer, x, 4, stride=2))
    model, given = writer.build(), random(1, 6, 6, 4)
    deadly, delegate = Deadly(), GpuDelegate(backend="cuda")
    target = interpreter(model, delegate)
    deadly.armed = True
    for _ in range(2):
        assert_close(run(target, given), reference(model, given))
    (names,) = tried
    assert len(names) == 2
    (line,) = lines_of(delegate)
    assert line.startswith("conv_2d in place of conv_broken (node 1): it causes the loss of the ")
    assert line in caplog.text


@on_opencl
@pytest.mark.parametrize("status", ["killed", "alive"])
def test_the_kernel_that_kills_is_found_in_another_process(backend: str, status: str) -> None:
    delegate = GpuDelegate(backend=backend)
    target = interpreter(convolutions(6), delegate)
    (kernel,) = delegate._living()
    program = kernel.compiled.program
    names = tuple(each.name for each in program.kernels)
    assert len(names) == 2
    if status == "killed":
        wild = dataclasses.replace(program.kernels[1], body="*(volatile __global int *)8 = 1;\n")
        program = dataclasses.replace(program, kernels=(program.kernels[0], wild))
    found = lethal_kernel(program, delegate.device, names)
    assert found == (names[1] if status == "killed" else "")
    del target


def test_each_kernel_runs_alone(
    backend: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    delegate = GpuDelegate(backend=backend)
    target = interpreter(convolutions(6), delegate)
    (kernel,) = delegate._living()
    program, info = kernel.compiled.program, delegate.device
    parts = [lethal._alone(program, each.name) for each in program.kernels]
    given = io.BytesIO(pickle.dumps((info.backend, info.index, parts)))
    monkeypatch.setattr(sys, "stdin", mock.Mock(buffer=given))
    assert lethal.main([]) == 0
    assert capsys.readouterr().out.split() == ["0", "finished", "1", "finished"]
    del target


def test_without_a_python_to_start_no_kernel_is_known_to_kill(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    assert lethal_kernel(mock.Mock(), mock.Mock(), ["some"]) == ""


@on_cuda
def test_where_no_context_can_be_had_invokes_fail_until_one_can(
    backend: str, breaking: Callable[..., Breaking]
) -> None:
    breaking(ConvBroken.name, lambda kernel: kernel)
    deadly = Deadly()
    model, x = convolutions(6, softmax=False), random(1, 6, 6, 4)
    delegate = GpuDelegate(backend="cuda")
    target = interpreter(model, delegate)
    deadly.armed, deadly.opens = True, False
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"reopened in this process: .* Start a new process"):
            run(target, x)
        assert isinstance(delegate.error, DeviceLostError)
    deadly.opens = True
    assert_close(run(target, x), reference(model, x))
    assert delegate.error is None


def test_a_general_implementation_is_left_out_for_what_it_failed_at_alone() -> None:
    failures = Failures()
    for problem in range(3):
        failures.reject("conv_2d", problem, f"no {problem}")
    assert failures.reason("conv_2d", 3, general=False) == "no 2"
    assert failures.reason("conv_2d", 3, general=True) == ""
    assert failures.reason("conv_2d", 1, general=True) == "no 1"


def test_a_kernel_of_an_op_that_nothing_was_selected_for_is_not_replaced() -> None:
    assert list(_templates(ConvSpec, "")) == []
