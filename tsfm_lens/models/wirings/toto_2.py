"""Toto 2.0: unit-scaled layers, and a stream that every branch rescales.

In each group of layers, some attend across variates, the others over time. Read
:class:`Toto2Adapter` first. Unit scaling rescales the backward pass, so that gradients
by autograd are not the true ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tsfm_lens.core.errors import WiringError
from tsfm_lens.data import SeriesBatch
from tsfm_lens.hooks.activations import TokenSpans
from tsfm_lens.hooks.wiring import Attention, Mix, Mlp, Projection, Site, Stack, Wiring
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
from tsfm_lens.models.arguments import DECILES
from tsfm_lens.models.wirings import _common
from tsfm_lens.models.wirings._common import (
    attention_row,
    fused,
    keys,
    mlp_row,
    write_checkpoint,
)

NAME = "toto-2"
KEYS = keys(
    "attn_bias d_ff d_model dropout_p heads_per_group layer_group_size mlp_bias"
    " norm_eps norm_include_weight num_groups num_heads num_layers num_output_patches"
    " num_variate_layers_per_group patch_size per_dim_scale pre_norm qk_dim qk_norm"
    " qk_norm_include_weight residual_attn_ratio residual_mult use_xpos v_dim"
    " variate_layer_first"
)
LIBRARY = cards.TOTO_2


def _mix(attribute: str) -> Mix:
    """Return a function of a block that gives the factors of branch and stream.

    With tau, the attribute of this name, they are tau / sqrt(1 + tau²) for the branch
    and 1 / sqrt(1 + tau²) for the stream.
    """

    def factors(block: Any) -> tuple[float, float]:
        tau = float(getattr(block, attribute))
        norm = (1.0 + tau**2) ** 0.5
        return tau / norm, 1.0 / norm

    return factors


def _rows(config: Any, *, across: bool) -> tuple[Attention, Mlp]:
    """Describe attention and MLP of a layer over time, or ``across`` variates."""
    # a unit-scaled layer divides by the root of its fan-in
    stream_gain = config.d_model**-0.5
    heads_gain = (config.v_dim * config.num_heads) ** -0.5
    out = Projection("attn.out_proj", gain=heads_gain)
    over = "time"
    stream = "batch pos d_model"
    qkv_layout = "batch head pos d_head"
    if across:
        over = "variate"
        stream = "(series pos) variate d_model"
        qkv_layout = "(series pos) head variate d_head"
    attention = attention_row(
        "attn",
        "attn",
        fused("attn.in_proj", "(part head d_head)", out, gain=stream_gain),
        stream=stream,
        z_layout=stream.replace("d_model", "(head d_head)"),
        over=over,
        qkv_layout=qkv_layout,
        norm="norm1",
        mix=_mix("attn_tau"),
    )
    # both halves of one layer: the activation of ``first`` is multiplied by ``gate``
    gate, first = (
        Projection("ffn.fc1", "(part d_mlp)", part, parts=2, gain=stream_gain)
        for part in range(2)
    )
    mlp = mlp_row(
        "ffn",
        "norm2",
        ("ffn.fc1", "ffn.fc2"),
        "silu",
        stream=stream,
        first=first,
        gate=gate,
        o_gain=config.d_ff**-0.5,
        norm="norm2",
        mix=_mix("mlp_tau"),
        # the input of norm2 is that of the branch alone, not the stream
        aside=True,
    )
    return attention, mlp


def _wiring(model: Any) -> Wiring:
    config = model.config
    across = [
        layer
        for layer in range(config.num_layers)
        if model.transformer._if_variate_layer(layer)
    ]
    stack = Stack(
        "",
        "transformer.layers",
        n_layers=config.num_layers,
        n_heads=config.num_heads,
        d_model=config.d_model,
        d_head=config.v_dim,
        d_mlp=config.d_ff,
        writers=_rows(config, across=False),
        ln_final="transformer.out_norm",
        final_layout="series variate pos d_model",
        upstream=("patch_proj",),
        entry="transformer",
        cached=_cache_length,
        exceptions={layer: _rows(config, across=True) for layer in across},
    )
    return Wiring(
        NAME,
        (stack,),
        Site("output_head.param_projection.proj", layout="series variate pos d_out"),
        embed="patch_proj",
        # an output is (…, pos, patch), and each position yields a patch
        steps_per_readout=lambda output: config.patch_size * output.shape[-2],
        sizes_from=Site("transformer", "in", 0, "series variate pos d_model"),
        # unit scaling rescales the backward pass
        true_gradients=False,
    )


def _cache_length(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Count the positions in the cache before a call of the transformer."""
    if kwargs.get("kv_cache") is None:
        return 0
    # positions after the call, less those that it adds
    n_cached: int = int(kwargs["kv_read_len"]) - args[0].shape[-2]
    return n_cached


class Toto2Adapter(Adapter):
    """Adapter of a ``Toto2Model``; any horizon is one pass."""

    architecture = NAME
    multivariate = True
    levels = DECILES
    package = "timecopilot-toto-2"
    context_length = 4096
    longest_pass = 4096

    def __init__(self, native: Any) -> None:
        self.native = self.model = native
        config = native.config
        if (
            config.num_groups != config.num_heads
            or config.qk_dim != config.v_dim
            or config.qk_norm_include_weight
        ):
            raise WiringError(
                f"this Toto 2 has {config.num_heads} heads in {config.num_groups}"
                f" groups, qk_dim {config.qk_dim} and v_dim {config.v_dim}; the wiring"
                " describes models without grouping and with equal sizes"
            )
        self.patch = int(config.patch_size)
        # a horizon of our own choice, since the library has no default
        self.prediction_length = 2 * self.patch
        self.wiring = _wiring(native)

    def encode(self, batch: SeriesBatch, horizon: int | None = None) -> Encoded:
        """Stack items with their variates, followed by empty patches to predict."""
        steps = self.prediction_length if horizon is None else horizon
        n_future = -(-steps // self.patch)
        native = self._native_input(batch)
        values, mask, ids, _ = self.model._prepare_forecast_inputs(native, n_future)
        is_context = torch.ones_like(mask)
        is_context[..., -n_future * self.patch :] = False
        inputs = {
            "target": values,
            # the model takes what both masks have for observed. The second one marks
            # the horizon, so that the first may be full there.
            "target_mask": mask | ~is_context,
            "cpm_mask": is_context,
            "series_ids": ids,
        }
        _, loc, scale = self.model.scaler(values, mask)
        # the scaler is causal: at the last position it covers the whole context
        loc, scale = (part[..., -1].flatten(0, 1) for part in (loc, scale))
        length = native["target"].shape[-1]
        n_patches = length // self.patch + n_future
        spans = TokenSpans.patches(-length, n_patches, self.patch)
        inputs |= {"loc": loc, "scale": scale, "n_future": n_future}
        return Encoded(
            inputs, {"": spans}, loc, scale, batch, horizon=steps, items=len(values)
        )

    def _native_input(self, batch: SeriesBatch) -> dict[str, Tensor]:
        """Make the arguments of ``forecast``.

        Gaps are filled by the value before them, since the library counts all of the
        last patch as observed.

        Returns:
            Tensors by the name of the argument.
        """
        length = -(-self.longest(batch) // self.patch) * self.patch
        # gaps are filled before the series is cut to the context, as the library's
        # predictor does
        values = _common.by_item(batch, max(length, *batch.lengths))
        is_value = ~torch.isnan(values)
        if not bool(is_value.all()):
            impute = LIBRARY.require("toto2.model").ffill_imputation
            values = torch.stack(
                [torch.as_tensor(impute(item.numpy())) for item in values]
            )
        # variates of one id attend to each other: here all of an item
        ids = torch.zeros(values.shape[:2], dtype=torch.long)
        parts = {
            "target": values[..., -length:],
            "target_mask": is_value[..., -length:],
            "series_ids": ids,
        }
        return {name: part.to(self.device) for name, part in parts.items()}

    def run(self, inputs: Mapping[str, Any]) -> Tensor:
        """Compute quantiles of whole patches.

        Returns:
            Quantiles in data units, (batch, quantile, step).
        """
        native = {
            name: inputs[name]
            for name in ("target", "target_mask", "cpm_mask", "series_ids")
        }
        # (quantile, item, variate, pos, patch) with item and variate as one batch axis
        quantiles = self.model(**native).quantiles.flatten(1, 2)
        return self._in_data_units(
            quantiles, inputs["n_future"], inputs["loc"], inputs["scale"]
        )

    def head(self, normalized: Tensor, encoded: Encoded) -> Tensor:
        """Compute quantiles in data units, (…, batch, quantile, step)."""
        quantiles = self.model.output_head(normalized, q=None)
        return self._in_data_units(
            quantiles, encoded.inputs["n_future"], encoded.loc, encoded.scale
        )

    def _in_data_units(
        self, raw: Tensor, n_future: int, loc: Tensor, scale: Tensor
    ) -> Tensor:
        """Read sorted quantiles (…, batch, quantile, step) off the tokens.

        ``raw`` is (quantile, …, batch, pos, patch); each token gives its next patch.

        Returns:
            The quantiles in data units, (…, batch, quantile, step).
        """
        ahead = raw[..., -(n_future + 1) : -1, :].flatten(-2).movedim(0, -2)
        # the library takes asinh of the normalised series
        quantiles = ahead.sinh() * scale[:, None, None] + loc[:, None, None]
        # as the library does, since nothing keeps its quantiles from crossing
        return quantiles.sort(dim=-2).values

    @declare_row_independent
    def predict(
        self, batch: SeriesBatch, horizon: int, levels: Levels, num_samples: int | None
    ) -> Prediction:
        """Run ``Toto2Model.forecast``."""
        # (quantile, item, variate, step) -> (batch, step, quantile)
        forecast = self.model.forecast(self._native_input(batch), horizon=horizon)
        quantiles = forecast.cpu().flatten(1, 2).permute(1, 2, 0)
        return self.at(quantiles, levels)


def _library() -> Any:
    """Import the library, and its configuration module, as an attribute of it."""
    LIBRARY.require("toto2.configuration")
    return LIBRARY.require()


register(
    Architecture(
        **cards.CARDS[NAME].fields,
        classes=("Toto2Model",),
        keys=KEYS,
        open=lambda folder, dtype, device: (
            _library()
            .Toto2Model.from_pretrained(folder, map_location=device)
            .to(device, dtype)
        ),
        blank=lambda config: _library().Toto2Model(
            _library().configuration.Toto2ModelConfig(**config)
        ),
        adapter=Toto2Adapter,
        save=lambda native, folder: write_checkpoint(
            native, dataclasses.asdict(native.config), folder
        ),
    )
)
