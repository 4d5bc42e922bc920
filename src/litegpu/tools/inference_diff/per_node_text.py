"""Prints the first wrong node as a paragraph and three tables."""

from __future__ import annotations

import math

import numpy as np

from litegpu.tools.console import print_table, print_text
from litegpu.tools.inference_diff.per_node import FP32, Finding, TensorRange
from litegpu.wording import shown_nodes, shown_ops

_MAX_ROWS = 20


def print_finding(found: Finding | None, tolerance: float) -> None:
    """Print the first wrong node, its tensors and kernels, and possible remedies."""
    print()
    if found is None:
        print_text(
            "An output exceeds the tolerance, but each part of the graph is within it if its "
            "inputs are the CPU's values: small errors accumulate. A smaller --tolerance finds "
            "the nodes with the largest errors."
        )
        return
    print_text(verdict(found, tolerance))
    shown = found.tensors[-_MAX_ROWS:]
    print_table(
        (
            *("tensor", "role", "?shape", "?type", ">min", ">max"),
            *("?>float16 step", ">tested min", ">tested max", ">max error", "at"),
        ),
        [_tensor_row(each) for each in shown],
    )
    if len(shown) < len(found.tensors):
        print(f"({len(found.tensors) - len(shown)} more: see --json)")
    if found.kernels:
        print_table(
            ("kernel", "template", "nodes"),
            [(each.name, each.template, shown_nodes(each.nodes)) for each in found.kernels],
        )
    if found.trials:
        print_table(
            ("what to try", ">error of the outputs", "helps"),
            [
                (each.flag, _number(each.error), each.failure or ("yes" if each.helps else "no"))
                for each in found.trials
            ],
        )


def verdict(found: Finding, tolerance: float) -> str:
    """Return a text about which node is wrong, and how."""
    where = f"on the {found.place}" if found.place in ("GPU", "CPU") else f"with {found.place}"
    first = (
        f"The first node that differs from the CPU is node {found.node}, {found.op}, {where}: its "
        f"result is off by {found.error:.3g} of its largest magnitude ({tolerance:g} allowed)."
    )
    if len(found.nodes) == 1:
        return (
            f"{first} The node is also wrong alone, with the CPU's values as "
            f"inputs.{_lost_digits(found)}"
        )
    nodes = f"{shown_nodes(found.nodes)} ({shown_ops(found.ops)})"
    if found.alone:
        return (
            f"{first} Alone, with the CPU's values as inputs, the node is right: {nodes} together "
            f"cause the error, because their errors accumulate.{_lost_digits(found)}"
        )
    return (
        f"{first} {nodes} together cause the error, but the results agree if each is read: check "
        "how values between these nodes are stored, and how the nodes are "
        f"fused.{_lost_digits(found)}"
    )


def _lost_digits(found: Finding) -> str:
    """Return a hint to use float32, with the tensor whose float16 rounding explains the error."""
    if not any(each.flag == FP32 and each.helps for each in found.trials):
        return ""
    error = max(each.difference or 0.0 for each in found.tensors if each.role == "result")
    values = (each for each in found.tensors if each.role != "constant")
    worst = max(values, key=lambda each: each.float16_step or 0.0)
    step = worst.float16_step or 0.0
    if step < 2 * error:  # rounding is by half a step at most
        return " At float32 it agrees."
    largest = max(abs(worst.low or 0.0), abs(worst.high or 0.0))
    if math.isinf(step):
        return (
            f" At float32 it agrees: float16 ends at {np.finfo(np.float16).max:g}, and "
            f"'{worst.name}' has numbers such as {largest:g}."
        )
    return (
        f" At float32 it agrees: float16 has steps of {step:g} at numbers such as "
        f"{largest:g} in '{worst.name}'."
    )


def _tensor_row(each: TensorRange) -> tuple[str, ...]:
    return (
        *(each.name, each.role, "×".join(map(str, each.shape)), each.type),
        *map(_number, (each.low, each.high, each.float16_step)),
        *map(_number, (each.test_low, each.test_high, each.difference)),
        "" if each.index is None else str(list(each.index)),
    )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
