"""Checks the system, its Python packages and the environment."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from litegpu import config
from litegpu.backends import (
    ALIASES,
    ANY,
    BACKENDS,
    SHORT,
)
from litegpu.cache.store import all_entries, default_folders
from litegpu.errors import LitegpuError, did_you_mean
from litegpu.host import private_files
from litegpu.runtime_abi.kernels import RUNTIMES
from litegpu.tools.doctor.findings import Finding, Machine
from litegpu.version import __version__
from litegpu.wording import shown_size

_RUNTIME_PACKAGES = {
    "ai_edge_litert.interpreter": ("ai-edge-litert",),
    "tflite_runtime.interpreter": ("tflite-runtime",),
    "tensorflow.lite.python.interpreter": ("tensorflow", "tensorflow-cpu"),
}
_OTHERS = (
    *("numpy", "jinja2", "platformdirs", "cuda-bindings", "nvidia-cuda-nvrtc"),
    *("nvidia-cuda-nvrtc-cu12", "pyopencl", "wgpu", "glcontext"),
)
_FOR_NUMPY_1 = {"tflite-runtime": (99,), "ai-edge-litert": (1, 0)}
"""The last runtime versions that were built for NumPy 1."""
_LITTLE = 256 << 20
"""Minimum free disk space for the cache in bytes; less is reported."""


def system(machine: Machine) -> Iterator[Finding]:
    """Report litegpu, Python, the system, and layers such as containers or WSL."""
    yield Finding("litegpu", "ok", __version__)
    python = f"Python {platform.python_version()} ({platform.python_implementation()})"
    name = f"{platform.system()} {platform.release()} on {platform.machine()}"
    release = platform.freedesktop_os_release().get("PRETTY_NAME", "") if _has_release() else ""
    yield Finding("system", "ok", ", ".join(filter(None, (python, name, release))))
    if machine.is_wsl:
        yield from _wsl(machine)
    if machine.container:
        yield Finding("system", "ok", f"This is a container ({machine.container}).")


def _has_release() -> bool:
    try:
        return bool(platform.freedesktop_os_release())
    except (OSError, AttributeError):
        return False


def _wsl(machine: Machine) -> Iterator[Finding]:
    if machine.path("dev/dxg").exists():
        yield Finding("system", "ok", "This is WSL, with the GPU of Windows (/dev/dxg).")
        return
    yield Finding(
        "system",
        "problem",
        "This is WSL without a GPU: there is no /dev/dxg.",
        "Update WSL and the GPU's driver in Windows: wsl --update",
    )


def packages(machine: Machine) -> Iterator[Finding]:
    """Report the installed packages, and conflicts among them."""
    runtimes = {name: version for name in RUNTIMES for name, version in _runtime(name)}
    others = {name: version for name in _OTHERS if (version := _version(name))}
    listed = [f"{name} {version}" for name, version in {**runtimes, **others}.items()]
    yield Finding("packages", "ok", ", ".join(listed))
    if not runtimes:
        yield Finding(
            *("runtime", "problem", "No TensorFlow Lite runtime is installed."),
            "pip install 'litegpu[runtime]'",
        )
    elif len(runtimes) > 1:
        first = next(iter(runtimes))
        yield Finding(
            *("runtime", "note", f"There are several runtimes; the tools of litegpu use {first}.")
        )
    if _number(others.get("numpy", "")) < (2,):
        return
    for name, last in _FOR_NUMPY_1.items():
        if name in runtimes and _number(runtimes[name]) <= last:
            text = f"{name} {runtimes[name]} was built for NumPy 1."
            yield Finding("runtime", "problem", text, "pip install 'numpy<2'")


def _runtime(module: str) -> Iterator[tuple[str, str]]:
    for name in _RUNTIME_PACKAGES[module]:
        if version := _version(name):
            yield name, version


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())


def environment(machine: Machine) -> Iterator[Finding]:
    """Report litegpu's environment variables that are set, and unknown ones with its prefix."""
    for name, value in sorted(machine.environment.items()):
        if not name.startswith("LITEGPU_"):
            continue
        known = ("", *ANY, *BACKENDS, *ALIASES, *SHORT)
        if name == "LITEGPU_BACKEND" and value.strip().lower() not in known:
            text = f"LITEGPU_BACKEND={value} is not a backend."
            yield Finding("environment", "problem", text, did_you_mean(value, known[1:]).strip())
            continue
        if name in config.VARIABLES:
            yield Finding("environment", "note", f"{name}={value}: {config.VARIABLES[name]}")
            continue
        hint = did_you_mean(name, config.VARIABLES).strip()
        text = f"{name} is set, but litegpu does not use it."
        yield Finding("environment", "problem", text, hint or f"unset {name}")


def cache_folder(machine: Machine) -> Iterator[Finding]:
    """Report whether litegpu can cache compiled partitions for the next start."""
    try:
        folder = default_folders()[0]
    except LitegpuError as error:
        yield Finding("cache", "note", str(error), error.remedy)
        return
    if not folder.exists():
        yield Finding("cache", "ok", f"{folder} does not exist yet; the first start creates it.")
        return
    try:
        private_files.check_folder(folder, config.is_unsafe_cache_allowed())
        size = sum(entry.nbytes for entry in all_entries(folder))
    except OSError as error:
        text = f"{folder} is not used: {error.strerror or error}"
        yield Finding("cache", "problem", text, _chmod(folder))
        return
    if not os.access(folder, os.W_OK | os.X_OK):
        yield Finding("cache", "problem", f"{folder} cannot be written to.", _chmod(folder))
        return
    yield Finding("cache", "ok", f"{folder} holds {shown_size(size)}.")
    free = _free(folder)
    if free is not None and free < _LITTLE:
        yield Finding(
            *(
                "cache",
                "problem",
                f"The disk of {folder} has only {shown_size(free)} of free space.",
            ),
            "litegpu cache --clear",
        )


def _chmod(folder: Path) -> str:
    return f"chmod 700 '{folder}'"


def _free(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None
