"""Quick starts: first invokes run quickly compiled code, and later invokes optimized code."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cuda_emulator import needs_emulator
from fake_cuda import Status
from litegpu import (
    CompilationError,
    CompiledModel,
    GpuDelegate,
    InferencePreference,
    TensorBuffer,
    backends,
)
from litegpu.backends.cuda import device as cuda
from litegpu.backends.program import Program
from litegpu.cache.artifact import Artifact
from litegpu.cache.store import entries, read
from litegpu.host.private_files import Folder
from litegpu.runtime_abi import kernel_slots
from simulated_cuda import SimulatedDriver, put_in_place
from small_models import Array, chain, interpreter, run

MODEL = chain(["ABS", "NEG"])
X = np.linspace(-3, 3, 64, dtype=np.float32).reshape(1, 4, 4, 4)
EXPECTED = -np.abs(X)


class Compilers:
    """What compiles again: it waits until it may."""

    def __init__(self) -> None:
        self.may = threading.Event()
        self.refuses = False
        self.requests = 0
        self._recompile = cuda.CUDADevice.recompile

    def __call__(
        self, device: cuda.CUDADevice, program: Program, folder: Folder | None = None
    ) -> Mapping[str, bytes]:
        self.requests += 1
        assert self.may.wait(60)
        if self.refuses:
            raise CompilationError(
                "The kernel cannot be compiled, because no compiler process could be started."
            )
        return self._recompile(device, program, folder)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> SimulatedDriver:
    caplog.set_level(logging.INFO, "litegpu")
    monkeypatch.setattr(cuda, "can_compile_fast", lambda: True)
    return put_in_place(monkeypatch)


@pytest.fixture
def compilers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Compilers]:
    found = Compilers()
    monkeypatch.setattr(cuda.CUDADevice, "recompile", lambda *given: found(*given), raising=True)
    yield found
    found.may.set()
    while _started:
        _started.pop().close()
    for thread in threading.enumerate():
        if thread.name == "litegpu-improve":
            thread.join(60)


_started: list[GpuDelegate] = []


def started(**options: Any) -> tuple[Any, GpuDelegate]:
    delegate = GpuDelegate(backend="cuda", **{"quick_start": True, **options})
    _started.append(delegate)
    return interpreter(MODEL, delegate), delegate


def code(context: Any = None) -> set[str]:
    """Return which cubins a context's graphs run, of the last partition without one."""
    kernel: Any = kernel_slots.kernels()[-1]
    context = context or kernel.compiled.context
    graphs = [*context._captured]
    return {node[1][0] for graph in graphs for node in (*graph.copies_in, *graph.kernels)}


def in_range(outputs: list[Array]) -> bool:
    return all(np.array_equal(each, EXPECTED) for each in outputs)


@needs_emulator
def test_the_first_invokes_run_what_was_compiled_in_a_hurry(
    driver: SimulatedDriver, compilers: Compilers, caplog: pytest.LogCaptureFixture
) -> None:
    target, delegate = started()
    assert in_range(run(target, X)) and code() == {"0"}
    assert not delegate.wait_for_best_code(0.01)
    compilers.may.set()
    assert delegate.wait_for_best_code() and code() == {"0"}, "an invoke changes it"
    assert "Optimized kernels are used from the next run on" in caplog.text
    assert in_range(run(target, X)) and code() == {"1"}
    before = len(driver.calls)
    assert in_range(run(target, X))
    assert "cuGraphInstantiate" not in driver.calls[before:], "once"
    delegate.close()
    assert not driver.faults


@needs_emulator
def test_graphs_on_buffers_and_all_contexts_have_the_better_code(
    driver: SimulatedDriver, compilers: Compilers
) -> None:
    with CompiledModel.from_buffer(MODEL, backend="cuda", quick_start=True, contexts=2) as model:
        ends = [
            (model.create_input_buffers(memory="device"), model.create_output_buffers())
            for _ in range(2)
        ]
        for round_number in range(3):
            for inputs, outputs in ends:
                inputs[0].write(X)
                outputs[0].write(np.full(X.shape, np.nan, np.float32))
            futures = [model.submit_by_index(0, *each) for each in ends]
            for future in futures:
                future.result()
            assert all(in_range([outputs[0].read()]) for _, outputs in ends)
            if not round_number:
                compilers.may.set()
                assert model.wait_for_best_code()
        kernel: Any = kernel_slots.kernels()[-1]
        contexts = [*kernel.compiled.executable._contexts]
        assert len(contexts) == 2 and all(code(each) == {"1"} for each in contexts)


@needs_emulator
def test_a_bound_buffer_stays_bound(driver: SimulatedDriver, compilers: Compilers) -> None:
    target, delegate = started()
    memory = backends.BACKENDS["cuda"].open(0).allocate(X.nbytes)
    buffer = TensorBuffer(memory, np.float32, X.shape)
    index = target.get_input_details()[0]["index"]
    delegate.bind_buffer(target, index, buffer)
    buffer.write(X)
    target.invoke()
    compilers.may.set()
    assert delegate.wait_for_best_code()
    buffer.write(X + 1)
    target.invoke()
    found = target.get_tensor(target.get_output_details()[0]["index"])
    assert np.array_equal(found, -np.abs(X + 1)) and code() == {"1"}


@needs_emulator
@pytest.mark.parametrize("failing", ["cuModuleLoadData", "cuGraphInstantiate"])
def test_what_the_driver_refuses_leaves_all_as_it_was(
    failing: str, driver: SimulatedDriver, compilers: Compilers, caplog: pytest.LogCaptureFixture
) -> None:
    target, delegate = started()
    driver.before = lambda name: Status.CUDA_ERROR_INVALID_IMAGE if name == failing else None
    compilers.may.set()
    assert delegate.wait_for_best_code() == (failing == "cuGraphInstantiate")
    assert in_range(run(target, X)) and code() == {"0"}
    assert "keeping the quickly compiled kernels" in caplog.text
    assert in_range(run(target, X)) and not driver.faults


@needs_emulator
def test_without_compilers_the_first_code_stays(
    driver: SimulatedDriver, compilers: Compilers, caplog: pytest.LogCaptureFixture
) -> None:
    compilers.refuses = True
    compilers.may.set()
    target, delegate = started()
    assert not delegate.wait_for_best_code()
    assert in_range(run(target, X)) and code() == {"0"}
    assert (
        "quickly compiled kernels: The kernel cannot be compiled, because no compiler process "
        "could be started." in caplog.text
    )


def is_fast_compiled(folder: Path) -> list[bool]:
    found = [read(entry.path) for entry in entries(folder)]
    return [Artifact.read(each).fast_compiled for each in found if each is not None]


@needs_emulator
@pytest.mark.parametrize("closed", [False, True])
def test_what_is_kept_becomes_better(
    closed: bool, driver: SimulatedDriver, compilers: Compilers, tmp_path: Path
) -> None:
    folder: dict[str, Any] = {"serialization_dir": tmp_path, "cache": True, "quick_start": None}
    target, delegate = started(**folder)
    waiting: Any = kernel_slots.kernels()[-1].compiled.executable  # type: ignore[attr-defined]
    assert is_fast_compiled(tmp_path) == [True], "it is kept at once, and marked"
    if closed:
        delegate.close()
    compilers.may.set()
    assert cuda_wait(waiting) == (not closed)
    assert is_fast_compiled(tmp_path) == [False]
    delegate.close()
    target, delegate = started(**folder)
    assert delegate.wait_for_best_code(0) and compilers.requests == 1
    assert in_range(run(target, X)) and code() == {"1"}


def cuda_wait(executable: Any) -> bool:
    from litegpu.cache.improving import wait_for

    return wait_for(executable, 60)


@needs_emulator
def test_a_start_in_the_meantime(
    driver: SimulatedDriver, compilers: Compilers, tmp_path: Path
) -> None:
    folder: dict[str, Any] = {"serialization_dir": tmp_path, "cache": True, "quick_start": None}
    _, first = started(**folder)
    first.close()
    target, delegate = started(**folder)  # of a process that ended too early
    assert in_range(run(target, X)) and code() == {"0"} and is_fast_compiled(tmp_path) == [True]
    delegate.close()
    target, delegate = started(**{**folder, "quick_start": False})
    assert in_range(run(target, X)) and code() == {"1"} and is_fast_compiled(tmp_path) == [False]
    assert delegate.wait_for_best_code(0)
    compilers.may.set()


@needs_emulator
def test_a_partition_like_one_that_runs_waits_unless_it_may_be_quick(
    driver: SimulatedDriver, compilers: Compilers
) -> None:
    target, _ = started()
    other, _ = started()
    assert in_range(run(other, X)) and code() == {"0"}, "they share"
    threading.Timer(0.2, compilers.may.set).start()
    third, delegate = started(quick_start=False)
    assert compilers.may.is_set() and delegate.wait_for_best_code(0)
    for each in (target, other, third):
        assert in_range(run(each, X))
    assert compilers.requests == 1 and code() == {"1"}


@needs_emulator
def test_profiles_are_of_the_best_code(driver: SimulatedDriver, compilers: Compilers) -> None:
    threading.Timer(0.2, compilers.may.set).start()
    _, delegate = started()
    delegate.profile(repeats=1, peaks=False)
    assert compilers.may.is_set() and code() == {"1"}


@needs_emulator
@pytest.mark.parametrize(
    ("options", "quick"),
    [
        ({"cache": False}, False),
        ({"cache": True}, True),
        ({"cache": True, "quick_start": False}, False),
        ({"cache": True, "inference_preference": InferencePreference.SUSTAINED_SPEED}, False),
        ({"quick_start": True}, True),
    ],
)
def test_where_starts_are_quick(
    options: dict[str, Any],
    quick: bool,
    driver: SimulatedDriver,
    compilers: Compilers,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LITEGPU_CACHE", "0")
    _, delegate = started(**{"quick_start": None, "serialization_dir": tmp_path, **options})
    assert delegate.wait_for_best_code(0.01) != quick


@needs_emulator
def test_who_asks_for_it_where_there_is_none_is_told(
    driver: SimulatedDriver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cuda, "can_compile_fast", lambda: False)
    GpuDelegate(backend="cuda", quick_start=True)
    assert "quick_start has no effect: cuda:0 Test GPU has no fast compiler." in caplog.text
