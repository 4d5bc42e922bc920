"""Runs what nobody meant on a device and on the CPU until time is up, and reports what goes wrong.

python tests/support/fuzz.py --minutes 30             damaged options, shapes, types, operands
python tests/support/fuzz.py --kind files --large     damaged bytes of whole files
python tests/support/fuzz.py --kind resize            sequences of shapes for one interpreter
python tests/support/fuzz.py --kind kept              damaged files in serialization_dir
python tests/support/fuzz.py --kind containers        damaged bundles and .litertlm files
python tests/support/fuzz.py --kind flexbuffers       damaged options of custom operations
python tests/support/fuzz.py --kind networks          random networks, which nobody damaged
python tests/support/fuzz.py --jobs 16 --backend cuda side by side on a larger machine
python tests/support/fuzz.py --only NAME:NUMBER       one of them again; --save DIR keeps its file
"""

from __future__ import annotations

import argparse
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fuzzing.containers import ContainerOracle
from fuzzing.disk_cache import DiskCacheOracle
from fuzzing.files import FileOracle
from fuzzing.network_oracle import KINDS as NETWORKS
from fuzzing.network_oracle import NetworkOracle, save
from fuzzing.options import FlexOracle
from fuzzing.oracle import Finding, Oracle, Tally
from fuzzing.resizing import ResizeOracle
from fuzzing.seeds import Source, all_seeds
from litegpu import backends


class Trials(Protocol):
    """Makes trials of one kind from a model's name and a number, and decides about them."""

    tally: Tally

    def try_one(self, name: str, number: int) -> Finding | None:
        """Try one and note what comes of it; return what went wrong."""

    def save(self, finding: Finding, folder: Path) -> Path:
        """Write what a finding was made of to a folder."""

    def close(self) -> None:
        """End the processes."""


KINDS: Mapping[str, Callable[[Mapping[str, Source], Mapping[str, Any]], Trials]] = {
    "models": Oracle,
    "files": FileOracle,
    "resize": ResizeOracle,
    "kept": DiskCacheOracle,
    "containers": ContainerOracle,
    "flexbuffers": FlexOracle,
    "networks": NetworkOracle,
}
_TOLD_EVERY_S = 60.0


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Try what nobody meant on a device and the CPU.")
    parser.add_argument("--kind", choices=KINDS, default="models", help="what (default: models)")
    parser.add_argument("--minutes", type=float, default=30.0, help="how long (default: 30)")
    parser.add_argument("--count", type=int, default=1 << 62, help="how many at most")
    parser.add_argument("--jobs", type=int, default=1, help="how many side by side (default: 1)")
    parser.add_argument("--seed", type=int, default=0, help="which ones (default: 0)")
    parser.add_argument("--backend", help="the device's API (default: the first device)")
    parser.add_argument("--models", default="", help="only models with this in their name")
    parser.add_argument("--large", action="store_true", help="also zoo and trained models")
    parser.add_argument("--only", metavar="NAME:NUMBER", help="run this one alone")
    parser.add_argument("--save", type=Path, metavar="DIR", help="write the findings' files there")
    parser.add_argument(
        "--sanitizer", action="store_true", help="networks in this process, for compute-sanitizer"
    )
    parser.add_argument(
        "--shrink",
        type=float,
        nargs="?",
        const=20.0,
        metavar="SECONDS",
        help="make networks that go wrong smaller, for so long each (default: 20)",
    )
    chosen = parser.parse_args()
    if chosen.sanitizer:
        chosen.kind, chosen.jobs = "networks", 1
    return chosen


def names_and_numbers(names: list[str], chosen: argparse.Namespace) -> Iterator[tuple[str, int]]:
    """Yield trials until time is up, or there are enough."""
    if chosen.only:
        name, _, number = chosen.only.rpartition(":")
        yield name, int(number)
        return
    random = np.random.default_rng(chosen.seed)
    end = time.monotonic() + 60 * chosen.minutes
    for _ in range(chosen.count):
        if time.monotonic() > end:
            return
        yield names[int(random.integers(len(names)))], int(random.integers(1, 1 << 31))


class Campaign:
    """Hands trials to jobs, which run side by side, and adds up what came of them."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        """Choose the models."""
        self._chosen = chosen
        networks = chosen.kind == "networks"
        found = dict.fromkeys(NETWORKS, bytes) if networks else all_seeds(chosen.large)
        self._sources = {name: found[name] for name in found if chosen.models in name}
        self._trials = names_and_numbers(list(self._sources), chosen)
        self._lock = threading.Lock()
        listed = backends.list_devices() if chosen.jobs > 1 else []
        self._devices = max(sum(each.backend == chosen.backend for each in listed), 1)
        self._printed = self._began = time.monotonic()
        self._stopped = False
        self.total = Tally()

    def run(self) -> None:
        """Run until the trials are used up, or someone presses Ctrl-C."""
        with ThreadPoolExecutor(self._chosen.jobs) as pool:
            jobs = [pool.submit(self._job, number) for number in range(self._chosen.jobs)]
            try:
                for job in jobs:
                    job.result()
            except KeyboardInterrupt:
                self._stopped = True
                print("Stopped.")

    def _job(self, number: int) -> None:
        options: dict[str, Any] = {}
        if self._chosen.backend:
            options = {"backend": self._chosen.backend, "device": number % self._devices}
        trials: Trials = KINDS[self._chosen.kind](self._sources, options)
        if self._chosen.sanitizer:
            trials = NetworkOracle(self._sources, options, here=True)
        try:
            while not self._stopped:
                with self._lock:
                    trial = next(self._trials, None)
                if trial is None:
                    break
                if self._chosen.sanitizer:
                    print(f"{trial[0]}:{trial[1]} runs", flush=True)
                finding = trials.try_one(*trial)
                with self._lock:
                    self._note(trials, finding)
                if finding and self._chosen.shrink and isinstance(trials, NetworkOracle):
                    self._shrink(trials, finding)
        finally:
            trials.close()

    def _shrink(self, trials: NetworkOracle, finding: Finding) -> None:
        builder = trials.shrink(finding, self._chosen.shrink)
        lines = [f"{finding.seed}, shrunk:", *builder.lines()]
        if self._chosen.save:
            name = f"{finding.seed.replace(':', '_')}_shrunk.tflite"
            lines.append(str(save(builder, self._chosen.save / name)))
        print("\n    ".join(lines), flush=True)

    def _note(self, trials: Trials, finding: Finding | None) -> None:
        self.total.outcomes += trials.tally.outcomes
        self.total.lenient += trials.tally.lenient
        trials.tally = Tally()
        if finding:
            self.total.findings.append(finding)
            print(finding, flush=True)
            if self._chosen.save:
                print(f"    {trials.save(finding, self._chosen.save)}", flush=True)
        now = time.monotonic()
        if now > self._printed + _TOLD_EVERY_S:
            self._printed, count = now, self.total.outcomes.total()
            rate = count / (now - self._began)
            found = len(self.total.findings)
            print(f"{count} tried, {rate:.1f} a second, {found} went wrong", flush=True)


def causes(findings: Sequence[Finding]) -> dict[str, list[str]]:
    """Return the seeds of findings by what they say, without its numbers; the most first."""
    found: dict[str, list[str]] = {}
    for finding in findings:
        words = re.sub(r"[-+]?\d[\w.]*(_[0-9a-f]+)?", "#", finding.text.splitlines()[0])
        found.setdefault(words[:200], []).append(finding.seed)
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def main() -> int:
    """Return 1 if anything went wrong."""
    campaign = Campaign(arguments())
    campaign.run()
    for line in campaign.total.lenient:
        print("Only on the device:", line)
    for outcome, count in campaign.total.outcomes.most_common():
        print(f"{count:7} {outcome}")
    for cause, seeds in causes(campaign.total.findings).items():
        print(f"{len(seeds):7} {cause}\n        {' '.join(seeds[:8])}")
    return 1 if campaign.total.findings else 0


if __name__ == "__main__":
    sys.exit(main())
