"""Resizes between the check of a call and its run, during batches, and to invalid shapes."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from every_backend import on_every_backend
from litegpu import Batcher, CompiledModel, CompiledModelError
from robustness.programs import run_program
from small_models import CPU_ONLY, chain

SHAPE = (1, 4, 4, 4)
OPS = {"whole": ["ABS", "NEG"], "partly": ["ABS", CPU_ONLY, "NEG"]}

BETWEEN = """
import sys, numpy as np
from litegpu import CompiledModel, CompiledModelError
from small_models import chain
model = CompiledModel.from_buffer(chain(sys.argv[1].split()))

class Resizes:
    '''Is what another thread does, at the worst time.'''
    def __init__(self, size):
        self.size = size
    def __array__(self, dtype=None, copy=None):
        before = model.signature.inputs[0].shape
        model.resize_input_tensor(0, (1, self.size, self.size, 4), strict=False)
        return np.ones(before, np.float32)

for way in (model, model.submit):
    for size in (512, 2):
        try:
            way(Resizes(size))
        except CompiledModelError as error:
            print("and was given" in str(error))
print(model(np.ones((1, 2, 2, 4), np.float32)).max())
"""


@on_every_backend
@pytest.mark.parametrize("ops", OPS)
def test_a_resize_between_check_and_run(backend: str, ops: str) -> None:
    ended = run_program(BETWEEN, backend, " ".join(OPS[ops]), start="")
    assert (ended.code, ended.stdout) == (0, "True\n" * 4 + "-1.0\n"), ended.stderr


@pytest.mark.parametrize("ops", OPS)
def test_calls_beside_resizes(ops: str) -> None:
    ended, wrong = threading.Event(), list[object]()
    with CompiledModel.from_buffer(chain(OPS[ops]), contexts=2) as model:

        def work(way: Any) -> None:
            while not ended.is_set():
                x = np.full(model.signature.inputs[0].shape, 3, np.float32)
                try:
                    found = way(x)
                    if found.shape != x.shape or (found != -3).any():
                        wrong.append(found)
                except CompiledModelError:
                    pass
                except BaseException as error:
                    wrong.append(error)

        ways = (model, lambda x: model.submit(x).result())
        threads = [threading.Thread(target=work, args=(way,)) for way in ways]
        for each in threads:
            each.start()
        for size in (64, 4) * 4:
            model.resize_input_tensor(0, (1, size, size, 4), strict=False)
        ended.set()
        for each in threads:
            each.join(60)
    assert not wrong, wrong[0]


@pytest.mark.parametrize("ops", OPS)
def test_batches_of_a_resized_model(ops: str) -> None:
    x, y = (np.random.default_rng(n).normal(size=(1, n, n, 4)).astype("f4") for n in (8, 4))
    with CompiledModel.from_buffer(chain(OPS[ops])) as model:
        model.resize_input_tensor(0, x.shape, strict=False)
        with model.at_batch(2) as two:
            assert two.signature.inputs[0].shape == (2, 8, 8, 4)
        with Batcher(model, max_batch=2) as batcher:
            expected = model(x)
            np.testing.assert_array_equal(batcher(x), expected)
            model.resize_input_tensor(0, y.shape, strict=False)
            np.testing.assert_array_equal(batcher(x), expected)
            with pytest.raises(CompiledModelError, match=r"has the shape \[-1, 8, 8, 4\], and was"):
                batcher(y)


def test_batches_of_pictures_of_any_size() -> None:
    name = "zoo:mobilenet_v1_0.25_128"
    pixels = np.random.default_rng(0).integers(0, 256, (1, 40, 50, 4), np.uint8)
    with CompiledModel.from_file(name, input_format="rgba8", size="any") as model:
        model.resize_input_tensor(0, pixels.shape)
        with Batcher(model, max_batch=2, batch_sizes=(2,)) as batcher:
            np.testing.assert_allclose(batcher(pixels), model(pixels), rtol=1e-3)


def test_batches_that_a_resize_permits_and_rows_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: Any, **__: Any) -> None:
        raise CompiledModelError("Not this shape.")

    with CompiledModel.from_buffer(chain(OPS["whole"])) as model:
        model.resize_input_tensor(0, (1, 8, 8, 4), strict=False)
        monkeypatch.setattr(CompiledModel, "resize_input_tensor", refuses)
        with pytest.raises(CompiledModelError, match=r"Not this shape"):
            model.at_batch(2)


@pytest.mark.parametrize("options", [{}, {"hardware_accel": 1}])
def test_shapes_that_cannot_be(options: dict[str, Any]) -> None:
    x = np.ones(SHAPE, np.float32)
    with CompiledModel.from_buffer(chain(OPS["whole"]), **options) as model:
        for dims in ((2**40, 4, 4, 4), (-1, 4, 4, 4), (1, 4.5, 4, 4), "abc", 4, (1, None)):
            with pytest.raises(CompiledModelError, match=r"cannot have the shape .* from 0 to 214"):
                model.resize_input_tensor(0, dims, strict=False)  # type: ignore[arg-type]
        with pytest.raises(CompiledModelError, match=r"cannot have the shape|more memory"):
            model.resize_input_tensor(0, (1, 2**20, 2**20, 4), strict=False)
        assert (model(x) == -1).all()
