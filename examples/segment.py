"""Say of each pixel what it shows, and colour it.

python examples/segment.py deeplabv3_257_mv_gpu.tflite picture.jpg --output=segmented.png
"""

from __future__ import annotations

import argparse
import colorsys

import numpy as np
from PIL import Image

from litegpu import CompiledModel

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("model", help="a model with scores [1, height, width, classes]")
parser.add_argument("picture")
parser.add_argument("--output", default="segmented.png")
args = parser.parse_args()

picture = Image.open(args.picture).convert("RGB")
pixels = np.asarray(picture)
with CompiledModel.from_file(
    args.model, input_format="rgb8", size=pixels.shape[:2], precision="fp16"
) as model:
    classes = model(pixels[None])[0].argmax(-1)

found, counts = np.unique(classes, return_counts=True)
for index, count in zip(found, counts, strict=True):
    print(f"class {index:3}  {count / classes.size:6.1%}")
colors = [colorsys.hsv_to_rgb(index * 0.382 % 1, 0.8, 1) for index in range(classes.max() + 1)]
palette = (255 * np.array(colors)).astype(np.uint8)
palette[0] = 0  # the background
mask = Image.fromarray(palette[classes]).resize(picture.size, Image.Resampling.NEAREST)
Image.blend(picture, mask, 0.4).save(args.output)
