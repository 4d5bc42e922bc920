"""MediaPipe's GestureRecognizer on litegpu: find hands and their gestures, and draw them.

python examples/gesture_recognizer.py gesture_recognizer.task picture.jpg --output=gestures.png
"""

from __future__ import annotations

import argparse

from PIL import Image, ImageDraw

import litegpu as mp
from litegpu.tasks import BaseOptions, vision

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("model", help="MediaPipe's bundle of hand and gesture models")
parser.add_argument("picture")
parser.add_argument("--hands", type=int, default=2, help="the most hands (2)")
parser.add_argument("--output", default="gestures.png")
args = parser.parse_args()

options = vision.GestureRecognizerOptions(
    base_options=BaseOptions(model_asset_path=args.model), num_hands=args.hands
)
with vision.GestureRecognizer.create_from_options(options) as recognizer:
    result = recognizer.recognize(mp.Image.create_from_file(args.picture))

drawn = Image.open(args.picture).convert("RGB")
draw = ImageDraw.Draw(drawn)
hands = zip(result.gestures, result.handedness, result.hand_landmarks, strict=True)
for gestures, sides, landmarks in hands:
    for point in landmarks:
        x, y = point.x * drawn.width, point.y * drawn.height
        draw.ellipse((x - 4, y - 4, x + 4, y + 4), fill="yellow")
    name, score = ("-", 0.0) if not gestures else (gestures[0].category_name, gestures[0].score)
    wrist = landmarks[0]
    draw.text((wrist.x * drawn.width, wrist.y * drawn.height), name, fill="orange")
    print(f"{sides[0].category_name:5} hand  {name:12} {score:6.1%}")
drawn.save(args.output)
