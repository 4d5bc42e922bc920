"""Times imports: CPU seconds of fresh processes, numpy and jinja2 apart.

    python benchmarks/imports.py --repeats 9

Prints the median of each statement and how many modules of litegpu it loads.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys

STATEMENTS = (
    "import litegpu",
    "from litegpu import list_devices",
    "from litegpu import GpuDelegate",
    "from litegpu import CompiledModel",
    "import litegpu.tools.cli",
)
_TIMED = """
import sys, time
import numpy, jinja2
start = time.process_time()
{statement}
seconds = time.process_time() - start
print(seconds, sum(name.partition(".")[0] == "litegpu" for name in sys.modules))
"""


def measured(statement: str) -> tuple[float, int]:
    """Return CPU seconds of a statement in a fresh process, and the modules it loaded."""
    code = _TIMED.format(statement=statement)
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    seconds, modules = printed.split()
    return float(seconds), int(modules)


def main() -> None:
    """Measure all statements in turns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    repeats = parser.parse_args().repeats
    runs = [[measured(statement) for statement in STATEMENTS] for _ in range(repeats)]
    print(f"{'statement':36} {'CPU s':>7} {'modules':>8}")
    for statement, of_one in zip(STATEMENTS, zip(*runs, strict=True), strict=True):
        seconds = statistics.median(each for each, _ in of_one)
        print(f"{statement:36} {seconds:7.3f} {of_one[0][1]:8}")


if __name__ == "__main__":
    main()
