"""Which launches of a program must wait for which, by the bytes that they read and write."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from litegpu.backends.program import Launch, Span


@dataclass(frozen=True, slots=True)
class _Access:
    launch: int
    span: Span
    written: bool


def dependencies(launches: Sequence[Launch]) -> list[frozenset[int]]:
    """Return for each launch the earlier ones that must be done before it begins.

    Those are left out that others of them wait for because they overwrite all that was accessed.
    Any order of the launches that keeps to this gives what the order of the list gives.
    """
    found: list[frozenset[int]] = []
    earlier: list[_Access] = []
    for number, launch in enumerate(launches):
        own = list(_accesses(number, launch))
        found.append(
            frozenset(
                other.launch
                for other in earlier
                for each in own
                if (each.written or other.written) and each.span.overlaps(other.span)
            )
        )
        taken = [each.span for each in own if each.written]
        earlier = [each for each in earlier if not any(s.covers(each.span) for s in taken)]
        earlier += own
    return found


def _accesses(number: int, launch: Launch) -> Iterator[_Access]:
    for span in launch.reads:
        yield _Access(number, span, written=False)
    for span in launch.writes:
        yield _Access(number, span, written=True)


def ancestors(direct: Sequence[frozenset[int]]) -> list[int]:
    """Return for each launch all that it waits for, directly or not, as the bits of a number."""
    found: list[int] = []
    for before in direct:
        bits = 0
        for number in before:
            bits |= found[number] | 1 << number
        found.append(bits)
    return found


def levels(direct: Sequence[frozenset[int]]) -> list[list[int]]:
    """Return the launches in groups: none waits for others of its own group or of later ones."""
    depth: list[int] = []
    groups: list[list[int]] = []
    for number, before in enumerate(direct):
        depth.append(max((depth[each] + 1 for each in before), default=0))
        if depth[-1] == len(groups):
            groups.append([])
        groups[depth[-1]].append(number)
    return groups
