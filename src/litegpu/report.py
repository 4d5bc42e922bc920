"""What a user reads after a delegate was applied: what runs where, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class RejectedNode:
    """A node that stays on the CPU, and why."""

    index: int
    op: str
    version: int
    reason: str


@dataclass(frozen=True, slots=True)
class Partition:
    """Nodes that run on the GPU as one. Sizes are in bytes.

    `arena_bytes` is the device memory for computed values; no plan can need less than
    `lower_bound_bytes`. `constant_bytes` is the memory for weights.
    """

    nodes: tuple[int, ...]
    kernels: int
    arena_bytes: int
    lower_bound_bytes: int
    constant_bytes: int
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DelegationReport:
    """What a delegate took of a model. `str(report)` is a table, `to_dict()` is JSON-able."""

    backend: str
    device: str
    precision: str
    total_nodes: int
    ops: Mapping[int, str]
    """Name of the op of each node."""
    rejected: tuple[RejectedNode, ...] = ()
    partitions: tuple[Partition, ...] = ()
    notes: tuple[str, ...] = field(default=())
    """Supported nodes that stay on the CPU all the same, and errors: one line each."""

    @property
    def delegated_nodes(self) -> list[int]:
        """Numbers of the nodes that run on the GPU, in order."""
        return sorted(index for part in self.partitions for index in part.nodes)

    @property
    def whole_graph(self) -> bool:
        """Whether a single partition runs every node."""
        return len(self.partitions) == 1 and len(self.delegated_nodes) == self.total_nodes

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-able data."""
        return {
            "backend": self.backend,
            "device": self.device,
            "precision": self.precision,
            "total_nodes": self.total_nodes,
            "delegated_nodes": self.delegated_nodes,
            "rejected": [asdict(node) for node in self.rejected],
            "partitions": [asdict(part) for part in self.partitions],
            "notes": list(self.notes),
        }

    def summary(self) -> str:
        """Return the sentence that users of TensorFlow Lite know."""
        gpu = len(self.delegated_nodes)
        cpu = self.total_nodes - gpu
        if not gpu:
            return (
                "No operations will run on the GPU, "
                f"and all {self.total_nodes} operations will run on the CPU."
            )
        return (
            f"{gpu} operations will run on the GPU, "
            f"and the remaining {cpu} operations will run on the CPU."
        )

    def __str__(self) -> str:
        """Return a table."""
        lines = [f"litegpu on {self.device} ({self.backend}, {self.precision})", self.summary()]
        if self.partitions:
            lines.append("")
            lines.append("partition  nodes  kernels  memory (bound)          weights   ops")
        for number, part in enumerate(self.partitions):
            memory = f"{_size(part.arena_bytes)} ({_size(part.lower_bound_bytes)})"
            ops = _counted(self.ops[index] for index in part.nodes)
            lines.append(
                f"{number:9}  {len(part.nodes):5}  {part.kernels:7}  {memory:22}  "
                f"{_size(part.constant_bytes):8}  {ops}"
            )
        if self.rejected:
            lines += ["", "on the CPU"]
        for reason, nodes in _by_reason(self.rejected).items():
            where = ", ".join(str(node.index) for node in nodes[:6])
            more = f" and {len(nodes) - 6} more" if len(nodes) > 6 else ""
            lines.append(f"  {nodes[0].op} v{nodes[0].version} (node {where}{more}): {reason[2]}")
        lines += [f"  {note}" for note in self.notes]
        return "\n".join(lines)


def _by_reason(
    rejected: tuple[RejectedNode, ...],
) -> dict[tuple[str, int, str], list[RejectedNode]]:
    groups: dict[tuple[str, int, str], list[RejectedNode]] = {}
    for node in rejected:
        groups.setdefault((node.op, node.version, node.reason), []).append(node)
    return groups


def _counted(names: Any) -> str:
    counts = Counter(names).most_common()
    return ", ".join(f"{name} x{count}" if count > 1 else name for name, count in counts)


def _size(nbytes: int) -> str:
    """Return bytes as text a person can read."""
    size = float(nbytes)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
