"""The engine on a Ray cluster of this machine: two workers, one of which is lost."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import engine_jobs
import eval_models
from engine_jobs import expected, job, summary
from litegpu.errors import MissingDependencyError, ModelError, OptionsError, WorkerError
from litegpu.tools import cli, engines
from litegpu.tools.engines import ray_data
from small_models import chain

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")

SETTINGS = engines.Settings("ray", workers=2, decode_threads=1)


def start(work: Any, count: int, settings: engines.Settings = SETTINGS) -> engines.Run[Any]:
    return engines.start(work, engines.chunks(range(count), work.plan), settings)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    ray = pytest.importorskip("ray", reason="ray is not installed")
    pytest.importorskip("ray.data", reason="Ray Data is not installed")
    patch = pytest.MonkeyPatch()
    patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    patch.setenv("PYTHONPATH", str(Path(engine_jobs.__file__).parent), prepend=":")
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()
    patch.undo()


def test_a_lost_worker_changes_no_result(cluster: Any, tmp_path: Path) -> None:
    """Both open a GPU's API; the one that gets sample 100 is killed there."""
    pytest.importorskip("pyopencl", reason="pyopencl is not installed")
    marker = tmp_path / "killed"
    work = job(engine_jobs.once_killed(marker), open_model=engine_jobs.on_opencl)
    run = start(work, 600)
    assert summary(run.meter.watch(run.results)) == expected(600)
    assert marker.exists()
    assert cluster.is_initialized(), "whoever connected disconnects"
    assert (run.meter.workers, run.meter.decode_threads) == (2, 1)


def test_a_table_is_the_same_from_either_engine(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.tflite").write_bytes(chain(["ABS", "SIN"], (1, 3)))
    values = pa.FixedShapeTensorArray.from_numpy_ndarray(
        np.random.default_rng(0).normal(size=(200, 3))
    )
    pq.write_table(pa.table({"x": values}), "x.parquet", row_group_size=30)
    command = ["batch", "model.tflite", "--input=x.parquet", "--cpu", "--decode_threads=1"]
    assert cli.main([*command, "--output=local.parquet"]) == 0
    assert cli.main([*command, "--output=ray.parquet", "--engine=ray", "--workers=2"]) == 0
    assert Path("local.parquet").read_bytes() == Path("ray.parquet").read_bytes()


def test_an_evaluation_is_the_same_from_either_engine(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.tflite").write_bytes(eval_models.colour_classifier())
    Path("labels.txt").write_text("\n".join(eval_models.LABELS), encoding="utf-8")
    Path("pictures").mkdir()
    colours = list(eval_models.COLOURS) * 3
    for number, colour in enumerate(colours):
        eval_models.picture(Path(f"pictures/{number:02}.jpg"), colour)
    truth = ["red", *colours[:-1]]
    Path("truth.txt").write_text("\n".join(truth), encoding="utf-8")
    command = ["imagenet", "model.tflite", "--ground_truth_images_path=pictures"]
    command += ["--ground_truth_labels=truth.txt", "--model_output_labels=labels.txt"]
    figures = []
    for engine in ("local", "ray"):
        more = [f"--engine={engine}", f"--json={engine}.json", "--workers=2"]
        assert cli.main([*command, "--decode_threads=1", *more]) == 0
        figures.append(json.loads(Path(f"{engine}.json").read_text(encoding="utf-8")))
    local, ray = ({name: each[name] for name in each if "accura" in name} for each in figures)
    assert local == ray != {}


def refuse(_: bytes, __: engines.Place) -> object:
    raise ModelError("this place has no room")


def test_errors_keep_their_types(cluster: Any) -> None:
    with pytest.raises(ModelError, match="this place has no room"):
        list(start(job(open_model=refuse), 64).results)
    many = engines.Settings("ray", decode_threads=1000)
    with pytest.raises(OptionsError, match=r"--decode_threads=1000: .* has more than 2\. "):
        start(job(), 64, many)


@pytest.mark.parametrize(("named", "address"), [("127.0.0.1:6379", None), ("", "local")])
def test_a_cluster_that_is_not_there(
    named: str, address: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray itself reads RAY_ADDRESS where it is given no address."""

    class Ray:
        def init(self, address: str | None, **_: object) -> None:
            raise ConnectionError(f"nobody listens at {address}")

    monkeypatch.setenv("RAY_ADDRESS", named)
    message = f"no Ray cluster to work on: nobody listens at {address} .*RAY_ADDRESS"
    with pytest.raises(WorkerError, match=message):
        ray_data._connect(Ray())


def test_without_ray_the_command_to_type_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'litegpu\[ray\]'"):
        start(job(), 4)


@pytest.mark.parametrize(
    ("nodes", "settings", "sizes"),
    [
        ([{"CPU": 8}], engines.Settings("ray"), (1, 4, 0)),
        ([{"CPU": 64, "GPU": 4}, {"CPU": 16}], engines.Settings("ray"), (4, 4, 1)),
        ([{"CPU": 8, "GPU": 1}] * 2, engines.Settings("ray", gpus_per_worker=0.5), (4, 4, 0.5)),
        ([{"CPU": 2}, {"CPU": 2}], engines.Settings("ray", workers=4), (4, 1, 0)),
        ([{"CPU": 8}], engines.Settings("ray", 3, 2), (3, 2, 0)),
    ],
)
def test_workers_fit_the_cluster(
    nodes: list[dict[str, float]], settings: engines.Settings, sizes: tuple[int, int, float]
) -> None:
    assert ray_data._sizes(nodes, settings) == sizes


def test_few_chunks_make_many_tasks() -> None:
    assert len(ray_data._tasks(range(8), 2)) == 8
    assert len(ray_data._tasks(range(1000), 2)) == 125


def test_results_out_of_their_turn_are_a_fault() -> None:
    row = {"done": pickle.dumps((3, []))}
    with pytest.raises(WorkerError, match="Ray returned chunk 3 out of order"):
        ray_data._opened(row, iter([2]))
