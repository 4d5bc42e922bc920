"""MediaPipe's ObjectDetector on litegpu: find objects on a picture, and draw their boxes.

python examples/object_detector.py ssd_mobilenet_v1.tflite street.jpg --output=objects.png
"""

from __future__ import annotations

import argparse

from PIL import Image, ImageDraw

import litegpu as mp
from litegpu.tasks import BaseOptions, vision

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("model", help="a detector with metadata, or with TFLite_Detection_PostProcess")
parser.add_argument("picture")
parser.add_argument("--threshold", type=float, default=0.5, help="the least score (0.5)")
parser.add_argument("--output", default="objects.png")
args = parser.parse_args()

options = vision.ObjectDetectorOptions(
    base_options=BaseOptions(model_asset_path=args.model), score_threshold=args.threshold
)
with vision.ObjectDetector.create_from_options(options) as detector:
    result = detector.detect(mp.Image.create_from_file(args.picture))

drawn = Image.open(args.picture).convert("RGB")
draw = ImageDraw.Draw(drawn)
for detection in result.detections:
    box, category = detection.bounding_box, detection.categories[0]
    right, bottom = box.origin_x + box.width, box.origin_y + box.height
    name = category.category_name or f"class {category.index}"
    draw.rectangle((box.origin_x, box.origin_y, right, bottom), outline="orange", width=3)
    draw.text((box.origin_x + 4, box.origin_y + 4), f"{name} {category.score:.0%}", fill="orange")
    print(f"{name:16} {category.score:6.1%}  x {box.origin_x}..{right}  y {box.origin_y}..{bottom}")
drawn.save(args.output)
