"""`litegpu benchmark_lm MODEL`: the speed of a language model, in llama-bench's output format."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from litegpu.errors import OptionsError
from litegpu.language_model import LanguageModel, Session
from litegpu.tools.benchmark_model.memory import peak_kb
from litegpu.tools.console import print_table, progress
from litegpu.tools.files import JSON, prints_json, try_to_write, write_json
from litegpu.tools.flags import Flag, at_least, positive_int
from litegpu.tools.language import MODEL, MODEL_FLAGS, open_language_model
from litegpu.wording import shown_size

ARGUMENTS = MODEL
FLAGS = (
    Flag(
        "n_prompt",
        at_least(0),
        512,
        "number of prompt tokens (pp), at most half of the context length",
    ),
    Flag(
        "n_gen",
        at_least(0),
        128,
        "number of generated tokens (tg), at most half of the context length",
    ),
    Flag("repetitions", positive_int, 5, "number of measurements of each figure"),
    *MODEL_FLAGS,
    JSON,
)
EXAMPLES = (
    "litegpu benchmark_lm gemma.litertlm",
    "litegpu benchmark_lm gemma.litertlm --n_prompt=1024 --n_gen=256 --backend=cuda",
    "litegpu benchmark_lm zoo:tiny_lm --n_prompt=64 --n_gen=16 --json",
)
NOTES = (
    "pp is the number of prompt tokens per second, tg that of generated tokens. pp and tg are "
    "means with the standard deviation; a warm-up run is not counted. ttft (time to first token) "
    "starts with the prompt and an empty KV cache.",
    "Prompts are random tokens, so the time does not depend on a text or a tokenizer.",
)


@dataclass(frozen=True, slots=True)
class Measured:
    """One test, such as prompt processing, and its measured times."""

    test: str
    tokens: int
    seconds: tuple[float, ...]

    @property
    def rates(self) -> list[float]:
        """Tokens per second of each measurement."""
        return [self.tokens / each for each in self.seconds]


def main(args: argparse.Namespace) -> int:
    """Measure and print a table. Raises OptionsError if the flags disable all tests."""
    try_to_write("json", args.json)
    if not args.n_prompt and not args.n_gen:
        raise OptionsError("n_prompt and n_gen are both 0. Give a number of tokens for one.")
    with open_language_model(args) as model, model.session() as session:
        found = [*_measured(model, session, args)]
        place, cache = model.place, session.nbytes
    if not prints_json(args):
        _print(args.model, place, found)
        peak = peak_kb()
        print(f"caches of a session: {shown_size(cache)}")
        if peak is not None:
            print(f"peak memory of the process: {shown_size(peak * 1024)}")
    result = {
        "model": args.model,
        "place": place,
        "cache_bytes": cache,
        "peak_kb": peak_kb(),
        "tests": [asdict(each) | {"tokens_per_second": each.rates} for each in found],
    }
    write_json("json", args.json, result)
    return 0


def _measured(
    model: LanguageModel, session: Session, args: argparse.Namespace
) -> Sequence[Measured]:
    most = model.context // 2
    prompt, answer = min(args.n_prompt, most), min(args.n_gen, most)
    tokens = [*map(int, np.random.default_rng(0).integers(0, model.vocabulary, 2 * most))]

    def read() -> None:
        session.append(tokens[:prompt])
        session.logits()

    def write() -> None:
        for each in tokens[:answer]:
            session.append([each])
            session.logits()

    found = []
    if prompt:
        seconds = _times(session, read, args.repetitions, f"pp{prompt}")
        found.append(Measured(f"pp{prompt}", prompt, seconds))
    if answer:
        seconds = _times(session, write, args.repetitions, f"tg{answer}")
        found.append(Measured(f"tg{answer}", answer, seconds))
    return found


def _times(
    session: Session, work: Callable[[], None], repetitions: int, label: str
) -> tuple[float, ...]:
    """Return the seconds of each measurement; each measurement starts with an empty session."""
    seconds = []
    for _ in progress(range(repetitions + 1), label):
        session.rewind(0)
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    return tuple(seconds[1:])


def _print(name: str, place: str, found: Sequence[Measured]) -> None:
    rows = [
        (name, place, each.test, f"{statistics.fmean(each.rates):.2f} ± {_spread(each.rates):.2f}")
        for each in found
    ]
    rows += [
        (name, place, f"ttft{each.tokens}", f"{statistics.fmean(each.seconds) * 1000:.2f} ms")
        for each in found
        if each.test.startswith("pp")
    ]
    print_table(("model", "place", "test", ">t/s"), rows)


def _spread(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0
