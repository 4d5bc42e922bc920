"""One model in three ways: in an interpreter, compiled, and on PyTorch's tensors.

python examples/same_model.py model.tflite
"""

from __future__ import annotations

import argparse

import numpy as np
from ai_edge_litert.interpreter import Interpreter

from litegpu import CompiledModel, GpuDelegate, TensorBuffer

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("model", help="a .tflite file with one input and one output of float32")
args = parser.parse_args()

# In the interpreter that a program has already: one line more.
interpreter = Interpreter(args.model, experimental_delegates=[GpuDelegate()])
interpreter.allocate_tensors()
detail = interpreter.get_input_details()[0]
x = np.random.default_rng(0).uniform(-1, 1, detail["shape"]).astype(np.float32)
interpreter.set_tensor(detail["index"], x)
interpreter.invoke()
expected = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])

# Compiled: arrays in, arrays out.
model = CompiledModel.from_file(args.model)
print("CompiledModel:", np.abs(model(x) - expected).max(), "from the interpreter")

# PyTorch's tensors are read and written where they are: on a GPU nothing passes through the host.
try:
    import torch
except ImportError:
    print("PyTorch is not installed: pip install torch")
else:
    source = torch.from_numpy(x)
    result = torch.empty(expected.shape)
    if model.report.backend == "cuda" and torch.cuda.is_available():
        source, result = source.cuda(), result.cuda()
    model.run_by_index(0, [TensorBuffer.of(source)], [TensorBuffer.of(result)])
    print("PyTorch:", np.abs(result.cpu().numpy() - expected).max(), "from the interpreter")
model.close()
