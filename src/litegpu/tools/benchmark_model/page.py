"""The report page of benchmark_model: latencies, kernels, energy, memory, delegation."""

from __future__ import annotations

from collections.abc import Iterator

from litegpu.tools.benchmark_model.energy import Energy
from litegpu.tools.benchmark_model.results import Results
from litegpu.tools.reports.delegation import delegation_sections, device_facts, overview
from litegpu.tools.reports.sections import Page, Section, Table, Text
from litegpu.tools.reports.timing import energy_section, latency_sections, profile_sections
from litegpu.tools.stats import figure


def benchmark_page(found: Results) -> Page:
    """Return all measurements as a page; this call also times the kernels of GPU nodes.

    Raises:
        MissingDependencyError: a package for reading models or laying out graphs is not
            installed.
    """
    session, runs = found.session, found.runs
    gpu = session.delegates.gpu
    report = gpu.report if gpu else None
    profile = session.profile(peaks=True) if found.runs.values else None
    sections: list[Section] = [overview([*_headline(found), *device_facts(report)])]
    sections += latency_sections({"runs": [us / 1e3 for us in runs.values]})
    if found.energy:
        sections += _energy(found.energy)
    if profile:
        sections += profile_sections(profile)
    sections += delegation_sections(session.model.content, report, profile)
    verdict = f"Computed by: {session.delegates.describe()}."
    return Page("benchmark_model", session.model.name, verdict, sections)


def _headline(found: Results) -> Iterator[tuple[str, str]]:
    runs, memory = found.runs, found.memory
    if runs.values:
        yield "latency, average", f"{runs.average / 1e3:.3f} ms"
        yield "median, p95", f"{runs.percentile(50) / 1e3:.3f}, {runs.percentile(95) / 1e3:.3f} ms"
        yield "runs", f"{len(runs.values)} after {len(found.warm_up.values)} to warm up"
    if runs.average:
        yield "inferences a second", figure(1e6 / runs.average)
    yield "getting ready", f"{found.session.init_us / 1e3:.1f} ms"
    yield "first inference", f"{found.warm_up.first / 1e3:.3f} ms"
    if found.energy and found.energy.meters:
        yield "energy an inference", f"{found.energy.joules:.4g} J"
    if memory.overall is not None:
        yield "host memory", f"{memory.overall / 1024:.1f} MB more than before"
    if memory.gpu and memory.gpu.own_mb:
        yield "GPU memory", f"{memory.gpu.own_mb:.0f} MB at most, of this process"


def _energy(energy: Energy) -> Iterator[Section]:
    if not energy.meters:
        yield Text("Energy", energy.missing or ["No energy counter can be read on this machine."])
        return
    joules = {}
    for each in energy.meters:
        joules[f"{each.kind}, all"] = each.joules
        joules[f"{each.kind}, above idle"] = each.above_idle_joules
    yield energy_section(joules, " ".join(energy.missing))
    yield Table(
        "Power",
        ("meter", "what", ">W at rest", ">W at work", ">J an inference", ">J above idle"),
        [
            (
                *(each.kind, each.name, f"{each.idle_watts:.1f}", f"{each.busy_watts:.1f}"),
                *(f"{each.joules:.4g}", f"{each.above_idle_joules:.4g}"),
            )
            for each in energy.meters
        ],
        f"{energy.runs} inferences in {energy.busy_seconds:.1f} s, after {energy.idle_seconds:.1f} "
        "s at rest.",
    )
