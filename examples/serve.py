"""A web service that says what is on pictures; requests that come together are one batch.

python examples/serve.py mobilenet_v2_1.0_224.tflite --port=8000
curl --data-binary @picture.jpg http://localhost:8000/classify
"""

from __future__ import annotations

import argparse
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import uvicorn
from fastapi import FastAPI, HTTPException, Request
from PIL import Image, UnidentifiedImageError

from litegpu import Batcher, CompiledModel


def app(path: str, mean: float = 127.5, std: float = 127.5) -> FastAPI:
    """Return a service around a classifier, which is compiled once."""
    model = CompiledModel.from_file(path, contexts=2)
    batcher = Batcher(model, max_batch=8, max_delay_ms=5)
    _, height, width, _ = model.signature.inputs[0].shape

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        batcher.close()
        model.close()

    service = FastAPI(lifespan=lifespan)

    @service.post("/classify")
    async def classify(request: Request) -> list[dict[str, Any]]:
        try:
            picture = Image.open(io.BytesIO(await request.body())).convert("RGB")
        except UnidentifiedImageError as error:
            raise HTTPException(415, "The body is no picture that Pillow reads.") from error
        pixels = np.asarray(picture.resize((width, height)), np.float32)
        scores = (await batcher.submit((pixels[None] - mean) / std)).ravel()
        best = scores.argsort()[:-6:-1]
        return [{"class": int(index), "score": float(scores[index])} for index in best]

    return service


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="a classifier of float32")
    parser.add_argument("--port", type=int, default=8000)
    args = parser.parse_args()
    uvicorn.run(app(args.model), port=args.port)
