"""The report page of `litegpu batch`: speed of each stage, devices, failed samples."""

from __future__ import annotations

from collections.abc import Sequence

from litegpu.tools import engines
from litegpu.tools.batch.output import OutputTable
from litegpu.tools.models import FoundModel
from litegpu.tools.reports.charts import bars
from litegpu.tools.reports.delegation import overview
from litegpu.tools.reports.sections import Page, Section, Table
from litegpu.tools.reports.words import short
from litegpu.wording import counted

_MAX_FAILURES = 1000


def batch_page(
    model: FoundModel,
    plan: engines.BatchPlan,
    table: OutputTable,
    meter: engines.Meter,
    steps: engines.Steps,
) -> Page:
    """Return the statistics of a run as a page."""
    done = f"{counted(meter.samples, 'sample')} at {meter.rate:.1f} a second"
    verdict = f"{done}; {table.failed} failed." if table.failed else f"{done}."
    figures = [
        ("samples", str(meter.samples)),
        ("samples a second", f"{meter.rate:.1f}"),
        ("seconds for samples", f"{meter.wall_s:.2f}"),
        ("seconds in all", f"{sum(steps.seconds.values()):.2f}"),
        ("samples per inference", str(plan.batch)),
        ("workers", str(meter.workers)),
        ("overlap of the stages", f"{meter.overlap:.0%}"),
        ("failed", str(table.failed)),
    ]
    sections: list[Section] = [overview(figures), *stage_sections(meter), _steps(steps)]
    sections.append(
        Table(
            "Where samples ran",
            ("where", ">samples"),
            [(name, str(count)) for name, count in sorted(meter.places.items())],
        )
    )
    if table.failures:
        sections.append(_failures(table.failures))
    return Page("batch", model.name, verdict, sections)


def stage_sections(meter: engines.Meter) -> list[Section]:
    """Return a chart of the samples per second that each stage could process alone."""
    stages = [each for each in meter.stages() if each.rate]
    return [
        bars(
            "Stages, each alone",
            [f"{each.name} ({counted(each.workers, 'worker')})" for each in stages],
            [each.rate for each in stages],
            "samples a second",
            hints=[
                f"{each.name}: {each.rate:.1f} samples/s, busy {each.busy_s:.2f} s"
                for each in stages
            ],
            note="If all stages overlap, a run is as fast as the slowest one.",
        )
    ]


def _steps(steps: engines.Steps) -> Table:
    rows = [(name, f"{seconds:.2f}") for name, seconds in steps.seconds.items()]
    return Table("Steps of the run", ("step", ">s"), rows)


def _failures(failures: Sequence[tuple[str, str]]) -> Table:
    rest = len(failures) - _MAX_FAILURES
    return Table(
        "Samples that failed",
        ("sample", "why"),
        [(short(name, 200), short(why, 500)) for name, why in failures[:_MAX_FAILURES]],
        f"{rest} more are in the output's column 'error'." if rest > 0 else "",
        folded=len(failures) > 20,
    )
