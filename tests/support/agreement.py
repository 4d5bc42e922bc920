"""Checks whether the storage of values matches the kernels that read them."""

from __future__ import annotations

from collections.abc import Sequence

from litegpu.engine.lowering import KernelLaunch
from litegpu.engine.selected import Selected
from litegpu.kernels.selector import IMPLEMENTATIONS

COPY_TEMPLATE = "copy"
"""Steps that find no room in a node's kernel follow in one of their own."""
ROUNDING = ("cuda/conv_tile",)
"""Templates of kernels that round float32 elements of what they read first to half."""
FURTHER = {
    template: each.name
    for of_kind in IMPLEMENTATIONS.values()
    for each in of_kind
    for template in each.also
}
"""The implementation of each template that has not its name."""


def disagreements(selected: Selected, launches: Sequence[KernelLaunch]) -> list[str]:
    """Return what lost accuracy for nothing, and which launch is not what was selected."""
    layout = selected.layout
    found = []
    for v in layout.bases:
        small = not layout.policy.stores_half(4 * layout.graph.values[v].elements)
        readers = {launch.template for launch in launches if v in launch.node.inputs[:1]}
        if layout.is_rounded(v) and small and not readers.intersection(ROUNDING):
            found.append(f"value {v} is half, though none of {sorted(readers)} rounds it")
    for launch in launches:
        selections = selected.selections(launch.node) if launch.template != COPY_TEMPLATE else ()
        names = {each.name for each in selections}
        if names and FURTHER.get(launch.template, launch.template) not in names:
            found.append(f"{launch.template} computes {launch.node.op}, selected: {sorted(names)}")
    return found
