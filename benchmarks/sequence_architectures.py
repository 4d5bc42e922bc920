"""More small PyTorch architectures of text, sound, time series and several senses together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from architectures import (
    _BERT,
    _DECODER,
    _ENCODER,
    _NO_CACHE,
    _VIT,
    _WAV,
    _WORDS,
    Model,
    _audio,
    _pair,
    _picture,
    _pixels,
    _text,
    _transformers,
    _words,
)


def _decoder(kind: str, **options: Any) -> Callable[[], Model]:
    """Return a builder of a language model without caches."""
    return _transformers(kind, _text, "logits", call=_NO_CACHE, **{**_DECODER, **options})


def _series(*shape: int) -> Callable[[], Mapping[str, Any]]:
    return _audio(1, *shape, name="past_values")


_EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "experts_implementation": "batched_mm",
}
_STEPS = {
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
}


def _layout() -> Mapping[str, Any]:
    import torch

    corners = torch.randint(0, 500, (1, 12, 2))
    return {**_text(), "bbox": torch.cat([corners, corners + torch.randint(1, 400, (1, 12, 2))], 2)}


def _decisions() -> Mapping[str, Any]:
    import torch

    return {
        "states": torch.randn(1, 6, 8),
        "actions": torch.randn(1, 6, 3),
        "rewards": torch.randn(1, 6, 1),
        "returns_to_go": torch.randn(1, 6, 1),
        "timesteps": torch.arange(6)[None],
        "attention_mask": torch.ones(1, 6),
    }


SEQUENCE_ARCHITECTURES: Mapping[str, Callable[[], Model]] = {
    # Language models
    "qwen2_moe": _decoder("Qwen2MoeForCausalLM", **_EXPERTS, shared_expert_intermediate_size=32),
    "qwen3_moe": _decoder("Qwen3MoeForCausalLM", **_EXPERTS, head_dim=16),
    "granite": _decoder("GraniteForCausalLM"),
    "smollm3": _decoder("SmolLM3ForCausalLM"),
    "falcon_mamba": _transformers(
        "FalconMambaModel", _text, "last_hidden_state", call=_NO_CACHE,
        vocab_size=_WORDS, hidden_size=16, state_size=4, num_hidden_layers=1,
    ),
    "glm4": _decoder("Glm4ForCausalLM", head_dim=16),
    "nemotron": _decoder("NemotronForCausalLM"),
    "stablelm": _decoder("StableLmForCausalLM", use_qkv_bias=True, qk_layernorm=True),
    "starcoder2": _decoder("Starcoder2ForCausalLM"),
    "phi": _decoder("PhiForCausalLM"),
    "opt": _transformers(
        "OPTForCausalLM", _text, "logits", call=_NO_CACHE, vocab_size=_WORDS, hidden_size=32,
        num_hidden_layers=2, ffn_dim=64, num_attention_heads=2, max_position_embeddings=32,
        word_embed_proj_dim=16,
    ),
    "mpt": _transformers(
        "MptForCausalLM", _text, "logits", call=_NO_CACHE, vocab_size=_WORDS, d_model=32,
        n_heads=2, n_layers=2, max_seq_len=32,
    ),
    "codegen": _transformers(
        "CodeGenForCausalLM", _text, "logits", call=_NO_CACHE, vocab_size=_WORDS, n_embd=32,
        n_layer=2, n_head=4, n_positions=32, rotary_dim=4,
    ),
    "gpt_bigcode": _transformers(
        "GPTBigCodeForCausalLM", _text, "logits", call=_NO_CACHE, vocab_size=_WORDS, n_embd=32,
        n_layer=2, n_head=2, n_positions=32,
    ),
    "gpt_oss": _decoder("GptOssForCausalLM", head_dim=16, num_local_experts=4,
                        num_experts_per_tok=2, sliding_window=4,
                        experts_implementation="batched_mm"),
    "diff_llama": _decoder("DiffLlamaForCausalLM", num_key_value_heads=2),
    "bitnet": _decoder("BitNetForCausalLM"),
    "jamba": _transformers(
        "JambaModel", _text, "last_hidden_state", call=_NO_CACHE, **_DECODER, num_experts=2,
        use_mamba_kernels=False, mamba_d_state=4, mamba_dt_rank=4, attn_layer_period=2,
        attn_layer_offset=1, experts_implementation="batched_mm",
    ),
    "xlstm": _transformers(
        "xLSTMForCausalLM", _text, "logits", call=_NO_CACHE, vocab_size=_WORDS, hidden_size=32,
        num_heads=2, num_hidden_layers=1, chunk_size=4,
    ),
    # Encoders of text
    "electra": _transformers("ElectraModel", _text, "last_hidden_state", embedding_size=16,
                             **_ENCODER),
    "distilbert": _transformers("DistilBertModel", _text, "last_hidden_state", vocab_size=_WORDS,
                                dim=32, n_layers=2, n_heads=2, hidden_dim=64),
    "conv_bert": _transformers("ConvBertModel", _text, "last_hidden_state", embedding_size=32,
                               **_ENCODER),
    "squeeze_bert": _transformers("SqueezeBertModel", _text, "last_hidden_state", embedding_size=32,
                                  **_ENCODER),
    "mobile_bert": _transformers("MobileBertModel", _text, "last_hidden_state", embedding_size=16,
                                 intra_bottleneck_size=16, **_ENCODER),
    "longformer": _transformers("LongformerModel", _text, "last_hidden_state",
                                attention_window=[4, 4], pad_token_id=1, **_ENCODER),
    "big_bird": _transformers("BigBirdModel", lambda: _text(64), "last_hidden_state", block_size=4,
                              num_random_blocks=1, attention_type="block_sparse", **_ENCODER),
    "reformer": _transformers(
        "ReformerModel", lambda: _text(16), "last_hidden_state", vocab_size=_WORDS, hidden_size=32,
        num_attention_heads=2, attention_head_size=16, attn_layers=["local", "local"],
        axial_pos_shape=(4, 4), axial_pos_embds_dim=(16, 16), feed_forward_size=64,
        local_attn_chunk_length=4,
    ),
    "funnel": _transformers(
        "FunnelModel", _text, "last_hidden_state", vocab_size=_WORDS, block_sizes=[1, 1],
        num_decoder_layers=1, d_model=32, n_head=2, d_head=16, d_inner=64,
    ),
    "megatron_bert": _transformers("MegatronBertModel", _text, "last_hidden_state", **_ENCODER),
    "layoutlm": _transformers("LayoutLMModel", _layout, "last_hidden_state", **_ENCODER),
    "splinter": _transformers("SplinterModel", _text, "last_hidden_state", **_ENCODER),
    "esm": _transformers("EsmModel", _text, "last_hidden_state", **_ENCODER, pad_token_id=1,
                         mask_token_id=2, position_embedding_type="rotary",
                         token_dropout=False),
    "yoso": _transformers(
        "YosoModel", _text, "last_hidden_state", use_expectation=True, **_ENCODER),
    # Encoders with decoders
    "pegasus": _transformers(
        "PegasusForConditionalGeneration", _pair, "logits", call=_NO_CACHE, vocab_size=_WORDS,
        d_model=32, max_position_embeddings=32, **_STEPS,
    ),
    "marian": _transformers(
        "MarianMTModel", _pair, "logits", call=_NO_CACHE, vocab_size=_WORDS, d_model=32,
        max_position_embeddings=32, pad_token_id=0, decoder_start_token_id=0, **_STEPS,
    ),
    "prophetnet": _transformers(
        "ProphetNetModel", _pair, "last_hidden_state", call=_NO_CACHE, vocab_size=_WORDS,
        hidden_size=32, encoder_ffn_dim=64, num_encoder_layers=1, num_encoder_attention_heads=2,
        decoder_ffn_dim=64, num_decoder_layers=1, num_decoder_attention_heads=2,
        max_position_embeddings=32,
    ),
    # Sound
    "speech2text": _transformers(
        "Speech2TextModel",
        lambda: {**_audio(1, 64, 16, name="input_features")(), "decoder_input_ids": _words(4)},
        "last_hidden_state", call=_NO_CACHE, vocab_size=_WORDS, d_model=32, **_STEPS,
        input_feat_per_channel=16, conv_channels=32, max_source_positions=64,
        max_target_positions=16,
    ),
    "sew": _transformers("SEWModel", _audio(1, 2000), "last_hidden_state", **_WAV,
                         squeeze_factor=2),
    "sew_d": _transformers("SEWDModel", _audio(1, 2000), "last_hidden_state", **_WAV,
                           squeeze_factor=2, max_position_embeddings=32, position_buckets=8),
    "unispeech_sat": _transformers("UniSpeechSatModel", _audio(1, 2000), "last_hidden_state",
                                   **_WAV, do_stable_layer_norm=True),
    "data2vec_audio": _transformers("Data2VecAudioModel", _audio(1, 2000), "last_hidden_state",
                                    **{**_WAV, "num_conv_pos_embeddings": 3}),
    "wav2vec2_bert": _transformers(
        "Wav2Vec2BertModel", _audio(1, 24, 16, name="input_features"), "last_hidden_state", **_BERT,
        feature_projection_input_dim=16, conv_depthwise_kernel_size=7,
        left_max_position_embeddings=8, right_max_position_embeddings=4,
    ),
    "ast": _transformers(
        "ASTModel", _audio(1, 64, 32), "last_hidden_state", **{**_BERT, "patch_size": 16},
        max_length=64, num_mel_bins=32,
    ),
    "clap_audio": _transformers(
        "ClapAudioModel", _audio(1, 1, 64, 16, name="input_features"), "pooler_output",
        spec_size=32, num_mel_bins=16, hidden_size=64, patch_embeds_hidden_size=16, depths=[2, 2],
        num_attention_heads=[1, 2], window_size=4, num_hidden_layers=2, enable_fusion=False,
        flatten_patch_embeds=True, patch_embed_input_channels=1,
    ),
    # Time series and decisions
    "patchtst": _transformers(
        "PatchTSTModel", _series(32, 3), "last_hidden_state", num_input_channels=3,
        context_length=32, patch_length=4, patch_stride=4, d_model=16, num_hidden_layers=2,
        num_attention_heads=2, ffn_dim=32,
    ),
    "patchtsmixer": _transformers(
        "PatchTSMixerModel", _series(32, 3), "last_hidden_state", num_input_channels=3,
        context_length=32, patch_length=4, patch_stride=4, d_model=16, num_layers=2,
        mode="mix_channel", gated_attn=True,
    ),
    "decision_transformer": _transformers(
        "DecisionTransformerModel", _decisions, "action_preds", "return_preds", state_dim=8,
        act_dim=3, hidden_size=32, max_ep_len=16, n_layer=2, n_head=2, n_positions=32,
    ),
    "timesfm": _transformers(
        "TimesFmModel",
        lambda: {**_audio(1, 64, name="past_values")(),
                 "past_values_padding": _zeros(1, 64),
                 "freq": _zeros(1, 1).long()},
        "last_hidden_state", patch_length=8, context_length=64, horizon_length=8, hidden_size=32,
        intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, head_dim=16,
    ),
    # Several senses
    "blip_vision": _transformers("BlipVisionModel", _pixels(64), "last_hidden_state", **_VIT),
    "clipseg": _transformers(
        "CLIPSegVisionModel", _pixels(64), "last_hidden_state", **_VIT),
    "owlvit": _transformers(
        "OwlViTVisionModel", _pixels(64), "last_hidden_state", **_VIT),
    "perceiver": _transformers(
        "PerceiverModel", _audio(1, 24, 16, name="inputs"), "last_hidden_state", d_model=16,
        num_latents=8, d_latents=32, num_self_attends_per_block=2, num_self_attention_heads=2,
        num_cross_attention_heads=2,
    ),
    "trocr": _transformers(
        "TrOCRForCausalLM", _text, "logits", call=_NO_CACHE, vocab_size=_WORDS, d_model=32,
        decoder_layers=2, decoder_attention_heads=2, decoder_ffn_dim=64,
        max_position_embeddings=32,
    ),
    "donut_swin": _transformers(
        "DonutSwinModel", _pixels(64), "last_hidden_state", image_size=64, embed_dim=16,
        depths=[2, 2], num_heads=[1, 2], window_size=4,
    ),
    "vitmatte": _transformers("VitDetModel", _pixels(64), "last_hidden_state", **{
        **_VIT, "window_size": 2, "window_block_indices": [0], "residual_block_indices": [1],
        "use_relative_position_embeddings": True, "pretrain_image_size": 64}),
    "videomae": _transformers(
        "VideoMAEModel", _audio(1, 4, 3, 32, 32, name="pixel_values"), "last_hidden_state",
        **{**_VIT, "image_size": 32, "num_frames": 4}),
    "vivit": _transformers(
        "VivitModel", _audio(1, 4, 3, 32, 32, name="pixel_values"), "last_hidden_state",
        **_BERT, image_size=32, num_frames=4, tubelet_size=[2, 16, 16]),
    "timesformer": _transformers(
        "TimesformerModel", _audio(1, 2, 3, 32, 32, name="pixel_values"), "last_hidden_state",
        **_BERT, image_size=32, num_frames=2),
    "seg_gpt": _transformers(
        "SegGptModel",
        lambda: {**_pixels(32)(), **{f"prompt_{name}": _picture(32) for name in (
            "pixel_values", "masks")}},
        "last_hidden_state", **_BERT, image_size=[64, 32], patch_size=16, mlp_dim=64,
        pretrain_image_size=32, merge_index=0, intermediate_hidden_state_indices=[0, 1],
        decoder_hidden_size=16),
    "data2vec_vision": _transformers(
        "Data2VecVisionModel", _pixels(64), "last_hidden_state", **_VIT,
        use_relative_position_bias=True),
}  # fmt: skip


def _zeros(*shape: int) -> Any:
    import torch

    return torch.zeros(shape)
