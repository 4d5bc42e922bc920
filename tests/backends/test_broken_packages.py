"""Each broken package of a backend gives a reason; tests run in separate processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from c_compiler import shared_library
from places import SOURCE

NAMES = {
    "cuda": ("cuda/bindings", "cuda-bindings"),
    "opencl": ("pyopencl", "pyopencl"),
    "webgpu": ("wgpu", "wgpu"),
    "opengl": ("glcontext", "glcontext"),
}
"""Folder and pip name of the package behind each backend."""
BROKEN_AT_IMPORT = {
    "cuda": "raise OSError('libcudart: wrong ELF class')",
    "opencl": "import a_module_that_nobody_has",
    "webgpu": "raise AttributeError('cffi has no FFI')",
    "opengl": "raise SystemError('initialization of glcontext did not return')",
}
BROKEN_LATER: Mapping[str, str] = dict.fromkeys(NAMES, "")
"""Packages that can be imported and are empty."""


def python(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python with packages of `folder` before all others."""
    environment = {name: text for name, text in os.environ.items() if "LITEGPU" not in name}
    environment |= {"PYTHONPATH": os.pathsep.join([str(folder), str(SOURCE)]), **variables}
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def break_packages(folder: Path, texts: Mapping[str, str]) -> None:
    for backend, text in texts.items():
        package = folder / NAMES[backend][0]
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(text)
        for parent in set(package.parents) & set(folder.glob("*")):
            (parent / "__init__.py").touch()


@pytest.mark.parametrize("texts", [BROKEN_AT_IMPORT, BROKEN_LATER], ids=["import", "later"])
def test_every_backend_is_broken(texts: Mapping[str, str], tmp_path: Path) -> None:
    break_packages(tmp_path, texts)
    code = (
        "import litegpu\n"
        "from litegpu import backends\n"
        "assert litegpu.list_devices() == []\n"
        "for backend in (None, *backends.BACKENDS):\n"
        "    try:\n"
        "        litegpu.GpuDelegate(backend=backend)\n"
        "    except litegpu.UnsupportedDeviceError as error:\n"
        "        print(error)\n"
    )
    result = python(tmp_path, "-c", code)
    assert (result.returncode, result.stderr) == (0, "")
    for _, package in NAMES.values():
        assert result.stdout.count(f"pip install --force-reinstall {package}") == 2

    listed = python(tmp_path, "-m", "litegpu.tools.cli", "devices", "--json")
    assert (listed.returncode, listed.stderr) == (1, "")
    for status in json.loads(listed.stdout):
        package = NAMES[status["name"]][1]
        assert status["devices"] == []
        assert package in status["reason"]
        assert status["remedy"] == f"pip install --force-reinstall {package}"


def test_a_dependency_that_a_package_lacks_is_not_taken_for_the_package(tmp_path: Path) -> None:
    break_packages(tmp_path, {"webgpu": "import a_module_that_nobody_has"})
    result = python(tmp_path, "-m", "litegpu.tools.cli", "devices")
    assert result.stderr == ""
    text = " ".join(result.stdout.split())
    assert "'wgpu' is installed but cannot be loaded (ModuleNotFoundError: No module named" in text
    assert "pip install --force-reinstall wgpu" in text


def test_one_broken_backend_hides_no_other(tmp_path: Path) -> None:
    pytest.importorskip("pyopencl")
    break_packages(tmp_path, {"webgpu": "raise AttributeError('cffi')"})
    code = "import litegpu; print(litegpu.GpuDelegate().device.backend)"
    result = python(tmp_path, "-c", code)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() in ("cuda", "opencl")


@pytest.mark.skipif(sys.platform != "linux", reason="a library is put in the place of libcuda")
@pytest.mark.parametrize(("version", "extra"), [(12040, "cuda12"), (13010, "cuda13")])
def test_a_driver_without_the_bindings_names_the_extra_that_fits(
    version: int, extra: str, tmp_path: Path
) -> None:
    source = f"int cuDriverGetVersion(int *version) {{ *version = {version}; return 0; }}"
    shared_library(source, tmp_path).rename(tmp_path / "libcuda.so.1")
    (tmp_path / "cuda.py").write_text("raise ModuleNotFoundError(name='cuda')")
    variables = {"LD_LIBRARY_PATH": str(tmp_path)}
    result = python(tmp_path, "-m", "litegpu.tools.cli", "devices", "--json", **variables)
    status = json.loads(result.stdout)[0]
    assert f"NVIDIA's driver is here (CUDA {version // 1000}." in status["reason"]
    assert status["remedy"] == f"pip install 'litegpu[{extra}]'"
