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
        overwritten = [each.span for each in own if each.written]
        earlier = [each for each in earlier if not any(s.covers(each.span) for s in overwritten)]
        earlier += own
    return found


def _accesses(number: int, launch: Launch) -> Iterator[_Access]:
    for span in launch.reads:
        yield _Access(number, span, written=False)
    for span in launch.writes:
        yield _Access(number, span, written=True)
