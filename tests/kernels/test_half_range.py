"""CUDA kernels that multiply halves preserve the range of float32."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from unittest import mock

import numpy as np
import numpy.typing as npt
import pytest

from comparing import relative_error
from conv_graphs import built, convolution, product
from cuda_emulator import INFO, EmulatedDevice, needs_emulator
from litegpu import numeric_policy
from litegpu.backends.buffers import Bindings
from litegpu.device_model import Capability
from litegpu.graph import DType, Graph
from litegpu.kernels.base import Rejected
from litegpu.kernels.cuda import conv_mma, conv_narrow, conv_patch
from litegpu.kernels.cuda.conv_mma.tile import MmaProblem, MmaTile, candidates
from litegpu.kernels.cuda.tiles import TileTarget, choose
from litegpu.numeric_policy import FP16, FP32, NumericPolicy
from litegpu.ops.common.window import Window

pytestmark = [needs_emulator, pytest.mark.filterwarnings("ignore::RuntimeWarning")]

Floats = npt.NDArray[np.float32]
MAGNITUDES = (1e-30, 1e-8, 1e-6, 1e-3, 1.0, 1e3, 1e4, 1e6, 1e25)


@dataclasses.dataclass(frozen=True)
class Problem:
    """A convolution, the kernel that is to run it, and how far that may be off."""

    template: str
    image: tuple[int, int, int, int]
    filters: int
    window: Window
    limit: float
    units: int = 132
    capability: Capability = (9, 0)
    tile: Callable[[MmaTile], bool] = bool
    """Whether a tile of cuda/conv_mma may be taken."""
    rounded: bool = False
    """Whether values and weights may be rounded, as in large convolutions."""

    def graph(self, weights: float) -> Graph:
        """Return the graph with weights of a magnitude."""
        return convolution(self.image, self.filters, self.window, scale=weights)


POINT = Window((1, 1), (1, 1))
PROBLEMS = {
    "alone": Problem("cuda/conv_mma", (3, 2, 5, 33), 9, POINT, 1e-6, tile=lambda t: t.cluster == 1),
    # Blocks of a cluster share all their values; chunks come one after the other
    "shared": Problem(
        "cuda/conv_mma", (3, 3, 5, 128), 256, POINT, 1e-6, tile=lambda t: t.cluster > t.depth
    ),
    "chunks": Problem(
        *("cuda/conv_mma", (1, 3, 4, 2600), 24, POINT, 1e-6),
        tile=lambda t: t.cluster == 1 and t.chunk < t.steps,
    ),
    "shared chunks": Problem(
        *("cuda/conv_mma", (1, 3, 4, 2600), 24, POINT, 1e-6),
        tile=lambda t: t.cluster > t.depth and t.chunk < t.steps,
    ),
    # Each has some of the channels
    "split": Problem("cuda/conv_mma", (1, 3, 4, 600), 24, POINT, 1e-6, tile=lambda t: t.split_k),
    "window": Problem("cuda/conv_mma", (1, 9, 8, 24), 20, Window((3, 3), (2, 2)), 1e-6),
    "patch": Problem("cuda/conv_patch", (3, 9, 20, 24), 20, Window((3, 3), (1, 1)), 1e-6, 1),
    "narrow": Problem("cuda/conv_narrow", (3, 9, 21, 3), 20, Window((3, 3), (1, 1)), 1e-6, 1),
    # Large ones round their values to as many digits as half has
    "tile": Problem("cuda/conv_tile", (3, 9, 15, 72), 65, POINT, 1e-3, units=1, rounded=True),
    "mma tile": Problem(
        *("cuda/conv_tile", (3, 9, 15, 24), 40, Window((3, 3), (1, 1), pads=(1, 1)), 1e-3),
        units=1,
        rounded=True,
        capability=(8, 0),
    ),
    "narrow rounded": Problem(
        "cuda/conv_narrow", (3, 9, 24, 4), 20, Window((3, 3), (1, 1)), 1e-3, 1, rounded=True
    ),
}


def runner(
    problem: Problem, graph: Graph, policy: NumericPolicy = FP16
) -> Callable[[Floats], Floats]:
    """Return what makes a result of an image."""
    device = dataclasses.replace(
        INFO, compute_units=problem.units, compute_capability=problem.capability
    )

    def best_tiles(of: MmaProblem, target: TileTarget) -> list[MmaTile] | Rejected:
        return choose(filter(problem.tile, candidates(of, target)), target)

    with (
        mock.patch.object(conv_narrow, "_MAX_CLOCK_RATIO", 1e9),
        mock.patch.object(conv_patch, "_MAX_CLOCK_RATIO", 1e9),
        mock.patch.object(
            numeric_policy, "_MIN_ROUNDED_OPERATIONS", 0 if problem.rounded else 1e12
        ),
        mock.patch.object(conv_mma, "best_tiles", best_tiles),
    ):
        program = built(graph, policy, device, DType.FLOAT32)
    (launch,) = program.launches
    assert policy is FP32 or launch.template == problem.template
    context = EmulatedDevice().compile(program.program).context()

    def run(image: Floats) -> Floats:
        output = np.empty(graph.values[graph.outputs[0]].shape, np.float32)
        context.run(Bindings.of([image], [output]))
        return output

    return run


def drawn(shape: tuple[int, ...]) -> Floats:
    """Return numbers like those behind an activation: many zeros."""
    random = np.random.default_rng(1)
    return np.maximum(random.normal(0, 1, shape), 0).astype(np.float32)


@pytest.mark.every_other
@pytest.mark.parametrize("weights", [1e-8, 1.0, 1e6])
@pytest.mark.parametrize("name", PROBLEMS)
def test_magnitudes(name: str, weights: float) -> None:
    problem = PROBLEMS[name]
    graph = problem.graph(weights)
    run = runner(problem, graph)
    for magnitude in MAGNITUDES:
        if magnitude * weights >= 1e-30:
            image = drawn(problem.image) * np.float32(magnitude)
            error = relative_error(product(graph, image), run(image))
            assert error < problem.limit, f"values of {magnitude:g}"


@pytest.mark.parametrize("name", PROBLEMS)
def test_what_is_mixed(name: str) -> None:
    """Images, channels and pixels of their own magnitudes; zeros, and what is not finite."""
    problem = PROBLEMS[name]
    graph = problem.graph(1.0)
    run = runner(problem, graph)
    zeros = np.zeros(problem.image, np.float32)
    assert not run(zeros).any()
    # Channels one after the other, in the order in which they are summed up and in the other one
    rising = drawn(problem.image) * np.geomspace(1e-9, 1e9, problem.image[3], dtype=np.float32)
    for image in (rising, np.ascontiguousarray(rising[..., ::-1])):
        assert relative_error(product(graph, image), run(image)) < problem.limit
    if problem.image[0] == 3:
        image = drawn(problem.image) * np.array([1e6, 1, 1e-6], np.float32).reshape(3, 1, 1, 1)
        expected, output = product(graph, image), run(image)
        for each in range(3):
            assert relative_error(expected[each], output[each]) < 3e-3


@pytest.mark.parametrize("policy", [FP32, FP16], ids=["fp32", "fp16"])
@pytest.mark.parametrize("name", ["alone", "shared", "patch", "narrow", "tile", "mma tile"])
def test_what_is_not_finite_is_seen(name: str, policy: NumericPolicy) -> None:
    """NaN as NVIDIA's units make it, and infinity: only where they are, and all else is right."""
    problem = PROBLEMS[name]
    graph = problem.graph(1.0)
    run = runner(problem, graph, policy)
    for word in (0x7FFFFFFF, 0x7FC00000, 0x7F800000, 0xFF800000):
        image = drawn(problem.image)
        image[0, 1, 2, 0] = np.array(word, np.uint32).view(np.float32)
        image[0, 0, 0, 0] = 1e6  # not in the windows of the other one
        expected, output = product(graph, image), run(image)
        finite = np.isfinite(expected)
        assert np.array_equal(np.isfinite(output), finite)
        assert relative_error(expected[finite], output[finite]) < problem.limit
