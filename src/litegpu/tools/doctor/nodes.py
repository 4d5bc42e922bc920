"""Checks the GPUs of a Linux machine, and whether this process may access them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from litegpu.tools.doctor.findings import Finding, Machine

_VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel"}
_DISPLAY = "0x03"
"""Prefixes of the PCI classes of displays and processing accelerators."""
_NOTHING = ("", "void", "none")
"""Values of NVIDIA_VISIBLE_DEVICES that hide every GPU from a container."""
_GIVE = "docker run --gpus all ..."
_PARTS = {"compute": "CUDA and OpenCL", "graphics": "OpenGL and Vulkan"}
"""The APIs enabled by each value of NVIDIA_DRIVER_CAPABILITIES."""


def gpus(machine: Machine) -> Iterator[Finding]:
    """Report the GPUs of the machine, and missing drivers."""
    if not machine.is_linux or machine.is_wsl:
        return
    vendors = [*_vendors(machine)]
    for vendor in dict.fromkeys(vendors):
        count = vendors.count(vendor)
        yield Finding("GPUs", "ok", f"{vendor}: {count} on the PCI bus.")
    has_render_nodes = bool(machine.names("dev/dri", "renderD*"))
    if "NVIDIA" in vendors and not machine.path("proc/driver/nvidia/version").exists():
        yield Finding(
            *("GPUs", "problem", "There is an NVIDIA GPU, but NVIDIA's driver is not loaded."),
            "Install NVIDIA's driver, then restart the machine.",
        )
    if {"AMD", "Intel"}.intersection(vendors) and not has_render_nodes and not machine.container:
        yield Finding(
            *("GPUs", "problem", "There is a GPU, but no /dev/dri: its driver is not loaded."),
            "Install the kernel's driver (amdgpu, i915 or xe) and the firmware of the GPU.",
        )


def _vendors(machine: Machine) -> Iterator[str]:
    for device in machine.names("sys/bus/pci/devices", "*"):
        name = f"sys/bus/pci/devices/{device.name}"
        vendor = machine.text(f"{name}/vendor").lower()
        if machine.text(f"{name}/class").startswith(_DISPLAY) and vendor in _VENDORS:
            yield _VENDORS[vendor]


def nvidia_in_containers(machine: Machine) -> Iterator[Finding]:
    """Report whether a container has access to its host's GPUs."""
    if not machine.is_linux or machine.is_wsl:
        return
    loaded = machine.path("proc/driver/nvidia/version").exists()
    visible = machine.environment.get("NVIDIA_VISIBLE_DEVICES")
    if not machine.names("dev", "nvidia[0-9]*"):
        if loaded or (machine.container and visible is not None):
            hidden = visible is not None and visible in _NOTHING
            why = f" (NVIDIA_VISIBLE_DEVICES={visible})" if hidden else ""
            text = f"NVIDIA's driver is loaded, but no GPU is visible here{why}."
            remedy = _GIVE if machine.container else "sudo nvidia-modprobe -u -c=0"
            yield Finding("permissions", "problem", text, remedy)
        return
    yield from (_allowed(path) for path in machine.names("dev", "nvidia[0-9]*"))
    parts = machine.environment.get("NVIDIA_DRIVER_CAPABILITIES", "")
    if machine.container and parts and "all" not in parts.split(","):
        for part, use in _PARTS.items():
            if part not in parts.split(","):
                text = f"NVIDIA_DRIVER_CAPABILITIES={parts}: {use} of the driver is missing."
                remedy = "docker run -e NVIDIA_DRIVER_CAPABILITIES=all ..."
                yield Finding("permissions", "note", text, remedy)


def render_nodes(machine: Machine) -> Iterator[Finding]:
    """Report whether this user can access the GPUs' render nodes and AMD's compute node."""
    if not machine.is_linux:
        return
    nodes = machine.names("dev/dri", "renderD*") + machine.names("dev", "kfd")
    yield from map(_allowed, nodes)
    if machine.container and not nodes and {"AMD", "Intel"}.intersection(_vendors(machine)):
        yield Finding(
            *("permissions", "problem", "The GPU of the host is not visible in this container."),
            "docker run --device=/dev/dri ... (and --device=/dev/kfd for ROCm)",
        )


def _allowed(path: Path) -> Finding:
    shown = f"/dev/{path.name}" if path.parent.name == "dev" else f"/dev/dri/{path.name}"
    if os.access(path, os.R_OK | os.W_OK):
        return Finding("permissions", "ok", f"{shown} is accessible.")
    group = _group(path)
    return Finding(
        "permissions",
        "problem",
        f"This user has no access to {shown} (group {group}).",
        f"sudo usermod -aG {group} $USER, then log in again (docker run --group-add {group} ...)",
    )


def _group(path: Path) -> str:
    number = path.stat().st_gid
    try:
        import grp

        return grp.getgrgid(number).gr_name
    except (ImportError, KeyError):
        return str(number)
