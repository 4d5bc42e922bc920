"""Say what is on a picture: the bytes go to the GPU, and the model itself resizes and scales them.

python examples/classify.py mobilenet_v2_1.0_224.tflite picture.jpg --labels=labels.txt
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image

from litegpu import CompiledModel

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("model", help="a classifier, or zoo:NAME")
parser.add_argument("picture")
parser.add_argument("--labels", help="a file with the name of a class in each line")
parser.add_argument("--backend", help="cuda, opencl, webgpu or opengl; the best one by itself")
args = parser.parse_args()

picture = np.asarray(Image.open(args.picture).convert("RGB"))
names = Path(args.labels).read_text().splitlines() if args.labels else []

with CompiledModel.from_file(
    args.model, input_format="rgb8", size=picture.shape[:2], backend=args.backend
) as model:
    scores = model(picture[None]).ravel()
for index in scores.argsort()[:-6:-1]:
    print(f"{scores[index]:8.4f}  {index:5}  {names[index] if index < len(names) else ''}")
