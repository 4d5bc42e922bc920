"""Errors inside a callback reach the user as text, and no exception reaches the runtime."""

from __future__ import annotations

import ctypes
import gc
import logging
import subprocess
import sys
import threading
import weakref
from typing import Any, NoReturn

import numpy as np
import pytest

from litegpu import (
    DeviceMemoryError,
    ExecutionError,
    GpuDelegate,
    InterpreterError,
    ModelError,
)
from litegpu.delegation.partition_kernel import PartitionKernel
from litegpu.runtime_abi import (
    bridge,
    kernel_slots,
    structs,
)
from litegpu.runtime_abi.reader import read_graph
from small_models import (
    CPU_ONLY,
    assert_close,
    chain,
    fully_convolutional,
    interpreter,
    random,
    reference,
    run,
    shifted,
)

FAULTS: list[Exception] = [
    ExecutionError("the device is on fire"),
    MemoryError("no memory left"),
    ValueError("100 % wrong: %s %n"),
    RuntimeError("\udcff not text"),
]
NAMES = [type(fault).__name__ for fault in FAULTS]


def raiser(fault: BaseException) -> Any:
    def raise_it(*_args: Any, **_kwargs: Any) -> NoReturn:
        raise fault

    return raise_it


def said(fault: BaseException) -> str:
    """What a user must find of a fault in messages: its text, or its type if it has none."""
    return str(fault).replace("\udcff", "") or type(fault).__name__


@pytest.mark.parametrize("fault", FAULTS, ids=NAMES)
def test_a_fault_while_the_delegate_is_applied(
    fault: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model, x = chain(["ABS", "NEG"]), random(1, 4, 4, 4)
    delegate = GpuDelegate()
    monkeypatch.setattr(GpuDelegate, "_apply", raiser(fault))
    assert_close(run(interpreter(model, delegate), x), reference(model, x))
    assert delegate.error is fault
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert any("The model runs on the CPU" in w and said(fault) in w for w in warnings)


@pytest.mark.parametrize("fault", FAULTS, ids=NAMES)
@pytest.mark.parametrize("moment", ["prepare", "invoke"])
def test_a_fault_while_a_partition_is_prepared_or_run(
    fault: Exception, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = fully_convolutional(), random(1, 9, 7, 3)
    delegate = GpuDelegate()
    target = interpreter(model, delegate)
    before = run(target, x)
    with monkeypatch.context() as broken:
        kernel = kernel_slots.kernels()[-1]
        broken.setattr(kernel, {"prepare": "_compile", "invoke": "_run"}[moment], raiser(fault))
        if moment == "prepare":
            target.resize_tensor_input(0, [2, 9, 7, 3])
        with pytest.raises(RuntimeError, match="TfLiteGpuDelegate") as caught:
            target.allocate_tensors() if moment == "prepare" else target.invoke()
    assert said(fault) in str(caught.value)
    assert delegate.error is fault
    target.resize_tensor_input(0, x.shape)
    target.allocate_tensors()
    np.testing.assert_array_equal(run(target, x)[0], before[0])
    assert delegate.error is None, "the error is over"


def test_who_looks_at_its_caller_is_no_signal_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of wgpu-py's, which does so where it tells one, is litegpu's business."""

    def raise_it(*_args: Any) -> NoReturn:
        caller = sys._getframe(1)
        raise ExecutionError(f"{caller.f_lineno} is on fire")

    delegate = GpuDelegate()
    target = interpreter(fully_convolutional(), delegate)
    target.invoke()
    monkeypatch.setattr(kernel_slots.kernels()[-1], "_run", raise_it)
    with pytest.raises(RuntimeError, match=r"TfLiteGpuDelegate Invoke: .* is on fire"):
        target.invoke()
    assert isinstance(delegate.error, ExecutionError)


def test_a_fault_in_the_first_prepare(monkeypatch: pytest.MonkeyPatch) -> None:
    delegate = GpuDelegate()
    fault = DeviceMemoryError("none left; use less")
    monkeypatch.setattr(PartitionKernel, "prepare", raiser(fault))
    with pytest.raises(RuntimeError, match="TfLiteGpuDelegate Prepare: none left; use less"):
        interpreter(chain(["ABS"]), delegate)
    assert delegate.error is fault


@pytest.mark.parametrize("fault", FAULTS, ids=NAMES)
def test_a_fault_while_a_partition_is_handed_over(
    fault: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    delegate = GpuDelegate()
    monkeypatch.setattr(GpuDelegate, "_take_kernel", raiser(fault))
    with pytest.raises(RuntimeError, match="TfLiteGpuDelegate Prepare: ") as caught:
        interpreter(chain(["ABS"]), delegate)
    assert said(fault) in str(caught.value)
    assert delegate.error is fault


def test_a_fault_while_a_partition_is_released(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    target = interpreter(chain(["ABS"]), GpuDelegate())
    with monkeypatch.context() as broken:
        broken.setattr(PartitionKernel, "close", raiser(ValueError("stuck")))
        del target
    assert "A partition could not be released cleanly: stuck" in caplog.text


def test_a_broken_log_handler_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Handlers run inside the callbacks; an error of theirs must not cross into C either."""
    log = logging.getLogger("litegpu")
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", raiser(ValueError("no paper")))
    monkeypatch.setattr(GpuDelegate, "_apply", raiser(ExecutionError("no device")))
    model, x = chain(["ABS"]), random(1, 4, 4, 4)
    delegate = GpuDelegate()
    log.addHandler(handler)
    try:
        assert_close(run(interpreter(model, delegate), x), reference(model, x))
    finally:
        log.removeHandler(handler)


def test_a_size_that_is_impossible_is_an_error_and_the_next_one_works() -> None:
    model = shifted()
    delegate = GpuDelegate()
    target = interpreter(model, delegate)
    target.resize_tensor_input(0, [2, 3])
    with pytest.raises(RuntimeError, match=r"Node 0 cannot run with the input shapes"):
        target.allocate_tensors()
    assert isinstance(delegate.error, ModelError)
    assert "Use other shapes, or the interpreter without the delegate." in str(delegate.error)
    target.resize_tensor_input(0, [3, 4])
    target.allocate_tensors()
    assert_close(run(target, random(3, 4)), reference(model, random(3, 4)))


def test_a_delegate_applied_in_two_threads_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Partitions that wait to be handed over belong to their interpreter, not to the last one."""
    models = {n: chain(["ABS"] * n + ["NEG"], (1, 2, 2, n)) for n in (1, 2)}
    delegate = GpuDelegate()
    meeting = threading.Barrier(2)
    original = GpuDelegate._apply

    def apply_together(self: GpuDelegate, *args: Any) -> list[list[int]]:
        nodes = original(self, *args)
        meeting.wait(timeout=30)
        return nodes

    monkeypatch.setattr(GpuDelegate, "_apply", apply_together)
    results: dict[int, Any] = {}

    def work(n: int) -> None:
        try:
            results[n] = run(interpreter(models[n], delegate), random(1, 2, 2, n))
        except BaseException as error:
            results[n] = error

    threads = [threading.Thread(target=work, args=(n,)) for n in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    for n, model in models.items():
        assert isinstance(results[n], list), results[n]
        assert_close(results[n], reference(model, random(1, 2, 2, n)))


def test_kernels_that_the_runtime_does_not_take_are_released(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed = []
    monkeypatch.setattr(GpuDelegate, "_take_kernel", raiser(ValueError("not today")))
    monkeypatch.setattr(PartitionKernel, "close", lambda self: closed.append(self))
    with pytest.raises(RuntimeError, match="not today"):
        interpreter(chain(["ABS", CPU_ONLY, "ABS"]), GpuDelegate(max_delegated_partitions=2))
    assert len(closed) == 2


def test_a_remembered_error_holds_on_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Big:
        pass

    watch = []

    def fail(*_args: Any) -> NoReturn:
        big = Big()
        watch.append(weakref.ref(big))
        try:
            raise OSError("too big")
        except OSError as error:
            raise DeviceMemoryError("no room; use less") from error

    monkeypatch.setattr(GpuDelegate, "_compile", fail)
    delegate = GpuDelegate()
    interpreter(chain(["ABS"]), delegate)
    assert isinstance(delegate.error, DeviceMemoryError)
    gc.collect()
    assert watch[0]() is None


def refuse(*_args: Any) -> int:
    return 7


def some_context(**functions: Any) -> structs.TfLiteContext:
    context = structs.TfLiteContext()
    for name, function in functions.items():
        setattr(context, name, function)
    return context


def test_a_runtime_that_refuses_everything() -> None:
    context = some_context(
        GetExecutionPlan=structs.GET_EXECUTION_PLAN(refuse),
        ResizeTensor=structs.RESIZE_TENSOR(refuse),
        PreviewDelegatePartitioning=structs.PREVIEW_DELEGATE_PARTITIONING(refuse),
    )
    address = ctypes.addressof(context)
    with pytest.raises(InterpreterError, match=r"Unable to get graph execution plan \(status 7\)"):
        read_graph(address)
    with pytest.raises(InterpreterError, match=r"cannot resize tensor 3 to \[1, 2\]"):
        bridge.resize_tensor(address, 3, (1, 2))

    class Curious:
        """Asks for a preview and passes on what it hears."""

        error: BaseException | None = None

        def _apply(self, _context: int, preview: Any) -> list[list[int]]:
            preview([0])
            return []

        def _take_kernel(self, _context: int, _subset: Any) -> NoReturn:
            raise AssertionError

        def _release_untaken(self, _context: int) -> None: ...

        def _fail(self, error: BaseException) -> None:
            self.error = error

        def _prepared(self, _kernel: Any, _error: BaseException | None) -> NoReturn:
            raise AssertionError

    curious = Curious()
    native = bridge.NativeDelegate(curious)
    struct = structs.TfLiteDelegate.from_address(native.address)
    assert struct.Prepare(address, native.address) == 0
    assert isinstance(curious.error, InterpreterError)
    assert "Unable to preview delegate partition (status 7)" in str(curious.error)
    curious.error = None  # its traceback refers to what failed
    del curious
    with pytest.raises(
        InterpreterError, match="The delegate was deleted, but an interpreter still"
    ):
        _ = native.applicant


def test_a_runtime_that_hides_its_nodes() -> None:
    plan = structs.make_int_array([5])

    def one_node(_context: int, out: Any) -> int:
        out[0] = ctypes.addressof(plan)
        return 0

    context = some_context(
        GetExecutionPlan=structs.GET_EXECUTION_PLAN(one_node),
        GetNodeAndRegistration=structs.GET_NODE_AND_REGISTRATION(refuse),
    )
    with pytest.raises(InterpreterError, match=r"node and registration info for op: 5 \(status 7"):
        read_graph(ctypes.addressof(context))


CORRUPT = """
import sys
import numpy as np
from litegpu import GpuDelegate
from small_models import RUNTIME, chain, convolution, fully_convolutional
from litegpu.zoo.writer import ModelWriter

def attempt(model, delegates):
    try:
        target = RUNTIME.Interpreter(model_content=model, experimental_delegates=delegates)
        target.allocate_tensors()
        details = target.get_input_details()
        if sum(int(np.prod(d["shape"])) for d in details) > 1 << 20:
            return
        for d in details:
            target.set_tensor(d["index"], np.zeros(d["shape"], d["dtype"]))
        target.invoke()
    except (RuntimeError, ValueError):
        pass

kind, delegated = sys.argv[1], sys.argv[2] == "delegate"
good = fully_convolutional((1, 6, 6, 3))
random = np.random.default_rng(7)
delegates = [GpuDelegate()] if delegated else None
for number in map(int, sys.argv[3].split(",")):
    random = np.random.default_rng(number)
    data = bytearray(good)
    if kind == "truncated":
        data = data[: int(random.integers(8, len(data)))]
    elif kind == "flipped":
        for _ in range(int(random.integers(1, 6))):
            data[int(random.integers(8, len(data)))] ^= 1 << int(random.integers(8))
    elif kind == "offsets":
        at = int(random.integers(2, len(data) // 4)) * 4
        data[at : at + 4] = int(random.integers(1 << 31)).to_bytes(4, "little")
    else:
        data = bytearray(data[:8] + random.bytes(500))
    print(number, flush=True)
    attempt(bytes(data), delegates)
print("done")
"""


def attempt_corrupt(kind: str, delegated: bool, numbers: range) -> set[int]:
    """Return the numbers of the damaged models that kill a process."""
    killers: set[int] = set()
    left = list(numbers)
    while left:
        mode = "delegate" if delegated else "cpu"
        result = subprocess.run(
            [sys.executable, "-c", CORRUPT, kind, mode, ",".join(map(str, left))],
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        lines = result.stdout.split()
        if result.returncode == 0 and lines and lines[-1] == "done":
            return killers
        assert result.returncode < 0 and lines, result.stderr  # a signal, not a Python error
        killers.add(int(lines[-1]))
        left = left[left.index(int(lines[-1])) + 1 :]
    return killers


@pytest.mark.parametrize("kind", ["truncated", "flipped", "offsets", "random"])
def test_damaged_models_kill_nothing_that_survives_without_the_delegate(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runtime itself may fall over a damaged file; the delegate may not make it worse."""
    monkeypatch.setenv("PYTHONPATH", ":".join(path for path in sys.path if path))
    numbers = range(60)
    with_delegate = attempt_corrupt(kind, True, numbers)
    if with_delegate:
        assert with_delegate <= attempt_corrupt(kind, False, numbers)
