"""The findings of `litegpu doctor`, and the inspected machine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from litegpu import config

Level = Literal["ok", "note", "problem"]
"""The level of a finding; a `note` is not a problem, but possibly useful."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A fact about this machine; `remedy` is a command or an instruction, if any."""

    topic: str
    level: Level
    text: str
    remedy: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as plain data for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Machine:
    """The inspected system: the platform, its files from `root` on, and the environment."""

    platform: str = sys.platform
    root: Path = Path("/")
    environment: Mapping[str, str] = field(default_factory=config.environment)

    @property
    def is_linux(self) -> bool:
        """Whether the system is Linux, including WSL."""
        return self.platform.startswith("linux")

    @property
    def is_wsl(self) -> bool:
        """Whether the system is WSL, which is Linux within Windows."""
        return self.is_linux and "microsoft" in self.text("proc/version").lower()

    @property
    def container(self) -> str:
        """The kind of container that runs this process; empty outside of a container."""
        if self.path("run/.containerenv").exists():
            return "Podman"
        if "KUBERNETES_SERVICE_HOST" in self.environment:
            return "Kubernetes"
        return "Docker" if self.path(".dockerenv").exists() else ""

    def path(self, name: str) -> Path:
        """Return a file or folder by its path from the root, without the leading slash."""
        return self.root / name.lstrip("/")

    def names(self, folder: str, pattern: str) -> list[Path]:
        """Return the files of a folder that match a pattern; none if the folder cannot be read."""
        try:
            return sorted(self.path(folder).glob(pattern))
        except OSError:
            return []

    def text(self, name: str) -> str:
        """Return the text of a file; empty if the file cannot be read."""
        try:
            return self.path(name).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return ""


Check = Callable[[Machine], Iterable[Finding]]


def run_checks(machine: Machine, checks: Iterable[Check]) -> list[Finding]:
    """Return the findings of all checks. An exception in a check becomes a finding."""
    found: list[Finding] = []
    for check in checks:
        topic = check.__name__.replace("_", " ")
        try:
            found += check(machine)
        except Exception as error:
            text = f"This check failed: {type(error).__name__}: {error}"
            found.append(Finding(topic, "note", text))
    return found
