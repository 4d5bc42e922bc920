"""Sends a picture to `litegpu serve`, and prints the best classes.

litegpu serve mobilenet_v2_1.0_224 --port=8000
python examples/serve_client.py picture.jpg --model=mobilenet_v2_1.0_224
"""

from __future__ import annotations

import argparse
import base64
import json
import urllib.request
from pathlib import Path
from typing import Any


def ask(address: str, body: Any = None) -> Any:
    """Return the JSON of an answer."""
    content = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(address, content) as answer:
        return json.load(answer)


def scores(address: str, model: str, picture: bytes) -> list[float]:
    """Return the first output of a model for a picture."""
    path = f"{address}/v2/models/{model}"
    tensor = {
        "name": ask(path)["inputs"][0]["name"],
        "datatype": "BYTES",
        "shape": [1],
        "data": [base64.b64encode(picture).decode()],
        "parameters": {"content_type": "base64"},
    }
    found: list[float] = ask(f"{path}/infer", {"inputs": [tensor]})["outputs"][0]["data"]
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("picture", help="a JPEG, PNG or other file")
    parser.add_argument("--model", default="mobilenet_v2_1.0_224")
    parser.add_argument("--address", default="http://localhost:8000")
    args = parser.parse_args()
    found = scores(args.address, args.model, Path(args.picture).read_bytes())
    for index in sorted(range(len(found)), key=lambda each: -found[each])[:5]:
        print(f"{found[index]:.3f}  {index}")
