"""Find objects on a picture, and draw them: an SSD with its post-processing on the GPU.

python examples/detect.py ssd_mobilenet_v1.tflite street.jpg --labels=coco.txt --output=drawn.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from litegpu import CompiledModel

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("model", help="a detector that ends in TFLite_Detection_PostProcess")
parser.add_argument("picture")
parser.add_argument("--labels", help="a file with the name of a class in each line")
parser.add_argument("--first", type=int, default=1, help="its line of class 0 (1: a background)")
parser.add_argument("--threshold", type=float, default=0.5, help="the least score (0.5)")
parser.add_argument("--output", default="detected.png")
args = parser.parse_args()

picture = Image.open(args.picture).convert("RGB")
names = Path(args.labels).read_text().splitlines() if args.labels else []
pixels = np.asarray(picture)

with CompiledModel.from_file(args.model, input_format="rgb8", size=pixels.shape[:2]) as model:
    print(model.report.summary())
    boxes, classes, scores, _ = (each[0] for each in model(pixels[None]).values())

draw = ImageDraw.Draw(picture)
for box, index, score in zip(boxes, classes.astype(int), scores, strict=True):
    if score < args.threshold:
        continue
    top, left, bottom, right = box * np.tile((picture.height, picture.width), 2)
    line = index + args.first
    name = names[line] if line < len(names) else f"class {index}"
    draw.rectangle((left, top, right, bottom), outline="orange", width=3)
    draw.text((left + 4, top + 4), f"{name} {score:.0%}", fill="orange")
    print(f"{name:16} {score:6.1%}  x {left:.0f}..{right:.0f}  y {top:.0f}..{bottom:.0f}")
picture.save(args.output)
