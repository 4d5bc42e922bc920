"""Replaces kernels that a device rejects, or that ran when the device was lost."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from litegpu.backends.failures import Failures
from litegpu.engine.program import BuiltProgram
from litegpu.engine.selected import Selected
from litegpu.errors import DeviceLostError, KernelError
from litegpu.graph import Node
from litegpu.kernels.base import Implementation, outline
from litegpu.kernels.selector import IMPLEMENTATIONS, Selection
from litegpu.ops.base import get
from litegpu.wording import shown_nodes


def reject(error: KernelError, built: BuiltProgram, selected: Selected, failures: Failures) -> bool:
    """Record the selected implementations of kernels that a device rejects.

    Return whether another implementation may be selected: false if a kernel has no alternative.
    """
    replaceable = []
    for launch in built.launches:
        if (reason := error.reasons.get(launch.kernel.name)) is not None:
            specs = get(launch.node.op).specs(launch.node, selected)
            chosen = [
                (selection.name, outline(spec))
                for spec, selection in zip(specs, selected.selections(launch.node), strict=True)
                if launch.template in _templates(type(spec), selection.name)
            ]
            for name, problem in chosen:
                failures.reject(name, problem, reason)
            replaceable.append(bool(chosen))
    return bool(replaceable) and all(replaceable)


def _templates(kind: type, name: str) -> Collection[str]:
    """Return the kernel templates of an implementation; none if no implementation was selected."""
    return next((each.templates for each in IMPLEMENTATIONS[kind] if each.name == name), ())


def replacements(chosen: Iterable[tuple[Node, Selection]]) -> Iterator[str]:
    """Yield a line for each implementation that would compute some nodes if it had not failed."""
    found: dict[tuple[str, str], tuple[set[int], str]] = {}
    for node, selection in chosen:
        by = selection.name or "kernels for each operation"
        for name, reason in selection.failed.items():
            nodes, _ = found.setdefault((by, name), (set(), reason))
            nodes.update((node.index, *node.merged))
    for (by, name), (nodes, reason) in found.items():
        yield f"{by} in place of {name} ({shown_nodes(sorted(nodes))}): {reason}"


def replaceable(templates: Iterable[str]) -> frozenset[str]:
    """Return the templates of special implementations: general ones have no alternative."""
    return frozenset(templates) & {name for each in _special() for name in each.templates}


def exclude(
    templates: Collection[str], error: DeviceLostError, failures: Failures, *, certain: bool = False
) -> None:
    """Exclude the special implementations of templates that ran when the device was lost.

    `certain`: whether one of these templates is known to cause the loss of the device.
    """
    cause = "it causes" if certain else "it may have caused"
    for each in _special():
        if not set(each.templates).isdisjoint(templates):
            reason = f"{cause} the loss of the device: {error.reason}"
            failures.unsafe.setdefault(each.name, reason)


def _special() -> Iterator[Implementation]:
    return (each for ways in IMPLEMENTATIONS.values() for each in ways if not each.general)
