"""Code shared by the evaluations of classifiers and detectors: flags, runs and output."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from litegpu import DelegationReport
from litegpu.errors import FileError, OptionsError
from litegpu.files.wire import message
from litegpu.tools import engines
from litegpu.tools.console import progress
from litegpu.tools.engines.jobs import Arrays, BatchPlan, Job, Place, Value
from litegpu.tools.evaluation import (
    DELEGATE,
    METRICS_FILE,
    THREADS,
    failing_task,
    print_placement,
    task_arguments,
    task_delegates,
)
from litegpu.tools.evaluation.preprocessing import Preprocessing, check_decoder
from litegpu.tools.files import JSON, prints_json, try_to_write, write_bytes, write_json
from litegpu.tools.flags import Flag, at_least
from litegpu.tools.latencies import LatencyStatistics
from litegpu.tools.lines import info, warn
from litegpu.tools.models import RANDOM_WEIGHTS, FoundModel, find_model
from litegpu.tools.registrar import (
    REGISTRAR_FLAGS,
    Delegates,
    make_delegates,
    requested_backend,
)
from litegpu.tools.reports.delegation import delegation_sections, device_facts, overview
from litegpu.tools.reports.page import REPORT, prepare_report, write_report
from litegpu.tools.reports.sections import Page, Section, Table
from litegpu.tools.reports.timing import latency_sections
from litegpu.tools.stats import figure

Predicted = TypeVar("Predicted", contravariant=True)

LABELS = Flag(
    *("model_output_labels", str, ""),
    "text file with the name of each class of the model, one a line, in order",
    metavar="FILE",
)
PICTURES = Flag(
    *("ground_truth_images_path", str, ""),
    "folder of JPEG files, which are evaluated in the order of their names",
    metavar="FOLDER",
)
_BATCH = Flag(
    *("batch", at_least(0), 1),
    "pictures per inference, if the model's batch size can be changed; 0: 16 if possible",
)
TASK_FLAGS = (
    Flag("num_images", at_least(0), 0, "maximum number of pictures; 0: all"),
    Flag(
        *("strict", bool, False),
        "fail at an unreadable picture, instead of skipping it with a warning",
    ),
    DELEGATE,
    THREADS,
    METRICS_FILE,
    *(_BATCH if each.name == _BATCH.name else each for each in engines.ENGINE_FLAGS),
    *REGISTRAR_FLAGS,
    JSON,
    REPORT,
)
"""The flags shared by both evaluations."""


class Task(Protocol[Predicted]):
    """An evaluation of a classifier or a detector, with pictures and ground truth."""

    @property
    def paths(self) -> tuple[str, ...]:
        """The pictures, in the order of the evaluation."""

    def check(self, plan: BatchPlan) -> Preprocessing:
        """Return how pictures become inputs. Raises ModelError for an unsuitable model."""

    def take(self, path: str, value: Predicted) -> None:
        """Add the result of the next picture. Raises an error that ends the evaluation."""

    def result(self, values: Sequence[Predicted | None]) -> Figures:
        """Return the figures of the results; a skipped picture has the result None."""


@dataclass(frozen=True)
class Figures:
    """The figures of an evaluation.

    `lines` are the printed figures, `metrics` is the serialized metrics message (or None), and
    `content` is the data for JSON. `headline` has the most important figures of the report page,
    and `sections` creates the sections of the page.
    """

    lines: list[str]
    metrics: bytes | None
    content: dict[str, Any]
    headline: list[tuple[str, str]]
    sections: Callable[[], Iterable[Section]] = tuple


@dataclass(frozen=True)
class Kind(Generic[Value]):
    """The properties that differ between the two evaluations.

    `tool` is the name of the tool, `word` starts the progress lines, and `field` is the field
    number of the metrics. `make` reads the files of the flags. `finish` computes the result of a
    picture from the outputs, in any process.
    """

    tool: str
    word: str
    field: int
    make: Callable[[argparse.Namespace], Task[Value]]
    finish: Callable[[str, Arrays], Value]


@dataclass(frozen=True)
class _Evaluated(Generic[Value]):
    values: list[Value | None]
    skipped: list[str]
    preprocessing: LatencyStatistics
    inference: LatencyStatistics
    times_us: list[int]
    meter: engines.Meter
    report: DelegationReport | None

    @property
    def runs(self) -> int:
        """The number of evaluated pictures."""
        return len(self.values) - len(self.skipped)

    def metrics(self, field: int, own: bytes | None) -> bytes:
        """Return the message EvaluationStageMetrics, whose fields both evaluations share."""
        stage = message(
            (1, self.preprocessing.message()),
            (2, self.inference.message()),
            (3, message((1, self.runs))),
            *(() if own is None else ((4, own),)),
        )
        return message((1, self.runs), (2, message((field, stage))))


def run(args: argparse.Namespace, kind: Kind[Value]) -> int:
    """Run the evaluation, print the figures, and then write the files."""
    lines_to = sys.stderr if prints_json(args) else sys.stdout
    with contextlib.redirect_stdout(lines_to), failing_task(args):
        check_decoder()
        try_to_write(METRICS_FILE.name, args.output_file_path or None)
        try_to_write("json", args.json)
        prepare_report(args.report)
        task = kind.make(args)
        if not task.paths:
            raise FileError(
                f"There are no pictures to evaluate in '{getattr(args, PICTURES.name)}'. "
                "Give a folder with JPEG files."
            )
        model = find_model(args.model)
        found = _evaluate(args, model, task, kind)
        figures = task.result(found.values)
        info(f"Num evaluation runs: {found.runs}")
        info(f"Preprocessing latency: {found.preprocessing.text()}")
        info(f"Inference latency: {found.inference.text()}")
        for line in figures.lines:
            info(line)
        if model.has_random_weights:
            warn(RANDOM_WEIGHTS)
        print_stages(found.meter)
    if args.output_file_path:
        metrics = found.metrics(kind.field, figures.metrics)
        write_bytes(METRICS_FILE.name, args.output_file_path, metrics)
    content = {
        "model": model.source,
        "random_weights": model.has_random_weights,
        "num_runs": found.runs,
        "left_out": found.skipped,
        "preprocessing_latency": asdict(found.preprocessing),
        "inference_latency": asdict(found.inference),
        "stages": found.meter.to_dict(),
        **figures.content,
    }
    write_json("json", args.json, content)
    if args.report:
        write_report(args.report, _page(kind, model, found, figures))
    return 0


def _page(kind: Kind[Any], model: FoundModel, found: _Evaluated[Any], figures: Figures) -> Page:
    headline_text = ", ".join(f"{name} {value}" for name, value in figures.headline)
    left_out = f" {len(found.skipped)} could not be read." if found.skipped else ""
    headline = [
        *figures.headline,
        ("pictures", str(found.runs)),
        ("pictures a second", figure(round(found.meter.rate, 1))),
        ("inference", f"{found.inference.avg_us / 1e3:.3f} ms"),
        *device_facts(found.report),
    ]
    stages = Table(
        "Stages",
        ("stage", ">workers", ">busy s", ">pictures/s by itself"),
        [
            (each.name, str(each.workers), f"{each.busy_s:.2f}", f"{each.rate:.1f}")
            for each in found.meter.stages()
        ],
        note=f"The stages reached {found.meter.overlap:.0%} of the possible overlap.",
    )
    sections = [
        overview(headline),
        *figures.sections(),
        stages,
        *latency_sections({"inference": [each / 1e3 for each in found.times_us]}),
        *delegation_sections(model.content, found.report),
    ]
    meaning = f" {RANDOM_WEIGHTS}" if model.has_random_weights else ""
    verdict = f"{headline_text or 'Evaluated'}, on {found.runs} pictures.{left_out}{meaning}"
    return Page(kind.tool, model.name, verdict, sections)


def _evaluate(
    args: argparse.Namespace, model: FoundModel, task: Task[Value], kind: Kind[Value]
) -> _Evaluated[Value]:
    wanted = engines.settings(args)
    plan = engines.plan(model.content, args.batch, _Opening(args))
    prepare = task.check(plan)
    opening = _Opening(args)
    gpu = opening.make_ready(plan.model).gpu
    paths, elsewhere = task.paths, wanted.engine != "local"
    if elsewhere:  # where the current folder differs
        paths = tuple(map(os.path.abspath, paths))
    elif gpu is None and not wanted.workers:
        wanted = dataclasses.replace(wanted, workers=1)  # the CPU does not need one per GPU
    job = Job(plan, opening, _Prepare(prepare), kind.finish)
    started = engines.start(
        job, engines.chunks(paths, plan), wanted, requested_backend(args), args.device
    )
    if elsewhere or started.meter.workers > 1:
        opening.ready = None  # workers in other processes open their own
    values: list[Value | None] = []
    skipped: list[str] = []
    times: tuple[list[int], list[int]] = ([], [])
    total, step = len(task.paths), len(task.paths) // 100
    with contextlib.ExitStack() as stack:
        stack.callback(getattr(started.results, "close", lambda: None))
        for result in progress(started.meter.watch(started.results), "pictures", total):
            if step > 1 and len(values) % step == 0:
                info(f"{kind.word}: {100 * len(values) // total}%")
            values.append(result.value)
            if result.value is not None:
                task.take(result.name, result.value)
                times[0].append(round(result.prepare_s * 1e6))
                times[1].append(round(result.infer_s * 1e6))
                continue
            if args.strict:
                raise FileError(f"{result.error} --strict=false skips such pictures.")
            skipped.append(result.name)
            warn(f"{result.error} The picture is skipped.")
    if skipped:
        warn(f"{len(skipped)} of {total} pictures are skipped, and not counted in the results.")
    if not times[0]:
        raise FileError(
            f"None of the {total} files in '{getattr(args, PICTURES.name)}' could be evaluated; "
            "the warnings say why. Give a folder with JPEG files."
        )
    # the original computes no deviation of this one
    preprocessing = dataclasses.replace(LatencyStatistics.of(times[0]), std_deviation_us=0)
    return _Evaluated(
        *(values, skipped, preprocessing, LatencyStatistics.of(times[1]), times[1]),
        *(started.meter, gpu.report if gpu else None),
    )


@dataclass(frozen=True)
class _Prepare:
    """Preprocesses a picture; returns a list with one array, the value of the model's input."""

    picture: Preprocessing

    def __call__(self, path: str, plan: BatchPlan) -> Arrays:
        return [self.picture(path).reshape(plan.inputs[0].shape)]


@dataclass
class _Opening:
    """Creates interpreters with the delegates of the flags, in any process.

    `ready` is an existing interpreter that the first call in this process returns.
    """

    args: argparse.Namespace
    ready: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {"args": self.args, "ready": None}

    def __call__(self, model: bytes, place: Place) -> Any:
        """Return an interpreter without allocated tensors. Raises the errors of its delegates."""
        ready, self.ready = self.ready, None
        if ready is not None:
            return ready
        args = task_arguments(self.args)
        if place.backend is not None:
            args.backend, args.device = place.backend, place.device
        with contextlib.redirect_stdout(io.StringIO()):  # already printed, once for all workers
            return make_delegates(args, model).interpreter(model, allocate=False)

    def make_ready(self, model: bytes) -> Delegates:
        """Create the first interpreter, print which nodes run where, and return the delegates."""
        delegates = task_delegates(self.args, model)
        self.ready = delegates.interpreter(model, allocate=False)
        print_placement(delegates)
        return delegates


WAITED = ", because most of the time passed while workers started"


def print_stages(meter: engines.Meter) -> None:
    """Print the rate of each stage, and the overlap of the stages."""
    lines = [
        f"{each.name} {figure(round(each.rate, 1))}"
        for each in meter.stages()
        if each.name != "write"
    ]
    rest = WAITED if meter.alone_s < meter.wall_s else ""
    info(
        f"Throughput: {figure(round(meter.rate, 1))} images/s; each stage alone: "
        f"{', '.join(lines)} images/s; overlap: {meter.overlap:.0%}{rest}"
    )


def needed(args: argparse.Namespace, flag: Flag) -> str:
    """Return the value of a required flag. Raises OptionsError if the flag is missing."""
    value = str(getattr(args, flag.name))
    if not value:
        raise OptionsError(f"--{flag.name} is needed: {flag.help}.")
    return value


def files_in(folder: str, others: Sequence[str]) -> list[str]:
    """Return the sorted paths of a folder's files, without subfolders and `others`.

    Raises:
        FileError: the folder does not exist.
    """
    known = {os.path.realpath(each) for each in others if each}
    try:
        with os.scandir(folder) as entries:
            found = [each.path for each in entries if not each.is_dir()]
    except OSError as error:
        raise FileError(
            f"The folder of pictures '{folder}' cannot be read: {error.strerror}. "
            f"Give --{PICTURES.name} a folder with JPEG files."
        ) from error
    return sorted(each for each in found if os.path.realpath(each) not in known)


def read_lines(path: str, what: str) -> list[str]:
    """Return the lines of a text file, without line ends.

    Raises:
        FileError: the file cannot be read; the message starts like TensorFlow Lite's.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise FileError(
            f"Could not read {what} file: '{path}': {why}. Give a UTF-8 text file."
        ) from error
    if not lines[-1]:
        lines.pop()
    return [line.removesuffix("\r") for line in lines]
