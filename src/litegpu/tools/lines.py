"""Prints lines in TensorFlow Lite's format: `INFO: ` and `WARN: ` on stdout, errors on stderr."""

from __future__ import annotations

import argparse
import sys

from litegpu.tools.console import wipe


def info(message: str) -> None:
    """Print information for people and scripts."""
    wipe()
    print(f"INFO: {message}", flush=True)


def warn(message: str) -> None:
    """Print a warning, for example about a flag without effect."""
    wipe()
    print(f"WARN: {message}", flush=True)


def warn_of_unconsumed(args: argparse.Namespace) -> None:
    """Warn about repeated flags on the command line; see `FlagParser`."""
    if args.unconsumed:
        warn(f"Unconsumed cmdline flags: {' '.join(args.unconsumed)}")
        warn("Some lines are repeated. The first line of each class counts.")


def error(message: str) -> None:
    """Flush stdout, and print an error on stderr."""
    wipe()
    sys.stdout.flush()
    print(f"ERROR: {message}", file=sys.stderr, flush=True)
