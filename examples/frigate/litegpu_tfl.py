"""A detector for Frigate that runs .tflite models on a GPU.

Copy this file to frigate/detectors/plugins/, and install litegpu with a backend into Frigate's
Python. docs/programs.md has the commands and the configuration.
"""

import logging
from typing import Literal

import numpy as np
from frigate.detectors.detection_api import DetectionApi
from frigate.detectors.detector_config import BaseDetectorConfig, ModelTypeEnum
from pydantic import Field

from litegpu import GpuDelegate

try:
    from tflite_runtime.interpreter import Interpreter
except ModuleNotFoundError:
    from ai_edge_litert.interpreter import Interpreter

DETECTOR_KEY = "litegpu"
MAX_OBJECTS, MIN_SCORE = 20, 0.4

logger = logging.getLogger(__name__)


class LitegpuDetectorConfig(BaseDetectorConfig):
    """The detector's part of Frigate's configuration."""

    type: Literal[DETECTOR_KEY]
    backend: str | None = Field(default=None, title="cuda, opencl, webgpu or opengl")
    device: str | int | None = Field(
        default=None, title="Number of the device, or a part of its name"
    )
    precision: str | None = Field(default=None, title="fp32, or fp16 for half precision")
    cache: str | None = Field(
        default=None, title="Folder of compiled models, such as /config/litegpu"
    )


class LitegpuTfl(DetectionApi):
    """Runs SSD models whose outputs are boxes, classes, scores and their number."""

    type_key = DETECTOR_KEY
    supported_models = [ModelTypeEnum.ssd]  # noqa: RUF012 (Frigate declares it as a list)

    def __init__(self, detector_config: LitegpuDetectorConfig) -> None:
        """Load the model; raise litegpu's error if there is no such device."""
        super().__init__(detector_config)
        model = detector_config.model
        if model.model_type not in self.supported_models:
            raise ValueError(
                f"The litegpu detector runs models of type ssd, not {model.model_type}."
            )
        self.delegate = GpuDelegate(
            backend=detector_config.backend,
            device=detector_config.device,
            precision=detector_config.precision,
            cache=detector_config.cache,
            model=model.path,
        )
        self.interpreter = Interpreter(
            model_path=model.path, experimental_delegates=[self.delegate]
        )
        self.interpreter.allocate_tensors()
        (self.input,) = self.interpreter.get_input_details()
        self.outputs = [each["index"] for each in self.interpreter.get_output_details()]
        logger.info("%s", self.delegate)

    def detect_raw(self, tensor_input: np.ndarray) -> np.ndarray:
        """Return 20 rows of class, score, top, left, bottom and right; edges are from 0 to 1."""
        if self.input["dtype"] is np.int8:
            tensor_input = (tensor_input ^ 128).view(np.int8)
        self.interpreter.set_tensor(self.input["index"], tensor_input)
        self.interpreter.invoke()
        boxes, classes, scores, count = map(self.interpreter.get_tensor, self.outputs)
        rows = np.column_stack((classes[0], scores[0], boxes[0]))[: int(count[0])]
        rows = rows[rows[:, 1] >= MIN_SCORE][:MAX_OBJECTS]
        detections = np.zeros((MAX_OBJECTS, 6), np.float32)
        detections[: len(rows)] = rows
        return detections
