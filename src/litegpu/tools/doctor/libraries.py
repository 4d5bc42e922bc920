"""Checks the driver libraries that are registered with the loaders of GPU APIs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from litegpu.host.children import run_module
from litegpu.tools.doctor.findings import Finding, Machine

TRIAL = "litegpu.tools.doctor.trial"
_PATIENCE_S = 30.0


def opencl_drivers(machine: Machine) -> Iterator[Finding]:
    """Report the registered OpenCL drivers, and libraries that cannot be loaded."""
    if not machine.is_linux:
        return
    folder = machine.environment.get("OCL_ICD_VENDORS", "")
    if folder and not Path(folder).exists():
        text = f"OCL_ICD_VENDORS={folder} does not exist: no OpenCL driver is found."
        yield Finding("OpenCL", "problem", text, "unset OCL_ICD_VENDORS")
        return
    registered = _registered(folder, machine)
    if not registered:
        yield Finding(
            *("OpenCL", "note", "No OpenCL driver is registered in /etc/OpenCL/vendors."),
            "Install the GPU's OpenCL driver; on the CPU: sudo apt install pocl-opencl-icd",
        )
    for path in registered:
        yield _loaded("OpenCL", path.name, path.read_text(encoding="utf-8", errors="replace"))


def _registered(folder: str, machine: Machine) -> list[Path]:
    if not folder:
        return machine.names("etc/OpenCL/vendors", "*.icd")
    named = Path(folder)
    return sorted(named.glob("*.icd")) if named.is_dir() else [named]


def vulkan_drivers(machine: Machine) -> Iterator[Finding]:
    """Report the registered Vulkan drivers; WebGPU needs one."""
    folders = ("etc/vulkan/icd.d", "usr/share/vulkan/icd.d", "usr/local/share/vulkan/icd.d")
    variables = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES")
    yield from _manifests(machine, "Vulkan", folders, variables, "mesa-vulkan-drivers")


def egl_drivers(machine: Machine) -> Iterator[Finding]:
    """Report the drivers for EGL, which OpenGL without a screen needs."""
    folders = ("etc/glvnd/egl_vendor.d", "usr/share/glvnd/egl_vendor.d")
    variables = ("__EGL_VENDOR_LIBRARY_FILENAMES",)
    yield from _manifests(machine, "EGL", folders, variables, "libegl-mesa0")


def _manifests(
    machine: Machine,
    api: str,
    folders: tuple[str, ...],
    variables: tuple[str, ...],
    package: str,
) -> Iterator[Finding]:
    """Report the drivers in JSON manifests, found in folders or by an environment variable."""
    if not machine.is_linux:
        return
    variable = next((name for name in variables if machine.environment.get(name)), "")
    if variable:
        files = [Path(name) for name in machine.environment[variable].split(":")]
    else:
        files = [path for folder in folders for path in machine.names(folder, "*.json")]
    for path in files:
        if not path.exists():
            text = f"{variable} names {path}, which does not exist."
            yield Finding(api, "problem", text, f"unset {variable}")
            continue
        yield _of_manifest(api, path)
    if not files:
        text = f"No {api} driver is registered in /usr/share."
        remedy = f"Install the GPU's driver; for Mesa's: sudo apt install {package}"
        yield Finding(api, "note", text, remedy)


def _of_manifest(api: str, path: Path) -> Finding:
    try:
        library = str(json.loads(path.read_text(encoding="utf-8"))["ICD"]["library_path"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        text = f"{path} does not name a library ({type(error).__name__}: {error})."
        return Finding(api, "problem", text, "Reinstall the package of the file.")
    if "/" in library and not library.startswith("/"):
        library = str(path.parent / library)
    return _loaded(api, path.name, library)


def _loaded(api: str, name: str, library: str) -> Finding:
    """Load a driver's library in a separate process, because loading may crash."""
    library = library.strip()
    ended = run_module(TRIAL, ["load", library], _PATIENCE_S)
    if ended.status == 0:
        return Finding(api, "ok", f"{name}: {library}")
    why = ended.output.strip() if ended.status == 1 else f"loading it {ended.how()}"
    text = f"{name} names {library}, which cannot be loaded: {why}"
    remedy = f"Reinstall the driver, or remove {name}."
    return Finding(api, "problem", text, remedy)
