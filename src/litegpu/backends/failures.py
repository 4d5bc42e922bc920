"""Records failures on a device, so that the process does not repeat them."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

_MOST = 3
"""After failing at this many problems, a special implementation is no longer tried."""


@dataclass
class Failures:
    """Implementations of kernels that a device rejected, or that ran when it was lost.

    Any thread may use it. A device that is reopened after a loss takes it over.
    """

    unsafe: dict[str, str] = field(default_factory=dict)
    """Implementations that ran when the device was lost, with the reason: never used again."""
    losses: int = 0
    """How often the device was reopened after a loss."""
    _rejected: dict[str, dict[Hashable, str]] = field(default_factory=dict)
    """For each implementation: the problems at which it failed, with reasons."""
    _reported: dict[str, object] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether anything has failed."""
        return bool(self.unsafe or self._rejected)

    def reject(self, implementation: str, problem: Hashable, reason: str) -> None:
        """Record that a device rejects the kernel of an implementation for a problem."""
        self._rejected.setdefault(implementation, {})[problem] = reason

    def reason(self, implementation: str, problem: Hashable, *, general: bool) -> str:
        """Return why an implementation must not be used for a problem, or "".

        A `general` implementation is excluded only for the problems at which it failed, because
        there is no alternative to it.
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
