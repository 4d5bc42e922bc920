"""What a result file says about the machine: hardware, driver, clocks and versions."""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import os
import platform
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import no_cache  # noqa: F401
from litegpu import __version__

_PACKAGES = (
    *("ai-edge-litert", "cuda-bindings", "flatbuffers", "jinja2", "numpy", "nvidia-cuda-nvrtc"),
    *("litert-torch", "pyopencl", "timm", "torch", "transformers", "triton", "ultralytics"),
)
_GPU_FIELDS = (
    *("name", "driver_version", "clocks.max.sm", "clocks.max.mem", "persistence_mode"),
    "power.limit",
)
_CLOCK_FIELDS = ("clocks.sm", "clocks.mem", "temperature.gpu", "power.draw")


def facts() -> dict[str, Any]:
    """Return what is the same for the whole run.

    Call it before a GPU is asked for: PyTorch's compiler brings an LLVM of its own, and crashes if
    an OpenCL implementation has loaded another one before.
    """
    return {
        "platform": platform.platform(),
        "cpu": _cpu_name(),
        "cpu_cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "gpu": _ask_gpu(_GPU_FIELDS),
        "python": platform.python_version(),
        "packages": {name: found for name in _PACKAGES if (found := _version(name))},
        "torch": _torch_facts(),
    }


def commit() -> str:
    """Return the commit that is checked out, or an empty text outside of a repository."""
    command = ["git", "rev-parse", "--short=12", "HEAD"]
    return _output(command, cwd=Path(__file__).parent)


def settings(args: argparse.Namespace) -> dict[str, str]:
    """Return what was asked for, but the file that the results go to: a path of this machine."""
    return {name: str(value) for name, value in vars(args).items() if name != "output"}


def about(args: argparse.Namespace) -> dict[str, Any]:
    """Return what a result file begins with: when, what, where and how it was measured."""
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "litegpu": __version__,
        "commit": commit(),
        "machine": facts(),
        "settings": settings(args),
    }


def clocks_during(run: Callable[[], object]) -> dict[str, str]:
    """Return the first GPU's clocks while `run` is called again and again."""
    command = _smi_command(_CLOCK_FIELDS)
    if command is None:
        return {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as asking:
        while asking.poll() is None:
            run()
        text = asking.stdout.read() if asking.stdout else ""
    return _fields(_CLOCK_FIELDS, text)


def _ask_gpu(fields: tuple[str, ...]) -> dict[str, str]:
    command = _smi_command(fields)
    return _fields(fields, _output(command)) if command else {}


def _smi_command(fields: tuple[str, ...]) -> list[str] | None:
    smi = shutil.which("nvidia-smi")
    return [smi, f"--query-gpu={','.join(fields)}", "--format=csv,noheader"] if smi else None


def _fields(names: tuple[str, ...], text: str) -> dict[str, str]:
    """Return the first line of comma-separated values by their names; empty for another text."""
    values = [value.strip() for value in text.partition("\n")[0].split(",")]
    return dict(zip(names, values, strict=True)) if len(values) == len(names) else {}


def _output(command: list[str], cwd: Path | None = None) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=cwd, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def _torch_facts() -> dict[str, Any]:
    """Return PyTorch's libraries; loads its compiler too where that can be used, see `facts`."""
    try:
        import torch
    except ImportError:
        return {}
    if torch.cuda.is_available():
        import torch._dynamo
    return {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
