"""Measures how creation grows with a model's nodes, for patterns that invite the square of them.

    python benchmarks/scaling.py --output benchmarks/results/scaling.json

Each model is created in a process of its own: the delegate, the interpreter and its tensors. Told
are CPU seconds of all threads and the MB by which that process grows beyond what it ever was,
after a first small model. `plain` is the interpreter alone, `paper` a device that has its kernels
written and compiles none, a backend's name one that is here: its driver's compiler counts, too.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from unittest import mock

SUPPORT = Path(__file__).resolve().parent.parent / "tests" / "support"
sys.path.insert(0, str(SUPPORT))

import machine  # noqa: E402
from hostile.growing import ALL  # noqa: E402
from hostile.measure import peak_bytes  # noqa: E402
from litegpu import GpuDelegate, backends  # noqa: E402
from litegpu.runtime_abi import interpreter as runtime  # noqa: E402
from paper_device import PaperDevice  # noqa: E402
from small_models import fully_convolutional  # noqa: E402

WAYS = ("plain", "paper", "opencl")
NODES = (1000, 4000)
_SECONDS = 300.0


@dataclass(frozen=True)
class Row:
    """What one model took one way; `seconds` is None where it did not end in time."""

    pattern: str
    nodes: int
    kilobytes: float
    way: str
    seconds: float | None
    megabytes: float | None = None
    delegated: int = 0
    """Nodes that the device took."""


def create(content: bytes, way: str) -> int:
    """Create an interpreter; returns how many nodes a device took."""
    if way == "plain":
        runtime.interpreter(content, builtin_kernels=True)
        return 0
    options = {"inference_preference": 0, "cache": False}
    if way == "paper":
        with mock.patch.object(backends, "select", lambda *_: PaperDevice()):
            delegate = GpuDelegate(backend="opencl", **options)
            runtime.interpreter(content, delegate, builtin_kernels=True)
    else:
        delegate = GpuDelegate(backend=way, **options)
        runtime.interpreter(content, delegate, builtin_kernels=True)
    return len(delegate.report.delegated_nodes) if delegate.report else 0


def measure(pattern: str, nodes: int, way: str) -> Row:
    """Create one model in this process."""
    create(fully_convolutional(), way)
    content = ALL[pattern](nodes)
    before, start = peak_bytes(), time.process_time()
    delegated = create(content, way)
    seconds = time.process_time() - start
    megabytes = (peak_bytes() - before) / 1e6
    return Row(pattern, nodes, len(content) / 1e3, way, seconds, megabytes, delegated)


def in_a_process(pattern: str, nodes: int, way: str) -> Row:
    """Create one model in another process."""
    command = [sys.executable, __file__, "--one", pattern, str(nodes), way]
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=_SECONDS
        )
    except subprocess.TimeoutExpired:
        return Row(pattern, nodes, len(ALL[pattern](nodes)) / 1e3, way, None)
    return Row(**json.loads(ended.stdout.splitlines()[-1]))


def table(rows: list[Row]) -> str:
    """Return the rows as a table in Markdown: CPU seconds, and MB in parentheses."""
    ways = list(dict.fromkeys(row.way for row in rows))
    lines = [["pattern", "nodes", "KB", *ways], ["---"] * (3 + len(ways))]
    cells: dict[tuple[str, int], list[str]] = {}
    for row in rows:
        line = cells.setdefault(
            (row.pattern, row.nodes), [row.pattern, str(row.nodes), f"{row.kilobytes:.0f}"]
        )
        if row.seconds is None:
            line.append(f"over {_SECONDS:.0f}")
        else:
            line.append(f"{row.seconds:.2f} ({row.megabytes:.0f})")
    return "\n".join(f"| {' | '.join(line)} |" for line in (*lines, *cells.values()))


def main() -> None:
    """Measure all, and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, default=None, help="JSON file for the results")
    parser.add_argument("--patterns", nargs="+", default=list(ALL), choices=list(ALL))
    parser.add_argument("--nodes", nargs="+", type=int, default=NODES)
    parser.add_argument("--ways", nargs="+", default=WAYS, help="plain, paper, or a backend")
    parser.add_argument("--one", nargs=3, default=None, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        pattern, nodes, way = args.one
        print(json.dumps(asdict(measure(pattern, int(nodes), way))))
        return
    rows = [
        in_a_process(pattern, nodes, way)
        for pattern in args.patterns
        for nodes in args.nodes
        for way in args.ways
    ]
    print(table(rows))
    if args.output:
        found = machine.about(args) | {"rows": [asdict(row) for row in rows]}
        args.output.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
