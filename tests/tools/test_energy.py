"""Energy per inference: meters of GPUs and CPUs, the two phases, and the tool's output lines."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fake_cuda
from fake_cuda import FakeDriver, Status
from fake_nvml import Board, Clock, FakeNvml, install
from litegpu.backends.base import DeviceInfo, pci_address
from litegpu.backends.cuda import device as cuda
from litegpu.backends.opencl import device as opencl
from litegpu.tools import cli
from litegpu.tools.benchmark_model import energy, energy_cpu, energy_gpu, memory_gpu
from litegpu.tools.benchmark_model import energy_use as benchmark_energy
from litegpu.tools.benchmark_model.energy import Energy, Meter, MeterError, Meters
from litegpu.tools.benchmark_model.energy_cpu import cpu_meter
from litegpu.tools.benchmark_model.energy_gpu import gpu_meter
from paper_device import DEVICE
from small_models import chain

ADDRESS = "00000000:3B:00.0"
H200 = replace(
    DEVICE,
    backend="cuda",
    name="NVIDIA H200",
    platform="NVIDIA CUDA, compute capability 9.0",
    software=False,
    pci_address=ADDRESS,
)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A time for the phases and the fake boards; the one of sampling threads stays real."""
    found = Clock()
    monkeypatch.setattr(energy, "time", found)
    return found


def nvml(monkeypatch: pytest.MonkeyPatch, clock: Clock, *boards: Board) -> FakeNvml:
    return install(monkeypatch, FakeNvml(clock, *boards))


def working(clock: Clock, watts: Callable[[float], None], seconds: float) -> Callable[[], None]:
    """Return a run that takes so long, and during which a board takes 300 W, not 100 W."""

    def run() -> None:
        watts(300.0)
        clock.now += seconds
        watts(100.0)

    return run


# The phases


def measure_energy(
    meters: Sequence[Meter], run: Callable[[], None], idle: float, busy: float, *missing: str
) -> Energy:
    with Meters(meters, missing) as opened:
        return opened.work(run, busy, opened.rest(idle))


def test_joules_of_a_run_and_those_above_rest(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = nvml(monkeypatch, clock, Board("NVIDIA H200", ADDRESS))
    run = working(clock, found.set_watts, 0.25)
    result = measure_energy([gpu_meter(H200)], run, 2.0, 3.0, "no meter of the CPU")
    (gpu,) = result.meters
    assert (result.runs, result.busy_seconds, result.idle_seconds) == (12, 3.0, 2.0)
    assert (gpu.idle_watts, gpu.busy_watts) == pytest.approx((100, 300))
    assert (gpu.joules, gpu.above_idle_joules) == pytest.approx((75, 50))
    assert (result.joules, result.above_idle_joules) == (gpu.joules, gpu.above_idle_joules)
    assert result.missing == ("no meter of the CPU",)
    assert found.opened == 0


def test_a_run_longer_than_the_phase_counts_as_one(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = nvml(monkeypatch, clock, Board("NVIDIA H200", ADDRESS))
    run = working(clock, found.set_watts, 8.0)
    result = measure_energy([gpu_meter(H200)], run, 2.0, 3.0)
    assert (result.runs, round(result.joules)) == (1, 2400)


class Broken(Meter):
    """A meter whose readings from the given one on fail."""

    kind, name = "GPU", "broken"

    def __init__(self, good: int) -> None:
        self.good = good

    def __enter__(self) -> Broken:
        if self.good < 0:
            raise MeterError("It cannot be opened.")
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def read(self) -> float:
        self.good -= 1
        if self.good < 0:
            raise MeterError("It is lost.")
        return 0.0


@pytest.mark.parametrize("good", [-1, 0, 1, 2, 3])
def test_a_meter_that_fails_is_left_out(
    good: int, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = nvml(monkeypatch, clock, Board("NVIDIA H200", ADDRESS))
    run = working(clock, found.set_watts, 1.0)
    result = measure_energy([Broken(good), gpu_meter(H200)], run, 1.0, 1.0)
    assert [each.joules for each in result.meters] == [pytest.approx(300)]
    assert result.missing == ("It cannot be opened." if good < 0 else "It is lost.",)


# GPUs


def test_the_gpu_is_found_by_its_address_not_by_its_number(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Board("NVIDIA H200", "00000000:0A:00.0", watts=50)
    nvml(monkeypatch, clock, other, Board("NVIDIA H200", ADDRESS, watts=200))
    with gpu_meter(H200) as meter:
        before = meter.read()
        clock.now += 1
        assert meter.read() - before == pytest.approx(200)
    assert meter.name == "NVIDIA H200, by its energy counter"
    assert pci_address(0, 0x3B, 0) == ADDRESS
    assert pci_address(1, 255, 31, 7) == "00000001:FF:1F.7"


def test_an_api_without_addresses_needs_the_name(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = replace(H200, backend="opengl", name="NVIDIA H200/PCIe/SSE2", pci_address="")
    a10, h200 = Board("NVIDIA A10"), Board("NVIDIA H200")
    nvml(monkeypatch, clock, a10, h200)
    assert gpu_meter(device).name.startswith("NVIDIA H200, ")
    nvml(monkeypatch, clock, h200, h200)
    with pytest.raises(MeterError, match=r"2 of NVML's GPUs have this name.*Use CUDA"):
        gpu_meter(device)


def test_power_is_summed_where_there_is_no_counter(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    board = Board("Tesla P40", ADDRESS, has_counter=False, watts=80)
    found = nvml(monkeypatch, clock, board)
    with gpu_meter(replace(H200, name="NVIDIA P40")) as meter:
        start, before = time.perf_counter(), meter.read()
        time.sleep(0.1)
        joules, seconds = meter.read() - before, time.perf_counter() - start
    assert joules == pytest.approx(80 * seconds, rel=0.1)
    assert meter.name == "Tesla P40, by its power, which is sampled"
    assert found.opened == 0


def test_sampled_power_follows_its_changes(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A board that works for a tenth of the time: two readings alone would miss it."""
    board = Board("Tesla P40", ADDRESS, has_counter=False, watts=0)
    nvml(monkeypatch, clock, board)
    with gpu_meter(H200) as meter:
        before = meter.read()
        time.sleep(0.05)
        board.watts, start = 1000, time.perf_counter()
        time.sleep(0.3)
        board.watts, seconds = 0, time.perf_counter() - start
        time.sleep(0.05)
        assert meter.read() - before == pytest.approx(1000 * seconds, rel=0.35)


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (
            "nvmlInit",
            r"NVML cannot be initialized \(Driver Not Loaded\). Check that `nvidia-smi` works",
        ),
        ("nvmlDeviceGetHandleByPciBusId", r"NVML does not report energy \(Driver Not Loaded\)"),
    ],
)
def test_a_driver_that_fails(
    function: str, why: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = nvml(monkeypatch, clock, Board("NVIDIA H200", ADDRESS))
    found.failing[function] = "Driver Not Loaded"
    with pytest.raises(MeterError, match=rf"cuda:0 NVIDIA H200 is not measured: {why}"):
        gpu_meter(H200)
    assert found.opened == 0


@pytest.mark.parametrize("counter", [True, False])
def test_a_gpu_that_is_lost_meanwhile(
    counter: bool, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = nvml(monkeypatch, clock, Board("NVIDIA H200", ADDRESS, has_counter=counter))
    with gpu_meter(H200) as meter:
        for name in ("TotalEnergyConsumption", "PowerUsage"):
            found.failing[f"nvmlDeviceGet{name}"] = "GPU is lost"
        time.sleep(0.05)
        with pytest.raises(MeterError, match=r"NVML failed \(GPU is lost\)"):
            meter.read()
    assert found.opened == 0


def test_a_gpu_that_tells_nothing(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml(monkeypatch, clock, Board("NVIDIA H200", ADDRESS, has_counter=False, has_power=False))
    with pytest.raises(MeterError, match=r"NVML does not report energy \(Not Supported\)"):
        gpu_meter(H200)


def test_power_that_fails_at_once(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    found = nvml(monkeypatch, clock, Board("NVIDIA H200", ADDRESS, has_counter=False))
    meter = gpu_meter(H200)
    found.failing["nvmlDeviceGetPowerUsage"] = "GPU is lost"
    with pytest.raises(MeterError, match="GPU is lost"):
        meter.__enter__()
    assert found.opened == 0


def test_gpus_that_nobody_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    radeon = replace(H200, name="AMD Radeon", platform="OpenCL")
    with pytest.raises(
        MeterError, match="litegpu supports only the energy counters of NVIDIA GPUs"
    ):
        gpu_meter(radeon)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(MeterError, match=r"'nvidia-ml-py'.*pip install 'litegpu\[energy\]'"):
        gpu_meter(H200)


def test_cuda_tells_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    positions = {"PCI_DOMAIN_ID": 1, "PCI_BUS_ID": 0x3B, "PCI_DEVICE_ID": 2}

    def attribute(name: str, _: int) -> tuple[Status, int]:
        return Status.CUDA_SUCCESS, positions.get(name.removeprefix("CU_DEVICE_ATTRIBUTE_"), 9)

    fake_cuda.install(monkeypatch, FakeDriver(cuDeviceGetAttribute=attribute))
    (device,) = cuda.CUDABackend().devices()
    assert device.pci_address == "00000001:3B:02.0"


def test_opencl_tells_addresses_of_nvidias_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = SimpleNamespace(PCI_DOMAIN_ID_NV=0, PCI_BUS_ID_NV=0x3B, PCI_SLOT_ID_NV=2 << 3 | 1)
    monkeypatch.setattr(opencl, "_pyopencl", lambda: SimpleNamespace(device_info=facts))
    assert opencl._pci_address(SimpleNamespace(get_info=lambda fact: fact)) == "00000000:3B:02.1"


# CPUs


@pytest.fixture
def powercap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two packages with cores and memory, and what counts the same again, as Linux has them."""
    monkeypatch.setattr(energy_cpu, "_POWERCAP", tmp_path)
    monkeypatch.setattr(sys, "platform", "linux")
    for name, title in {
        "intel-rapl": "",
        "intel-rapl:0": "package-0",
        "intel-rapl:0:0": "core",
        "intel-rapl:0:1": "dram",
        "intel-rapl:1": "package-1",
        "intel-rapl:2": "psys",
        "intel-rapl-mmio:0": "package-0",
    }.items():
        (tmp_path / name).mkdir()
        if title:
            zone(tmp_path, name, 1_000_000)
            (tmp_path / name / "name").write_text(f"{title}\n")
            (tmp_path / name / "max_energy_range_uj").write_text("262143328850\n")
    return tmp_path


def zone(folder: Path, name: str, microjoules: int) -> None:
    (folder / name / "energy_uj").write_text(f"{microjoules}\n")


def test_packages_and_memory_are_counted_once(powercap: Path) -> None:
    with cpu_meter() as meter:
        assert meter.read() == 0
        for name in ("intel-rapl:0", "intel-rapl:0:0", "intel-rapl:2", "intel-rapl-mmio:0"):
            zone(powercap, name, 3_000_000)
        assert meter.read() == 2
        zone(powercap, "intel-rapl:0:1", 1_500_000)
        zone(powercap, "intel-rapl:1", 2_000_000)
        assert meter.read() == 3.5
    assert (meter.kind, meter.name) == ("CPU", "package-0, dram, package-1, by RAPL")


def test_a_counter_that_begins_again(powercap: Path) -> None:
    zone(powercap, "intel-rapl:0", 262_143_328_850)
    with cpu_meter() as meter:
        zone(powercap, "intel-rapl:0", 999_999)
        assert meter.read() == 1
        zone(powercap, "intel-rapl:0", 1_999_999)
        assert meter.read() == 2


def test_why_a_cpu_is_not_measured(powercap: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counter = powercap / "intel-rapl:0" / "energy_uj"
    counter.write_text("a lot")
    with pytest.raises(MeterError, match="energy_uj holds 'a lot'"):
        cpu_meter()
    counter.unlink()
    with pytest.raises(MeterError, match=r"energy_uj cannot be read \("):
        cpu_meter()
    read_text = Path.read_text

    def locked(path: Path, *args: Any, **keywords: Any) -> str:
        if path == counter:
            raise PermissionError(13, "Permission denied")
        return read_text(path, *args, **keywords)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_text", locked)
        with pytest.raises(MeterError, match=r"only root may read .*energy_uj\. .* chmod -R a"):
            cpu_meter()
    monkeypatch.setattr(energy_cpu, "_POWERCAP", powercap / "nothing")
    with pytest.raises(MeterError, match=r"has no package of intel-rapl\. Virtual machines"):
        cpu_meter()
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(MeterError, match=r"only Linux reports it \(RAPL\)"):
        cpu_meter()


# The tool


class Steady(Meter):
    """Takes 50 W, whatever happens."""

    def __init__(self, kind: str) -> None:
        self.kind, self.name = kind, f"a steady {kind}"

    def __enter__(self) -> Steady:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def read(self) -> float:
        return time.perf_counter() * 50


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A small model, and no time to lose."""
    monkeypatch.setattr(energy, "LEAD_IN_SECS", 0.01)
    path = tmp_path / "model.tflite"
    path.write_bytes(chain(["ABS", "LOGISTIC"]))
    return str(path)


def benchmark(model: str, *flags: str) -> int:
    quick = ("--num_runs=2", "--min_secs=0", "--warmup_min_secs=0", "--use_gpu=true")
    phases = ("--energy_min_secs=0.1", "--energy_idle_secs=0.1")
    return cli.main(["benchmark", f"--graph={model}", *quick, *phases, *flags])


def test_the_lines_about_energy(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(benchmark_energy, "cpu_meter", lambda: Steady("CPU"))
    path = tmp_path / "result.json"
    assert benchmark(model, "--measure_energy", f"--json={path}", "--benchmark_name=mine") == 0
    lines = capsys.readouterr().out.splitlines()
    masked = [re.sub(r"(?<=[=\s])-?\d[\d.e+-]*", "N", line) for line in lines]
    start = masked.index("INFO: Measuring energy for at least N seconds after N seconds at rest.")
    assert masked[-3:] == [
        "INFO: Energy: N runs in N seconds, after N seconds at rest",
        "INFO: Energy of the CPU (a steady CPU): idle=N W busy=N W; per inference (J): total=N "
        "above_idle=N",
        "INFO: Energy per inference (J) of CPU: total=N above_idle=N",
    ]
    assert start > next(index for index, line in enumerate(lines) if "Inference timings" in line)
    found = json.loads(path.read_text(encoding="utf-8"))
    assert found["benchmark_name"] == "mine"
    (cpu,) = found["energy"]["meters"]
    runs = found["energy"]["runs"]
    assert cpu["idle_watts"] == pytest.approx(50, rel=0.1)
    assert cpu["joules"] * runs == pytest.approx(50 * found["energy"]["busy_seconds"], rel=0.1)
    assert found["energy"]["joules"] == cpu["joules"]
    assert found["inference_us"]["count"] == 2
    assert found["nodes"] == {"gpu": 2, "all": 2}


def test_a_machine_without_meters(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def none() -> None:
        raise MeterError("The CPU tells nothing.")

    monkeypatch.setattr(benchmark_energy, "cpu_meter", none)
    assert benchmark(model, "--measure_energy", "--json") == 0
    captured = capsys.readouterr()
    assert captured.err.endswith(
        "WARN: The CPU tells nothing.\nWARN: Energy was not measured, because no energy counter "
        "can be read on this machine.\n"
    )
    energy_found = json.loads(captured.out)["energy"]
    assert (energy_found["joules"], energy_found["missing"]) == (None, ["The CPU tells nothing."])


def test_energy_is_measured_only_when_asked_for(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(benchmark_energy, "cpu_meter", None)
    assert benchmark(model) == 0
    text = capsys.readouterr().out
    assert (
        "WARN: `--measure_energy=true` must be set for the provided energy_min_secs (0.1)" in text
    )
    assert benchmark(model, "--measure_energy", "--dry_run") == 0
    text = capsys.readouterr().out
    assert "WARN: --measure_energy has no effect: a dry run runs nothing.\n" in text


def delegates(device: DeviceInfo, nodes: tuple[int, ...] = (0,)) -> Any:
    class Gpu:
        pass

    gpu = Gpu()
    gpu.device, gpu.report = device, Gpu()  # type: ignore[attr-defined]
    gpu.report.delegated_nodes = nodes  # type: ignore[attr-defined]
    found = Gpu()
    found.gpu, found.applied = gpu, ()  # type: ignore[attr-defined]
    return found


def test_which_meters_a_model_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark_energy, "cpu_meter", lambda: Steady("CPU"))
    monkeypatch.setattr(benchmark_energy, "gpu_meter", lambda device: Steady("GPU"))

    def kinds(found: Any) -> list[str]:
        return [meter.kind for meter in benchmark_energy.find_meters(found)[0]]

    assert kinds(delegates(H200)) == ["GPU", "CPU"]
    assert kinds(delegates(replace(H200, software=True))) == ["CPU"]
    assert kinds(delegates(H200, nodes=())) == ["CPU"]

    def none(device: DeviceInfo) -> None:
        raise MeterError(f"{device.name} tells nothing.")

    monkeypatch.setattr(benchmark_energy, "gpu_meter", none)
    meters, missing = benchmark_energy.find_meters(delegates(H200))
    assert [meter.kind for meter in meters] == ["CPU"]
    assert missing == ["NVIDIA H200 tells nothing."]


def test_devices_of_other_makers_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    from litegpu.tools.registrar import Applied, Delegates

    monkeypatch.setattr(benchmark_energy, "cpu_meter", lambda: Steady("CPU"))
    found = Delegates((Applied("EXTERNAL", object()), Applied("XNNPACK")), None, False)
    _, missing = benchmark_energy.find_meters(found)
    assert missing == [
        "The energy of the device that runs the EXTERNAL delegate is not measured: which device "
        "that is is unknown."
    ]


def test_a_real_meter_of_this_machine_if_there_is_one() -> None:
    """Where RAPL can be read it moves; elsewhere the reason names what to do."""
    try:
        meter = cpu_meter()
    except MeterError as error:
        assert str(error).startswith("The energy of the CPU is not measured: ")
        return
    with meter:
        time.sleep(0.3)
        assert 0 < meter.read() < 1000


def test_an_nvml_module_has_the_names_that_are_used() -> None:
    pynvml = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    source = "".join(
        Path(str(module.__file__)).read_text(encoding="utf-8")
        for module in (energy_gpu, memory_gpu)
    )
    names = set(re.findall(r"\b(nvml[A-Z]\w+|NVMLError)\b", source))
    assert len(names) >= 8
    assert [name for name in sorted(names) if not hasattr(pynvml, name)] == []
