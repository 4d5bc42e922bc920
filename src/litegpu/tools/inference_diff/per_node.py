"""Finds the first node whose results are wrong with a delegate, and possible remedies."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from litegpu import GpuDelegate, list_devices
from litegpu.errors import LitegpuError, ModelError
from litegpu.runtime_abi.interpreter import interpreter, invoke, set_inputs
from litegpu.tools.console import start_bar
from litegpu.tools.delegation import quietly
from litegpu.tools.inference_diff.differences import index_of
from litegpu.tools.inference_diff.parting import Parting, Search, Segment, relative_error
from litegpu.tools.inference_diff.tolerance import distances
from litegpu.tools.registrar import Applied, Delegates
from litegpu.zoo.cuts import CuttableModel

Array = NDArray[Any]

FP32 = "--precision=fp32"
_GPU, _CPU = "GPU", "CPU"
_ALL_NODES = {"first_delegate_node_index": 0, "last_delegate_node_index": 2**31 - 1}


@dataclass(frozen=True)
class TensorRange:
    """The range of a tensor's values on the CPU and, for a computed tensor, on the tested side.

    `role` is "input" (of all the nodes together), "constant", "between" or "result". `float16_step`
    is the distance between float16 numbers near the largest magnitude, or infinite beyond the range
    of float16. `difference` and `index` describe the largest error or, for a constant, the largest
    change from the reference model. None means that a field does not apply.
    """

    name: str
    role: str
    shape: tuple[int, ...]
    type: str
    low: float | None
    high: float | None
    float16_step: float | None
    test_low: float | None = None
    test_high: float | None = None
    difference: float | None = None
    index: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Trial:
    """A trial of a flag, with the largest relative error of the model's outputs.

    `failure` is the reason if the trial was not possible.
    """

    flag: str
    error: float
    helps: bool
    failure: str = ""


@dataclass(frozen=True)
class KernelRecord:
    """A kernel of the delegate, and the nodes that it computes."""

    name: str
    template: str
    nodes: tuple[int, ...]


@dataclass(frozen=True)
class Finding:
    """The first node at which the two sides differ, and the preceding nodes that are involved.

    `alone` means that the difference exists even if every node's result is a graph output. `error`
    is the largest difference of the node's results, relative to their largest magnitude.
    """

    node: int
    op: str
    place: str
    nodes: tuple[int, ...]
    ops: tuple[str, ...]
    alone: bool
    error: float
    tensors: tuple[TensorRange, ...]
    kernels: tuple[KernelRecord, ...]
    trials: tuple[Trial, ...]


class PerNode:
    """Compares the nodes of a model with delegates to the CPU's results for one input."""

    def __init__(
        self, model: bytes, reference: bytes, delegates: Delegates, inputs: list[Array]
    ) -> None:
        """Run the reference once on the CPU, and store the values of all its tensors.

        Raises:
            ModelError: the nodes of the reference differ from the model's.
            MissingDependencyError: a package for reading or writing models is not installed.
        """
        self._content = model
        self._delegates = delegates
        self._inputs = inputs
        self._model = CuttableModel(model)
        own = self._model if reference == model else CuttableModel(reference)
        self._values = self._as_numbered(own, _all_tensors(reference, inputs))
        self._constants = self._values
        if own is not self._model:
            self._constants = _all_tensors(model, inputs)

    def _as_numbered(self, other: CuttableModel, values: dict[int, Array]) -> dict[int, Array]:
        """Convert tensor values of another model to the tensor indices of this model."""
        sides = [
            (each.ops, *([len(some) for some in side] for side in _operands(each)))
            for each in (self._model, other)
        ]
        if sides[0] != sides[1]:
            raise ModelError(
                f"--reference: the reference has {len(other.ops)} nodes, which do not match the "
                f"{len(self._model.ops)} of the model one by one. Leave --per_node out, or give a "
                "reference that differs only in constants and options."
            )
        own, others = (itertools.chain(*_operands(each)) for each in (self._model, other))
        pairs = (zip(*lists, strict=True) for lists in zip(own, others, strict=True))
        return {a: values[b] for a, b in itertools.chain(*pairs) if b in values}

    def find(self, tolerance: float) -> Finding | None:
        """Return the first node whose error exceeds the tolerance; None if there is no such node.

        Args:
            tolerance: the allowed difference of elements, relative to the tensor's largest
                magnitude.
        """
        with quietly():
            whole = self._delegates.interpreter(self._content)
            search = Search(self._model, self._values, tolerance)
            found = search.first([*self._segments(), self._everything()])
            return None if found is None else self._describe(found, tolerance, whole)

    def errors(self) -> dict[int, float]:
        """Return the error of each node, relative to the largest magnitude of its results.

        Each partition gets the CPU's values as inputs, so that errors accumulate only within a
        partition. Nodes with unreadable results are omitted.
        """
        with quietly():
            delegated = self._delegates.interpreter(self._content)
            search = Search(self._model, self._values, 0.0)
            found: dict[int, float] = {}
            for segment in self._segments():
                found |= search.node_errors(segment)
            del delegated
        return found

    def _segments(self) -> Iterator[Segment]:
        """Yield the delegate's partitions and the groups of nodes between them, in order."""
        gpu = self._delegates.gpu
        report = gpu.report if gpu else None
        partition_of = (
            {n: part.nodes for part in report.partitions for n in part.nodes} if report else {}
        )
        others = [each for each in self._delegates.applied if not gpu or each.delegate is not gpu]
        rest = replace(self._delegates, applied=tuple(others))
        everything = range(len(self._model.ops))
        groups = itertools.groupby(everything, lambda node: partition_of.get(node, ()))
        seen: set[tuple[int, ...]] = set()
        for part, group in groups:
            if not part:
                yield Segment(tuple(group), _CPU, rest.interpreter)
            elif part not in seen:
                seen.add(part)
                yield Segment(part, _GPU, _changed(self._delegates, **_ALL_NODES).interpreter)

    def _everything(self) -> Segment:
        """Return the whole graph as one segment, for errors that no part of the graph shows."""
        return Segment(
            tuple(range(len(self._model.ops))),
            self._delegates.describe(),
            _changed(self._delegates).interpreter,
        )

    def _describe(self, found: Parting, tolerance: float, whole: Any) -> Finding:
        node = found.nodes[-1]
        errors = {t: relative_error(result, self._values[t]) for t, result in found.results.items()}
        own = [errors[t] for t in self._model.node_outputs[node] if t in errors]
        return Finding(
            node=node,
            op=self._model.ops[node],
            place=found.segment.place,
            nodes=found.nodes,
            ops=tuple(self._model.ops[n] for n in found.nodes),
            alone=found.exposed,
            error=max(own or errors.values(), default=0.0),
            tensors=tuple(self._ranges(found)),
            kernels=tuple(self._kernels(found.nodes, whole)),
            trials=tuple(self._trials(found, tolerance)),
        )

    def _ranges(self, found: Parting) -> Iterator[TensorRange]:
        model, values = self._model, self._values
        written = model.written_by(found.nodes)
        roles = dict.fromkeys(model.read_from_outside(found.nodes), "input")
        for tensor in itertools.chain(*(model.node_inputs[n] for n in found.nodes)):
            if tensor not in written:
                roles.setdefault(tensor, "constant")
        last = model.node_outputs[found.nodes[-1]]
        roles |= {tensor: "result" if tensor in last else "between" for tensor in written}
        for tensor, role in roles.items():
            if tensor not in values:
                continue
            other = found.results.get(tensor)
            if role == "constant" and self._constants is not values:
                other = self._constants[tensor]
            yield _range(model.name_of(tensor), role, values[tensor], other)

    def _kernels(self, nodes: tuple[int, ...], whole: Any) -> Iterator[KernelRecord]:
        """Yield the kernels that run the nodes in the whole model."""
        gpu = self._delegates.gpu
        if gpu is None or not (gpu.report and gpu.report.delegated_nodes):
            return
        profile = gpu.profile(whole, repeats=1, peaks=False)
        for each in itertools.chain(*(part.kernels for part in profile.partitions)):
            runs = tuple(n for n in (each.node, *each.merged) if n >= 0)
            if set(runs) & set(nodes):
                yield KernelRecord(each.name, each.template, runs)

    def _trials(self, found: Parting, tolerance: float) -> Iterator[Trial]:
        gpu = self._delegates.gpu
        if self._constants is not self._values:
            alone = Delegates((), 1, builtin_kernels=True)
            yield self._try("no delegate at all", alone, tolerance)
        if gpu is None or not set(found.nodes) & set(
            gpu.report.delegated_nodes if gpu.report else ()
        ):
            return
        for flag, changes in self._remedies(gpu, found.nodes):
            try:
                yield self._try(flag, _changed(self._delegates, **changes), tolerance)
            except LitegpuError as error:
                yield Trial(flag, float("inf"), False, str(error))

    def _remedies(
        self, gpu: GpuDelegate, nodes: tuple[int, ...]
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield additional flags that may help, and the options that these flags set."""
        given = gpu.options
        if gpu.precision == "fp16":
            yield FP32, {"precision": "fp32"}
        for backend in dict.fromkeys(device.backend for device in list_devices()):
            if backend != gpu.device.backend and given.device is None:
                yield f"--backend={backend}", {"backend": backend}
        if (last := nodes[0] - 1) >= given.first_delegate_node_index:
            yield f"--last_delegate_node_index={last}", {"last_delegate_node_index": last}
        end = min(given.last_delegate_node_index, len(self._model.ops) - 1)
        if (first := nodes[-1] + 1) <= end:
            yield f"--first_delegate_node_index={first}", {"first_delegate_node_index": first}

    def _try(self, flag: str, delegates: Delegates, tolerance: float) -> Trial:
        """Run the whole model with changed options."""
        target = delegates.interpreter(self._content)
        set_inputs(target, self._inputs)
        invoke(target)
        outputs = (detail["index"] for detail in target.get_output_details())
        error = max(
            (
                relative_error(target.get_tensor(t), self._values[t])
                for t in outputs
                if t in self._values
            ),
            default=0.0,
        )
        return Trial(flag, error, error <= tolerance)


def _changed(delegates: Delegates, **options: Any) -> Delegates:
    """Return copies of delegates, with a new GPU delegate that has other options."""
    gpu = delegates.gpu
    return replace(
        delegates,
        applied=tuple(
            Applied(
                each.name, GpuDelegate(replace(gpu.options, **options), on_progress=start_bar())
            )
            if gpu is not None and each.delegate is gpu
            else each
            for each in delegates.applied
        ),
    )


def _all_tensors(model: bytes, inputs: list[Array]) -> dict[int, Array]:
    """Return the results of the CPU's built-in kernels for each readable tensor."""
    target = interpreter(model, builtin_kernels=True, keep_tensors=True)
    set_inputs(target, inputs)
    invoke(target)
    found = {}
    for detail in target.get_tensor_details():
        try:
            found[detail["index"]] = np.asarray(target.get_tensor(detail["index"]))
        except ValueError:  # a tensor without memory, or one that has no numbers
            continue
    return {tensor: values for tensor, values in found.items() if values.dtype.kind in "biufc"}


def _operands(model: CuttableModel) -> tuple[list[list[int]], list[list[int]]]:
    """Return the input tensors and the output tensors of each node."""
    return model.node_inputs, model.node_outputs


def _range(name: str, role: str, values: Array, test: Array | None) -> TensorRange:
    low, high = _limits(values)
    step = None
    if values.dtype == np.float32 and low is not None and high is not None:
        with np.errstate(all="ignore"):
            largest = np.float32(max(abs(low), abs(high))).astype(np.float16)
            step = float(np.spacing(largest)) if np.isfinite(largest) else float("inf")
    found = TensorRange(name, role, values.shape, values.dtype.name, low, high, step)
    if test is None or not values.size:
        return found
    far = distances(test, values)
    position = index_of(int(far.argmax()), far.shape)
    test_low, test_high = _limits(test)
    return replace(
        found,
        test_low=test_low,
        test_high=test_high,
        difference=float(far[position]),
        index=position,
    )


def _limits(values: Array) -> tuple[float, float] | tuple[None, None]:
    """Return the minimum and maximum; NaN if any number is NaN."""
    if not values.size or values.dtype.kind == "c":
        return None, None
    return float(values.min()), float(values.max())
