"""MediaPipe's FaceLandmarker on litegpu: the landmarks, the expression and the pose of faces.

python examples/face_landmarker.py face_landmarker.task portrait.jpg --output=landmarks.png
"""

from __future__ import annotations

import argparse

from PIL import Image, ImageDraw

import litegpu as mp
from litegpu.tasks import BaseOptions, vision

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("model", help="MediaPipe's bundle of face models")
parser.add_argument("picture")
parser.add_argument("--faces", type=int, default=1, help="the most faces (1)")
parser.add_argument("--output", default="landmarks.png")
args = parser.parse_args()

options = vision.FaceLandmarkerOptions(
    base_options=BaseOptions(model_asset_path=args.model),
    num_faces=args.faces,
    output_face_blendshapes=True,
    output_facial_transformation_matrixes=True,
)
with vision.FaceLandmarker.create_from_options(options) as landmarker:
    result = landmarker.detect(mp.Image.create_from_file(args.picture))

drawn = Image.open(args.picture).convert("RGB")
draw = ImageDraw.Draw(drawn)
for landmarks, shapes in zip(result.face_landmarks, result.face_blendshapes, strict=True):
    for point in landmarks:
        x, y = point.x * drawn.width, point.y * drawn.height
        draw.ellipse((x - 1, y - 1, x + 1, y + 1), fill="yellow")
    strongest = sorted(shapes, key=lambda each: -each.score)[:3]
    print("face ", ", ".join(f"{each.category_name} {each.score:.2f}" for each in strongest))
for matrix in result.facial_transformation_matrixes:
    print(f"{-matrix[2, 3]:.0f} cm before the camera")
drawn.save(args.output)
