"""Lens adapter of the channel-wise transformer.

Tokens are channels, or time steps where attention is over time. Read
:class:`ChannelAdapter`; importing the module is what lets ``load(model)`` open the
network.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tsfm_lens.core.errors import InputError
from tsfm_lens.core.extensions import add_method
from tsfm_lens.data import SeriesBatch, as_series
from tsfm_lens.hooks.activations import TokenSpans
from tsfm_lens.hooks.wiring import Attention, Projection, Site, Stack, Wiring
from tsfm_lens.models.adapter import Adapter
from tsfm_lens.models.architecture import Encoded
from tsfm_lens.studies.samformer.models import ChannelTransformer, RevIN

__all__ = ["ChannelAdapter"]

NAME = "samformer"


class ChannelAdapter(Adapter):
    """Lens adapter of a ``ChannelTransformer``.

    Its stream holds L numbers per channel, or D numbers per time step.
    """

    architecture = NAME
    multivariate = True
    packed = True
    levels = (0.5,)
    dtypes = ("float32", "float64")

    def __init__(self, native: ChannelTransformer) -> None:
        self.native = self.model = native
        self.context_length = native.length
        self.prediction_length = native.horizon
        self.n_variates = native.channels
        self.over_time = native.over == "time"
        q, k, v, o = (Projection(f"attn.{letter}") for letter in "qkvo")
        attention = Attention("attn", "attn", Site("attn"), Site("", "in"), q, k, v, o)
        stack = Stack(
            "",
            "blocks",
            1,
            1,
            native.size,
            native.width,
            0,
            (attention,),
            upstream=("embed",),
        )
        unembed = Site("readout", layout="batch variate d_out")
        self.wiring = Wiring(NAME, (stack,), unembed, "embed", native.horizon)

    def encode(self, batch: SeriesBatch, horizon: int | None = None) -> Encoded:
        length = self.context_length
        channels = batch.n_variates
        if self.n_variates not in (None, channels):
            raise InputError(
                f"items have {channels} variates each, but this model was made for"
                f" {self.n_variates} channels; give them as one array"
                f" ({self.n_variates}, time)"
            )
        for name, series in zip(batch.ids, batch.values, strict=True):
            if len(series) < length:
                raise InputError(
                    f"series {name!r} has {len(series)} steps, the model reads exactly"
                    f" {length}"
                )
            if np.isnan(series[-length:]).any():
                raise InputError(
                    f"series {name!r} has gaps in its last {length} steps; fill them,"
                    " the model takes none"
                )
        rows = np.stack([series[-length:] for series in batch.values])
        x = torch.from_numpy(rows).to(self.device, self.dtype)
        x = x.unflatten(0, (-1, channels))
        loc, scale = (part.flatten() for part in self._loc_and_scale(x))
        return Encoded(
            {"x": x},
            {"": self._spans(channels)},
            loc,
            scale,
            batch,
            self.prediction_length,
            len(x),
            True,
        )

    @property
    def revin(self) -> RevIN | None:
        """Normalisation of the windows, None without one."""
        embed = self.model.embed
        return embed if isinstance(embed, RevIN) else None

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the native model."""
        return next(self.model.parameters()).dtype

    def _spans(self, channels: int) -> TokenSpans:
        if self.over_time:
            return TokenSpans.patches(-self.context_length, self.context_length, 1)
        return TokenSpans(
            (-self.context_length,) * channels,
            (0,) * channels,
            ("",) * channels,
            variate=tuple(range(channels)),
        )

    def _loc_and_scale(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the shift and the scale from the raw readout to data units.

        Returns:
            (item, channel) each.
        """
        revin = self.revin
        if revin is None:
            return x.new_zeros(x.shape[:2]), x.new_ones(x.shape[:2])
        mean, scale = (part[..., 0].detach() for part in revin.statistics(x))
        gain = scale / revin.weight.detach()
        return mean - revin.bias.detach() * gain, gain

    def run(self, inputs: Mapping[str, Any]) -> Tensor:
        return self.model(inputs["x"]).flatten(0, 1).unsqueeze(1)

    def head(self, normalized: Tensor, encoded: Encoded) -> Tensor:
        out = self.model.forecast(
            normalized, self.model.statistics(encoded.inputs["x"])
        )
        return out.flatten(-3, -2).unsqueeze(-2)

    def example(self, n_series: int, longest: int) -> SeriesBatch:
        """Make items without gaps to run the oracles on.

        They have the channels and the length that the model takes.
        """
        rng = np.random.default_rng(0)
        steps = np.arange(self.context_length)
        channels = np.arange(self.n_variates or 3)[:, None]
        items = []
        for index in range(n_series + 1):
            wave = np.sin(2 * np.pi * steps / (5 + index + channels))
            noise = 0.5 * rng.standard_normal(wave.shape)
            season = (1 + index + channels) * wave
            items.append(10 * index - 4 * channels + season + noise)
        return as_series(items)


@add_method("ChannelTransformer")
def lens_adapter(model: ChannelTransformer) -> ChannelAdapter:
    """Return the model's own wiring, by which ``load(model)`` opens it."""
    return ChannelAdapter(model)
