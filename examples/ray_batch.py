"""Run a model over any number of arrays with Ray Data: one compiled model a worker.

python examples/ray_batch.py model.tflite --rows=1000 --workers=2
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import ray
from ray.data import ActorPoolStrategy

from litegpu import CompiledModel


class Predict:
    """What a worker has; with GPUs say `num_gpus=1` below, and each gets one of its own."""

    def __init__(self, path: str) -> None:
        self.model = CompiledModel.from_file(path)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return the best class of each row."""
        scores = [self.model(row[None])[0] for row in batch["data"]]
        return {"best": np.array([each.argmax() for each in scores])}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="a .tflite file with one input and one output")
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--workers", type=int, default=1)
    args = parser.parse_args()
    with CompiledModel.from_file(args.model) as model:
        shape = tuple(model.signature.inputs[0].shape[1:])
    # One CPU more reads the rows.
    ray.init(num_cpus=args.workers + 1, include_dashboard=False, log_to_driver=False)
    rows = ray.data.range_tensor(args.rows, shape=shape).map_batches(
        lambda batch: {"data": batch["data"].astype(np.float32) / args.rows}
    )
    found = rows.map_batches(
        Predict,
        fn_constructor_args=(args.model,),
        compute=ActorPoolStrategy(size=args.workers),
        batch_size=16,
    )
    best = [row["best"] for row in found.iter_rows()]
    print(f"{len(best)} rows, classes {sorted(set(map(int, best)))}")
