"""TinyTimeMixer (TTM): MLPs that mix patches, features and channels; no attention.

The encoder has levels of finer and finer patches, each a stack of its own, and a
decoder follows. Read :class:`TtmAdapter` first, and ``_stacks`` for the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tsfm_lens.data import SeriesBatch
from tsfm_lens.hooks.activations import TokenSpans
from tsfm_lens.hooks.wiring import Branch, Site, Stack, Wiring
from tsfm_lens.models import cards
from tsfm_lens.models.adapter import Adapter
from tsfm_lens.models.architecture import (
    Architecture,
    Encoded,
    Levels,
    Prediction,
    declare_row_independent,
    register,
)
from tsfm_lens.models.wirings import _common
from tsfm_lens.models.wirings._common import keys

NAME = "ttm"
MODEL = "TinyTimeMixerForPrediction"
STREAM = "series variate pos d_model"
KEYS = keys(
    "adaptive_patching_levels categorical_vocab_size_list"
    " combine_quantiles_via_variance context_length d_model"
    " decoder_adaptive_patching_levels decoder_d_model decoder_mode decoder_num_layers"
    " decoder_raw_residual decompose distribution_output dropout"
    " enable_base_norm_always enable_forecast_channel_mixing exogenous_channel_indices"
    " expansion_factor fcm_context_length fcm_gated_attn fcm_mix_layers"
    " fcm_prepend_past fcm_prepend_past_offset fcm_use_mixer fft_length"
    " forecast_loss_type frequency_token_vocab_size gated_attn head_dropout huber_delta"
    " init_embed init_linear init_processing init_std is_encoder_decoder"
    " joint_loss_weight light_mode loss mask_value masked_context_length mode"
    " mq_cond_mode mq_cond_path mq_decoder_d_model mq_eps mq_hidden mq_kernel_size"
    " mq_q50_type mq_use_decoder_pool mq_use_positional multi_quantile_head multi_scale"
    " norm_eps norm_mlp num_input_channels num_layers num_parallel_samples num_patches"
    " patch_last patch_length patch_stride penalize_large_width_ratio"
    " point_extra_weight positional_encoding_type post_init prediction_channel_indices"
    " prediction_filter_length prediction_length quantile quantile_levels"
    " register_tokens residual_context_length residual_loss_weight"
    " resolution_prefix_tuning scaling self_attn self_attn_heads"
    " trend_adaptive_patching_levels trend_d_model trend_decoder_d_model"
    " trend_decoder_num_layers trend_fft_length trend_head_d_model trend_loss_weight"
    " trend_multi_scale trend_num_layers trend_patch_length trend_patch_stride"
    " trend_register_tokens use_decoder use_fft_embedding use_positional_encoding"
    " width_penalty_mode"
)
# features of the library that change its modules, at the values that the table
# describes
VALUES = {
    "decoder_raw_residual": False,
    "enable_forecast_channel_mixing": False,
    "exogenous_channel_indices": None,
    "categorical_vocab_size_list": None,
    "prediction_channel_indices": None,
    "resolution_prefix_tuning": False,
    "multi_scale": False,
    "register_tokens": 0,
    "fft_length": 0,
    "multi_quantile_head": False,
    "enable_base_norm_always": False,
    "self_attn": False,
    "use_decoder": True,
    "norm_mlp": "LayerNorm",
}
LIBRARY = cards.TTM


def _rows(layer: Any) -> tuple[Branch, ...]:
    """List the branches of one layer, each with its gate."""
    rows = [("feature_mix", "feature_mixer", STREAM)]
    # the library leaves the mixer over time out of a layer with one patch
    if layer.num_patches > 1:
        rows.insert(0, ("time_mix", "patch_mixer", "series variate d_model pos"))
    if layer.mode == "mix_channel":
        rows.insert(
            0, ("channel_mix", "channel_feature_mixer", "series d_model pos variate")
        )
    branches = []
    for kind, path, layout in rows:
        has_gate = hasattr(layer.get_submodule(path), "gating_block")
        module = f"{path}.mlp"
        # the gate comes after the MLP, but before it where channels are mixed
        if has_gate and kind != "channel_mix":
            module = f"{path}.gating_block"
        branches.append(
            Branch(
                kind,
                Site(module, layout=layout),
                Site(path, "in", 0, STREAM),
                norm=f"{path}.norm.norm",
            )
        )
    return tuple(branches)


def _stacks(model: Any) -> tuple[Stack, ...]:
    """Describe each level and the decoder.

    A level's stream holds the same numbers as the one before, in more and narrower
    tokens.

    Returns:
        The tables, in the order of the forward.
    """
    stacks: list[Stack] = []
    parts = {
        "encoder": "backbone.encoder.mlp_mixer_encoder.mixers",
        "decoder": "decoder.decoder_block.mixers",
    }
    for name, mixers_path in parts.items():
        mixers = model.get_submodule(mixers_path)
        levels = [(name, mixers_path, mixers)]
        if hasattr(mixers[0], "mixer_layers"):
            levels = [
                (
                    f"{name}_level{mixer.adapt_patch_level}",
                    f"{mixers_path}.{index}.mixer_layers",
                    mixer.mixer_layers,
                )
                for index, mixer in enumerate(mixers)
            ]
        for level, path, layers in levels:
            upstream: tuple[str, ...] = ()
            if not stacks:
                upstream = ("backbone.encoder.patcher",)
            elif name == "decoder" and model.decoder.adapter is not None:
                upstream = ("decoder.adapter",)
            stacks.append(
                Stack(
                    level,
                    path,
                    n_layers=len(layers),
                    n_heads=0,
                    d_model=layers[0].feature_mixer.mlp.fc1.in_features,
                    d_head=0,
                    d_mlp=0,
                    writers=_rows(layers[0]),
                    upstream=upstream,
                    follows=bool(stacks),
                )
            )
    return tuple(stacks)


def _alone(batch: SeriesBatch, length: int) -> Tensor:
    return _common.padded(batch, length)[:, None]


class TtmAdapter(Adapter):
    """Adapter of a ``TinyTimeMixerForPrediction``; a point forecast in one pass."""

    architecture = NAME
    levels = (0.5,)
    package = "granite-tsfm"

    def __init__(self, native: Any) -> None:
        self.native = self.model = native
        config = native.config
        self.context_length = int(config.context_length)
        self.prediction_length = int(
            # a filter keeps the first steps of what the head emits
            config.prediction_filter_length or config.prediction_length
        )
        self.patch = int(config.patch_length)
        if "mix_channel" in (config.mode, config.decoder_mode):
            self.multivariate = True
            self.n_variates = int(config.num_input_channels)
        head = Site("head.base_forecast_block", layout="series variate d_out")
        self.wiring = Wiring(
            NAME,
            _stacks(native),
            head,
            "backbone.encoder.patcher",
            self.prediction_length,
            sizes_from=Site("backbone.encoder", "in", 0, "series variate pos d_patch"),
        )

    def encode(self, batch: SeriesBatch, horizon: int | None = None) -> Encoded:
        """Lay each item out as (time, variate).

        Gaps and padding are 0 and marked as unobserved.

        Returns:
            The encoded batch.
        """
        inputs = self._inputs(batch)
        # in this order: the values, then their mask
        _, loc, scale = self.model.backbone.scaler(*inputs.values())
        loc, scale = (part[:, 0].flatten() for part in (loc, scale))
        spans = {stack.name: self._spans(stack) for stack in self.wiring.stacks}
        items = len(inputs["past_values"])
        return Encoded(inputs, spans, loc, scale, batch, items=items)

    def _inputs(self, batch: SeriesBatch) -> dict[str, Tensor]:
        """Lay each item out for the model, whose own forward scales it."""
        rows = _alone
        if self.multivariate:
            rows = _common.by_item
        values = rows(batch, self.context_length).transpose(1, 2).to(self.device)
        mask = ~torch.isnan(values)
        return {"past_values": values.nan_to_num(0.0), "past_observed_mask": mask}

    def _spans(self, stack: Stack) -> TokenSpans:
        layer = self.model.get_submodule(stack.block(0))
        count = layer.num_patches
        # later levels cut the patches into more and shorter ones, over the same context
        width = self.context_length // count
        return TokenSpans.patches(-width * count, count, width)

    def run(self, inputs: Mapping[str, Any]) -> Tensor:
        """Compute the forecast in data units, (batch, 1, step)."""
        output = self.model(**inputs, return_loss=False).prediction_outputs
        result: Tensor = output.transpose(1, 2).flatten(0, 1)[:, None]
        return result

    def head(self, normalized: Tensor, encoded: Encoded) -> Tensor:
        """Compute the forecast in data units, (…, batch, 1, step)."""
        # the head reads all patches of a variate at once
        raw = self.model.head.base_forecast_block(normalized.flatten(-2))
        return encoded.in_data_units(raw[..., None, : self.prediction_length])

    @declare_row_independent
    def predict(
        self, batch: SeriesBatch, horizon: int, levels: Levels, num_samples: int | None
    ) -> Prediction:
        """Run the model's own forward."""
        # without an encoding, whose location and scale a forecast does not need
        inputs = self._inputs(batch)
        with torch.no_grad():
            output = self.native(**inputs, return_loss=False).prediction_outputs
        rows = output.transpose(1, 2).flatten(0, 1)
        return self.at(rows[:, :horizon, None].cpu(), levels)


def _library() -> Any:
    return LIBRARY.require("tsfm_public.models.tinytimemixer")


register(
    Architecture(
        **cards.CARDS[NAME].fields,
        classes=(MODEL,),
        keys=KEYS,
        values=VALUES,
        open=lambda folder, dtype, device: (
            getattr(_library(), MODEL)
            .from_pretrained(folder, dtype=dtype)
            .to(device)
            .eval()
        ),
        blank=lambda config: getattr(_library(), MODEL)(
            _library().TinyTimeMixerConfig(**config)
        ),
        adapter=TtmAdapter,
    )
)
