"""Reports which nodes each requested delegate runs, in the wording of TensorFlow Lite's tool."""

from __future__ import annotations

from typing import Any

from litegpu.errors import ModelError
from litegpu.tools.benchmark_model.graph_state import covered_by
from litegpu.tools.lines import info
from litegpu.tools.registrar import Delegates


def delegate_nodes(target: Any) -> int:
    """Return the number of delegate kernels in the graph."""
    return sum(each["op_name"] == "DELEGATE" for each in target._get_ops_details())


def print_placement(delegates: Delegates, nodes: int, target: Any, must_be_whole: bool) -> None:
    """Print a line for each requested delegate.

    `nodes` is the number of delegate kernels of explicit delegates. Allocating tensors adds the
    delegate kernels of XNNPACK.
    """
    report = delegates.gpu.report if delegates.gpu else None
    on_gpu = len(report.partitions) if report else 0
    kernels = {"GPU": on_gpu, "XNNPACK": delegate_nodes(target) - nodes}
    whole = {"GPU": bool(report and report.whole_graph)}
    for each in delegates.applied:
        count = kernels.get(each.name, nodes - on_gpu)
        full = whole.get(each.name, count == 1 and _covers_all(target))
        info(_applied_line(each.name, count, full))
        if must_be_whole and not full:
            raise ModelError("Disallowed CPU fallback detected.")
    if must_be_whole and not delegates.applied:
        raise ModelError("Disallowed CPU fallback detected.")


def _applied_line(name: str, kernels: int, full: bool) -> str:
    if not kernels:
        return (
            f"Though {name} delegate is explicitly applied, the model graph will not be executed "
            "by the delegate."
        )
    how = "completely" if full else "partially"
    rest = "" if full else f" w/ {kernels} delegate kernels"
    return (
        f"Explicitly applied {name} delegate, and the model graph will be {how} executed by the "
        f"delegate{rest}."
    )


def _covers_all(target: Any) -> bool:
    """Return whether the only delegate node replaces all nodes of the model."""
    ops = target._get_ops_details()
    kernels = [each for each in ops if each["op_name"] == "DELEGATE"]
    if len(kernels) != 1:
        return False
    return len(covered_by(kernels[0], ops)) == len(ops) - 1
