"""The report page of `litegpu run`: result, latencies, agreement, and where nodes run."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING

from litegpu import DelegationReport
from litegpu.runtime_abi.interpreter import Output
from litegpu.tools.drawing.finding import Finding
from litegpu.tools.measure import Comparison
from litegpu.tools.models import RANDOM_WEIGHTS, FoundModel
from litegpu.tools.reports.charts import bars
from litegpu.tools.reports.delegation import delegation_sections, device_facts, overview
from litegpu.tools.reports.sections import Gallery, Page, Picture, Section, Table
from litegpu.tools.reports.timing import latency_sections
from litegpu.tools.reports.words import shape_text, short
from litegpu.tools.results import best_classes, class_count, summary
from litegpu.tools.run.pipeline import Clock, stage_table

if TYPE_CHECKING:
    from PIL import Image

MAX_EXAMPLES = 12
"""Number of drawings on the page of a folder or a video."""
_SIDE = 512
"""Maximum side of a shown picture in pixels."""


def run_page(
    model: FoundModel,
    found: Comparison,
    report: DelegationReport | None,
    labels: list[str],
    picture: Image.Image | None,
    finding: Finding | None = None,
) -> Page:
    """Return the results as a page, which shows `picture` with the drawn `finding`.

    Raises:
        MissingDependencyError: a package for reading models or laying out graphs is not
            installed.
    """
    sides = {"delegate": found.gpu.times_ms, "CPU": found.cpu.times_ms if found.cpu else ()}
    verdict = _verdict(model, report)
    sections: list[Section] = [
        overview([*_headline(found), *device_facts(report)]),
        *_result(found.outputs, labels, picture, finding),
        *latency_sections(sides),
    ]
    if found.agreement:
        sections.append(_agreement(found))
    sections += delegation_sections(model.content, report)
    return Page("run", model.name, verdict, sections)


def _verdict(model: FoundModel, report: DelegationReport | None) -> str:
    where = report.summary() if report else "The whole model runs on the CPU."
    return f"{where} {RANDOM_WEIGHTS}" if model.has_random_weights else where


def _headline(found: Comparison) -> Iterator[tuple[str, str]]:
    yield "latency of the delegate", f"{found.gpu.median_ms:.3f} ms"
    if found.cpu:
        yield "latency of the CPU", f"{found.cpu.median_ms:.3f} ms"
    if found.agreement:
        yield "relative L2 from the CPU", f"{max(a.relative_l2 for a in found.agreement):.2e}"


def _result(
    outputs: list[Output],
    labels: list[str],
    picture: Image.Image | None,
    finding: Finding | None,
) -> Iterator[Section]:
    if picture is not None:
        size = f"{picture.width}×{picture.height}"
        yield Gallery("Picture", [shown_picture(picture, size)])
    if class_count(outputs):
        best = best_classes(outputs[0])
        names = [f"{number} {labels[number] if labels else ''}".strip() for number, _ in best]
        scores = [score for _, score in best]
        hints = [f"{name}: {score:.4f}" for name, score in zip(names, scores, strict=True)]
        yield bars("Best classes", names, scores, "score", hints=hints)
    elif finding:
        yield Table("Found", *finding.table())
    found = [summary(output) for output in outputs]
    yield Table(
        "Outputs",
        ("output", "shape", "type", ">min", ">max", ">mean"),
        [
            (
                *(short(each["name"], 100), shape_text(each["shape"]), each["type"]),
                *(
                    "" if each[key] is None else f"{each[key]:.6g}"
                    for key in ("min", "max", "mean")
                ),
            )
            for each in found
        ],
    )


def shown_picture(picture: Image.Image, title: str, caption: str = "") -> Picture:
    """Return a picture that is small enough for a page."""
    small = picture.convert("RGB")
    small.thumbnail((_SIDE, _SIDE))
    content = io.BytesIO()
    small.save(content, "JPEG", quality=85)
    return Picture(title, content.getvalue(), caption, format="jpeg")


def many_page(
    model: FoundModel,
    report: DelegationReport | None,
    source: str,
    clock: Clock,
    examples: list[Picture],
) -> Page:
    """Return the results of a folder or a video as a page, with some of the drawings.

    Raises:
        MissingDependencyError: a package for reading models or laying out graphs is not
            installed.
    """
    stages = clock.stages()
    inferred = next(each for each in stages if each.name == "infer")
    sections: list[Section] = [
        overview(
            [
                ("pictures", str(inferred.samples)),
                ("seconds", f"{clock.wall_s:.2f}"),
                ("a second", f"{clock.rate(inferred.samples):.1f}"),
                *device_facts(report),
            ]
        ),
        Gallery("Drawings", examples, f"Some pictures of {source}."),
        Table("Stages", *stage_table(stages)),
        *delegation_sections(model.content, report),
    ]
    verdict = _verdict(model, report)
    return Page("run", model.name, verdict, sections)


def _agreement(found: Comparison) -> Table:
    return Table(
        "Agreement with the CPU",
        ("output", ">relative L2", ">max |difference|", "same top-1"),
        [
            (
                *(short(each.name, 100), f"{each.relative_l2:.2e}", f"{each.max_abs:.2e}"),
                "NaN" if each.has_nan else "yes" if each.top1_equal else "no",
            )
            for each in found.agreement
        ],
    )
