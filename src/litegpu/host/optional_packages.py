"""The Python packages behind the backends: loaded, or a typed error that says what to type."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from litegpu.errors import MissingDependencyError, UnsupportedDeviceError


def load(
    package: str, module: str, missing: Callable[[], MissingDependencyError], part: str = ""
) -> Any:
    """Import a module, or a part of it, of a package that is called `package` for pip.

    Raises what `missing` makes when it is not installed, UnsupportedDeviceError when it is and
    cannot be loaded, for whatever reason.
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
    """Return the error for a package that fails in a way that nobody foresaw."""
    remedy = f"pip install --force-reinstall {package}"
    found = UnsupportedDeviceError(
        f"The Python package '{package}' {what} ({type(cause).__name__}: {cause}). "
        f"Install it anew: {remedy}"
    )
    found.remedy = remedy
    return found
