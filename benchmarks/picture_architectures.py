"""More small PyTorch architectures of pictures, video, depth and motion, with random weights."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from architectures import Model, _picture
from architectures import _timm as timm_model

ONE_EACH = (1, 1, 1, 1)


def _drawn(model: Any) -> Any:
    """Draw the weights that start as zero, or nearly so: every layer then changes the result."""
    for weight in model.parameters():
        if weight.detach().abs().max() < 1e-3:
            weight.data.normal_(std=0.1)
    return model


def _timm(name: str, size: int, **options: Any) -> Callable[[], Model]:
    """Return a builder of one of timm's models, without weights of zero."""

    def build() -> Model:
        model, inputs = timm_model(name, size, **options)()
        return _drawn(model), inputs

    return build


def _video(name: str, size: int, frames: int, **options: Any) -> Callable[[], Model]:
    def build() -> Model:
        models = importlib.import_module("torchvision.models.video")
        model = getattr(models, name)(weights=None, num_classes=4, **options)
        return model, (_picture(size)[:, :, None].repeat(1, 1, frames, 1, 1),)

    return build


def _meta_former(*mixers: str) -> Callable[[], Model]:
    """Return a builder of a MetaFormer whose stages use token mixers in turn."""

    def build() -> Model:
        of = importlib.import_module("timm.models.metaformer")
        names = [mixers[min(stage // 2, len(mixers) - 1)] for stage in range(4)]
        kinds = [getattr(of, name) for name in names]
        flat = [name == "Attention" for name in names]
        norms = [of.LayerNormNoBias if each else of.LayerNorm2dNoBias for each in flat]
        sizes = {"depths": ONE_EACH, "dims": (32, 32, 64, 64)}
        model = of.MetaFormer(num_classes=10, token_mixers=kinds, norm_layers=norms, **sizes)
        return _drawn(model), (_picture(64),)

    return build


def _mixer(block: str, ratio: int, **layers: str) -> Callable[[], Model]:
    """Return a builder of a network that mixes patches with linear layers."""

    def build() -> Model:
        of = importlib.import_module("timm.models.mlp_mixer")
        classes = {name: getattr(of, each) for name, each in layers.items()}
        sizes = {"num_classes": 10, "img_size": 64, "num_blocks": 2, "embed_dim": 48}
        model = of.MlpMixer(**sizes, mlp_ratio=ratio, block_layer=getattr(of, block), **classes)
        return _drawn(model), (_picture(64),)

    return build


def _conv_mixer() -> Model:
    """Return convolutions of patches: depthwise ones in a residual, and pointwise ones."""
    of = importlib.import_module("timm.models.convmixer")
    return of.ConvMixer(48, 3, num_classes=10), (_picture(56),)


PICTURE_ARCHITECTURES: Mapping[str, Callable[[], Model]] = {
    # Convolutions
    "starnet": _timm("starnet_s050", 64, depths=ONE_EACH),
    "inception_next": _timm("inception_next_atto", 64, depths=ONE_EACH),
    "fasternet": _timm("fasternet_t0", 64, depths=ONE_EACH),
    "rdnet": _timm(
        "rdnet_tiny",
        64,
        growth_rates=[16, 16, 16],
        num_blocks_list=[2, 2, 2],
        is_downsample_block=(None, True, True),
        num_init_features=16,
    ),
    "repghost": _timm("repghostnet_050", 64),
    "ghostnetv3": _timm("ghostnetv3_050", 64),
    "tinynet": _timm("tinynet_e", 64),
    "res2net": _timm("res2net50_26w_4s", 64, layers=ONE_EACH),
    "resnest": _timm("resnest14d", 64),
    "sknet": _timm("skresnet18", 64, layers=ONE_EACH),
    "cspdarknet": _timm("cs3darknet_focus_s", 64),
    "dla": _timm("dla46_c", 64),
    "dpn": _timm("dpn48b", 64),
    "vovnet": _timm("ese_vovnet19b_slim_dw", 64),
    "tresnet": _timm("tresnet_m", 64, layers=ONE_EACH),
    "hgnet": _timm("hgnetv2_b0", 64),
    "rexnet": _timm("rexnet_100", 64, width_mult=0.5),
    "convmixer": _conv_mixer,
    "repvgg": _timm("repvgg_a0", 64),
    "lcnet": _timm("lcnet_050", 64),
    "csatv2": _timm("csatv2", 64),
    # Attention, and mixtures of both
    "nextvit": _timm("nextvit_small", 64),
    "convformer": _meta_former("SepConv"),
    "caformer": _meta_former("SepConv", "Attention"),
    "resmlp": _mixer("ResBlock", 4, norm_layer="Affine"),
    "gmlp": _mixer("SpatialGatingBlock", 6, mlp_layer="GatedMlp"),
    "visformer": _timm("visformer_tiny", 64, img_size=64, depth=(1, 1, 1), embed_dim=96),
    "coat": _timm("coat_lite_tiny", 64, img_size=64, serial_depths=ONE_EACH),
    "tnt": _timm("tnt_s_patch16_224", 64, img_size=64, depth=2),
    "swiftformer": _timm("swiftformer_xs", 64, layers=ONE_EACH),
    "shvit": _timm("shvit_s1", 64),
    "efficientformer": _timm(
        "efficientformer_l1", 224, depths=(1, 1, 1, 2), embed_dims=(16, 32, 48, 64)
    ),
    "efficientvit_m": _timm("efficientvit_m0", 224),
    "mobilevitv2": _timm("mobilevitv2_050", 64),
    "vitamin": _timm("vitamin_small_224", 64, img_size=64, depth=2),
    "lambda_resnet": _timm("lambda_resnet26t", 64),
    "botnet": _timm("botnet26t_256", 64, img_size=64),
    "naflexvit": _timm(
        "naflexvit_base_patch16_gap", 64, img_size=64, depth=2, embed_dim=48, num_heads=3
    ),
    "deit3": _timm("deit3_small_patch16_224", 64, img_size=64, depth=2, embed_dim=48, num_heads=3),
    "sam2_hiera": _timm("sam2_hiera_tiny", 64, stages=ONE_EACH),
    # Video
    "r2plus1d": _video("r2plus1d_18", 32, 4),
    "swin3d": _video("swin3d_t", 32, 4),
}
