"""Prints and writes the interpreter's state before and after the runs of benchmark_model."""

from __future__ import annotations

import argparse

from litegpu.tools.benchmark_model.graph_state import GraphState, read_state
from litegpu.tools.benchmark_model.profile import KERNEL
from litegpu.tools.benchmark_model.session import Session
from litegpu.tools.benchmark_model.state_text import Lengths, runtime_details, state_text
from litegpu.tools.files import write_bytes
from litegpu.tools.flags import Flag, positive_int
from litegpu.tools.lines import info

INFO_PARAMETERS = (
    (
        Flag(
            "export_model_runtime_info",
            bool,
            False,
            "write all tensors and nodes in machine-readable form",
        ),
        "Enable Model Runtime Info Export",
    ),
    (
        Flag(
            "model_runtime_info_output_file",
            str,
            "",
            "file for --export_model_runtime_info",
            metavar="FILE",
        ),
        "Proto File to export model runtime info to",
    ),
    (
        Flag("print_preinvoke_state", bool, False, "print all tensors and nodes before the runs"),
        "Print pre-invoke interpreter state",
    ),
    (
        Flag("print_postinvoke_state", bool, False, "print all tensors and nodes after the runs"),
        "Print post-invoke interpreter state",
    ),
)
LENGTH_PARAMETERS = tuple(
    (
        Flag(
            f"{name}_display_length",
            positive_int,
            default,
            "width of the column in the tables of --print_preinvoke_state",
        ),
        f"{title} display length",
    )
    for name, title, default in (
        ("tensor_name", "Tensor name", Lengths.name),
        ("tensor_type", "Tensor type", Lengths.kind),
        ("alloc_type", "Tensor allocation type", Lengths.allocation),
    )
)


def print_before(args: argparse.Namespace, session: Session) -> None:
    """Print and write the requested state before the runs."""
    if args.print_preinvoke_state:
        _print("pre-invoke", args, session)
    if not args.export_model_runtime_info:
        return
    details = runtime_details(session.model.name, _state(session))
    path = args.model_runtime_info_output_file
    if path:
        write_bytes("model_runtime_info_output_file", path, details.encoded())
        info(f"Generated model runtime info: {path}")
    else:
        info(details.text())


def print_after(args: argparse.Namespace, session: Session) -> None:
    """Print the requested state after the runs."""
    if args.print_postinvoke_state:
        _print("post-invoke", args, session)


def _print(when: str, args: argparse.Namespace, session: Session) -> None:
    lengths = Lengths(
        *(args.tensor_name_display_length, args.tensor_type_display_length),
        args.alloc_type_display_length,
    )
    title = f"====Printing out TfLite interpreter {when} state"
    info(f"\n{title} begins====")
    print(state_text(_state(session), lengths))
    info(f"{title} ends====\n")


def _state(session: Session) -> list[GraphState]:
    delegates = session.delegates
    report = delegates.gpu.report if delegates.gpu else None
    kernels = {tuple(sorted(part.nodes)): KERNEL for part in report.partitions} if report else {}
    others = [each.name for each in delegates.applied if each.delegate not in (None, delegates.gpu)]
    other = others[0] if others else "TfLiteXNNPackDelegate"
    return read_state(session.interpreter, session.model.content, kernels, other)
