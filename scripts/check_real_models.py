"""Fail when real models are at hand but every test that uses one was skipped.

Usage: check_real_models.py JUNIT_XML. Prints nothing when all is well.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

MODELS = Path("../shared/models")
MARK = "real_model"


def real_model_tests(junit: Path) -> tuple[int, int]:
    """Count the tests that use a real model: (all of them, those that were not skipped).

    A test belongs here when "real_model" is part of its module, class or name.
    """
    cases = [
        case
        for case in ElementTree.parse(junit).iter("testcase")
        if MARK in f"{case.get('classname')}.{case.get('name')}"
    ]
    return len(cases), sum(case.find("skipped") is None for case in cases)


def main(argv: list[str]) -> int:
    """Check one JUnit file; return the exit status."""
    if not any(MODELS.glob("*.tflite")):
        return 0
    total, ran = real_model_tests(Path(argv[1]))
    if ran:
        return 0
    print(f"error: {MODELS} has models, but 0 of {total} {MARK} tests ran.", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv))
