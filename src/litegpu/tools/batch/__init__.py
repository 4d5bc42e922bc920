"""`litegpu batch MODEL --input=… --output=…`: runs a model on any number of pictures or arrays."""

from __future__ import annotations

import argparse
import contextlib
import copy
import os
from pathlib import Path
from typing import Any

from litegpu.errors import FileError, OptionsError
from litegpu.runtime_abi import interpreter as runtime
from litegpu.tools import engines
from litegpu.tools.batch.columns import output_names
from litegpu.tools.batch.folder import FileSource, find_files
from litegpu.tools.batch.output import OutputTable
from litegpu.tools.batch.page import batch_page
from litegpu.tools.batch.table import TableSource, find_tables, parquet
from litegpu.tools.batch.writer import check_output
from litegpu.tools.console import note, print_table, progress
from litegpu.tools.delegation import DELEGATE_FLAGS, make_delegate
from litegpu.tools.files import JSON, prints_json, try_to_write, write_json
from litegpu.tools.flags import Flag, divisor, number, one_of, positive_int
from litegpu.tools.models import FoundModel, find_model
from litegpu.tools.reports.page import REPORT, prepare_report, write_report
from litegpu.tools.results import print_meaning
from litegpu.wording import counted

ON_ERROR = ("record", "skip", "fail")


def pairs(text: str) -> dict[str, str]:
    """Parse `a=b,c=d`."""
    found = dict(part.split("=", 1) for part in text.split(",") if "=" in part)
    if len(found) != len(text.split(",")):
        raise argparse.ArgumentTypeError(f"'{text}' is not of the form INPUT=COLUMN,INPUT=COLUMN")
    return found


ARGUMENTS = {"model": "a model file, a known name, or zoo:NAME"}
BATCH_FLAGS = (
    Flag(
        *("input", str, None, "a folder of pictures or arrays (.npy, .npz), or Parquet files"),
        metavar="PATH",
    ),
    Flag(
        *("output", str, None, "output table: a .parquet file, or a new folder of parts"),
        metavar="PATH",
    ),
    Flag("overwrite", bool, False, "replace an existing output when the new one is complete"),
    Flag("resume", bool, None, "continue an interrupted run; false restarts it"),
    Flag(
        *("on_error", one_of(ON_ERROR), "record"),
        "what to do when a sample fails: record, skip, or fail (end the run)",
        metavar="TEXT",
    ),
    Flag("columns", pairs, None, "columns of the inputs: INPUT=COLUMN,...", metavar="TEXT"),
    Flag("name_column", str, None, "column with the names of the rows", metavar="NAME"),
    Flag("keep", str, None, "input columns to copy to the output: NAME,NAME"),
    Flag("dequantize", bool, False, "store quantized outputs as real numbers"),
    Flag("input_mean", number, 127.5, "float inputs get (pixel - input_mean) / input_std"),
    Flag("input_std", divisor, 127.5, "see input_mean"),
    Flag("cpu", bool, False, "run on the CPU (XNNPACK), without a delegate"),
    Flag("num_threads", positive_int, runtime.default_threads(), "CPU threads"),
)
FLAGS = (*BATCH_FLAGS, *engines.ENGINE_FLAGS, *DELEGATE_FLAGS, JSON, REPORT)
EXAMPLES = (
    "litegpu batch mobilenet_v2_1.0_224 --input=pictures --output=scores.parquet",
    "litegpu batch model.tflite --input=rows.parquet --output=results --keep=id",
    "litegpu batch model.tflite --input=rows.parquet --columns=x=left,y=right \\",
    "    --output=out.parquet",
    "litegpu batch model.tflite --input=pictures --output=out.parquet --resume",
    "RAY_ADDRESS=auto litegpu batch model.tflite --input=/shared/pictures \\",
    "    --output=/shared/out.parquet --engine=ray",
)
NOTES = (
    "Each sample is a row of the output: its name, the model's outputs, and in the column 'error' "
    "the reason if the sample failed. Rows are in the order of the input. OUTPUT appears at the "
    "end; until then finished parts are in OUTPUT.partial.",
    "Pictures are prepared as by `litegpu run`. Samples are decoded in threads while the GPU "
    "works, or in processes if threads block each other. Each GPU has its own process.",
)


def main(args: argparse.Namespace) -> int:
    """Run the model on all samples; return 1 if no sample has outputs, else 0."""
    parquet()
    steps = engines.Steps()
    _check(args)
    try_to_write("json", args.json)
    prepare_report(args.report)
    model = find_model(args.model)
    note(f"model: {model.source}")
    settings = engines.settings(args)
    opening = Opening(args)
    plan = engines.plan(model.content, args.batch, opening)
    if plan.why_single:
        note(f"Samples run one by one: {plan.why_single}.")
    source = _source(args, plan)
    source.check(plan)
    steps.end("load the model, try batches")
    names = output_names(opening.on_cpu(model.content))
    table = OutputTable(args, model, plan, source, names)
    pieces = source.chunks(table.first, engines.chunk_size(plan))
    job = engines.Job(
        plan,
        opening,
        source.preparation(args.input_mean, args.input_std),
        outputs_alone,
        _row_name if isinstance(source, TableSource) else str,
        source.read if isinstance(source, TableSource) else iter,
    )
    try:
        run = engines.start(job, pieces, settings, args.backend, args.device)
        with contextlib.closing(run.results):
            results = progress(run.meter.watch(run.results), "samples", source.count - table.first)
            table.write(results, run.meter)
        steps.end("start workers, compile kernels", run.meter.begun)
        steps.end("run the samples")
        table.finish()
        steps.end("finish the table")
    except BaseException:
        table.leave()
        raise
    _tell(args, model, plan, table, run.meter, steps)
    return 0 if table.failed < source.count or not source.count else 1


class Opening:
    """Opens a model with the delegate that the flags request, in any process."""

    def __init__(self, args: argparse.Namespace) -> None:
        """Store the flags."""
        self._args = args

    def __call__(self, model: bytes, position: engines.Place) -> Any:
        """Return an interpreter without allocated tensors, and its delegate."""
        if self._args.cpu:
            return self.on_cpu(model)
        args = copy.copy(self._args)
        if position.backend:
            args.backend, args.device = position.backend, position.device
        delegate = make_delegate(args)
        return engines.Opened(
            runtime.interpreter(model, delegate, args.num_threads, allocate=False), delegate
        )

    def on_cpu(self, model: bytes) -> Any:
        """Return an interpreter without a delegate."""
        return runtime.interpreter(model, threads=self._args.num_threads, allocate=False)


def outputs_alone(_: Any, outputs: engines.Arrays) -> engines.Arrays:
    """Return the outputs of a sample unchanged."""
    return outputs


def _row_name(row: Any) -> str:
    name: str = row.name
    return name


def _check(args: argparse.Namespace) -> None:
    for flag in ("input", "output"):
        if not getattr(args, flag):
            raise OptionsError(
                f"--{flag} is missing. Give --{flag}=PATH; see `litegpu help batch`."
            )
    check_output(args.output, args.overwrite)
    if not os.path.exists(args.input):
        raise FileError(f"--input={args.input}: there is no such file or folder.")


def _source(args: argparse.Namespace, plan: engines.BatchPlan) -> FileSource | TableSource:
    path = Path(args.input)
    if path.suffix.lower() == ".parquet" or (path.is_dir() and any(path.rglob("*.parquet"))):
        if path.is_dir() and path.resolve() in Path(args.output).resolve().parents:
            raise OptionsError(
                f"--output={args.output}: the output is inside of --input={args.input}, where the "
                "next run would read it. Write the output elsewhere."
            )
        return find_tables(args.input, plan, args.columns or {}, args.name_column)
    for flag in ("columns", "name_column", "keep"):
        if getattr(args, flag) is not None:
            raise OptionsError(
                f"--{flag}={getattr(args, flag)}: files have no columns. Give Parquet as --input, "
                "or leave the flag out."
            )
    return find_files(args.input)


def _tell(
    args: argparse.Namespace,
    model: FoundModel,
    plan: engines.BatchPlan,
    table: OutputTable,
    meter: engines.Meter,
    steps: engines.Steps,
) -> None:
    """Print the number of processed samples, the speed, and the time of each stage."""
    if not prints_json(args):
        shape = ", ".join(f"{each.name} {_plain(each.type)}" for each in table.schema)
        print(f"{args.output}: {shape}")
        print_table(
            ("where", ">samples"),
            [(name, str(each)) for name, each in sorted(meter.places.items())],
        )
        meter.print("sample")
        steps.print()
        print_meaning(model)
    if table.failed:
        note(f"{counted(table.failed, 'sample')} failed.")
    found = {
        "model": model.source,
        "random_weights": model.has_random_weights,
        "input": args.input,
        "output": args.output,
        "batch": plan.batch,
        "first": table.first,
        "failures": [{"name": name, "error": error} for name, error in table.failures],
        "places": dict(meter.places),
        **meter.to_dict(),
        **steps.to_dict(),
    }
    write_json("json", args.json, found)
    if args.report:
        write_report(args.report, batch_page(model, plan, table, meter, steps))


def _plain(kind: Any) -> str:
    """Return an Arrow type in readable form: `float[10, 4]` for a tensor."""
    shape = getattr(kind, "shape", None)
    return f"{kind.value_type}{list(shape)}" if shape else str(kind)
