"""Runs damaged models on a device and on the CPU until time is up, and reports what goes wrong.

python tests/fuzz.py --minutes 30             mutants that depend on --seed alone
python tests/fuzz.py --only NAME:NUMBER       one of them again; --save DIR keeps its file
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fuzzing.judge import Finding, Judge
from fuzzing.seeds import all_seeds


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Run damaged models on a device and the CPU.")
    parser.add_argument("--minutes", type=float, default=30.0, help="how long (default: 30)")
    parser.add_argument("--seed", type=int, default=0, help="which mutants (default: 0)")
    parser.add_argument("--backend", help="the device's API (default: the first device)")
    parser.add_argument("--models", default="", help="only models with this in their name")
    parser.add_argument("--large", action="store_true", help="also zoo and trained models")
    parser.add_argument("--only", metavar="NAME:NUMBER", help="run this mutant alone")
    parser.add_argument("--save", type=Path, metavar="DIR", help="write the findings' files there")
    return parser.parse_args()


def names_and_numbers(names: list[str], seed: int, minutes: float) -> Iterator[tuple[str, int]]:
    """Yield mutants until time is up."""
    random = np.random.default_rng(seed)
    end = time.monotonic() + 60 * minutes
    while time.monotonic() < end:
        yield names[int(random.integers(len(names)))], int(random.integers(1, 1 << 31))


def main() -> int:
    """Return 1 if anything went wrong."""
    chosen = arguments()
    sources = {n: s for n, s in all_seeds(chosen.large).items() if chosen.models in n}
    judge = Judge(sources, {"backend": chosen.backend} if chosen.backend else {})
    if chosen.only:
        name, _, number = chosen.only.rpartition(":")
        mutants: Iterator[tuple[str, int]] = iter([(name, int(number))])
    else:
        mutants = names_and_numbers(list(sources), chosen.seed, chosen.minutes)
    try:
        for name, number in mutants:
            finding = judge.try_one(name, number)
            if finding:
                _tell(judge, finding, chosen.save)
    except KeyboardInterrupt:
        print("Stopped.")
    finally:
        judge.close()
    for line in judge.tally.lenient:
        print("Only on the device:", line)
    for outcome, count in judge.tally.outcomes.most_common():
        print(f"{count:7} {outcome}")
    return 1 if judge.tally.findings else 0


def _tell(judge: Judge, finding: Finding, folder: Path | None) -> None:
    print(finding, flush=True)
    if folder:
        print(f"    {judge.save(finding, folder)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
