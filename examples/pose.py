"""Draw where the joints of a person are: PoseNet's maps of scores and offsets.

python examples/pose.py posenet_mobilenet_v1_100_257x257.tflite person.jpg --output=pose.png
"""

from __future__ import annotations

import argparse

import numpy as np
from PIL import Image, ImageDraw

from litegpu import CompiledModel

PAIRS = ("eye", "ear", "shoulder", "elbow", "wrist", "hip", "knee", "ankle")
JOINTS = ("nose", *(f"{side}_{name}" for name in PAIRS for side in ("left", "right")))
BONES = ((5, 6), (5, 7), (7, 9), (6, 8), (8, 10), (5, 11), (6, 12), (11, 12))
BONES += ((11, 13), (13, 15), (12, 14), (14, 16))

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("model", help="a PoseNet")
parser.add_argument("picture")
parser.add_argument("--threshold", type=float, default=0.5, help="the least score of a joint (0.5)")
parser.add_argument("--output", default="pose.png")
args = parser.parse_args()

picture = Image.open(args.picture).convert("RGB")
pixels = np.asarray(picture)
with CompiledModel.from_file(args.model, input_format="rgb8", size=pixels.shape[:2]) as model:
    outputs = model(pixels[None])
maps = {each.shape[-1]: each[0] for each in outputs.values()}
scores, offsets = 1 / (1 + np.exp(-maps[17])), maps[34]
cells = scores.shape[0]
network = (cells - 1) * 32 + 1  # PoseNet's output stride is 32

points = []
for joint, name in enumerate(JOINTS):
    y, x = np.unravel_index(scores[..., joint].argmax(), scores.shape[:2])
    place = np.array([y, x]) * 32 + offsets[y, x, [joint, joint + 17]]
    row, column = place / network * (picture.height, picture.width)
    points.append((column, row, scores[y, x, joint]))
    print(f"{name:16} {scores[y, x, joint]:6.1%}  x {column:6.1f}  y {row:6.1f}")

draw = ImageDraw.Draw(picture)
for first, second in BONES:
    if min(points[first][2], points[second][2]) >= args.threshold:
        draw.line((*points[first][:2], *points[second][:2]), fill="lime", width=4)
for x, y, score in points:
    if score >= args.threshold:
        draw.ellipse((x - 4, y - 4, x + 4, y + 4), fill="orange")
picture.save(args.output)
