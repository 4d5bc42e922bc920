"""Checks whether NVIDIA's driver is new enough for litegpu's compiler (NVRTC)."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata

from litegpu.backends.cuda.presence import supported_version
from litegpu.tools.doctor.findings import Finding, Machine

_COMPILERS = {"nvidia-cuda-nvrtc": 13, "nvidia-cuda-nvrtc-cu12": 12}
"""Packages that contain NVRTC, and their major version of CUDA."""
_NO_GPU = ("", "-1")
"""Values of CUDA_VISIBLE_DEVICES that hide all GPUs."""


def compiler(machine: Machine) -> Iterator[Finding]:
    """Report the driver's CUDA version, and whether NVRTC's version is newer."""
    known = supported_version()
    if known is None:
        return
    shown = f"{known // 1000}.{known % 1000 // 10}"
    yield Finding("CUDA", "ok", f"NVIDIA's driver supports CUDA {shown}.")
    majors = [major for name, major in _COMPILERS.items() if _is_installed(name)]
    if majors and min(majors) > known // 1000:
        yield Finding(
            "CUDA",
            "problem",
            f"The compiler (NVRTC) belongs to CUDA {min(majors)}, newer than the driver's {shown}.",
            "pip install 'litegpu[cuda12]'",
        )


def hidden_gpus(machine: Machine) -> Iterator[Finding]:
    """Report whether the environment hides every GPU from CUDA."""
    visible = machine.environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in _NO_GPU:
        text = f"CUDA_VISIBLE_DEVICES={visible} hides every GPU from CUDA."
        yield Finding("CUDA", "problem", text, "unset CUDA_VISIBLE_DEVICES")


def _is_installed(package: str) -> bool:
    try:
        return bool(metadata.version(package))
    except metadata.PackageNotFoundError:
        return False
