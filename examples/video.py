"""Detect objects in a video: the next frame is decoded while the GPU has this one.

python examples/video.py ssd_mobilenet_v1.tflite street.mp4 --output=drawn.mp4
"""

from __future__ import annotations

import argparse
import time
from collections import deque

import av
from PIL import ImageDraw

from litegpu import CompiledModel

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("model", help="a detector that ends in TFLite_Detection_PostProcess")
parser.add_argument("video")
parser.add_argument("--output", default="detected.mp4")
args = parser.parse_args()

source = av.open(args.video)
stream = source.streams.video[0]
size = (stream.height, stream.width)
model = CompiledModel.from_file(args.model, input_format="rgb8", size=size, contexts=2)
output = av.open(args.output, "w")
written = output.add_stream("mpeg4", rate=stream.average_rate)
written.width, written.height = stream.width, stream.height


def draw(frame: av.VideoFrame, found: dict) -> None:
    """Write a frame with what was found on it."""
    picture = frame.to_image()
    pen = ImageDraw.Draw(picture)
    boxes, _, scores, _ = (each[0] for each in found.values())
    for top, left, bottom, right in boxes[scores >= 0.5] * (*size, *size):
        pen.rectangle((left, top, right, bottom), outline="orange", width=3)
    output.mux(written.encode(av.VideoFrame.from_image(picture)))


began, count, flying = time.perf_counter(), 0, deque()
for frame in source.decode(stream):
    flying.append((frame, model.submit(frame.to_ndarray(format="rgb24")[None])))
    count += 1
    if len(flying) == 2:
        ready, future = flying.popleft()
        draw(ready, future.result())
for ready, future in flying:
    draw(ready, future.result())
output.mux(written.encode())
output.close()
model.close()
print(f"{count} frames, {count / (time.perf_counter() - began):.1f} a second")
