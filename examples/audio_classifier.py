"""MediaPipe's AudioClassifier on litegpu: the classes of each second of a sound.

python examples/audio_classifier.py yamnet.tflite sound.wav --results=3
"""

from __future__ import annotations

import argparse
import wave

import numpy as np

from litegpu.tasks import BaseOptions, audio
from litegpu.tasks.components.containers import AudioData

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("model", help="a classifier of sounds with metadata, such as YAMNet")
parser.add_argument("sound", help="a .wav file of 16-bit samples")
parser.add_argument("--results", type=int, default=3, help="the most classes of a chunk (3)")
args = parser.parse_args()

with wave.open(args.sound) as file:
    samples = np.frombuffer(file.readframes(file.getnframes()), np.int16) / 32768
    clip = AudioData.create_from_array(
        samples.reshape(-1, file.getnchannels()), file.getframerate()
    )

options = audio.AudioClassifierOptions(
    base_options=BaseOptions(model_asset_path=args.model), max_results=args.results
)
with audio.AudioClassifier.create_from_options(options) as classifier:
    for chunk in classifier.classify(clip):
        best = (
            f"{each.category_name or f'class {each.index}'} {each.score:.1%}"
            for each in chunk.classifications[0].categories
        )
        print(f"{chunk.timestamp_ms / 1000:6.2f} s ", ", ".join(best))
