"""MediaPipe's FaceDetector on litegpu: find faces, and draw boxes and six points on each.

python examples/face_detector.py face_detection_short_range.tflite portrait.jpg --output=faces.png
"""

from __future__ import annotations

import argparse

from PIL import Image, ImageDraw

import litegpu as mp
from litegpu.tasks import BaseOptions, vision

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("model", help="MediaPipe's BlazeFace")
parser.add_argument("picture")
parser.add_argument("--output", default="faces.png")
args = parser.parse_args()

options = vision.FaceDetectorOptions(base_options=BaseOptions(model_asset_path=args.model))
with vision.FaceDetector.create_from_options(options) as detector:
    result = detector.detect(mp.Image.create_from_file(args.picture))

drawn = Image.open(args.picture).convert("RGB")
draw = ImageDraw.Draw(drawn)
for detection in result.detections:
    box, score = detection.bounding_box, detection.categories[0].score
    right, bottom = box.origin_x + box.width, box.origin_y + box.height
    draw.rectangle((box.origin_x, box.origin_y, right, bottom), outline="orange", width=4)
    for point in detection.keypoints:
        x, y = point.x * drawn.width, point.y * drawn.height
        draw.ellipse((x - 5, y - 5, x + 5, y + 5), fill="yellow")
    print(f"face {score:6.1%}  x {box.origin_x}..{right}  y {box.origin_y}..{bottom}")
drawn.save(args.output)
