"""Changes the constructors of the runtimes' Interpreter classes."""

from __future__ import annotations

import functools
import importlib.machinery
import inspect
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from types import ModuleType
from typing import Any

from litegpu.acceleration.session import current
from litegpu.delegation.delegate import GpuDelegate
from litegpu.runtime_abi.kernels import RUNTIMES

_DELEGATES = "experimental_delegates"
_changed: dict[type, tuple[Callable[..., None], Callable[..., None]]] = {}
"""The constructor of each changed class, and the one that replaces it."""


def install() -> None:
    """Change the Interpreter of each imported runtime, and of those that are imported later."""
    for name in RUNTIMES:
        if name in sys.modules:
            _change(sys.modules[name])
    sys.meta_path.insert(0, _FINDER)


def uninstall() -> None:
    """Restore the constructors, unless other code has replaced them since."""
    if _FINDER in sys.meta_path:
        sys.meta_path.remove(_FINDER)
    for owner, (original, replacement) in _changed.items():
        if owner.__init__ is replacement:  # type: ignore[misc]
            owner.__init__ = original  # type: ignore[misc]
    _changed.clear()


def _change(module: ModuleType) -> None:
    owner = module.Interpreter
    if owner not in _changed:
        original = owner.__init__
        replacement = _accelerated(original)
        _changed[owner] = (original, replacement)
        owner.__init__ = replacement


def _accelerated(original: Callable[..., None]) -> Callable[..., None]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def construct(*args: Any, **kwargs: Any) -> None:
        acceleration = current()
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            return original(*args, **kwargs)  # raises the same error
        given = list(bound.arguments.get(_DELEGATES) or ())
        if acceleration is None or any(isinstance(each, GpuDelegate) for each in given):
            return original(*args, **kwargs)
        model = bound.arguments.get("model_content") or bound.arguments.get("model_path")
        delegate = acceleration.delegate(model)
        if delegate is None:
            return original(*args, **kwargs)
        bound.arguments[_DELEGATES] = [*given, delegate]
        original(*bound.args, **bound.kwargs)
        return acceleration.add(model, delegate)

    return construct


class _Finder(MetaPathFinder):
    """Finds the runtimes' modules by the other finders, and changes them after their import."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in RUNTIMES:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _ChangingLoader(spec.loader)
                return spec
        return None


class _ChangingLoader(Loader):
    """Imports a module by its own loader, then changes its Interpreter."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        if _FINDER in sys.meta_path:
            _change(module)


_FINDER = _Finder()
