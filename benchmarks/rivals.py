"""Times litegpu beside other ways to run the same .tflite files, in one process on one machine.

    python benchmarks/rivals.py --output benchmarks/results/rivals.json

A way that cannot run a model becomes a row with the reason. The results are written after every
row; a row whose measurement ended the process says so, and `--resume` goes on after it.

- whole: from NumPy arrays to NumPy arrays: `set_tensor`, `invoke`, `get_tensor` and the like.
- device: between two events on the GPU, with the inputs there; with copies: and from and to pinned
  host memory. Kernel sum, where a backend has no such events: each kernel by itself.
- create: from the bytes of the model to something that can be called. Compiled kernels are not
  cached on disk, but driver and libraries have been used in this process before.

Times are medians of `--repeats` runs after a warm-up; where one call takes more than 5 ms, of as
many as fit into 2 seconds, three at least: the row has their number as `runs`.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import fnmatch
import gc
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import machine
from litegpu import __version__, list_devices
from litegpu.backends import BACKENDS
from litegpu.zoo import is_zoo_name, names, resolve_model
from measuring import (
    NO_DRIVER_CACHES,
    call,
    errors,
    make_inputs,
    reference_interpreter,
    time_calls,
)
from model_graph import read_model
from report import report
from ways import LeftOutError, Model, Way, ways

_REFERENCE_THREADS = 8
_BATCH = 64
_BATCH_MODELS = ("zoo:mobilenet_v1_1.0_224", "zoo:resnet50")
_FIRST_USE_MODEL = "zoo:mobilenet_v1_0.25_128?size=32"
_FIRST_USE_WAYS = ("litegpu *", "LiteRT *")
_RANKING = (
    *("ARG_MAX", "ARG_MIN", "NON_MAX_SUPPRESSION_V4", "NON_MAX_SUPPRESSION_V5", "TOPK_V2"),
    "TFLite_Detection_PostProcess",
)
"""Operations whose results change places, or become others, when two values are nearly equal."""
_UNFINISHED = "The process ended while this was measured."

Advance = Callable[[str], None]
"""Says what is measured next."""


class Results:
    """The result file, written anew after each change."""

    def __init__(self, path: Path, settings: dict[str, Any], resume: bool) -> None:
        self.path = path
        self.data: dict[str, Any] = {"models": {}}
        if resume and path.exists():
            self.data = json.loads(path.read_text(encoding="utf-8"))
            unread = [title for title, model in self.data["models"].items() if "error" in model]
            for title in unread:
                del self.data["models"][title]
        self.data |= {
            "version": __version__,
            "commit": machine.commit(),
            "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
            "settings": settings,
            "machine": machine.facts(),
            "devices": [device.to_dict() for device in list_devices()],
            "left_out": [],
        }

    def row(self, title: str, way: str, row: dict[str, Any]) -> None:
        """Keep a row of a model."""
        self.data["models"][title]["rows"][way] = row
        self.save()

    def missing(self, title: str, wanted: Sequence[str]) -> list[str]:
        """Return which ways a model has no row for."""
        present = self.data["models"].get(title, {}).get("rows", {})
        return [way for way in wanted if way not in present]

    def save(self) -> None:
        """Write the file; a process that dies in between leaves the old one."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        draft = self.path.with_suffix(".part")
        draft.write_text(json.dumps(self.data, indent=1) + "\n", encoding="utf-8")
        draft.replace(self.path)


def load_model(name: str, picture: Path | None) -> tuple[Model, dict[str, Any]]:
    """Return a model with its inputs and reference results, and facts about it."""
    content = resolve_model(name)
    reference = reference_interpreter(content, _REFERENCE_THREADS)
    inputs = make_inputs(reference, picture)
    if any(array.dtype.kind != "f" for array in inputs):
        # How many threads share a MEAN of integers changes where it rounds; litegpu has one.
        reference = reference_interpreter(content, 1)
    title = name if is_zoo_name(name) else Path(name).stem
    expected = call(reference, inputs)
    about = {
        "batch": int(inputs[0].shape[0]),
        "inputs": [list(array.shape) for array in inputs],
        "float": all(array.dtype.kind == "f" for array in (*inputs, *expected)),
        "ranks": any(node.op in _RANKING for node in read_model(content).nodes),
        "rows": {},
    }
    return Model(title, content, inputs, expected), about


def measure(way: Way, model: Model, repeats: int, clocks: bool = True) -> dict[str, Any]:
    """Return the row of one way and one model: figures, or the error that kept it from running.

    Asking for the `clocks` of a busy GPU takes up to a second.
    """
    runner = None
    try:
        start = time.perf_counter()
        runner = way(model)
        row: dict[str, Any] = {"create_ms": (time.perf_counter() - start) * 1e3}
        row |= {**errors(runner.call(), model.expected), **runner.facts}
        row["whole_ms"], row["runs"] = time_calls(runner.call, repeats)
        for name, seconds in runner.device.items():
            row[name] = seconds(row["runs"]) * 1e3
        if runner.device and clocks:
            row["clocks"] = machine.clocks_during(runner.call)
        return row
    except LeftOutError as error:
        return {"error": str(error)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"[:600]}
    finally:
        close = runner.close if runner else gc.collect
        runner = None
        gc.collect()
        close()


def measure_model(
    results: Results, name: str, chosen: dict[str, Way], settings: argparse.Namespace, say: Advance
) -> None:
    """Add the missing rows of one model."""
    model, about = load_model(name, settings.picture)
    rows = results.data["models"].setdefault(model.title, about)["rows"]
    for way in results.missing(model.title, list(chosen)):
        say(f"{model.title}: {way}")
        results.row(model.title, way, {"error": _UNFINISHED})
        clocks = not any(row.get("clocks") for row in rows.values())
        results.row(model.title, way, measure(chosen[way], model, settings.repeats, clocks))


def use_once(chosen: dict[str, Way]) -> None:
    """Let drivers and libraries start, so that no model's creation time contains that."""
    model, _ = load_model(_FIRST_USE_MODEL, None)
    for name, way in chosen.items():
        if any(fnmatch.fnmatch(name, pattern) for pattern in _FIRST_USE_WAYS):
            measure(way, model, 1, clocks=False)


def with_batches(models: Sequence[str], batch_models: Sequence[str]) -> list[str]:
    """Return the models, each one of `batch_models` followed by itself at batch 64."""
    found = []
    for name in models:
        found.append(name)
        if name in batch_models:
            found.append(f"{name}{'&' if '?' in name else '?'}batch={_BATCH}")
    return found


def run(settings: argparse.Namespace) -> dict[str, Any]:
    """Measure everything that the settings ask for, and return the results."""
    started = time.monotonic()
    every = ways(settings.backends)
    patterns = settings.ways
    chosen = {n: w for n, w in every.items() if any(fnmatch.fnmatch(n, p) for p in patterns)}
    if not chosen:
        raise SystemExit(f"No way is called like {patterns}. There are: {', '.join(every)}.")
    results = Results(settings.output, machine.settings(settings), settings.resume)
    models = with_batches(settings.models, settings.batch_models)
    with progress(len(models) * len(chosen)) as say:
        use_once(chosen)
        for number, name in enumerate(models):
            if settings.time_limit and time.monotonic() - started > settings.time_limit:
                results.data["left_out"] = models[number:]
                break
            try:
                measure_model(results, name, chosen, settings, say)
            except Exception as error:
                results.data["models"].setdefault(name, {"error": str(error), "rows": {}})
            results.save()
    results.save()
    return results.data


@contextlib.contextmanager
def progress(total: int) -> Iterator[Advance]:
    """Show what is measured: under a bar if rich is there and stderr a terminal, else in lines."""
    try:
        from rich.console import Console
        from rich.progress import Progress, TimeElapsedColumn
    except ImportError:
        yield lambda text: print(text, file=sys.stderr, flush=True)
        return
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda text: print(text, file=sys.stderr, flush=True)
        return
    with Progress(*Progress.get_default_columns(), TimeElapsedColumn(), console=console) as bar:
        task = bar.add_task("first use", total=total)
        yield lambda text: bar.update(task, advance=1, description=text)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--models", nargs="+", default=names(), help="paths and zoo names (default: the zoo)")
    add("--batch-models", nargs="*", default=list(_BATCH_MODELS), help="those also at batch 64")
    add("--backends", nargs="+", default=list(BACKENDS), choices=BACKENDS, help="litegpu's")
    add("--ways", nargs="+", default=["*"], help="patterns such as 'torch fp16 *' (default: all)")
    add("--repeats", type=int, default=200)
    add("--time-limit", type=float, default=0, metavar="SECONDS", help="then start no new model")
    add("--picture", type=Path, help="a picture for inputs that take one (default: noise)")
    add("--resume", action="store_true", help="measure only what the output lacks")
    add("--output", type=Path, default=Path(__file__).parent / "results" / "rivals.json")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, write the results, and print them."""
    os.environ.update(NO_DRIVER_CACHES)
    result = run(parse(arguments))
    print(report(result))


if __name__ == "__main__":
    main()
