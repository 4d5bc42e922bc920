"""Computes the dependencies between launches from the bytes that they read and write."""

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
    """Return for each launch the earlier launches that must finish before it starts.

    The result omits implied dependencies: if a listed launch overwrites everything that an earlier
    launch accessed, the listed launch already waits for the earlier one. Every launch order that
    respects the result is equivalent to the original order.
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
        overwritten = [each.span for each in own if each.written]
        earlier = [each for each in earlier if not any(s.covers(each.span) for s in overwritten)]
        earlier += own
    return found


def _accesses(number: int, launch: Launch) -> Iterator[_Access]:
    for span in launch.reads:
        yield _Access(number, span, written=False)
    for span in launch.writes:
        yield _Access(number, span, written=True)
