"""Models as objects: constants after the tables, as in files of more than 2 GB."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from litegpu.errors import ModelError
from litegpu.zoo import ModelWriter, objects
from litegpu.zoo.batch import with_batch
from small_models import interpreter as open_interpreter
from small_models import random, run

FACTORS = np.arange(1, 4, dtype=np.float32)


def scaled() -> bytes:
    writer = ModelWriter()
    x = writer.input((1, 2, 3))
    factors = writer.constant(FACTORS, "float32")
    offsets = writer.constant(np.full(3, 0.5, np.float32), "float32")
    product = writer.op("MUL", [x, factors], [(1, 2, 3)])
    writer.output(writer.op("ADD", [product, offsets], [(1, 2, 3)]))
    return writer.build()


INSIDE = scaled()


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> bytes:
    """A model that is packed as one of more than 1 GiB."""
    monkeypatch.setattr(objects, "_MAX_INSIDE", 0)
    return objects.pack(objects.parse(INSIDE))


def test_constants_behind_the_tables_are_read_and_written(large: bytes) -> None:
    x = random(1, 2, 3)
    wanted = x * FACTORS + np.float32(0.5)
    assert large != INSIDE and large.endswith(np.full(3, 0.5, np.float32).tobytes())
    np.testing.assert_array_equal(run(open_interpreter(large), x)[0], wanted)
    again = objects.parse(large)
    assert all(buffer.offset == 0 for buffer in again.buffers)
    assert objects.pack(again) == large


def test_models_with_constants_behind_the_tables_are_rewritten(large: bytes) -> None:
    x = random(4, 2, 3)
    found = run(open_interpreter(with_batch(large, 4)), x)[0]
    np.testing.assert_array_equal(found, x * FACTORS + np.float32(0.5))


def test_data_beyond_the_file(large: bytes) -> None:
    with pytest.raises(ModelError, match=r"Constant \d+ of the model would be at bytes \d+ to"):
        objects.parse(large[:-1])


def test_options_behind_the_tables() -> None:
    def with_options(offset: int) -> bytes:
        model = objects.parse(INSIDE)
        node: Any = model.subgraphs[0].operators[0]
        node.largeCustomOptionsOffset, node.largeCustomOptionsSize = offset, 8
        return objects.pack(model)

    node = objects.parse(with_options(4)).subgraphs[0].operators[0]
    assert bytes(node.customOptions) == with_options(4)[4:12]
    with pytest.raises(ModelError, match="The options of node 0 of the model would be at bytes"):
        objects.parse(with_options(1 << 20))
