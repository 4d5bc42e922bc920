"""Small configurations of well-known PyTorch architectures, with random weights.

PyTorch, torchvision, timm and transformers are imported when an architecture is built. Numbers of
blocks, channels and pixels are small; the kinds of blocks are those of the original.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

Model: TypeAlias = tuple[Any, tuple[Any, ...]]
"""A module of PyTorch, and example inputs."""

_WORDS = 64
"""Words of a language model's vocabulary."""


def _picture(size: int, channels: int = 3) -> Any:
    import torch

    return torch.randn(1, channels, size, size)


def _words(length: int) -> Any:
    import torch

    return torch.randint(3, _WORDS, (1, length))


def _timm(name: str, size: int, **options: Any) -> Callable[[], Model]:
    """Return a builder of one of timm's models for square pictures."""

    def build() -> Model:
        timm = importlib.import_module("timm")
        return timm.create_model(name, pretrained=False, num_classes=10, **options), (
            _picture(size),
        )

    return build


def _vision(name: str, size: int, **options: Any) -> Callable[[], Model]:
    """Return a builder of one of torchvision's models."""

    def build() -> Model:
        models = importlib.import_module("torchvision.models")
        settings = {"weights": None, "weights_backbone": None, "num_classes": 4, **options}
        return _first(models.get_model(name, **settings)), (_picture(size),)

    return build


def _module(run: Callable[..., Any], **parts: Any) -> Any:
    """Return a module of some parts that a function runs."""
    from torch import nn

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, part in parts.items():
                setattr(self, name, part)

        def forward(self, *inputs: Any) -> Any:
            return run(self, *inputs)

    return Whole()


def _first(model: Any, *fields: str) -> Any:
    """Return a module that gives some fields of a model's result; without names, all tensors."""

    def run(whole: Any, *inputs: Any) -> Any:
        result = whole.model(*inputs)
        if fields:
            return tuple(getattr(result, name) for name in fields)
        return tuple(result.values()) if isinstance(result, Mapping) else result

    return _module(run, model=model)


def _called(model: Any, names: tuple[str, ...], *fields: str, **options: Any) -> Any:
    """Return a module that passes its inputs by name, and gives some fields of the result."""

    def run(whole: Any, *inputs: Any) -> Any:
        result = whole.model(**dict(zip(names, inputs, strict=True)), **options)
        return tuple(getattr(result, name) for name in fields) if fields else result

    return _module(run, model=model)


def _transformers(
    kind: str,
    inputs: Callable[[], Mapping[str, Any]],
    *fields: str,
    config: str | None = None,
    nested: Mapping[str, tuple[str, Mapping[str, Any]]] | None = None,
    call: Mapping[str, Any] | None = None,
    **options: Any,
) -> Callable[[], Model]:
    """Return a builder of a model of transformers.

    Args:
        kind: the model's class.
        inputs: the arguments of its call.
        fields: what is given of the result.
        config: the class of its configuration (default: that of the model).
        nested: configurations in the configuration: class and options of each.
        call: further arguments of the call.
        options: of the configuration.
    """

    def build() -> Model:
        transformers = importlib.import_module("transformers")
        model = getattr(transformers, kind)
        inner = {
            name: getattr(transformers, each)(**of) for name, (each, of) in (nested or {}).items()
        }
        settings = getattr(transformers, config) if config else model.config_class
        given = inputs()
        built = model(settings(**inner, **options))
        return _called(built, tuple(given), *fields, **(call or {})), tuple(given.values())

    return build


def _text(length: int = 12) -> Mapping[str, Any]:
    return {"input_ids": _words(length)}


def _pair() -> Mapping[str, Any]:
    return {"input_ids": _words(12), "decoder_input_ids": _words(6)}


def _pixels(size: int) -> Callable[[], Mapping[str, Any]]:
    return lambda: {"pixel_values": _picture(size)}


def _audio(*shape: int, name: str = "input_values") -> Callable[[], Mapping[str, Any]]:
    def inputs() -> Mapping[str, Any]:
        import torch

        return {name: torch.randn(*shape)}

    return inputs


_BERT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
}
_ENCODER = {**_BERT, "vocab_size": _WORDS}
_DECODER = {**_BERT, "num_key_value_heads": 1, "vocab_size": _WORDS, "pad_token_id": 0}
_NO_CACHE = {"use_cache": False}


def _whisper(part: str) -> Callable[[], Model]:
    """Return a builder of Whisper's encoder, or of its decoder for some words."""

    def build() -> Model:
        import torch
        from transformers import WhisperConfig, WhisperModel

        config = WhisperConfig(
            vocab_size=_WORDS, d_model=32, encoder_layers=2, decoder_layers=2, num_mel_bins=16,
            encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=64,
            decoder_ffn_dim=64, max_source_positions=50, max_target_positions=16, pad_token_id=0,
            bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
        )  # fmt: skip
        model = getattr(WhisperModel(config), part)
        if part == "encoder":
            inputs = ("input_features",)
            return _called(model, inputs, "last_hidden_state"), (torch.randn(1, 16, 100),)
        inputs = ("input_ids", "encoder_hidden_states")
        given = (_words(4), torch.randn(1, 50, 32))
        return _called(model, inputs, "last_hidden_state", **_NO_CACHE), given

    return build


def _decoder_step() -> Model:
    """Return a step of a language model: one word, with keys and values of those before it."""
    import torch
    from torch import nn
    from torch.nn import functional

    def run(whole: Any, words: Any, place: Any, keys: Any, values: Any) -> Any:
        x = whole.table(words)
        query, key, value = whole.joined(whole.norm(x)).chunk(3, -1)
        heads = (1, 1, 2, 16)
        index = place.reshape(1)
        keys = keys.index_copy(1, index, key.reshape(heads))
        values = values.index_copy(1, index, value.reshape(heads))
        seen = torch.arange(16)[None, None, None] <= place.reshape(1, 1, 1, 1)
        sides = (each.transpose(1, 2) for each in (query.reshape(heads), keys, values))
        mixed = functional.scaled_dot_product_attention(*sides, attn_mask=seen)
        x = x + whole.out(mixed.transpose(1, 2).reshape(1, 1, 32))
        return whole.head(x), keys, values

    parts = {
        "table": nn.Embedding(_WORDS, 32),
        "norm": nn.RMSNorm(32),
        "joined": nn.Linear(32, 96),
        "out": nn.Linear(32, 32),
        "head": nn.Linear(32, _WORDS),
    }
    caches = (torch.randn(1, 16, 2, 16), torch.randn(1, 16, 2, 16))
    return _module(run, **parts), (_words(1), torch.tensor([5]), *caches)


def _recurrent(kind: str, **options: Any) -> Callable[[], Model]:
    """Return a builder of a recurrent layer of torch.nn over 12 steps, and a projection."""

    def build() -> Model:
        import torch
        from torch import nn

        layer = getattr(nn, kind)(8, 16, batch_first=True, **options)
        width = 32 if options.get("bidirectional") else 16

        def run(whole: Any, x: Any) -> Any:
            return whole.head(whole.layer(x)[0])

        return _module(run, layer=layer, head=nn.Linear(width, 4)), (torch.randn(1, 12, 8),)

    return build


def _conv(channels: int, outputs: int, size: int = 3, **options: Any) -> Any:
    from torch import nn

    return nn.Conv2d(channels, outputs, size, padding=size // 2, **options)


def _u_net() -> Model:
    """Return a U-Net of a diffusion model: group norms, attention, embedded time."""
    import torch
    from torch import nn
    from torch.nn import functional

    def block(channels: int, outputs: int) -> Any:
        return nn.Sequential(nn.GroupNorm(4, channels), nn.SiLU(), _conv(channels, outputs))

    def run(whole: Any, x: Any, time: Any) -> Any:
        rates = torch.exp(torch.arange(8) * -0.5)
        angles = time[:, None] * rates
        shift = whole.time(torch.cat([angles.sin(), angles.cos()], -1))
        top = whole.enter(x)
        low = whole.down(top) + shift[:, :, None, None]
        low = whole.middle(low)
        flat = low.flatten(2).transpose(1, 2)
        low = low + whole.attention(flat, flat, flat)[0].transpose(1, 2).reshape(low.shape)
        up = functional.interpolate(whole.up(low), scale_factor=2.0, mode="nearest")
        return whole.leave(torch.cat([up, top], 1))

    parts = {
        "enter": _conv(3, 16),
        "down": nn.Sequential(block(16, 32), nn.MaxPool2d(2)),
        "time": nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 32)),
        "middle": block(32, 32),
        "attention": nn.MultiheadAttention(32, 4, batch_first=True),
        "up": block(32, 16),
        "leave": block(32, 3),
    }
    return _module(run, **parts), (_picture(32), torch.tensor([3.0]))


def _u_net_3d() -> Model:
    """Return a U-Net of volumes; TFLite's converter has no transposed convolution of PyTorch's."""
    import torch
    from torch import nn
    from torch.nn import functional

    def run(whole: Any, x: Any) -> Any:
        top = whole.enter(x)
        up = functional.interpolate(whole.down(top), scale_factor=2.0, mode="nearest")
        return whole.leave(torch.cat([top, up], 1))

    parts = {
        "enter": nn.Sequential(nn.Conv3d(1, 8, 3, padding=1), nn.InstanceNorm3d(8), nn.LeakyReLU()),
        "down": nn.Sequential(nn.MaxPool3d(2), nn.Conv3d(8, 16, 3, padding=1), nn.ReLU()),
        "leave": nn.Sequential(nn.Conv3d(24, 8, 3, padding=1), nn.ReLU(), nn.Conv3d(8, 2, 1)),
    }
    return _module(run, **parts), (torch.randn(1, 1, 8, 16, 16),)


def _demucs() -> Model:
    """Return a separator of waveforms: strided convolutions, gates, an LSTM, and back."""
    import torch
    from torch import nn

    def run(whole: Any, x: Any) -> Any:
        first = whole.first(x)
        second = whole.second(first)
        mixed = whole.lstm(second.transpose(1, 2))[0]
        second = second + whole.mix(mixed).transpose(1, 2)
        return whole.last(whole.third(second) + first)

    parts = {
        "first": nn.Sequential(
            nn.Conv1d(2, 16, 8, 4, 2), nn.ReLU(), nn.Conv1d(16, 32, 1), nn.GLU(1)
        ),
        "second": nn.Sequential(
            *(nn.Conv1d(16, 32, 8, 4, 2), nn.GroupNorm(1, 32), nn.GELU()),
            *(nn.Conv1d(32, 64, 1), nn.GLU(1)),
        ),
        "lstm": nn.LSTM(32, 32, batch_first=True, bidirectional=True),
        "mix": nn.Linear(64, 32),
        "third": nn.Sequential(nn.ConvTranspose1d(32, 16, 8, 4, 2), nn.GELU()),
        "last": nn.ConvTranspose1d(16, 4, 8, 4, 2),
    }  # fmt: skip
    return _module(run, **parts), (torch.randn(1, 2, 256),)


def _crnn() -> Model:
    """Return a reader of lines of text: convolutions, an LSTM in both directions, letters."""
    from torch import nn

    def run(whole: Any, x: Any) -> Any:
        columns = whole.features(x).squeeze(2).transpose(1, 2)
        return whole.head(whole.lstm(columns)[0]).log_softmax(-1)

    features = nn.Sequential(
        _conv(1, 8), nn.ReLU(), nn.MaxPool2d(2), _conv(8, 16), nn.BatchNorm2d(16), nn.ReLU(),
        nn.MaxPool2d((2, 1)), _conv(16, 16), nn.ReLU(), nn.MaxPool2d((4, 1)),
    )  # fmt: skip
    lstm = nn.LSTM(16, 16, batch_first=True, bidirectional=True)
    return _module(run, features=features, lstm=lstm, head=nn.Linear(32, 12)), (
        _picture(32, 1)[:, :, :16],
    )


def _retina_net() -> Model:
    """Return a detector that keeps the best boxes of its anchors, by scores and their order."""
    import torch
    from torch import nn

    def run(whole: Any, x: Any) -> Any:
        x = whole.body(x)
        scores = whole.scores(x).permute(0, 2, 3, 1).reshape(-1, 4).sigmoid()
        offsets = whole.boxes(x).permute(0, 2, 3, 1).reshape(-1, 4)
        best, kinds = scores.max(1)
        chosen = best.topk(16).indices
        centers = whole.anchors[chosen, :2] + offsets[chosen, :2] * whole.anchors[chosen, 2:]
        sizes = whole.anchors[chosen, 2:] * offsets[chosen, 2:].clamp(max=4.0).exp()
        corners = torch.cat([centers - sizes / 2, centers + sizes / 2], 1)
        return corners, best[chosen], kinds[chosen]

    body = nn.Sequential(_conv(3, 16, stride=2), nn.ReLU(), _conv(16, 16, stride=2), nn.ReLU())
    anchors = nn.Parameter(torch.rand(16 * 16 * 3, 4))
    return _module(run, body=body, scores=_conv(16, 12), boxes=_conv(16, 12), anchors=anchors), (
        _picture(64),
    )


def _encodec() -> Model:
    """Return a codec of sound: what its encoder and its decoder do with continuous codes."""
    import torch
    from transformers import EncodecConfig, EncodecModel

    config = EncodecConfig(
        num_filters=4,
        hidden_size=16,
        codebook_dim=16,
        upsampling_ratios=[4, 2],
        codebook_size=16,
    )
    model = EncodecModel(config)

    def run(whole: Any, x: Any) -> Any:
        return whole.decoder(whole.encoder(x))

    return _module(run, encoder=model.encoder, decoder=model.decoder), (torch.randn(1, 1, 320),)


def _moonshine() -> Model:
    """Return Moonshine: a transformer of waveforms with partly rotated positions, and a decoder."""
    import torch
    from transformers import MoonshineConfig, MoonshineModel

    config = MoonshineConfig(
        vocab_size=_WORDS,
        hidden_size=32,
        intermediate_size=64,
        encoder_num_hidden_layers=2,
        decoder_num_hidden_layers=2,
        encoder_num_attention_heads=2,
        decoder_num_attention_heads=2,
    )
    names = ("input_values", "decoder_input_ids")
    model = _called(MoonshineModel(config), names, "last_hidden_state", **_NO_CACHE)
    return model, (torch.randn(1, 4000), _words(4))


def _whisper_step() -> Model:
    """Return a step of Whisper's decoder: one word, caches of those before it and of the sound."""
    import torch
    from torch import nn
    from torch.nn import functional

    def heads(x: Any) -> Any:
        return x.reshape(1, -1, 2, 16).transpose(1, 2)

    def joined(x: Any) -> Any:
        return x.transpose(1, 2).reshape(1, 1, 32)

    def run(whole: Any, words: Any, place: Any, *caches: Any) -> Any:
        keys, values, sound_keys, sound_values = caches
        x = whole.words(words) + whole.places(place.reshape(1, 1))
        first = whole.norms[0](x)
        index = place.reshape(1)
        keys = keys.index_copy(2, index, heads(whole.key(first)))
        values = values.index_copy(2, index, heads(whole.value(first)))
        seen = torch.arange(16)[None, None, None] <= place.reshape(1, 1, 1, 1)
        query = heads(whole.query(first))
        mixed = functional.scaled_dot_product_attention(query, keys, values, attn_mask=seen)
        x = x + whole.out(joined(mixed))
        query = heads(whole.cross(whole.norms[1](x)))
        mixed = functional.scaled_dot_product_attention(query, sound_keys, sound_values)
        x = x + whole.cross_out(joined(mixed))
        x = x + whole.mlp(whole.norms[2](x))
        return x @ whole.words.weight.T, keys, values

    linear = ("key", "value", "query", "out", "cross", "cross_out")
    parts = {
        "words": nn.Embedding(_WORDS, 32),
        "places": nn.Embedding(16, 32),
        "norms": nn.ModuleList([nn.LayerNorm(32) for _ in range(3)]),
        "mlp": nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)),
        **{name: nn.Linear(32, 32) for name in linear},
    }
    sizes = (16, 16, 50, 50)
    caches = (torch.randn(1, 2, size, 16) for size in sizes)
    return _module(run, **parts), (_words(1), torch.tensor([5]), *caches)


def _efficientdet() -> Model:
    """Return a detector: features of a network, weighted joints of them, shared heads."""
    import torch
    from torch import nn
    from torch.nn import functional

    timm = importlib.import_module("timm")
    backbone = timm.create_model(
        "test_efficientnet", pretrained=False, features_only=True, out_indices=(2, 3, 4)
    )

    def separable(outputs: int) -> Any:
        return nn.Sequential(
            _conv(16, 16, groups=16), nn.Conv2d(16, outputs, 1), nn.BatchNorm2d(outputs), nn.SiLU()
        )

    def run(whole: Any, x: Any) -> Any:
        levels = [side(each) for side, each in zip(whole.sides, whole.backbone(x), strict=True)]
        shares = functional.relu(whole.shares)
        shares = shares / (shares.sum() + 1e-4)
        for place in (1, 0):
            above = functional.interpolate(levels[place + 1], size=levels[place].shape[2:])
            levels[place] = whole.joint(shares[0] * levels[place] + shares[1] * above)
        for place in (1, 2):
            below = functional.max_pool2d(levels[place - 1], 3, 2, 1)
            levels[place] = whole.joint(shares[0] * levels[place] + shares[1] * below)
        heads = [head(each) for head in (whole.boxes, whole.classes) for each in levels]
        flat = [each.permute(0, 2, 3, 1).reshape(1, -1, 4) for each in heads]
        return torch.cat(flat[:3], 1), torch.cat(flat[3:], 1).sigmoid()

    sides = [nn.Conv2d(channels, 16, 1) for channels in backbone.feature_info.channels()]
    parts = {
        "backbone": backbone,
        "sides": nn.ModuleList(sides),
        "shares": nn.Parameter(torch.ones(2)),
        "joint": separable(16),
        "boxes": separable(12),
        "classes": separable(12),
    }
    return _module(run, **parts), (_picture(64),)


def _style() -> Model:
    """Return a style transfer network: mirrored edges, instance norms, resizes."""
    from torch import nn

    def block(channels: int, outputs: int, stride: int = 1) -> list[Any]:
        return [
            nn.ReflectionPad2d(1),
            nn.Conv2d(channels, outputs, 3, stride),
            nn.InstanceNorm2d(outputs, affine=True),
            nn.ReLU(),
        ]

    up = nn.Upsample(scale_factor=2, mode="nearest")
    return nn.Sequential(
        *block(3, 8), *block(8, 16, 2), *block(16, 16), up, *block(16, 8), nn.Conv2d(8, 3, 1),
        nn.Tanh(),
    ), (_picture(32),)  # fmt: skip


def _pixel_shuffle() -> Model:
    """Return a network of super resolution: pixels from channels, next to a bicubic resize."""
    from torch import nn
    from torch.nn import functional

    def run(whole: Any, x: Any) -> Any:
        return whole.body(x) + functional.interpolate(x, scale_factor=2.0, mode="bilinear")

    body = nn.Sequential(
        _conv(3, 16), nn.PReLU(16), _conv(16, 16), nn.PReLU(16), _conv(16, 12), nn.PixelShuffle(2)
    )
    return _module(run, body=body), (_picture(24),)


def _rt_detr() -> Model:
    """Return RT-DETR with constant positions: TFLite has no power of float64 to compute them."""
    import torch

    model, inputs = _transformers(
        "RTDetrForObjectDetection", _pixels(64), "logits", "pred_boxes",
        nested={"backbone_config": ("RTDetrResNetConfig", {
            "embedding_size": 16, "hidden_sizes": [16, 32, 32, 64], "depths": [1, 1, 1, 1],
            "out_features": ["stage2", "stage3", "stage4"], "layer_type": "basic"})},
        encoder_hidden_dim=32, encoder_in_channels=[32, 32, 64], encoder_ffn_dim=64, d_model=32,
        decoder_in_channels=[32, 32, 32], num_queries=8, decoder_layers=2, decoder_ffn_dim=64,
        decoder_attention_heads=2, encoder_attention_heads=2, anchor_image_size=None,
    )()  # fmt: skip
    positions = model.model.model.encoder.aifi[0].position_embedding
    constant = positions(width=2, height=2, device=torch.device("cpu"), dtype=torch.float32)
    positions.forward = lambda **_: constant
    return model, inputs


def _yolo(name: str) -> Callable[[], Model]:
    """Return a builder of one of ultralytics' detectors, with its head."""

    def build() -> Model:
        tasks = importlib.import_module("ultralytics.nn.tasks")
        model = tasks.DetectionModel(f"{name}.yaml", verbose=False).eval()
        model.model[-1].export, model.model[-1].format = True, "tflite"
        return model, (_picture(64),)

    return build


_RESNET = (
    "ResNetConfig",
    {
        "embedding_size": 16,
        "hidden_sizes": [16, 32, 32, 64],
        "depths": [1, 1, 1, 1],
        "out_features": ["stage4"],
    },
)
_DETR = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "num_queries": 8,
}  # fmt: skip
_WAV = {
    **_BERT, "conv_dim": (16, 16, 16), "conv_kernel": (10, 3, 3), "conv_stride": (5, 2, 2),
    "num_feat_extract_layers": 3, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4,
    "num_codevector_groups": 2, "vocab_size": _WORDS,
}  # fmt: skip
_VIT = {**_BERT, "image_size": 64, "patch_size": 16}

ARCHITECTURES: Mapping[str, Callable[[], Model]] = {
    # Pictures: convolutions
    "convnext": _timm("test_convnext", 96),
    "convnextv2": _timm("test_convnext2", 96),
    "resnext": _timm("resnext50_32x4d", 64, layers=(1, 1, 1, 1)),
    "regnet": _timm("regnety_002", 64),
    "densenet": _timm("densenet121", 64, block_config=(2, 2, 2, 2)),
    "inception": _timm("inception_v3", 128),
    "ghostnet": _timm("ghostnet_050", 64),
    "efficientnet": _timm("test_efficientnet", 96),
    "mobilenetv4": _timm("mobilenetv4_conv_small_050", 64),
    "mobilenetv4_hybrid": _timm("mobilenetv4_hybrid_medium", 64),
    "mobileone": _timm("mobileone_s0", 64),
    "repvit": _timm("repvit_m0_9", 64),
    "hrnet": _timm("hrnet_w18_small", 64),
    "nfnet": _timm("test_nfnet", 96),
    "mambaout": _timm("test_mambaout", 96),
    # Pictures: attention
    "vit": _timm("test_vit", 160),
    "deit": _timm("deit_tiny_distilled_patch16_224", 64, img_size=64, depth=2),
    "swin": _timm(
        "swin_tiny_patch4_window7_224", 112,
        img_size=112, embed_dim=16, depths=(2, 2, 2), num_heads=(1, 2, 4),
    ),
    "swinv2": _timm(
        "swinv2_tiny_window8_256", 64,
        img_size=64, embed_dim=16, depths=(2, 2), num_heads=(1, 2), window_size=8,
    ),
    "maxvit": _timm(
        "maxvit_rmlp_pico_rw_256", 64, img_size=64, embed_dim=(32, 64), depths=(1, 1), stem_width=16
    ),
    "coatnet": _timm("coatnet_pico_rw_224", 64, img_size=64),
    "mixer": _timm("mixer_s32_224", 64, img_size=64, num_blocks=2),
    "eva02": _timm("eva02_tiny_patch14_224", 56, img_size=56, depth=2),
    "mobilevit": _timm("mobilevit_xxs", 64),
    "levit": _timm("levit_128s", 64, img_size=64),
    "edgenext": _timm("edgenext_xx_small", 64),
    "fastvit": _timm("fastvit_t8", 64),
    "efficientformerv2": _timm("efficientformerv2_s0", 64, img_size=64),
    "pvt": _timm("pvt_v2_b0", 64, depths=(1, 1, 1, 1)),
    "twins": _timm("twins_svt_small", 64, img_size=64, depths=(1, 1, 1, 1)),
    "xcit": _timm("xcit_nano_12_p16_224", 64, img_size=64, depth=2),
    "focalnet": _timm("focalnet_tiny_srf", 64, depths=(1, 1, 1, 1)),
    "davit": _timm("davit_tiny", 64, depths=(1, 1, 1, 1), embed_dims=(16, 32, 64, 64)),
    "dinov2": _transformers("Dinov2Model", _pixels(64), "last_hidden_state", **_VIT),
    "clip": _transformers(
        "CLIPModel", lambda: {**_text(), **_pixels(64)()}, "logits_per_image",
        text_config={**_BERT, "vocab_size": _WORDS, "max_position_embeddings": 16,
                     "bos_token_id": 1, "eos_token_id": 2},
        vision_config=_VIT, projection_dim=16,
    ),
    "siglip": _transformers(
        "SiglipVisionModel", _pixels(64), "last_hidden_state", "pooler_output", **_VIT
    ),
    "sam_encoder": _transformers(
        "SamVisionModel", _pixels(128), "last_hidden_state",
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, image_size=128, patch_size=16,
        window_size=5, global_attn_indexes=[1], output_channels=16, mlp_dim=64,
    ),
    "cait": _timm("cait_xxs24_224", 64, img_size=64, depth=2),
    "beit": _timm("beit_base_patch16_224", 64, img_size=64, depth=2, embed_dim=48, num_heads=3),
    "poolformer": _timm("poolformer_s12", 64),
    "convit": _timm("convit_tiny", 64, img_size=64, depth=4),
    "crossvit": _timm("crossvit_tiny_240", 240, depth=((1, 1, 0),)),
    "pit": _timm("pit_ti_224", 64, img_size=64, depth=(1, 1, 1)),
    "gcvit": _timm("gcvit_xxtiny", 64, img_size=64),
    "hiera": _timm("hiera_tiny_224", 64, img_size=(64, 64), stages=(1, 1, 1, 1)),
    "efficientvit": _timm("efficientvit_b0", 64),
    "tiny_vit": _timm("tiny_vit_5m_224", 64, depths=(1, 1, 1, 1)),
    "mvitv2": _timm("mvitv2_tiny", 64, img_size=64),
    "volo": _timm("volo_d1_224", 64, img_size=64),
    "nest": _timm("nest_tiny", 64, img_size=64),
    "sequencer": _timm("sequencer2d_s", 64, layers=(1, 1, 1, 1)),
    "dinov3": _transformers("DINOv3ViTModel", _pixels(64), "last_hidden_state", **_VIT),
    # Pictures: detection, segmentation, depth, restoration
    "detr": _transformers(
        "DetrForObjectDetection", _pixels(64), "logits", "pred_boxes",
        nested={"backbone_config": _RESNET}, use_timm_backbone=False, backbone=None,
        use_pretrained_backbone=False, **_DETR,
    ),
    "rt_detr": _rt_detr,
    "yolov8": _yolo("yolov8n"),
    "yolo11": _yolo("yolo11n"),
    "efficientdet": _efficientdet,
    "lraspp": _vision("lraspp_mobilenet_v3_large", 64),
    "deeplabv3": _vision("deeplabv3_mobilenet_v3_large", 64),
    "segformer": _transformers(
        "SegformerForSemanticSegmentation", _pixels(64), "logits",
        depths=[1, 1, 1, 1], hidden_sizes=[16, 16, 32, 32], decoder_hidden_size=16,
        num_attention_heads=[1, 1, 2, 2],
    ),
    "dpt": _transformers(
        "DPTForDepthEstimation", _pixels(64), "predicted_depth",
        **{**_VIT, "num_hidden_layers": 4}, backbone_out_indices=[0, 1, 2, 3],
        neck_hidden_sizes=[16, 16, 32, 32], fusion_hidden_size=16, is_hybrid=False,
    ),
    "swin2sr": _transformers(
        "Swin2SRForImageSuperResolution", _pixels(32), "reconstruction",
        image_size=32, embed_dim=16, depths=[2], num_heads=[2], window_size=8,
    ),
    "yolos": _transformers(
        "YolosForObjectDetection", _pixels(64), "logits", "pred_boxes",
        **{**_VIT, "image_size": [64, 64]}, num_detection_tokens=8,
    ),
    "vit_pose": _transformers(
        "VitPoseForPoseEstimation", _pixels(64), "heatmaps",
        nested={"backbone_config": ("VitPoseBackboneConfig", {
            **_BERT, "image_size": [64, 64], "patch_size": [16, 16], "mlp_ratio": 2,
            "out_indices": [2], "num_experts": 1})},
        use_timm_backbone=False,
    ),
    "depth_anything": _transformers(
        "DepthAnythingForDepthEstimation", _pixels(56), "predicted_depth",
        nested={"backbone_config": ("Dinov2Config", {
            **_BERT, "num_hidden_layers": 4, "image_size": 56, "patch_size": 14,
            "out_indices": [1, 2, 3, 4], "reshape_hidden_states": False})},
        reassemble_hidden_size=32, neck_hidden_sizes=[8, 16, 16, 32], fusion_hidden_size=16,
        head_hidden_size=16, patch_size=14,
    ),
    "crnn": _crnn,
    "retina_net": _retina_net,
    "u_net": _u_net,
    "u_net_3d": _u_net_3d,
    "video_resnet": lambda: (
        importlib.import_module("torchvision.models.video").r3d_18(weights=None, num_classes=4),
        (_picture(32)[:, :, None].repeat(1, 1, 4, 1, 1),),
    ),
    "style_transfer": _style,
    "pixel_shuffle": _pixel_shuffle,
    # Text
    "bert": _transformers("BertModel", _text, "last_hidden_state", "pooler_output",
                          vocab_size=_WORDS, **_BERT),
    "t5_encoder": _transformers(
        "T5EncoderModel", _text, "last_hidden_state",
        vocab_size=_WORDS, d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2,
    ),
    "gpt2": _transformers(
        "GPT2LMHeadModel", _text, "logits", call=_NO_CACHE,
        vocab_size=_WORDS, n_embd=32, n_layer=2, n_head=2, n_positions=32,
    ),
    "llama": _transformers("LlamaForCausalLM", _text, "logits", call=_NO_CACHE, **_DECODER),
    "gemma": _transformers(
        "GemmaForCausalLM", _text, "logits", call=_NO_CACHE, head_dim=16, **_DECODER
    ),
    "gemma3": _transformers(
        "Gemma3ForCausalLM", _text, "logits", call=_NO_CACHE,
        config="Gemma3TextConfig", head_dim=16, sliding_window=8, **_DECODER,
    ),
    "qwen2": _transformers("Qwen2ForCausalLM", _text, "logits", call=_NO_CACHE, **_DECODER),
    "qwen3": _transformers(
        "Qwen3ForCausalLM", _text, "logits", call=_NO_CACHE, head_dim=16, **_DECODER
    ),
    "phi3": _transformers("Phi3ForCausalLM", _text, "logits", call=_NO_CACHE, **_DECODER),
    "decoder_step": _decoder_step,
    "mamba": _transformers(
        "MambaModel", _text, "last_hidden_state", call=_NO_CACHE,
        vocab_size=_WORDS, hidden_size=16, state_size=4, num_hidden_layers=1,
    ),
    "gpt_j": _transformers(
        "GPTJForCausalLM", _text, "logits", call=_NO_CACHE,
        vocab_size=_WORDS, n_embd=32, n_layer=2, n_head=2, n_positions=32, rotary_dim=8,
    ),
    "gpt_neox": _transformers("GPTNeoXForCausalLM", _text, "logits", call=_NO_CACHE, **_ENCODER),
    "bloom": _transformers(
        "BloomForCausalLM", _text, "logits", call=_NO_CACHE,
        vocab_size=_WORDS, hidden_size=32, n_layer=2, n_head=2,
    ),
    "mistral": _transformers(
        "MistralForCausalLM", _text, "logits", call=_NO_CACHE, sliding_window=4, **_DECODER
    ),
    "mixtral": _transformers(
        "MixtralForCausalLM", _text, "logits", call=_NO_CACHE,
        num_local_experts=4, num_experts_per_tok=2, experts_implementation="batched_mm", **_DECODER,
    ),
    "deepseek_v3": _transformers(
        "DeepseekV3ForCausalLM", _text, "logits", call=_NO_CACHE,
        **{**_DECODER, "num_key_value_heads": 2}, q_lora_rank=16, kv_lora_rank=16,
        qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=16, first_k_dense_replace=2,
    ),
    "cohere": _transformers("CohereForCausalLM", _text, "logits", call=_NO_CACHE, **_DECODER),
    "olmo2": _transformers("Olmo2ForCausalLM", _text, "logits", call=_NO_CACHE, **_DECODER),
    "falcon": _transformers(
        "FalconForCausalLM", _text, "logits", call=_NO_CACHE,
        vocab_size=_WORDS, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
    ),
    "lfm2": _transformers(
        "Lfm2ForCausalLM", _text, "logits", call=_NO_CACHE,
        layer_types=["conv", "full_attention"], **_DECODER,
    ),
    "gemma2": _transformers(
        "Gemma2ForCausalLM", _text, "logits", call=_NO_CACHE, head_dim=16, sliding_window=4,
        **_DECODER,
    ),
    "deberta": _transformers(
        "DebertaV2Model", _text, "last_hidden_state",
        relative_attention=True, pos_att_type=["p2c", "c2p"], **_ENCODER,
    ),
    "albert": _transformers(
        "AlbertModel", _text, "last_hidden_state", embedding_size=16, **_ENCODER
    ),
    "xlm_roberta": _transformers("XLMRobertaModel", _text, "last_hidden_state", **_ENCODER),
    "modern_bert": _transformers(
        "ModernBertModel", _text, "last_hidden_state",
        local_attention=4, pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1,
        sep_token_id=2, **_ENCODER,
    ),
    "roformer": _transformers("RoFormerModel", _text, "last_hidden_state", **_ENCODER),
    "fnet": _transformers("FNetModel", _text, "last_hidden_state", **_ENCODER),
    "xlnet": _transformers(
        "XLNetModel", _text, "last_hidden_state",
        vocab_size=_WORDS, d_model=32, n_layer=2, n_head=2, d_inner=64,
    ),
    "mpnet": _transformers("MPNetModel", _text, "last_hidden_state", **_ENCODER),
    "t5": _transformers(
        "T5ForConditionalGeneration", _pair, "logits", call=_NO_CACHE,
        vocab_size=_WORDS, d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2,
    ),
    "bart": _transformers(
        "BartForConditionalGeneration", _pair, "logits", call=_NO_CACHE,
        vocab_size=_WORDS, d_model=32, encoder_layers=2, decoder_layers=2, encoder_ffn_dim=64,
        decoder_ffn_dim=64, encoder_attention_heads=2, decoder_attention_heads=2,
        max_position_embeddings=32,
    ),
    "clip_text": _transformers(
        "CLIPTextModel", _text, "last_hidden_state", "pooler_output",
        bos_token_id=1, eos_token_id=2, max_position_embeddings=16, **_ENCODER,
    ),
    "mamba2": _transformers(
        "Mamba2Model", _text, "last_hidden_state", call=_NO_CACHE,
        vocab_size=_WORDS, hidden_size=16, state_size=4, num_hidden_layers=1, num_heads=4,
        head_dim=8, n_groups=1, chunk_size=8,
    ),
    "recurrent_gemma": _transformers(
        "RecurrentGemmaModel", _text, "last_hidden_state", call=_NO_CACHE,
        **{**_DECODER, "num_hidden_layers": 3}, attention_window_size=8,
    ),
    "rwkv": _transformers(
        "RwkvModel", _text, "last_hidden_state", call=_NO_CACHE,
        vocab_size=_WORDS, hidden_size=16, num_hidden_layers=1, attention_hidden_size=16,
        intermediate_size=32,
    ),
    # Sound
    "whisper_encoder": _whisper("encoder"),
    "whisper_decoder": _whisper("decoder"),
    "wav2vec2": _transformers(
        "Wav2Vec2ForCTC", _audio(1, 2000), "logits", **_WAV
    ),
    "conformer": _transformers(
        "Wav2Vec2ConformerForCTC", _audio(1, 2000), "logits", **_WAV,
        position_embeddings_type="relative", conv_depthwise_kernel_size=7,
    ),
    "audio_spectrogram_transformer": _transformers(
        "ASTModel", _audio(1, 64, 32), "last_hidden_state", **{**_BERT, "patch_size": 16},
        max_length=64, num_mel_bins=32,
    ),
    "hifi_gan": _transformers(
        "SpeechT5HifiGan", _audio(1, 10, 16, name="spectrogram"),
        config="SpeechT5HifiGanConfig", model_in_dim=16, upsample_initial_channel=32,
        upsample_rates=[4, 2], upsample_kernel_sizes=[8, 4],
        resblock_kernel_sizes=[3, 7], resblock_dilation_sizes=[[1, 3], [1, 5]],
    ),
    "demucs": _demucs,
    "hubert": _transformers("HubertModel", _audio(1, 2000), "last_hidden_state", **_WAV),
    "wavlm": _transformers(
        "WavLMModel", _audio(1, 2000), "last_hidden_state", num_buckets=16, max_bucket_distance=32,
        **_WAV,
    ),
    "encodec": _encodec,
    "parakeet": _transformers(
        "ParakeetEncoder", _audio(1, 64, 16, name="input_features"), "last_hidden_state",
        config="ParakeetEncoderConfig", **_BERT, num_mel_bins=16, subsampling_conv_channels=16,
        conv_kernel_size=7,
    ),
    "moonshine": _moonshine,
    "whisper_step": _whisper_step,
    # Recurrent layers
    "lstm": _recurrent("LSTM"),
    "lstm_both_directions": _recurrent("LSTM", bidirectional=True),
    "gru": _recurrent("GRU"),
    "rnn": _recurrent("RNN"),
}  # fmt: skip
"""A builder for each architecture."""
