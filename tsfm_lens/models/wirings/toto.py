"""Toto 1.0: a decoder over patches with a mixture of Student-t distributions.

Most layers attend over time, a few across variates. Read :class:`TotoAdapter` first. A
single forward gives the mean of the mixture, a forecast draws sample paths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tsfm_lens.core.errors import WiringError
from tsfm_lens.data import SeriesBatch
from tsfm_lens.hooks.activations import TokenSpans
from tsfm_lens.hooks.wiring import Attention, Projection, Site, Stack, Wiring
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
from tsfm_lens.models.wirings._common import (
    attention_row,
    copied,
    fused,
    keys,
    mlp_row,
    write_checkpoint,
)

NAME = "toto-1"
STREAM = "series variate pos d_model"
KEYS = keys(
    "dropout embed_dim mlp_hidden_dim num_heads num_layers output_distribution_classes"
    " patch_size scale_factor_exponent scaler_cls spacewise_every_n_layers"
    " spacewise_first stabilize_with_global stride use_memory_efficient_attention",
    output_distribution_kwargs=keys("k_components"),
)
LIBRARY = cards.TOTO
# the head is the fastest axis in the rows of wQKV. In the columns of wO it is slower
# than its features, which is the default of Projection.
FUSED = "(part d_head head)"


def _attention(*, across: bool) -> Attention:
    axes = {
        "over": "time",
        "qkv_layout": "(series variate) head pos d_head",
        "x_layout": "(series variate) pos d_model",
    }
    if across:
        axes = {
            "over": "variate",
            "qkv_layout": "(series pos) head variate d_head",
            "x_layout": "(series pos) variate d_model",
        }
    return attention_row(
        "attn",
        "attention",
        fused("attention.wQKV", FUSED, Projection("attention.wO")),
        # the first argument of a layer is its index, the second the stream
        reads=Site("", "in", 1, STREAM),
        stream=STREAM,
        z_layout="series variate pos (head d_head)",
        norm="norm1",
        **axes,
    )


def _wiring(model: Any) -> Wiring:
    layers = model.transformer.layers
    # both halves of the gated layer, the one that goes through the activation first
    first, gate = (Projection("mlp.0", "(part d_mlp)", part, 2) for part in range(2))
    rest: dict[str, Any] = {
        "first": first,
        "gate": gate,
        "norm": "norm2",
        "aside": True,
    }
    mlp = mlp_row("mlp", "norm2", ("mlp.0", "mlp.2"), "silu", stream=STREAM, **rest)
    across = {
        index
        for index, layer in enumerate(layers)
        if layer.attention_axis.name == "SPACE"
    }
    n_heads = layers[0].num_heads
    stack = Stack(
        "",
        "transformer.layers",
        n_layers=len(layers),
        n_heads=n_heads,
        d_model=model.embed_dim,
        d_head=model.embed_dim // n_heads,
        d_mlp=layers[0].mlp[2].in_features,
        writers=(_attention(across=False), mlp),
        upstream=("patch_embed",),
        cached=_cache_length,
        exceptions={layer: (_attention(across=True), mlp) for layer in across},
    )
    return Wiring(
        NAME,
        (stack,),
        Site("unembed", layout="series variate pos d_out"),
        "patch_embed.projection",
        steps_per_readout=model.patch_embed.patch_size,
        # xPos is centred anew at every step while cached keys are not, so cached and
        # full runs differ
        rollout_tolerance=5e-3,
        sizes_from=Site("patch_embed", "in", 0, "series variate time"),
        sample_major=True,
    )


def _cache_length(_args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    cache = kwargs.get("kv_cache")
    if cache is None:
        return 0
    return int(cache.current_len(0))


class TotoAdapter(Adapter):
    """Adapter of a ``Toto``.

    A single forward reads the mean of the mixture for the next patch.
    """

    architecture = NAME
    readout = "distribution"
    rollout = "cache"
    multivariate = True
    # its pass does not read known covariates; a rollout puts them in the place of their
    # forecasts
    covariates = ("past", "known")
    levels = (0.5,)
    package = "timecopilot-toto"
    draw_axis = 0
    samples = 100

    def __init__(self, native: Any) -> None:
        self.native = self.model = native
        if not hasattr(native, "patch_embed"):
            self.model = getattr(native, "model", native)
        if self.model.fusion is not None:
            raise WiringError(
                "this Toto was fine-tuned with labels of exogenous variates, which the"
                " wiring does not know"
            )
        self.context_length = 4096
        self.prediction_length = int(self.model.patch_embed.patch_size)
        self.wiring = _wiring(self.model)

    def encode(self, batch: SeriesBatch, horizon: int | None = None) -> Encoded:
        """Stack items with their variates, in whole patches.

        Missing values are 0 under the mask, as is the padding on the left.

        Returns:
            The encoded batch.
        """
        inputs = self._native_input(batch)
        patch = self.prediction_length
        length = inputs["scaling_prefix_length"]
        _, loc, scale = self.model.scaler(
            inputs["inputs"],
            weights=torch.ones_like(inputs["inputs"]),
            padding_mask=inputs["input_padding_mask"],
            prefix_length=length,
        )
        # the statistics of the last step are those of the whole context
        loc, scale = (values[..., -patch:].flatten(0, 1) for values in (loc, scale))
        spans = {"": TokenSpans.patches(-length, length // patch, patch)}
        return Encoded(
            inputs, spans, loc[:, -1], scale[:, -1], batch, items=len(inputs["inputs"])
        )

    def _native_input(self, batch: SeriesBatch) -> dict[str, Any]:
        patch = self.prediction_length
        length = -(-self.longest(batch) // patch) * patch
        values = _common.by_item(batch, length).to(self.device)
        is_value = ~torch.isnan(values)
        values = torch.where(is_value, values, 0.0)
        inputs = {
            "inputs": values,
            "input_padding_mask": is_value,
            "id_mask": torch.zeros_like(values),
        }
        return {**inputs, "scaling_prefix_length": length}

    def run(self, inputs: Mapping[str, Any]) -> Tensor:
        """Compute the mean of the mixture for the next patch.

        Returns:
            Means in data units, (batch, 1, step).
        """
        mixture, loc, scale = self.model(**inputs)
        patch = self.prediction_length
        mean = mixture.mean[..., -patch:] * scale[..., -patch:] + loc[..., -patch:]
        result: Tensor = mean.flatten(0, 1)[:, None]
        return result

    def head(self, normalized: Tensor, encoded: Encoded) -> Tensor:
        """Compute the mean in data units, (…, batch, 1, step)."""
        flat = self.model.unembed(normalized[..., -1, :])
        per_step = flat.unflatten(-1, (self.prediction_length, self.model.embed_dim))
        return encoded.in_data_units(
            self.model.output_distribution(per_step).mean[..., None, :]
        )

    @declare_row_independent
    def predict(
        self, batch: SeriesBatch, horizon: int, levels: Levels, num_samples: int | None
    ) -> Prediction:
        """Draw sample paths, and take their empirical quantiles.

        All are drawn in one batch of ``TotoForecaster.forecast``.

        Returns:
            Quantiles, mean and paths, in data units.
        """
        inputs = self._native_input(batch)
        series = inputs["inputs"]
        none_known = series.new_empty(len(series), 0, 1)
        # a context of one step, which is cut off again: the future alone is needed
        known = _common.by_role(batch, 1, horizon).get("known", none_known)
        future = known[..., 1:]
        dataset = LIBRARY.require("toto.data.util.dataset")
        masked = dataset.MaskedTimeseries(
            series,
            inputs["input_padding_mask"],
            inputs["id_mask"],
            torch.zeros_like(series),
            torch.zeros(series.shape[:2], dtype=torch.int),
            # covariates known beforehand come last in an item, where the library looks
            # for them
            future.shape[1],
        )
        draws = self.samples if num_samples is None else num_samples
        inference = LIBRARY.require("toto.inference.forecaster")
        forecast = inference.TotoForecaster(self.model).forecast(
            masked,
            prediction_length=horizon,
            num_samples=draws,
            # all paths in one native batch, so that hooks see the rows of every path at
            # once
            samples_per_batch=draws,
            future_exogenous_variables=future.to(series) if future.shape[1] else None,
        )
        # (item, variate, step, sample) -> (series, sample, step)
        paths = forecast.samples.flatten(0, 1).permute(0, 2, 1)
        return self.of_paths(paths.cpu(), levels)

    def joined(
        self, calls: Sequence[tuple[tuple[Any, ...], dict[str, Any]]]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Join the arguments of all passes of a rollout to those of one pass.

        That pass has no cache.

        Returns:
            Positional arguments and keywords of the one pass.
        """
        # the library hands the whole series to every pass and skips what the cache
        # holds
        return (), {**calls[-1][1], "kv_cache": None}


def _toto() -> Any:
    return LIBRARY.require("toto.model.toto").Toto


def _open(folder: Path, dtype: torch.dtype, device: str) -> Any:
    # hooks see patterns in scaled_dot_product_attention, which xformers does not call
    native = _toto().from_pretrained(
        folder, map_location=device, use_memory_efficient_attention=False
    )
    native.saved_config = _common.settings(folder)
    return native.to(device, dtype)


def _blank(config: Mapping[str, Any]) -> Any:
    settings = {**copied(config), "use_memory_efficient_attention": False}
    native = _toto()(**settings)
    native.saved_config = settings
    return native


register(
    Architecture(
        **cards.CARDS[NAME].fields,
        classes=("Toto", "TotoBackbone", "TotoForecaster"),
        keys=KEYS,
        open=_open,
        blank=_blank,
        # the names under xformers, and frequencies that the library computes whatever
        # the file says
        renamed={".mlp.0.w12.": ".mlp.0.", ".mlp.0.w3.": ".mlp.2."},
        computed=("rotary_emb.freqs", "rotary_emb.scale"),
        adapter=TotoAdapter,
        save=lambda native, folder: write_checkpoint(
            native, native.saved_config, folder
        ),
    )
)
