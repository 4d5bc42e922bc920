"""Further small PyTorch architectures of detectors, pictures and text, with random weights."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from architectures import (
    _ENCODER,
    _VIT,
    _WORDS,
    Model,
    _module,
    _picture,
    _pixels,
    _text,
    _transformers,
)
from sequence_architectures import _decoder, _series


def _classifier(name: str, size: int, **options: Any) -> Callable[[], Model]:
    """Return a builder of one of torchvision's classifiers."""

    def build() -> Model:
        models = importlib.import_module("torchvision.models")
        return models.get_model(name, weights=None, num_classes=4, **options), (_picture(size),)

    return build


def _detector(name: str, size: int, **options: Any) -> Callable[[], Model]:
    """Return a builder of torchvision's detectors: all features, scores and offsets of all boxes.

    The choice among the boxes, whose number depends on data, is not part of the model.
    """

    def run(whole: Any, x: Any) -> Any:
        levels = whole.backbone(x)
        features = list(levels.values()) if isinstance(levels, Mapping) else [levels]
        results = whole.head(features)
        return tuple(results.values()) if isinstance(results, Mapping) else tuple(results)

    def build() -> Model:
        models = importlib.import_module("torchvision.models.detection")
        settings = {"weights": None, "weights_backbone": None, "num_classes": 4, **options}
        model = getattr(models, name)(**settings)
        head = model.rpn.head if hasattr(model, "rpn") else model.head
        return _module(run, backbone=model.backbone, head=head), (_picture(size),)

    return build


def _regions() -> Model:
    """Return the second half of a detector: classes and masks of the features of some regions."""
    import torch

    models = importlib.import_module("torchvision.models.detection")
    model = models.maskrcnn_resnet50_fpn(weights=None, weights_backbone=None, num_classes=4)
    heads = model.roi_heads

    def run(whole: Any, boxes: Any, masks: Any) -> Any:
        scores, offsets = whole.predictor(whole.head(boxes))
        return scores.softmax(-1), offsets, whole.masks(whole.mask_head(masks)).sigmoid()

    parts = {"head": heads.box_head, "predictor": heads.box_predictor}
    masks = {"mask_head": heads.mask_head, "masks": heads.mask_predictor}
    inputs = (torch.randn(2, 256, 7, 7), torch.randn(2, 256, 14, 14))
    return _module(run, **parts, **masks), inputs


FURTHER_ARCHITECTURES: Mapping[str, Callable[[], Model]] = {
    # Detectors, motion, segmentation
    "retinanet": _detector("retinanet_resnet50_fpn", 64),
    "retinanet_v2": _detector("retinanet_resnet50_fpn_v2", 64),
    "fcos": _detector("fcos_resnet50_fpn", 64),
    "ssd": _detector("ssd300_vgg16", 300),
    "ssdlite": _detector("ssdlite320_mobilenet_v3_large", 320),
    "faster_rcnn": _detector("fasterrcnn_mobilenet_v3_large_320_fpn", 64),
    "mask_rcnn_heads": _regions,
    # Pictures
    "squeezenet": _classifier("squeezenet1_1", 64),
    "mnasnet": _classifier("mnasnet0_5", 64),
    # Text
    "nystromformer": _transformers(
        "NystromformerModel", lambda: _text(16), "last_hidden_state", **_ENCODER,
        segment_means_seq_len=16, num_landmarks=4, conv_kernel_size=5,
    ),
    # Decoders
    "bamba": _decoder("BambaForCausalLM", attn_layer_indices=[1], mamba_d_state=4,
                      mamba_n_heads=4, mamba_d_head=16, mamba_chunk_size=8),
    # Several senses
    "vilt": _transformers(
        "ViltModel", lambda: {**_text(), **_pixels(64)()}, "last_hidden_state",
        **{**_VIT, "vocab_size": _WORDS},
    ),
    "lxmert": _transformers(
        "LxmertModel",
        lambda: {**_text(), "visual_feats": _series(4, 16)()["past_values"],
                 "visual_pos": _series(4, 4)()["past_values"]},
        "language_output", "vision_output", vocab_size=_WORDS, hidden_size=32,
        num_attention_heads=2, intermediate_size=64, l_layers=1, x_layers=1, r_layers=1,
        visual_feat_dim=16,
    ),
}  # fmt: skip
"""A builder for each architecture."""
