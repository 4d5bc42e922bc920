"""Op profiles of benchmark_model: the time of initialization and of runs, by op."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from litegpu import DelegationReport, Partition, PartitionProfile, Profile
from litegpu.errors import OptionsError
from litegpu.tools.benchmark_model.op_tables import Block, Row, block_text, profile_message
from litegpu.tools.benchmark_model.session import Session
from litegpu.tools.files import cannot_write, write_bytes
from litegpu.tools.lines import info, warn
from litegpu.tools.stats import Stats

MODES = ("stdout", "csv", "proto")
KERNEL = "TfLiteGpuDelegateV2"
"""The name of the delegate's nodes in the graph."""
_FILE = "op_profiling_output_file"


def check_mode(mode: str) -> None:
    """Raise OptionsError for an unknown output mode."""
    if mode not in MODES:
        raise OptionsError(
            f"Output mode{mode} is not supported. Supported values are: 'stdout', 'csv' and "
            "'proto'."
        )


def take_blocks(session: Session, runs: Stats) -> list[Block]:
    """Profile the graph: return its nodes, then the kernels of each delegate node.

    The times are medians of profiling runs during this call.
    """
    report, profile = session.report, session.profile(peaks=False)
    if report is None or profile is None:
        warn("The runtime's Python interface does not report the times of single nodes on the CPU.")
        whole = Row("CPU", "all nodes", runs.average / 1e3)
        return [Block((whole,), runs)]
    kernels = (
        Row(kernel.op, f"{kernel.name}:{kernel.node}", kernel.seconds * 1e3)
        for _, times in _parts(report, profile)
        for kernel in times.kernels
    )
    return [
        Block(tuple(_nodes(report, profile)), runs),
        Block(tuple(kernels), runs, delegate=KERNEL),
    ]


def _nodes(report: DelegationReport, profile: Profile) -> Iterator[Row]:
    for index, (part, times) in enumerate(_parts(report, profile)):
        name = f"[{', '.join(part.outputs)}]:{index}"
        yield Row(KERNEL, name, sum(times.host_seconds.values()) * 1e3)
    rest = report.total_nodes - len(report.delegated_nodes)
    if rest:
        name = f"{rest} nodes, and the runtime, without times of single nodes"
        yield Row("CPU", name, (profile.outside_seconds or 0.0) * 1e3)


def _parts(
    report: DelegationReport, profile: Profile
) -> Iterator[tuple[Partition, PartitionProfile]]:
    """Yield the partitions of the graph that runs."""
    for part in report.partitions:
        place = (report.graph, part.nodes)
        yield part, next(each for each in profile.partitions if (each.graph, each.nodes) == place)


def write_profile(mode: str, path: str, model: str, init: Block, runs: Sequence[Block]) -> None:
    """Print the profile, or write it to the file of the flag.

    Raises:
        FileError: the file cannot be written.
    """
    if mode == "proto":
        profile = profile_message(model, init, runs)
        if path:
            write_bytes(_FILE, path, profile.encoded())
        else:
            info(profile.text())
        return
    csv = mode == "csv"
    sections = [
        "\n".join(["Profiling Info for Benchmark Initialization:", block_text(init, csv)]),
        "\n".join(
            [
                "Operator-wise Profiling Info for Regular Benchmark Runs:",
                *("Delegate internal: \n" * bool(b.delegate) + block_text(b, csv) for b in runs),
            ]
        ),
    ]
    if not path:
        for section in sections:
            info(section)
        return
    try:
        Path(path).write_text("\n".join(sections), encoding="utf-8")
    except OSError as error:
        raise cannot_write(_FILE, path, error) from error
