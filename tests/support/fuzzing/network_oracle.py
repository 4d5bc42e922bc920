"""Runs random networks on a device and compares them with the CPU's built-in kernels."""

from __future__ import annotations

import functools
import logging
import os
import pickle
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from cases.base import Array
from comparing import relative_error
from fuzzing import storing
from fuzzing.drawing import draw, size_of
from fuzzing.network import Builder, Network, UnfitError, Written, rebuilt
from fuzzing.nudging import nudged_model
from fuzzing.oracle import Finding, Tally
from fuzzing.rounding import HALF_ULP, TRIES
from fuzzing.shrinking import shrunk
from fuzzing.worker import ULP, Result, Task, Worker
from litegpu.errors import LitegpuError
from litegpu.ops.exact.resize import fixed_point
from litegpu.ops.quantized_resize import ONE
from litegpu.options import InferencePriority
from litegpu.runtime_abi import interpreter as runtime
from litegpu.zoo import objects, schema

SECONDS = 300.0
WAYS = ("float", "half", "dynamic", "int8", "uint8")
KINDS = tuple(f"{size}-{way}" for size in ("small", "large") for way in WAYS)
"""Sizes of networks and ways to store them, which are the names of their seeds."""
_EXACT, _FLOAT, _HALF, _STEPS = 0.0, 3e-5, 2e-2, 0.1
"""Greatest relative errors: of integers, at fp32, at fp16, and of integers computed as floats."""
_AS_USERS = 16
"""Of so many networks one is compiled by several processes."""
_PEAK = 30.0
"""A single element may differ by so much more, relative to the largest one."""
_MEANT = ("is a software device", "float16 overflow in")
"""Warnings of a CPU that plays a device, and of values that stay float32 at fp16."""
_STEP = 2.0**-8
"""The relative size of one of the steps that stand for a value's range."""
_FACTOR = 8.0
"""How far beyond what rounding did to the CPU's result in a few tries a result may lie."""


@dataclass(frozen=True)
class Mode:
    """A way to run a network, with the greatest relative error."""

    name: str
    limit: float
    options: Mapping[str, Any]

    @property
    def half(self) -> bool:
        """Whether values are stored as half."""
        return bool(self.options["precision"] == "fp16")


def modes(network: Network) -> Iterator[Mode]:
    """Yield the ways in which a network runs."""
    way = network.kind.partition("-")[2]
    if way in ("int8", "uint8"):
        yield Mode("exact", _EXACT, {"precision": "fp32"})
        precision = ("fp32", "fp16")[network.seed % 2]
        options = {"precision": precision, "quantized": "float"}
        yield Mode(f"as floats, {precision}", _STEPS, options)
        return
    yield Mode("fp32", _FLOAT, {"precision": "fp32"})
    smallest = {"inference_priority1": InferencePriority.MIN_MEMORY_USAGE}
    if network.seed % 3 == 0:
        yield Mode("fp16", _HALF, {"precision": "fp16"})
    else:
        yield Mode("fp16, smallest", _HALF, {"precision": "fp16", **smallest})


def rebuild(network: Network) -> Builder:
    """Build a network that was changed."""
    return rebuilt(network, size_of(network.kind, network.seed).elements)


def stored(builder: Builder) -> Written:
    """Return a network as a file, in the way of its kind."""
    network, written = builder.network, builder.written()
    random = np.random.default_rng([network.seed, 1])
    way = network.kind.partition("-")[2]
    content, inputs = written.content, written.inputs
    if way == "half":
        content = storing.halves(content)
    elif way == "dynamic":
        content = storing.dynamic(content, random)
    elif way != "float":
        content, inputs = storing.quantized(content, inputs, way, random)
    return replace(written, content=content, inputs=inputs)


class Here:
    """Takes the place of a worker: tools such as compute-sanitizer watch a single process."""

    def run(self, task: Task, _seconds: float) -> Result:
        """Run a network."""
        return checked(task)

    def close(self) -> None:
        """End nothing."""


class NetworkOracle:
    """Draws and runs networks in a process that may crash, and shrinks those that go wrong."""

    def __init__(
        self, _kinds: Mapping[str, Any], options: Mapping[str, Any], *, here: bool = False
    ) -> None:
        """Run with some options of the delegate; with `here` in this process, and say what runs."""
        self._options = dict(options)
        self._worker: Worker | Here = Here() if here else Worker(work=checked)
        self.tally = Tally()

    def close(self) -> None:
        """End the process."""
        self._worker.close()

    def try_one(self, name: str, number: int) -> Finding | None:
        """Run a network and note what comes of it."""
        result = self._run(pickle.dumps((name, number)))
        outcome, problem = _outcome(result)
        if outcome == "wrong":
            # In a fresh process: one that went wrong before may have spoilt it.
            self._worker.close()
            again, problem_again = _outcome(self._run(pickle.dumps((name, number))))
            problem = problem_again if again == "wrong" else f"once, in a used process: {problem}"
            self._worker.close()
        self.tally.outcomes[f"{name}: {outcome}"] += 1
        if outcome != "wrong":
            return None
        finding = Finding(f"{name}:{number}", draw(name, number).lines(), problem)
        self.tally.findings.append(finding)
        return finding

    def goes_wrong(self, network: Network) -> bool:
        """Whether a network, in a fresh process if the last one died, goes wrong."""
        found = _outcome(self._run(pickle.dumps(network)))[0] == "wrong"
        if found:
            self._worker.close()
        return found

    def shrink(self, finding: Finding, seconds: float) -> Builder:
        """Return the smallest network that goes wrong as that of a finding does."""
        name, _, number = finding.seed.rpartition(":")
        return self.shrunk(draw(name, int(number)).network, seconds)

    def shrunk(self, network: Network, seconds: float) -> Builder:
        """Return the smallest network that goes wrong and is found in so long."""
        return rebuild(shrunk(network, self.goes_wrong, seconds))

    def save(self, finding: Finding, folder: Path) -> Path:
        """Write the model of a finding to a folder."""
        name, _, number = finding.seed.rpartition(":")
        builder = draw(name, int(number))
        return save(builder, folder / f"{finding.seed.replace(':', '_')}.tflite")

    def _run(self, content: bytes) -> Result:
        task = Task(content, 0, options=self._options)
        result = self._worker.run(task, SECONDS)
        if result.status in ("crashed", "hung"):
            alone = self._worker.run(replace(task, options=None), SECONDS)
            if alone.status in ("crashed", "hung"):
                return Result("refused", text=f"CPU {alone.status}")
        return result


def save(builder: Builder, path: Path) -> Path:
    """Write a network to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(stored(builder).content)
    return path


def _outcome(result: Result) -> tuple[str, str]:
    if result.status in ("crashed", "hung"):
        return "wrong", f"the process {result.status}: {result.text}"
    if result.fault:
        return "wrong", result.fault
    return result.text, ""


def checked(task: Task) -> Result:
    """Run a network in this process, in all its ways; without options on the CPU alone."""
    requested = pickle.loads(task.content)
    try:
        builder = rebuild(requested) if isinstance(requested, Network) else draw(*requested)
        network = builder.network
        written = stored(builder)
        interpreter = runtime.interpreter(written.content, builtin_kernels=True)
        exact = _invoke(interpreter, written.inputs)
        if not _is_finite(written):
            return Result("refused", text="left out: infinities or NaN on the way")
        if _reads_beyond(written):
            return Result("refused", text="left out: the CPU reads pixels beyond an image")
    except (UnfitError, LitegpuError, RuntimeError, ValueError) as error:
        return Result("refused", text=f"refused by the CPU: {str(error)[-200:]}")
    if task.options is None:
        return Result("ran", text="CPU alone")
    outcome = "the same"
    # Jobs side by side leave no cores for processes that compile; some networks do as users' do.
    os.environ["LITEGPU_COMPILE_PROCESSES"] = "0" if network.seed % _AS_USERS else "1"
    simulated = functools.cache(lambda: _simulated(written))
    for mode in modes(network):
        against, expected = simulated() if mode.limit == _STEPS else (written, exact)
        got, fault, part = _on_device(written, {**task.options, **mode.options})
        if fault:
            return Result("ran", fault=f"{mode.name}: {fault}")
        problem = _difference(written, expected, got, mode)
        if problem and _is_undecided(against, expected, got, mode):
            outcome, problem = "the same but for the CPU's own rounding", ""
        if problem:
            return Result("ran", fault=f"{mode.name}: {problem}{part and f' ({part})'}")
        if part:
            outcome = f"the same, in part on the CPU ({part})"
    return Result("ran", text=outcome)


def _simulated(written: Written) -> tuple[Written, tuple[Array, ...]]:
    """Return a quantized network that computes with floats, and its results on the CPU."""
    changed = replace(written, content=storing.simulated(written.content))
    interpreter = runtime.interpreter(changed.content, builtin_kernels=True)
    return changed, _invoke(interpreter, written.inputs)


def _is_finite(written: Written) -> bool:
    """Whether all numbers on the way are; what integers an infinity becomes is nobody's promise.

    The built-in kernels write the largest float for the infinity of a DIV.
    """
    way = storing.all_tensors(written.content, written.inputs).values()
    largest = np.finfo(np.float32).max
    return all(np.all(np.abs(each) < largest) for each in way if each.dtype == np.float32)


def _reads_beyond(written: Written) -> bool:
    """Whether the CPU resizes an int8 image by steps that are rounded up so far as to leave it."""
    model = storing.Storing(written.content)
    tensors = model.graph.tensors
    for operator in model.graph.operators:
        source, result = tensors[operator.inputs[0]], tensors[operator.outputs[0]]
        if model.name(operator) == "RESIZE_BILINEAR" and source.type == model.types["INT8"]:
            options = operator.builtinOptions
            for size, out in zip(source.shape[1:3], result.shape[1:3], strict=True):
                last = fixed_point(size, out, options.alignCorners, options.halfPixelCenters)[-1]
                if last >= ONE * size:
                    return True
    return False


class _Warnings(logging.Handler):
    """Keeps what litegpu warns of."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line, unless it tells of what is meant to be so."""
        line = record.getMessage()
        if not any(each in line for each in _MEANT):
            self.lines.append(line)


def _on_device(written: Written, options: Mapping[str, Any]) -> tuple[tuple[Array, ...], str, str]:
    """Return the outputs, what went wrong beside them, and what stayed on the CPU."""
    from litegpu import GpuDelegate

    log, warnings = logging.getLogger("litegpu"), _Warnings()
    level, propagate = log.level, log.propagate
    log.addHandler(warnings)
    log.setLevel(logging.WARNING)
    log.propagate = False
    delegate = GpuDelegate(min_nodes_per_partition=1, max_delegated_partitions=50, **options)
    outputs: tuple[Array, ...] = ()
    problem = ""
    try:
        interpreter = runtime.interpreter(written.content, delegate, builtin_kernels=True)
        outputs = _invoke(interpreter, written.inputs)
        again = _invoke(interpreter, written.inputs) if not _has_states(written) else outputs
        for number, (first, second) in enumerate(zip(outputs, again, strict=True)):
            if first.tobytes() != second.tobytes():
                problem = f"output {number} changes from run to run"
    except (LitegpuError, RuntimeError, ValueError) as error:
        problem = f"{type(error).__name__}: {error}"
    finally:
        log.removeHandler(warnings)
        log.setLevel(level)
        log.propagate = propagate
    if delegate.error is not None:
        problem = _placed(delegate.error)
    report = delegate.report
    part = ""
    if report is None or not report.partitions:
        reasons = [] if report is None else [f"{n.op}: {n.reason}" for n in report.rejected]
        problem = problem or f"nothing is delegated: {reasons}"
    elif report.rejected:
        part = "; ".join(sorted({f"{node.op}: {node.reason}" for node in report.rejected}))
    if warnings.lines and not problem and not part:
        problem = f"warned: {warnings.lines[0]}"
    return outputs, problem, part


def _placed(error: BaseException) -> str:
    """Return an error with the place in litegpu that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "nowhere"
    return f"{error!r} at {place}"


def _invoke(interpreter: Any, inputs: Sequence[Array]) -> tuple[Array, ...]:
    from model_runner import invoke

    return invoke(interpreter, inputs)


def _has_states(written: Written) -> bool:
    return any(each.isVariable for each in objects.parse(written.content).subgraphs[0].tensors)


def _difference(
    written: Written, expected: Sequence[Array], got: Sequence[Array], mode: Mode
) -> str:
    """Return how results differ from the CPU's beyond a mode's limit, or an empty text."""
    return next(iter(_differences(written, expected, got, mode).values()), "")


def _differences(
    written: Written, expected: Sequence[Array], got: Sequence[Array], mode: Mode
) -> dict[int, str]:
    """Return how outputs differ from the CPU's, of those that do beyond a mode's limit."""
    zero_points, pure = _zero_points(written), _are_pure(written)
    found = {
        number: _difference_of(wanted, given, zero_points[number], pure[number], mode)
        for number, (wanted, given) in enumerate(zip(expected, got, strict=True))
    }
    return {number: f"output {number}{text}" for number, text in found.items() if text}


def _difference_of(
    wanted: Array, found: Array, zero_point: float | None, pure: bool, mode: Mode
) -> str:
    """Return how a result differs from the CPU's beyond a mode's limit, or an empty text."""
    if wanted.shape != found.shape or wanted.dtype != found.dtype:
        return f": {found.dtype}{found.shape} instead of {wanted.dtype}{wanted.shape}"
    if np.array_equal(wanted, found, equal_nan=wanted.dtype.kind == "f"):
        return ""
    floats = wanted.dtype.kind == "f"
    if floats and np.any(np.isfinite(wanted) & ~np.isfinite(found)):
        return ": not finite where the CPU is"
    limit = mode.limit
    if wanted.dtype == np.bool_ and limit == _STEPS:
        return ""  # it is decided by values that the CPU alone rounds to steps
    if not floats and zero_point is None:
        limit = 0.0 if mode.limit < _HALF else 0.05
    elif limit == _EXACT and (floats or not pure):
        limit = _HALF
    zero = zero_point or 0.0
    a, b = (np.nan_to_num(each.astype(np.float64)) - zero for each in (wanted, found))
    error, peak = relative_error(a, b), float(np.max(np.abs(a - b)))
    largest = float(np.max(np.abs(a))) or 1.0
    if error <= limit and not (floats and peak > _PEAK * limit * largest):
        return ""
    at = tuple(map(int, np.unravel_index(int(np.argmax(np.abs(a - b))), a.shape)))
    return (
        f" {wanted.shape}: error {error:.3g} above {limit:g}; {found[at]} "
        f"instead of {wanted[at]} at {at}; {int(np.sum(a != b))} of {a.size} differ"
    )


def _is_undecided(
    written: Written, expected: Sequence[Array], got: Sequence[Array], mode: Mode
) -> bool:
    """Whether rounding moves the CPU's own results about as far, of those beyond the limit."""
    if [each.shape for each in expected] != [each.shape for each in got]:
        return False
    pairs = zip(expected, got, _are_pure(written), strict=True)
    if mode.limit == _EXACT and any(pure and not np.array_equal(a, b) for a, b, pure in pairs):
        return False
    ulp = _STEP if mode.limit == _STEPS else HALF_ULP if mode.half else ULP
    nearby = []
    for number in range(1, TRIES + 1):
        random = np.random.default_rng([number])
        size = ulp * (4 if number > TRIES // 2 else 1)
        content = nudged_model(written.content, random, size)
        inputs = [
            np.asarray(each * (1 + size * random.integers(-1, 2, each.shape)), each.dtype)
            if each.dtype.kind == "f"
            else each
            for each in written.inputs
        ]
        interpreter = runtime.interpreter(content, builtin_kernels=True)
        nearby.append(_invoke(interpreter, inputs))
    if mode.half:
        # Values that are equal once they are rounded are not when they are changed at random.
        interpreter = runtime.interpreter(storing.rounded(written.content), builtin_kernels=True)
        halves = _invoke(interpreter, [*map(_as_half, written.inputs)])
        # Where halves overflow, devices store float32.
        if all(np.isfinite(each).all() for each in halves if each.dtype.kind == "f"):
            nearby.append(halves)
    for index in _differences(written, expected, got, mode):
        wanted, found = expected[index], got[index]
        for norm in (np.linalg.norm, np.max):
            away = [_away(each[index], wanted, norm) for each in nearby]
            if _away(found, wanted, norm) > _FACTOR * max(away):
                return False
    return True


def _as_half(values: Array) -> Array:
    return values.astype(np.float16).astype(np.float32) if values.dtype == np.float32 else values


def _away(first: Array, second: Array, norm: Any) -> float:
    """Return the norm of a difference: infinite where a result is not finite."""
    if first.shape != second.shape or not first.size:
        return 0.0
    difference = np.abs(first.astype(np.float64) - second.astype(np.float64))
    return float(norm(np.nan_to_num(difference, nan=np.inf, posinf=np.inf).ravel()))


def _zero_points(written: Written) -> list[float | None]:
    """Return the zero point of each output, None for one that is not quantized."""
    graph = objects.parse(written.content).subgraphs[0]
    found: list[float | None] = []
    for index in graph.outputs:
        quantization = graph.tensors[index].quantization
        has_scale = quantization is not None and quantization.scale is not None
        found.append(float(quantization.zeroPoint[0]) if has_scale else None)
    return found


def _are_pure(written: Written) -> list[bool]:
    """Return of each output whether no operation that it follows from computes with floats."""
    graph = objects.parse(written.content).subgraphs[0]
    float32 = schema.members("TensorType")["FLOAT32"]
    mixed = set[int]()
    for operator in graph.operators:
        results = {int(index) for index in operator.outputs}
        floats = any(graph.tensors[index].type == float32 for index in results)
        if floats or not mixed.isdisjoint(map(int, operator.inputs)):
            mixed |= results
    return [int(index) not in mixed for index in graph.outputs]
