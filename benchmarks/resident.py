"""Measures calls whose data stays where the GPU reaches it, beside the kernels and LiteRT's own.

    python benchmarks/resident.py [--backend NAME] [--precision fp16] [--model NAME ...]

Milliseconds, medians of `--repeats` calls after a warm-up. The results are written as JSON after
each model:

- kernels: between two events on the GPU, with inputs and outputs there (of the same model in an
  interpreter; its whole call is `interpreter`, from set_tensor to get_tensor).
- device, pinned: `run_by_index` on buffers in such memory.
- pictures: the same from pinned bytes of the model's size (`input_format="rgb8"`), for models of
  one input of three channels.
- write, run, read: the three calls on pinned buffers, which is what LiteRT's CompiledModel is
  asked for on its GPU accelerator, with the buffers that it makes.
- torch pinned: PyTorch's compiled network as a CUDA graph, copies from and to pinned memory in it.
"""

from __future__ import annotations

import argparse
import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import machine
from litegpu import CompiledModel, GpuDelegate
from litegpu.runtime_abi import interpreter as runtime
from litegpu.tools.console import print_table
from litegpu.zoo import resolve_model
from measuring import call, errors, make_inputs, reference_interpreter, time_calls
from ways import LeftOutError, Model, ways

MODELS = ("zoo:mobilenet_v1_1.0_224?batch=64", "zoo:mobilenet_v1_1.0_224")
DEFAULT_OUTPUT = Path(__file__).parent / "results" / "resident.json"
_PROFILED_RUNS = 20
Figures = dict[str, Any]


def by_interpreter(model: Model, options: dict[str, Any], repeats: int) -> Figures:
    """Return the kernels' milliseconds, and those of a whole call."""
    delegate = GpuDelegate(**options)
    target = runtime.interpreter(model.content, delegate)
    whole, _ = time_calls(lambda: call(target, model.inputs), repeats)
    profile = delegate.profile(repeats=min(repeats, _PROFILED_RUNS), peaks=False)
    chain = profile.chain_seconds if profile.chain_seconds is not None else profile.kernel_seconds
    return {"kernels": chain * 1e3, "interpreter": whole}


def by_buffers(model: Model, options: dict[str, Any], repeats: int) -> Figures:
    """Return milliseconds of runs on buffers of each kind, and how far results are off."""
    found: Figures = {}
    with CompiledModel.from_buffer(model.content, **options) as compiled:
        for memory in ("device", "pinned"):
            inputs = compiled.create_input_buffers(memory=memory)
            outputs = compiled.create_output_buffers(memory=memory)
            for buffer, array in zip(inputs, model.inputs, strict=True):
                buffer.write(array)
            found[memory], _ = time_calls(
                lambda i=inputs, o=outputs: compiled.run_by_index(0, i, o),  # type: ignore[misc]
                repeats,
            )
            got = [np.array(buffer.read()) for buffer in outputs]
            shaped = [np.reshape(a, np.shape(b)) for a, b in zip(got, model.expected, strict=True)]
            found[f"{memory} error"] = errors(shaped, model.expected)["norm_error"]

        def write_run_read() -> None:
            for buffer, array in zip(inputs, model.inputs, strict=True):
                buffer.write(array)
            compiled.run_by_index(0, inputs, outputs)
            for buffer in outputs:
                buffer.read()

        found["write, run, read"], _ = time_calls(write_run_read, repeats)
    return found


def by_pictures(model: Model, options: dict[str, Any], repeats: int) -> Figures:
    """Return milliseconds of runs from a picture's bytes in pinned memory."""
    if len(model.inputs) != 1 or np.shape(model.inputs[0])[3:] != (3,):
        return {}
    compiled = CompiledModel.from_buffer(model.content, input_format="rgb8", **options)
    with compiled:
        inputs, outputs = compiled.create_input_buffers(), compiled.create_output_buffers()
        picture = np.random.default_rng(0).integers(0, 256, inputs[0].array.shape)
        inputs[0].array[:] = picture
        found, _ = time_calls(lambda: compiled.run_by_index(0, inputs, outputs), repeats)
        return {"pictures": found}


def by_others(model: Model, options: dict[str, Any], repeats: int, names: list[str]) -> Figures:
    """Return milliseconds of rivals: calls, or what one has between events with its copies."""
    found: Figures = {}
    for name in names:
        try:
            runner = ways([])[name](model)
            found[name], _ = time_calls(runner.call, repeats)
            if "device_with_copies_ms" in runner.device:
                pinned = runner.device["device_with_copies_ms"](repeats)
                found["torch pinned"] = pinned * 1e3
            runner.close()
        except LeftOutError as error:
            found[name] = str(error)
        except Exception as error:
            # What a rival raises is its own: the row says it, and the others go on.
            found[name] = f"{type(error).__name__}: {error}"
    return found


def measure(name: str, options: dict[str, Any], repeats: int, others: list[str]) -> Figures:
    """Return a model's figures."""
    content = resolve_model(name)
    reference = reference_interpreter(content, 8)
    inputs = make_inputs(reference, None)
    model = Model(name, content, inputs, call(reference, inputs))
    found: Figures = {}
    steps: tuple[Callable[..., Figures], ...] = (by_interpreter, by_buffers, by_pictures)
    for step in steps:
        found |= step(model, options, repeats)
    return found | by_others(model, options, repeats, others)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", action="append", help="path or zoo:NAME; may be repeated")
    parser.add_argument("--backend", default=None)
    parser.add_argument("--precision", default="fp16")
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--other", action="append", default=[], help="a way of rivals.py")
    parser.add_argument("--output", type=Path, default=DEFAULT_OUTPUT)
    args = parser.parse_args()
    result: dict[str, Any] = {
        "machine": machine.facts(),
        "commit": machine.commit(),
        "settings": machine.settings(args),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "models": {},
    }
    options = {"backend": args.backend, "precision": args.precision}
    for name in args.model or MODELS:
        title = name if name.startswith("zoo:") else Path(name).stem
        figures = measure(name, options, args.repeats, args.other)
        result["models"][title] = figures
        args.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        print(title)
        shown = [(k, f"{v:.4g}" if isinstance(v, float) else str(v)) for k, v in figures.items()]
        print_table(("way", ">ms"), shown)


if __name__ == "__main__":
    main()
