"""Draws decoders of language models, and compares their answers with those of the CPU's kernels.

`python tests/support/random_decoders.py --draws 50 --seed 7 --backend opencl` draws any number.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dice import Dice, Seeded
from litegpu import CacheFullError, LanguageModel
from litegpu.language_model.session import Session
from litegpu.runtime_abi import interpreter as runtime
from litegpu.zoo import language
from litegpu.zoo.language import LanguageNet, Sizes
from litegpu.zoo.language_file import language_file
from litegpu.zoo.writer import ModelWriter

LIMITS = {"float32": 1e-3, "int8": 0.25, "int4": 0.25}
"""The largest difference of logits: one step of an activation that is quantized may differ."""
_MAX_PREFILL = max(language.PREFILL)
Logits = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Decoder:
    """A decoder, and its prompts: the second one begins as the first does."""

    sizes: Sizes
    layers: int
    context: int
    prompts: tuple[tuple[int, ...], tuple[int, ...]]

    @classmethod
    def draw(cls, dice: Dice) -> Decoder:
        """Draw a decoder with a context that its prompts and answers fit."""
        cache_heads, depth = dice.number(1, 3), dice.one_of(16, 8, 12, 20, 32)
        sizes = Sizes(
            channels=dice.one_of(64, 32, 40, 72),
            heads=cache_heads * dice.number(1, 4),
            cache_heads=cache_heads,
            depth=depth,
            rotary=dice.one_of(depth, depth // 2),
            hidden=dice.one_of(128, 48, 100),
            weights=dice.one_of("float32", "int8", "int4"),
        )
        context = dice.one_of(64, 48, 77, 130)
        common = [1, *(dice.number(5, 200) for _ in range(dice.number(0, 12)))]
        rest = ([dice.number(5, 200) for _ in range(dice.number(1, 9))] for _ in range(2))
        first, second = (tuple(common + each) for each in rest)
        return cls(sizes, dice.number(1, 2), context, (first, second))

    def graph(self, seed: int) -> bytes:
        """Return the model."""

        class Net(LanguageNet):
            sizes = self.sizes

        writer = ModelWriter()
        language.build(Net(str(seed), writer), layers=self.layers, context=self.context, embedder=0)
        return writer.build()


class Reference:
    """A row of tokens in an interpreter without a delegate."""

    def __init__(self, model: bytes, context: int) -> None:
        found = runtime.interpreter(model, builtin_kernels=True)
        self._run, self._context = found.get_signature_runner("decode"), context
        details = self._run.get_input_details()
        self._caches: dict[str, Any] = {
            name: np.zeros(each["shape"], each["dtype"])
            for name, each in details.items()
            if "cache" in name
        }
        self._position = 0

    def logits(self, tokens: tuple[int, ...]) -> Logits:
        """Return the logits after further tokens."""
        for token in tokens:
            hidden = np.where(np.arange(self._context) <= self._position, 0, -1e9)
            found = self._run(
                tokens=np.array([[token]], np.int32),
                input_pos=np.array([self._position], np.int32),
                mask=hidden.astype(np.float32).reshape(1, 1, 1, -1),
                **self._caches,
            )
            self._caches = {name: found[name] for name in self._caches}
            self._position += 1
        row: Logits = found["logits"].reshape(-1)
        return row


def check(decoder: Decoder, seed: int, folder: Path, steps: int = 12, **options: Any) -> None:
    """Compare two sessions that take turns, a fork of the first, and a full cache."""
    content = decoder.graph(seed)
    path = folder / f"decoder_{seed}.litertlm"
    path.write_bytes(language_file(content, decoder.context))
    limit = LIMITS[decoder.sizes.weights]
    with contextlib.ExitStack() as stack:
        model = stack.enter_context(LanguageModel(path, min_nodes_per_partition=1, **options))
        rows = []
        for prompt in decoder.prompts:
            session = stack.enter_context(model.session())
            session.append(prompt)
            reference = Reference(content, decoder.context)
            rows.append((session, reference, reference.logits(prompt)))
        for step in range(steps):
            if step == steps // 2:
                session = rows[0][0]
                prompt, reference = session.tokens, Reference(content, decoder.context)
                session.logits()
                fork = stack.enter_context(session.fork())
                rows.append((fork, reference, reference.logits(prompt)))
            rows = [(s, r, _step(s, r, expected, limit)) for s, r, expected in rows]
        session = rows[0][0]
        try:
            session.append([7] * decoder.context)
        except CacheFullError:
            return
    raise AssertionError("a full cache raises nothing")


def _step(session: Session, reference: Reference, expected: Logits, limit: float) -> Logits:
    """Compare, append the most probable token, and return the logits after it."""
    found = session.logits()
    np.testing.assert_allclose(found, expected, atol=limit, rtol=1e-3)
    token = int(expected.argmax())
    assert expected[token] - expected[int(found.argmax())] <= 2 * limit
    session.append([token])
    return reference.logits((token,))


def main() -> None:
    """Draw decoders until one differs."""
    parser = argparse.ArgumentParser(description="Compare drawn decoders with the CPU's kernels.")
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", default="opencl")
    parser.add_argument("--precision", default="fp32")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(chosen.seed, chosen.seed + chosen.draws):
            decoder = Decoder.draw(Seeded(seed))
            print(seed, decoder, flush=True)
            options = {"backend": chosen.backend, "precision": chosen.precision}
            check(decoder, seed, Path(folder), **options)


if __name__ == "__main__":
    main()
