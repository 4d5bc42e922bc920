"""Orders whose members tell their own positions, so that a new one changes no list.

>>> in_order({"sink": Neighbours(after="fold"), "fold": Neighbours()})
['fold', 'sink']
"""

from __future__ import annotations

import graphlib
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Neighbours:
    """After which member one stands, and before which; "" where it does not matter.

    Who comes between two that are there names both.
    """

    after: str = ""
    before: str = ""


def in_order(positions: Mapping[str, Neighbours]) -> list[str]:
    """Return the names in the only order that their positions permit.

    Raises ValueError, which names the members, where a position names none of them, where some
    wait for each other, and where two might change places.
    """
    above: dict[str, set[str]] = {name: set() for name in positions}
    for name, position in positions.items():
        for other in filter(None, (position.after, position.before)):
            if other not in positions:
                raise ValueError(f"{name} stands beside {other}, which is none of them")
        if position.after:
            above[name].add(position.after)
        if position.before:
            above[position.before].add(name)
    sorter = graphlib.TopologicalSorter(above)
    try:
        sorter.prepare()
    except graphlib.CycleError as error:
        raise ValueError(
            f"each of them stands after the next: {', '.join(error.args[1])}"
        ) from None
    found: list[str] = []
    while sorter.is_active():
        first, *others = sorted(sorter.get_ready())
        if others:
            raise ValueError(
                f"{first} and {others[0]} might change places: one must name the other in `after` "
                "or `before`"
            )
        found.append(first)
        sorter.done(first)
    return found
