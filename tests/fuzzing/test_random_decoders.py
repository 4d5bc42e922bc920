"""Some random decoders; `tests/support/random_decoders.py` generates any number."""

from __future__ import annotations

from pathlib import Path

import pytest

from dice import Seeded
from every_backend import device_of
from litegpu.backends import BACKENDS
from random_decoders import Decoder, check

DRAWS = 2


@pytest.mark.parametrize(
    ("backend", "seed"),
    [(name, DRAWS * n + draw) for n, name in enumerate(BACKENDS) for draw in range(DRAWS)],
)
def test_answers_are_those_of_the_cpu(backend: str, seed: int, tmp_path: Path) -> None:
    device_of(backend)
    pytest.importorskip("tokenizers", reason="needs litegpu[llm]")
    check(Decoder.draw(Seeded(seed)), seed, tmp_path, backend=backend, precision="fp32")


def test_draws_differ() -> None:
    drawn = [Decoder.draw(Seeded(seed)).sizes for seed in range(30)]
    assert {each.weights for each in drawn} == {"float32", "int8", "int4"}
    assert len({(each.heads, each.cache_heads, each.depth, each.rotary) for each in drawn}) > 15
