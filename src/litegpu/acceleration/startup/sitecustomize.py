"""Runs at the start of the Python processes that a program of `litegpu exec` creates.

The acceleration starts when such a process imports a TensorFlow Lite runtime, or calls its C
library through ctypes. Before that, and in other Python environments, litegpu is not imported.
"""

import contextlib
import ctypes
import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Optional


def _watch(options: dict[str, Any], runtimes: Sequence[str]) -> None:
    """Let the first use of a runtime start the acceleration."""
    original = ctypes.CDLL.__getitem__

    class Finder:
        """Starts the acceleration before the import of a runtime."""

        @staticmethod
        def find_spec(name: str, *_: Any) -> Optional[ModuleSpec]:  # noqa: UP045 (old Pythons)
            if name not in runtimes:
                return None
            start()
            return importlib.util.find_spec(name)

    def function_of(library: ctypes.CDLL, name: Any) -> Any:
        if not str(name).startswith("TfLite"):
            return original(library, name)
        start()
        return ctypes.CDLL.__getitem__(library, name)

    def start() -> None:
        if Finder in sys.meta_path:
            sys.meta_path.remove(Finder)
            set_lookup(original)
            from litegpu.acceleration import children

            children.start(options)

    def set_lookup(lookup: Any) -> None:
        setattr(ctypes.CDLL, "__getitem__", lookup)  # noqa: B010 (mypy forbids an assignment)

    sys.meta_path.insert(0, Finder)
    set_lookup(function_of)


def _run_hidden(own: ModuleType) -> None:
    """Run the sitecustomize that this module hides, if there is one."""
    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [each for each in sys.path if os.path.abspath(each) != folder]
    try:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module("sitecustomize")
    finally:
        sys.modules.setdefault("sitecustomize", own)


_wanted = json.loads(os.environ.get("LITEGPU_EXEC") or "{}")
if _wanted.get("prefix") == sys.prefix:
    _watch(_wanted["options"], _wanted["runtimes"])
if __name__ == "sitecustomize":
    _run_hidden(sys.modules.pop(__name__))
