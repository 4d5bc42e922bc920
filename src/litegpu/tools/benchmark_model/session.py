"""Prepares a model for benchmark_model: finds the model, applies delegates, sets inputs."""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from litegpu import DelegationReport, Profile
from litegpu.errors import LitegpuError, ModelError, OptionsError
from litegpu.runtime_abi.interpreter import interpreter, set_batch, set_inputs
from litegpu.runtime_abi.signature_target import SignatureTarget
from litegpu.tools.benchmark_model.inputs import Layer, input_values, resize_inputs
from litegpu.tools.benchmark_model.op_tables import Block, Row
from litegpu.tools.benchmark_model.plan import delegate_nodes, print_placement
from litegpu.tools.lines import error, info
from litegpu.tools.models import FoundModel, find_model
from litegpu.tools.registrar import Delegates, make_delegates
from litegpu.tools.signatures import check_signature, graph_report
from litegpu.tools.stats import Stats, figure

_DESCRIPTOR = "fd:"
_REPEATS = 20
"""Number of measurements of a profile."""


@dataclass(frozen=True)
class Session:
    """An interpreter that is ready to run, with its model, delegates and inputs."""

    model: FoundModel
    target: Any
    delegates: Delegates
    values: list[NDArray[Any]]
    init_us: int
    init: Block

    @property
    def interpreter(self) -> Any:
        """The interpreter; `target` is the interpreter or one of its signatures."""
        return getattr(self.target, "interpreter", self.target)

    @property
    def report(self) -> DelegationReport | None:
        """The report of the graph that runs; None without a GPU delegate."""
        gpu = self.delegates.gpu
        return graph_report(gpu.report, self.target) if gpu else None

    def profile(self, *, peaks: bool) -> Profile | None:
        """Return the profile of the graph that runs; None if the GPU runs none of its nodes."""
        gpu, report = self.delegates.gpu, self.report
        if gpu is None or report is None or not report.delegated_nodes:
            return None
        signature = getattr(self.target, "key", None)
        return gpu.profile(self.interpreter, signature=signature, repeats=_REPEATS, peaks=peaks)

    def set_inputs(self) -> None:
        """Set the inputs of the interpreter again."""
        set_inputs(self.target, self.values)


def find_graph(graph: str) -> FoundModel:
    """Return the model of --graph, which may be an inherited file descriptor (`fd:…`).

    Raises: ModelError, DownloadError: the model does not exist.
    """
    if graph.startswith(_DESCRIPTOR):
        return FoundModel(graph, _read_descriptor(graph), graph)
    return find_model(graph)


def load(args: argparse.Namespace) -> FoundModel:
    """Print and return the model of --graph.

    Raises:
        OptionsError: --graph is missing.

    Raises: ModelError, DownloadError: the model does not exist.
    """
    if not args.graph:
        raise OptionsError("Please specify the name of your TF Lite input file with --graph")
    try:
        model = find_graph(args.graph)
    except LitegpuError:
        error(f"Failed to load model {args.graph}")
        raise
    info(f"Loaded model {args.graph}")
    return model


def _read_descriptor(graph: str) -> bytes:
    """Read a part of an inherited file descriptor: `fd:DESCRIPTOR:OFFSET:SIZE`."""
    parts = graph.removeprefix(_DESCRIPTOR).split(":")
    if len(parts) != 3 or not all(part.isdecimal() for part in parts):
        raise ModelError(
            f"--graph={graph} is not fd:DESCRIPTOR:OFFSET:SIZE. Write three integers, such as "
            "fd:3:0:1882264."
        )
    descriptor, offset, size = map(int, parts)
    try:
        with open(descriptor, "rb", closefd=False) as opened:
            opened.seek(offset)
            content = opened.read(size)
    except (OSError, OverflowError) as failure:
        raise ModelError(
            f"--graph={graph}: file descriptor {descriptor} cannot be read there ({failure}). Open "
            "a file in the process that starts this one, and let it inherit the descriptor."
        ) from failure
    if len(content) != size:
        raise ModelError(
            f"--graph={graph}: there are {len(content)} bytes of {size} after {offset}. Give the "
            "offset and the size of the model in that file."
        )
    return content


def open_session(
    args: argparse.Namespace, model: FoundModel, layers: list[Layer], start: float
) -> Session:
    """Return the interpreter with its delegates and inputs; `start` is the tool's start time.

    Raises:
        LitegpuError: a flag does not fit the model, or the runtime or a delegate rejects it.
    """
    if args.signature_to_run_for:
        looking = time.perf_counter()
        known = interpreter(model.content, allocate=False)
        check_signature("signature_to_run_for", args.signature_to_run_for, known)
        info(f"Using signature: {args.signature_to_run_for}")
        start += time.perf_counter() - looking
    delegates = make_delegates(args, model.content)
    start += sum(each.trial_seconds for each in delegates.applied)
    if len(delegates.applied) > 1:
        info(f"Going to apply {len(delegates.applied)} delegates one after another.")
    applying = time.perf_counter()
    target = _apply(delegates, model, clustering=not args.disable_delegate_clustering)
    applied = time.perf_counter()
    if args.list_signatures:
        raise _signatures(target)
    nodes = delegate_nodes(target)
    if args.signature_to_run_for:
        target = SignatureTarget(target, args.signature_to_run_for)
    with explained("Failed to allocate tensors!"):
        resize_inputs(target, layers)
        if args.batch:
            set_batch(target, args.batch)
        target.allocate_tensors()
    allocated = time.perf_counter()
    print_placement(delegates, nodes, target, args.require_full_delegation)
    info(f"The input model file size (MB): {figure(len(model.content) / 1e6)}")
    values = input_values(target.get_input_details(), layers)
    init_us = int((time.perf_counter() - start) * 1e6)
    info(f"Initialized session in {figure(init_us / 1000)}ms.")
    rows = (
        Row("ModifyGraphWithDelegate", "ModifyGraphWithDelegate/0", (applied - applying) * 1e3),
        Row("AllocateTensors", "AllocateTensors/0", (allocated - applied) * 1e3),
    )
    return Session(model, target, delegates, values, init_us, Block(rows, Stats((init_us,))))


def _apply(delegates: Delegates, model: FoundModel, clustering: bool) -> Any:
    try:
        return delegates.interpreter(model.content, allocate=False, clustering=clustering)
    except LitegpuError as failure:
        if delegates.items and not isinstance(failure, ModelError):
            names = [each.name for each in delegates.applied if each.delegate is not None]
            error(f"Failed to apply {' or '.join(names)} delegate.")
        raise


def _signatures(target: Any) -> ModelError:
    """Print the signatures; return the exception that ends the tool."""
    keys = list(target.get_signature_list())
    info(f"The Model contains {len(keys)} signature key(s).")
    if keys:
        info("They are listed below: ")
    for key in keys:
        info(f"-> Signature Key: {key}")
    return ModelError(
        "--list_signatures only lists the signatures. Leave the flag out to run the model."
    )


@contextlib.contextmanager
def explained(what: str) -> Iterator[None]:
    """Convert the runtime's errors to ModelError."""
    try:
        yield
    except LitegpuError:
        raise
    except (RuntimeError, ValueError) as failure:
        raise ModelError(f"{what} {' '.join(str(failure).split())}") from failure
