"""A model of Triton's Python backend: a .tflite file, on the GPU through litegpu.

Copy the folder tflite_on_gpu to the model repository, and add 1/model.tflite.
"""

import json
import os

import numpy as np
import triton_python_backend_utils as pb_utils
from ai_edge_litert.interpreter import Interpreter

from litegpu import GpuDelegate

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "model.tflite")
OPTIONS = ("backend", "cache", "device", "precision", "quantized")
TYPES = {
    np.bool_: "TYPE_BOOL",
    np.uint8: "TYPE_UINT8",
    np.int8: "TYPE_INT8",
    np.int16: "TYPE_INT16",
    np.int32: "TYPE_INT32",
    np.int64: "TYPE_INT64",
    np.float16: "TYPE_FP16",
    np.float32: "TYPE_FP32",
}


def described(detail):
    """Return a tensor as an entry of Triton's configuration; unknown lengths are -1."""
    shape = detail["shape_signature"] if len(detail["shape_signature"]) else detail["shape"]
    dims = [int(size) for size in shape] or [1]
    return {"name": detail["name"], "data_type": TYPES[detail["dtype"]], "dims": dims}


class TritonPythonModel:
    """Triton creates one for each instance, and calls it from one thread."""

    @staticmethod
    def auto_complete_config(auto_complete_model_config):
        """Add the inputs and outputs of the file to the configuration."""
        target = Interpreter(MODEL)
        for detail in target.get_input_details():
            auto_complete_model_config.add_input(described(detail))
        for detail in target.get_output_details():
            auto_complete_model_config.add_output(described(detail))
        auto_complete_model_config.set_max_batch_size(0)
        return auto_complete_model_config

    def initialize(self, args):
        """Create the interpreter on the device of this instance."""
        parameters = json.loads(args["model_config"]).get("parameters", {})
        given = {name: each["string_value"] for name, each in parameters.items()}
        options = {name: given[name] for name in OPTIONS if name in given}
        if args["model_instance_kind"] == "GPU":
            options["device"] = f"cuda:{args['model_instance_device_id']}"
        self.delegate = GpuDelegate(options, model=MODEL)
        self.interpreter = Interpreter(MODEL, experimental_delegates=[self.delegate])
        self.interpreter.allocate_tensors()
        pb_utils.Logger.log_info(f"{args['model_name']}: {self.delegate}")

    def execute(self, requests):
        """Answer each request; a wrong request does not affect the others."""
        return [self.answer(request) for request in requests]

    def answer(self, request):
        """Run the model on the tensors of a request."""
        try:
            outputs = self.run(
                pb_utils.get_input_tensor_by_name(request, detail["name"]).as_numpy()
                for detail in self.interpreter.get_input_details()
            )
        except (RuntimeError, ValueError) as error:
            return pb_utils.InferenceResponse([], pb_utils.TritonError(str(error)))
        return pb_utils.InferenceResponse(outputs)

    def run(self, arrays):
        """Return the outputs for arrays in the order of the inputs, whose shapes may change."""
        arrays, details = list(arrays), self.interpreter.get_input_details()
        different = [
            (detail["index"], array.shape)
            for detail, array in zip(details, arrays, strict=True)
            if array.shape != tuple(detail["shape"]) and len(detail["shape"])
        ]
        for index, shape in different:
            self.interpreter.resize_tensor_input(index, shape, strict=True)
        if different:
            self.interpreter.allocate_tensors()
        for detail, array in zip(details, arrays, strict=True):
            rank = len(detail["shape"])
            self.interpreter.set_tensor(detail["index"], array if rank else array.reshape(()))
        self.interpreter.invoke()
        return [
            pb_utils.Tensor(
                detail["name"], np.atleast_1d(self.interpreter.get_tensor(detail["index"]))
            )
            for detail in self.interpreter.get_output_details()
        ]

    def finalize(self):
        """Release the device's memory."""
        self.delegate.close()
