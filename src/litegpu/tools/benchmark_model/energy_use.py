"""Implements --measure_energy of benchmark_model: finds the meters, and measures."""

from __future__ import annotations

import argparse

from litegpu.tools.benchmark_model.energy import Energy, Meter, MeterError, Meters
from litegpu.tools.benchmark_model.energy_cpu import cpu_meter
from litegpu.tools.benchmark_model.energy_gpu import gpu_meter
from litegpu.tools.benchmark_model.session import Session, explained
from litegpu.tools.flags import Flag, positive
from litegpu.tools.lines import info
from litegpu.tools.registrar import Delegates
from litegpu.tools.stats import figure

ENERGY_PARAMETERS = (
    (
        Flag("measure_energy", bool, False, "measure joules per inference, in a separate phase"),
        "Measure energy",
    ),
    (
        Flag("energy_min_secs", positive, 3.0, "seconds of inference in the energy measurement"),
        "Min duration of the energy's phase (seconds)",
    ),
    (
        Flag("energy_idle_secs", positive, 2.0, "idle seconds before the energy measurement"),
        "Rest before the energy's phase (seconds)",
    ),
)


def energy_of(args: argparse.Namespace, session: Session) -> Energy:
    """Return the energy of an inference, including the copies of its inputs."""
    meters, missing = find_meters(session.delegates)
    if not meters:
        return Energy(0, 0.0, 0.0, (), tuple(missing))
    info(
        f"Measuring energy for at least {figure(args.energy_min_secs)} seconds after "
        f"{figure(args.energy_idle_secs)} seconds at rest."
    )

    def run() -> None:
        session.set_inputs()
        session.target.invoke()

    with explained("Failed to invoke!"), Meters(meters, missing) as opened:
        rest = opened.rest(args.energy_idle_secs)
        return opened.work(run, args.energy_min_secs, rest)


def find_meters(delegates: Delegates) -> tuple[list[Meter], list[str]]:
    """Return the meters of the devices that run a model, and the reasons for missing meters.

    For a software device, the function returns the CPU's meter. The devices of other vendors'
    delegates are unknown.
    """
    found: list[Meter] = []
    missing = [
        f"The energy of the device that runs the {each.name} delegate is not measured: which "
        "device that is is unknown."
        for each in delegates.applied
        if each.delegate is not None and each.delegate is not delegates.gpu
    ]
    gpu = delegates.gpu
    try:
        if gpu and gpu.report and gpu.report.delegated_nodes and not gpu.device.software:
            found.append(gpu_meter(gpu.device))
    except MeterError as error:
        missing.append(str(error))
    try:
        found.append(cpu_meter())
    except MeterError as error:
        missing.append(str(error))
    return found, missing
