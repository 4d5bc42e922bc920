"""Detects objects with PyCoral's functions, on a GPU instead of an Edge TPU.

    python examples/pycoral_detect.py ssd_mobilenet_v1_quant.tflite street.jpg --labels=coco.txt

Only the imports differ from those of a program for the Edge TPU. The model is the file that the
Edge TPU's compiler reads. The program draws the boxes on pycoral.png.
"""

from __future__ import annotations

import argparse

from PIL import Image, ImageDraw

from litegpu.pycoral.adapters import common, detect
from litegpu.pycoral.utils.dataset import read_label_file
from litegpu.pycoral.utils.edgetpu import make_interpreter

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("model", help="a detector that ends in TFLite_Detection_PostProcess")
parser.add_argument("picture")
parser.add_argument("--labels", help="a file with a name per line, or a number and a name")
parser.add_argument("--threshold", type=float, default=0.5)
args = parser.parse_args()

labels = read_label_file(args.labels) if args.labels else {}
interpreter = make_interpreter(args.model)
interpreter.allocate_tensors()

picture = Image.open(args.picture).convert("RGB")
_, scale = common.set_resized_input(interpreter, picture.size, picture.resize)
interpreter.invoke()

draw, size = ImageDraw.Draw(picture), max(14, picture.width // 20)
for found in detect.get_objects(interpreter, args.threshold, scale):
    name = labels.get(found.id, f"class {found.id}")
    print(f"{name:20} {found.score:6.1%}  {tuple(found.bbox)}")
    draw.rectangle(found.bbox, outline="red", width=3)
    corner = (max(found.bbox.xmin, 0) + 5, max(found.bbox.ymin - size - 5, 0))
    draw.text(corner, name, fill="white", font_size=size, stroke_width=2, stroke_fill="red")
picture.save("pycoral.png")
