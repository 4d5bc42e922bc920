"""Loads the Python packages of the backends, or raises a typed error with the remedy."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from litegpu.errors import MissingDependencyError, UnsupportedDeviceError


def load(
    package: str, module: str, missing: Callable[[], MissingDependencyError], part: str = ""
) -> Any:
    """Import a module, or an attribute of it, of a package with the pip name `package`.

    Raises the error of `missing` if the package is not installed, and UnsupportedDeviceError if the
    package is installed but cannot be loaded.
    """
    try:
        found = importlib.import_module(module)
        return getattr(__import__(module, fromlist=[part]), part) if part else found
    except ModuleNotFoundError as error:
        if error.name and f"{module}.".startswith(f"{error.name}."):
            raise missing() from error
        raise damaged(package, "is installed but cannot be loaded", error) from error
    except Exception as error:
        raise damaged(package, "is installed but cannot be loaded", error) from error


def damaged(package: str, what: str, cause: Exception) -> UnsupportedDeviceError:
    """Return the error for an unexpected failure of a package."""
    remedy = f"pip install --force-reinstall {package}"
    found = UnsupportedDeviceError(
        f"The Python package '{package}' {what} ({type(cause).__name__}: {cause}). "
        f"Reinstall it: {remedy}"
    )
    found.remedy = remedy
    return found
