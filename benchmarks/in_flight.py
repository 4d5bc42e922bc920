"""Measures what CompiledModel makes of buffers, of runs in flight, of threads and of batches.

    python benchmarks/in_flight.py [--backend NAME] [--precision fp16] [--model NAME ...]

Each row is calls a second of one model in one way, the median of `--rounds` rounds of
`--seconds`; the ways take turns in each round. The results are written as JSON:

- interpreter: set_tensor, invoke, get_tensor.
- call: `model(x)`, arrays in and out.
- pinned, device: `run_by_index` on buffers that stay bound, in such memory.
- submit N: N contexts, N runs in flight from one thread, arrays in and out.
- threads N: N threads that call one model with N contexts.
- interpreters N: N threads with an interpreter each.
- batcher N: 32 threads that call a Batcher of N rows; a request counts as a call.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

import machine
from litegpu import Batcher, CompiledModel, GpuDelegate
from litegpu.runtime_abi import interpreter as runtime
from litegpu.tools.console import print_table
from litegpu.zoo import resolve_model

MODELS = ("zoo:mobilenet_v1_0.25_128", "zoo:mobilenet_v1_1.0_224")
CONTEXTS = (1, 2, 3)
THREADS = (1, 2, 4, 8)
ROWS, CLIENTS = 16, 32
DEFAULT_OUTPUT = Path(__file__).parent / "results" / "in_flight.json"
Way = Callable[[float], int]
"""Calls again and again for so many seconds; returns how often."""


def again(call: Callable[[], object]) -> Way:
    def run(seconds: float) -> int:
        count, until = 0, time.perf_counter() + seconds
        while time.perf_counter() < until:
            call()
            count += 1
        return count

    return run


def in_threads(calls: list[Callable[[], object]]) -> Way:
    def run(seconds: float) -> int:
        counts = [0] * len(calls)

        def work(number: int) -> None:
            counts[number] = again(calls[number])(seconds)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(len(calls))]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        return sum(counts)

    return run


def submitting(model: CompiledModel, x: Any, flights: int) -> Way:
    def run(seconds: float) -> int:
        count, until = 0, time.perf_counter() + seconds
        waiting = deque[Any]()
        while time.perf_counter() < until:
            waiting.append(model.submit(x))
            if len(waiting) > flights - 1:
                waiting.popleft().result()
                count += 1
        for each in waiting:
            each.result()
        return count + len(waiting)

    return run


def by_interpreter(content: bytes, options: dict[str, Any], x: Any) -> Callable[[], object]:
    interpreter = runtime.interpreter(content, GpuDelegate(**options))
    source = interpreter.get_input_details()[0]["index"]
    result = interpreter.get_output_details()[0]["index"]

    def call() -> object:
        interpreter.set_tensor(source, x)
        interpreter.invoke()
        return interpreter.get_tensor(result)

    return call


def ways_of(name: str, options: dict[str, Any], opened: ExitStack) -> dict[str, Way]:
    """Return the ways by their names; models are closed with `opened`."""
    content = resolve_model(name)

    def compiled(contexts: int = 1) -> CompiledModel:
        return opened.enter_context(
            CompiledModel.from_buffer(content, contexts=contexts, **options)
        )

    model = compiled()
    (tensor,) = model.signature.inputs
    x = np.random.default_rng(0).uniform(-1, 1, tensor.shape).astype(tensor.dtype)
    found = {
        "interpreter": again(by_interpreter(content, options, x)),
        "call": again(lambda: model(x)),
    }
    for memory in ("pinned", "device"):
        inputs = model.create_input_buffers(memory=memory)
        outputs = model.create_output_buffers(memory=memory)
        inputs[0].write(x)
        ends = (0, inputs, outputs)
        found[memory] = again(lambda ends=ends: model.run_by_index(*ends))  # type: ignore[misc]
    for contexts in CONTEXTS:
        found[f"submit {contexts}"] = submitting(compiled(contexts), x, contexts)
    for count in THREADS:
        shared = compiled(count)
        found[f"threads {count}"] = in_threads([lambda one=shared: one(x)] * count)  # type: ignore[misc]
        own = [by_interpreter(content, options, x) for _ in range(count)]
        found[f"interpreters {count}"] = in_threads(own)
    batcher = opened.enter_context(Batcher(model, ROWS, batch_sizes=(1, ROWS)))
    found[f"batcher {ROWS}"] = in_threads([lambda: batcher(x)] * CLIENTS)
    return found


def measure(name: str, options: dict[str, Any], rounds: int, seconds: float) -> dict[str, float]:
    """Return calls a second of each way."""
    with ExitStack() as opened:
        ways = ways_of(name, options, opened)
        rates: dict[str, list[float]] = {way: [] for way in ways}
        for way in ways.values():
            way(seconds / 4)
        for _ in range(rounds):
            for way, run in ways.items():
                began = time.perf_counter()
                count = run(seconds)
                rates[way].append(count / (time.perf_counter() - began))
    return {way: round(statistics.median(each), 1) for way, each in rates.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", action="append", help="path or zoo:NAME; may be repeated")
    parser.add_argument("--backend", default=None)
    parser.add_argument("--precision", default="fp16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--output", type=Path, default=DEFAULT_OUTPUT)
    args = parser.parse_args()
    result = {
        "machine": machine.facts(),
        "commit": machine.commit(),
        "settings": machine.settings(args),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "calls_per_second": {},
    }
    options = {"backend": args.backend, "precision": args.precision}
    for name in args.model or MODELS:
        rates = measure(name, options, args.rounds, args.seconds)
        result["calls_per_second"][name] = rates
        args.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        rows = [(way, f"{rate:.0f}", f"{1e3 / rate:.3f}") for way, rate in rates.items()]
        print(name)
        print_table(("way", ">calls/s", ">ms"), rows)


if __name__ == "__main__":
    main()
