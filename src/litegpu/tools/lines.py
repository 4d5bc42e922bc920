"""Lines in the format of TensorFlow Lite's tools: `INFO: ` and `WARN: ` on stdout, else stderr."""

from __future__ import annotations

import argparse
import sys

from litegpu.tools.console import wipe


def info(message: str) -> None:
    """Print information for people and scripts."""
    wipe()
    print(f"INFO: {message}", flush=True)


def warn(message: str) -> None:
    """Print a warning about a request that has no effect here."""
    wipe()
    print(f"WARN: {message}", flush=True)


def warn_of_unconsumed(args: argparse.Namespace) -> None:
    """Warn of repeated flags on the command line; see `FlagParser`."""
    if args.unconsumed:
        warn(f"Unconsumed cmdline flags: {' '.join(args.unconsumed)}")
        warn("Some lines are repeated. The first line of each class counts.")


def error(message: str) -> None:
    """Print an error on stderr, after the output on stdout so far."""
    wipe()
    sys.stdout.flush()
    print(f"ERROR: {message}", file=sys.stderr, flush=True)
