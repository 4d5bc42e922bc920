"""`litegpu doctor`: finds each problem between models and a GPU, with its remedy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from litegpu import backends
from litegpu.errors import OptionsError
from litegpu.host.children import Ended
from litegpu.tools import cli, doctor
from litegpu.tools.doctor import host as about
from litegpu.tools.doctor import libraries, nodes, nvidia, outcomes, trial
from litegpu.tools.doctor.findings import Check, Finding, Machine, run_checks
from litegpu.version import __version__
from places import python_path

NVIDIA = {"proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module 580.1"}
ON_BUS = "sys/bus/pci/devices/0000:00:01.0/"


def card(vendor: str) -> dict[str, str]:
    """Return the files that tell of a GPU on the PCI bus."""
    return {f"{ON_BUS}vendor": f"{vendor}\n", f"{ON_BUS}class": "0x030000\n"}


class Ill(NamedTuple):
    """A machine with something wrong, and what is to be said of it."""

    check: Check
    files: dict[str, str]
    environ: dict[str, str]
    text: str
    remedy: str
    level: str = "problem"


MACHINES = (
    Ill(
        about.system,
        {"proc/version": "Linux 5.15 Microsoft Corporation WSL2"},
        {},
        "This is WSL without a GPU: there is no /dev/dxg.",
        "wsl --update",
    ),
    Ill(
        about.environment,
        {},
        {"LITEGPU_BACKND": "cuda"},
        "LITEGPU_BACKND is set, but litegpu does not use it.",
        "Did you mean 'LITEGPU_BACKEND'?",
    ),
    Ill(
        about.environment,
        {},
        {"LITEGPU_BACKEND": "opengl"},
        "LITEGPU_BACKEND=opengl: default value of the option `backend`",
        "",
        "note",
    ),
    Ill(
        nodes.gpus,
        card("0x10de"),
        {},
        "There is an NVIDIA GPU, but NVIDIA's driver is not loaded.",
        "Install NVIDIA's driver",
    ),
    Ill(
        nodes.gpus,
        card("0x1002"),
        {},
        "There is a GPU, but no /dev/dri: its driver is not loaded.",
        "amdgpu",
    ),
    Ill(
        nodes.nvidia_in_containers,
        {**NVIDIA, ".dockerenv": ""},
        {"NVIDIA_VISIBLE_DEVICES": "void"},
        "NVIDIA's driver is loaded, but no GPU is visible here (NVIDIA_VISIBLE_DEVICES=void).",
        "docker run --gpus all",
    ),
    Ill(
        nodes.nvidia_in_containers,
        NVIDIA,
        {},
        "NVIDIA's driver is loaded, but no GPU is visible here.",
        "sudo nvidia-modprobe",
    ),
    Ill(
        nodes.nvidia_in_containers,
        {**NVIDIA, ".dockerenv": "", "dev/nvidia0": ""},
        {"NVIDIA_DRIVER_CAPABILITIES": "compute,utility"},
        "NVIDIA_DRIVER_CAPABILITIES=compute,utility: OpenGL and Vulkan of the driver is missing.",
        "docker run -e NVIDIA_DRIVER_CAPABILITIES=all",
        "note",
    ),
    Ill(
        nodes.render_nodes,
        {**card("0x8086"), "run/.containerenv": ""},
        {},
        "The GPU of the host is not visible in this container.",
        "docker run --device=/dev/dri",
    ),
    Ill(
        libraries.opencl_drivers,
        {},
        {},
        "No OpenCL driver is registered in /etc/OpenCL/vendors.",
        "sudo apt install pocl-opencl-icd",
        "note",
    ),
    Ill(
        libraries.opencl_drivers,
        {"etc/OpenCL/vendors/gone.icd": "/nowhere/libgone.so\n"},
        {},
        "gone.icd names /nowhere/libgone.so, which cannot be loaded: /nowhere/libgone.so: cannot "
        "open shared object file: No such file or directory",
        "remove gone.icd",
    ),
    Ill(
        libraries.opencl_drivers,
        {},
        {"OCL_ICD_VENDORS": "/nowhere"},
        "OCL_ICD_VENDORS=/nowhere does not exist: no OpenCL driver is found.",
        "unset OCL_ICD_VENDORS",
    ),
    Ill(
        libraries.vulkan_drivers,
        {},
        {"VK_DRIVER_FILES": "/nowhere/icd.json"},
        "VK_DRIVER_FILES names /nowhere/icd.json, which does not exist.",
        "unset VK_DRIVER_FILES",
    ),
    Ill(
        libraries.vulkan_drivers,
        {},
        {},
        "No Vulkan driver is registered in /usr/share.",
        "sudo apt install mesa-vulkan-drivers",
        "note",
    ),
    Ill(
        libraries.egl_drivers,
        {"usr/share/glvnd/egl_vendor.d/10.json": '{"ICD": {"library_path": "./libgone.so"}}'},
        {},
        "10.json names {root}/usr/share/glvnd/egl_vendor.d/libgone.so, which cannot be loaded: ",
        "remove 10.json",
    ),
    Ill(
        libraries.egl_drivers,
        {"usr/share/glvnd/egl_vendor.d/10.json": "{}"},
        {},
        "{root}/usr/share/glvnd/egl_vendor.d/10.json does not name a library (KeyError: 'ICD').",
        "Reinstall the package",
    ),
)


@pytest.mark.parametrize("ill", MACHINES, ids=lambda ill: ill.text[:40])
def test_what_is_wrong_is_found(ill: Ill, tmp_path: Path) -> None:
    for name, text in ill.files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    found = [*ill.check(Machine("linux", tmp_path, ill.environ))]
    wanted = ill.text.replace("{root}", str(tmp_path))
    (finding,) = (each for each in found if each.text.startswith(wanted))
    assert finding.level == ill.level
    assert ill.remedy in finding.remedy
    assert bool(ill.remedy) == bool(finding.remedy)


def test_a_healthy_machine(tmp_path: Path) -> None:
    files = {**NVIDIA, **card("0x10de"), "dev/nvidia0": "", "dev/dri/renderD128": ""}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    found = run_checks(Machine("linux", tmp_path, {}), doctor.CHECKS[4:7])
    assert [(each.level, each.text) for each in found] == [
        ("ok", "NVIDIA: 1 on the PCI bus."),
        ("ok", "/dev/nvidia0 is accessible."),
        ("ok", "/dev/dri/renderD128 is accessible."),
    ]


def test_a_node_that_this_user_may_not_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = tmp_path / "dev/dri/renderD128"
    node.parent.mkdir(parents=True)
    node.touch()
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    (finding,) = nodes.render_nodes(Machine("linux", tmp_path, {}))
    assert finding.text.startswith("This user has no access to /dev/dri/renderD128 (group ")
    assert finding.remedy.startswith("sudo usermod -aG ")


@pytest.mark.parametrize("platform", ["win32", "darwin"])
def test_what_only_linux_has_is_left_out_elsewhere(platform: str, tmp_path: Path) -> None:
    (tmp_path / "dev/dri").mkdir(parents=True)
    (tmp_path / "dev/dri/renderD128").touch()
    checks = (nodes.gpus, nodes.nvidia_in_containers, nodes.render_nodes)
    drivers = (libraries.opencl_drivers, libraries.vulkan_drivers, libraries.egl_drivers)
    assert not run_checks(Machine(platform, tmp_path, {}), (*checks, *drivers))


def versions(**found: str) -> Callable[[str], str]:
    def version(name: str) -> str:
        if name.replace("-", "_") not in found:
            raise metadata.PackageNotFoundError(name)
        return found[name.replace("-", "_")]

    return version


@pytest.mark.parametrize(
    ("found", "level", "text", "remedy"),
    [
        (
            {"numpy": "2.1"},
            *("problem", "No TensorFlow Lite runtime is installed.", "litegpu[runtime]"),
        ),
        (
            {"ai_edge_litert": "2.3", "tensorflow": "2.20"},
            *("note", "There are several runtimes; the tools of litegpu use ai-edge-litert.", ""),
        ),
        (
            {"tflite_runtime": "2.14.0", "numpy": "2.1.0"},
            *("problem", "tflite-runtime 2.14.0 was built for NumPy 1.", "numpy<2"),
        ),
    ],
)
def test_packages(
    found: dict[str, str], level: str, text: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "version", versions(**found))
    (finding,) = (each for each in about.packages(Machine()) if each.topic == "runtime")
    assert (finding.level, finding.text) == (level, text)
    assert remedy in finding.remedy


def test_versions_that_fit_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", versions(ai_edge_litert="2.3.0", numpy="2.1.0"))
    assert [each.level for each in about.packages(Machine())] == ["ok"]


@pytest.mark.parametrize(("driver", "problems"), [(12040, 1), (13000, 0), (None, 0)])
def test_a_compiler_that_is_newer_than_the_driver(
    driver: int | None, problems: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "version", versions(nvidia_cuda_nvrtc="13.0"))
    monkeypatch.setattr(nvidia, "supported_version", lambda: driver)
    found = [each for each in nvidia.compiler(Machine()) if each.level == "problem"]
    assert len(found) == problems
    if found:
        text = "The compiler (NVRTC) belongs to CUDA 13, newer than the driver's 12.4."
        assert (found[0].text, found[0].remedy) == (text, "pip install 'litegpu[cuda12]'")


def cache_finding(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Finding:
    monkeypatch.setattr(about, "default_folders", lambda: [folder])
    *_, last = about.cache_folder(Machine())
    return last


def test_the_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = cache_finding(monkeypatch, tmp_path / "none")
    assert found.text.endswith("none does not exist yet; the first start creates it.")
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    assert cache_finding(monkeypatch, folder).text == f"{folder} holds 0 B."
    with monkeypatch.context() as patch:
        patch.setattr(about, "_free", lambda _: 1 << 20)
        found = cache_finding(patch, folder)
        assert (found.level, found.remedy) == ("problem", "litegpu cache --clear")
        assert found.text == f"The disk of {folder} has only 1.0 MiB of free space."
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda path, mode: False)
        assert cache_finding(patch, folder).text == f"{folder} cannot be written to."
    folder.chmod(0o777)
    if hasattr(os, "geteuid"):
        found = cache_finding(monkeypatch, folder)
        assert found.text.startswith(f"{folder} is not used: other users may write to the folder")
        assert found.remedy == f"chmod 700 '{folder}'"


def test_a_cache_without_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing() -> list[Path]:
        raise OptionsError("This user has no home folder.")

    monkeypatch.setattr(about, "default_folders", failing)
    (found,) = about.cache_folder(Machine())
    assert (found.level, found.text) == ("note", "This user has no home folder.")


def test_a_check_that_fails_is_a_finding() -> None:
    def of_the_moon(machine: Machine) -> list[Finding]:
        raise KeyError("moon")

    (found,) = run_checks(Machine(), [of_the_moon])
    assert found == Finding("of the moon", "note", "This check failed: KeyError: 'moon'")


INFO = {"index": 0, "name": "Some GPU", "driver": "1.0", "software": False}
INFO |= {"memory_bytes": 1 << 30, "half_arithmetic": True}
WHAT = "opencl:0 Some GPU (GPU, 1.0 GiB, fp16 arithmetic; 1.0), some_runtime"


@pytest.mark.parametrize(
    ("ended", "level", "text", "remedy"),
    [
        (
            Ended(0, 'INFO: hello\n{"difference": 1e-7, "start_s": 0.5}\n', ""),
            *("ok", f"{WHAT}: correct results, started in 500 ms", ""),
        ),
        (
            Ended(0, '{"difference": 0.5, "start_s": 0.5}', ""),
            *("problem", f"{WHAT}: a small model's results are 5.0e-01 from the CPU's."),
            "Update the GPU's driver; until then use another backend.",
        ),
        (
            Ended(0, '{"difference": NaN, "start_s": 0.5}', ""),
            *("problem", f"{WHAT}: a small model's results are nan from the CPU's."),
            "Update the GPU's driver; until then use another backend.",
        ),
        (
            Ended(1, '{"error": "No memory.", "remedy": "buy some"}', ""),
            *("problem", f"{WHAT}: No memory.", "buy some"),
        ),
        (
            Ended(-11, "", "driver: assertion\n"),
            "problem",
            f"{WHAT}: a small model crashes: Segmentation fault. driver: assertion",
            "Update the GPU's driver.",
        ),
        (
            Ended(None, "", ""),
            *("problem", f"{WHAT}: a small model hangs.", "Update the GPU's driver."),
        ),
    ],
)
def test_a_device_that_is_tried(
    ended: Ended, level: str, text: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if ended.status == -11 and sys.platform == "win32":
        pytest.skip("Windows has no signals")
    monkeypatch.setattr(outcomes, "run_module", lambda *_: ended)
    found = outcomes._tried(("opencl", INFO, "some_runtime.interpreter"))
    assert (found.level, found.text, found.remedy) == (level, text, remedy)


def test_a_driver_that_crashes_while_devices_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcomes, "run_module", lambda *_: Ended(None, "", "line\nlast words"))
    found = outcomes.devices()
    assert (found.usable, found.gpus) == (0, 0)
    assert [each.text for each in found.findings] == [
        "Looking for devices hangs. last words" for _ in backends.BACKENDS
    ]


def lines(output: str) -> list[Any]:
    return [json.loads(line) for line in output.splitlines()]


def test_trials(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    info, runtime = backends.list_devices()[-1], "ai_edge_litert.interpreter"
    device = (info.backend, str(info.index))
    assert trial.main(["run", runtime, *device]) == 0
    (found,) = lines(capsys.readouterr().out)
    assert found["difference"] < 1e-5
    assert trial.main(["list", info.backend]) == 0
    (found,) = lines(capsys.readouterr().out)
    assert found["devices"][0]["name"] == info.name
    for arguments, error in (
        (("no_such_runtime", *device), "ModuleNotFoundError: No module named 'no_such_runtime'"),
        ((runtime, info.backend, "99"), "99"),
    ):
        assert trial.main(["run", *arguments]) == 1
        (found,) = lines(capsys.readouterr().out)
        assert error in found["error"]
    broken = tmp_path / "broken.tflite"
    broken.write_bytes(b"no model")
    monkeypatch.setattr(trial, "MODEL", broken)
    assert trial.main(["run", runtime, *device]) == 1
    (found,) = lines(capsys.readouterr().out)
    assert found["error"].startswith("ValueError: ")


def test_the_whole_program(tmp_path: Path) -> None:
    environ = {**os.environ, "PYTHONPATH": python_path(), "HOME": str(tmp_path), "COLUMNS": "100"}
    environ["LITEGPU_CACHE"] = str(tmp_path / "compiled")
    command = [sys.executable, "-m", "litegpu", "doctor"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=200, check=False, env=environ
    )
    assert done.returncode == 0, done.stderr
    text = done.stdout
    assert text.startswith(f"ok       litegpu      {__version__}\n")
    assert "~/compiled does not exist yet" in " ".join(text.split())
    assert str(tmp_path) not in text
    for info in backends.list_devices():
        assert f"{info.backend}:{info.index}" in text
    assert ": correct results, started in" in " ".join(text.split())
    assert "can be used" in text.splitlines()[-1]


def test_json_and_the_exit_status(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sick = Finding("OpenCL", "problem", "It crashes.", "Update the GPU's driver.")
    monkeypatch.setattr(doctor, "devices", lambda: outcomes.Examined((sick,), 0, 0))
    monkeypatch.setattr(doctor, "CHECKS", ())
    path = tmp_path / "doctor.json"
    assert cli.main(["doctor", f"--json={path}"]) == 1
    output = capsys.readouterr().out
    assert "- OpenCL: Update the GPU's driver." in output
    assert output.endswith("No device can be used; 1 problem found.\n")
    assert json.loads(path.read_text()) == {
        "usable_devices": 0,
        "usable_gpus": 0,
        "verdict": "No device can be used; 1 problem found.",
        "findings": [sick.to_dict()],
    }
