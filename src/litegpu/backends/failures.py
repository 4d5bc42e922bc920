"""Records failures on a device, so that the process does not repeat them."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

_MOST = 3
"""Number of failed problems after which litegpu no longer tries a special implementation."""


@dataclass
class Failures:
    """Implementations of kernels that a device rejected, or that ran when it was lost.

    Any thread may use the object. A device that is reopened after a loss inherits the object.
    """

    unsafe: dict[str, str] = field(default_factory=dict)
    """Implementations that ran when the device was lost, with the reason; not used again."""
    losses: int = 0
    """The number of times that the device was reopened after a loss."""
    _rejected: dict[str, dict[Hashable, str]] = field(default_factory=dict)
    """Maps each implementation to the problems for which it failed, with reasons."""
    _reported: dict[str, object] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether any implementation has failed."""
        return bool(self.unsafe or self._rejected)

    def reject(self, implementation: str, problem: Hashable, reason: str) -> None:
        """Record that a device rejects the kernel of an implementation for a problem."""
        self._rejected.setdefault(implementation, {})[problem] = reason

    def reason(self, implementation: str, problem: Hashable, *, general: bool) -> str:
        """Return why an implementation must not run for a problem, or "".

        A `general` implementation is excluded only for the problems for which it failed, because
        there is no alternative implementation.
        """
        if implementation in self.unsafe:
            return self.unsafe[implementation]
        problems = self._rejected.get(implementation, {})
        if problem in problems:
            return problems[problem]
        if general or len(problems) < _MOST:
            return ""
        return next(reversed(problems.values()))

    def is_first(self, line: str) -> bool:
        """Return whether a line was not reported before, by any thread."""
        asking = object()
        return self._reported.setdefault(line, asking) is asking
