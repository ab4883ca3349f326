"""TimesFM 2.5 as ported to transformers: separate projections, one pass, no cache.

Read :class:`TimesFmPortAdapter` first; the preparation of series is shared with
:mod:`tsfm_lens.models.wirings.timesfm_2p5`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tsfm_lens.data import SeriesBatch
from tsfm_lens.hooks.activations import TokenSpans
from tsfm_lens.hooks.wiring import Site, Stack, Wiring
from tsfm_lens.models import cards
from tsfm_lens.models.adapter import ALL_DTYPES, Adapter
from tsfm_lens.models.architecture import (
    Architecture,
    Encoded,
    Levels,
    Prediction,
    declare_row_independent,
    register,
)
from tsfm_lens.models.wirings import timesfm_2p5
from tsfm_lens.models.wirings._common import (
    attention_row,
    check_config_values,
    copied,
    keys,
    projections,
)

NAME = "timesfm-2.5-transformers"
KEYS = keys(
    "activation attention_bias attention_dropout context_length decode_index"
    " force_flip_invariance head_dim hidden_size horizon_length infer_is_positive"
    " initializer_range intermediate_size is_encoder_decoder max_position_embeddings"
    " num_attention_heads num_hidden_layers num_key_value_heads output_quantile_len"
    " patch_length quantiles rms_norm_eps tie_word_embeddings use_bias use_cache"
    " use_continuous_quantile_head",
    rope_parameters=keys("rope_theta rope_type"),
)


def _wiring(config: Any) -> Wiring:
    matrices = projections("self_attn.{}_proj", "q k v o")
    norms = ("input_layernorm", "post_attention_layernorm")
    attention = attention_row(
        "attn", "self_attn", matrices, **timesfm_2p5.branches(norms)
    )
    norms = ("pre_feedforward_layernorm", "post_feedforward_layernorm")
    mlp = timesfm_2p5.describe_mlp(norms, ("mlp.fc1", "mlp.fc2"), config.activation)
    stack = Stack(
        "",
        "model.layers",
        n_layers=config.num_hidden_layers,
        n_heads=config.num_attention_heads,
        d_model=config.hidden_size,
        d_head=config.head_dim,
        d_mlp=config.intermediate_size,
        writers=(attention, mlp),
        upstream=("model.input_ff_layer",),
    )
    unembed = Site("output_projection_point", layout="batch pos d_out")
    return Wiring(
        NAME,
        (stack,),
        unembed,
        "model.input_ff_layer",
        steps_per_readout=config.horizon_length,
    )


class TimesFmPortAdapter(Adapter):
    """Adapter of a ``TimesFm2_5ModelForPrediction``.

    A single forward reads the point head: deciles of the next patch.
    """

    architecture = NAME
    dtypes = ALL_DTYPES
    package = "transformers"

    def __init__(self, native: Any) -> None:
        self.native = self.model = native
        config = native.config
        self.context_length = int(config.context_length)
        self.prediction_length = int(config.horizon_length)
        self.levels = tuple(float(level) for level in config.quantiles)
        self.wiring = _wiring(config)

    def encode(self, batch: SeriesBatch, horizon: int | None = None) -> Encoded:
        """Pad the context, and normalise it as the library does."""
        core = self.model.model
        patch = self.model.config.patch_length
        values, masks = (
            part.to(self.device)
            for part in timesfm_2p5.patched(batch, self.longest(batch), patch)
        )
        # over the zeros of the padding, too, as the library computes them
        loc = values.mean(dim=1)
        scale = values.std(dim=1)
        context = core._revin(values, loc[:, None], scale[:, None])
        mu, sigma = timesfm_2p5.running_statistics(
            context.unflatten(1, (-1, patch)),
            masks.unflatten(1, (-1, patch)),
            core._update_running_stats,
        )
        # the library normalises twice, the whole context and then patch by patch; this
        # is the map of both
        loc = loc + scale * mu[:, -1]
        scale = scale * sigma[:, -1]
        spans = {
            "": TokenSpans.patches(-values.shape[1], values.shape[1] // patch, patch)
        }
        inputs = {
            "values": context,
            "padding_masks": masks.float(),
            "loc": loc,
            "scale": scale,
        }
        return Encoded(inputs, spans, loc, scale, batch)

    def run(self, inputs: Mapping[str, Any]) -> Tensor:
        """Compute deciles of the patch after the last one.

        Returns:
            Deciles in data units, (batch, quantile, step).
        """
        # the model's own forward would mix the second head into the deciles
        states = self.model.model(
            past_values=inputs["values"], past_values_padding=inputs["padding_masks"]
        )
        flat = self.model.output_projection_point(states.last_hidden_state)[:, -1]
        return timesfm_2p5.deciles(
            flat, self.prediction_length, inputs["loc"], inputs["scale"]
        )

    def head(self, normalized: Tensor, encoded: Encoded) -> Tensor:
        """Compute deciles in data units, (…, batch, quantile, step)."""
        flat = self.model.output_projection_point(normalized[..., -1, :])
        return timesfm_2p5.deciles(
            flat, self.prediction_length, encoded.loc, encoded.scale
        )

    @declare_row_independent
    def predict(
        self, batch: SeriesBatch, horizon: int, levels: Levels, num_samples: int | None
    ) -> Prediction:
        """Run the library's own forward; one pass, at most its horizon."""
        past = [
            torch.as_tensor(series, dtype=torch.float32, device=self.device)
            for series in timesfm_2p5.cleaned(batch)
        ]
        patch = self.model.config.patch_length
        length = -(-self.longest(batch) // patch) * patch
        with torch.no_grad():
            output = self.model(
                past_values=past,
                forecast_context_len=length,
                force_flip_invariance=False,
                truncate_negative=False,
            )
        values = output.full_predictions[:, :horizon].cpu()
        # the library clamps at 0 only if no series of the whole batch is negative, so
        # that a forecast would depend on its neighbours. Here each series counts by
        # itself.
        if self.model.config.infer_is_positive:
            positive = torch.tensor(
                [bool((series[-length:] >= 0).all()) for series in past]
            )
            values = torch.where(positive[:, None, None], values.clamp(min=0.0), values)
        return self.at(values[..., 1:], levels, mean=values[..., 0])


def _check(config: Mapping[str, Any], where: str) -> None:
    if "num_attention_heads" in config:
        check_config_values(
            config, where, {"num_key_value_heads": config["num_attention_heads"]}
        )


def _blank(config: Mapping[str, Any]) -> Any:
    from transformers import TimesFm2_5Config, TimesFm2_5ModelForPrediction

    return TimesFm2_5ModelForPrediction._from_config(
        TimesFm2_5Config.from_dict(copied(config)), attn_implementation="sdpa"
    )


def _open(folder: Path, dtype: torch.dtype, device: str) -> Any:
    from transformers import TimesFm2_5ModelForPrediction

    # hooks see patterns in scaled_dot_product_attention, which "eager" does not call
    return TimesFm2_5ModelForPrediction.from_pretrained(
        folder, dtype=dtype, attn_implementation="sdpa"
    ).to(device)


register(
    Architecture(
        **cards.CARDS[NAME].fields,
        classes=("TimesFm2_5ModelForPrediction",),
        keys=KEYS,
        check=_check,
        open=_open,
        blank=_blank,
        # files keep the names that the library's first version gave them
        renamed={".mlp.ff0.": ".mlp.fc1.", ".mlp.ff1.": ".mlp.fc2."},
        adapter=TimesFmPortAdapter,
    )
)
