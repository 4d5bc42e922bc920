"""Checks the names of signatures, and finds the target and the report of a signature."""

from __future__ import annotations

from typing import Any

from litegpu import DelegationReport
from litegpu.errors import ModelError, did_you_mean
from litegpu.runtime_abi.signature_target import SignatureTarget
from litegpu.tools.flags import Flag

SIGNATURE = Flag("signature", str, None, "run the graph of this signature", metavar="NAME")


def check_signature(flag: str, key: str, target: Any) -> None:
    """Raise ModelError if the interpreter's model does not have this signature."""
    keys = list(target.get_signature_list())
    if not keys:
        raise ModelError(f"--{flag}={key}: the model has no signatures. Leave the flag out.")
    if key not in keys:
        raise ModelError(f"--{flag}={key}: there is no such signature.{did_you_mean(key, keys)}")


def of_signature(flag: str, key: str | None, target: Any) -> Any:
    """Return an interpreter, or one of its signatures with allocated tensors.

    Raises:
        ModelError: the signature does not exist.
    """
    if key is None:
        return target
    check_signature(flag, key, target)
    found = SignatureTarget(target, key)
    found.allocate_tensors()
    return found


def graph_report(report: DelegationReport | None, target: Any) -> DelegationReport | None:
    """Return the report of the graph that runs, which may belong to a signature."""
    number = getattr(target, "subgraph", 0)
    reports = (report, *report.subgraphs) if report is not None else ()
    return next((each for each in reports if each.graph == number), None)
