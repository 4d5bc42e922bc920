"""MediaPipe's face mesh: find a face, cut it out, and draw its 468 points.

python examples/face_landmarks.py face_detection_front.tflite face_landmark.tflite portrait.jpg
"""

from __future__ import annotations

import argparse

import numpy as np
from PIL import Image, ImageDraw

from litegpu import CompiledModel

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("detector", help="face_detection_front or face_detection_short_range")
parser.add_argument("landmarks", help="face_landmark")
parser.add_argument("picture")
parser.add_argument("--output", default="face.png")
args = parser.parse_args()

picture = Image.open(args.picture).convert("RGB")
side = min(picture.size)
left, top = (picture.width - side) // 2, (picture.height - side) // 2
square = picture.crop((left, top, left + side, top + side))

# The detector says of 896 anchors, 2 a cell of 16x16 and 6 a cell of 8x8, whether a face is there.
centres = [
    ((x + 0.5) / cells, (y + 0.5) / cells)
    for cells, each in ((16, 2), (8, 6))
    for y in range(cells)
    for x in range(cells)
    for _ in range(each)
]
with CompiledModel.from_file(args.detector) as detector:
    small = np.asarray(square.resize((128, 128)), np.float32)[None] / 127.5 - 1
    boxes, scores = sorted(detector(small).values(), key=lambda each: -each.shape[-1])
best = scores.ravel().argmax()
x, y, width, height = boxes[0, best, :4] / 128
center = np.add(centres[best], (x, y)) * side
half = 0.75 * max(width, height) * side  # a quarter around the face, as the landmarks want it
print(f"face at {center.round()} with {1 / (1 + np.exp(-scores.ravel()[best])):.1%}")

with CompiledModel.from_file(args.landmarks, precision="fp16") as landmarks:
    face = square.crop((*(center - half), *(center + half))).resize((192, 192))
    outputs = landmarks(np.asarray(face, np.float32)[None] / 255)
    points = max(outputs.values(), key=np.size).reshape(-1, 3)[:, :2] / 192
draw = ImageDraw.Draw(square)
for point in center - half + points * 2 * half:
    draw.ellipse((*(point - 1), *(point + 1)), fill="yellow")
print(f"{len(points)} points")
square.save(args.output)
