"""Planted models in Moirai 2's format.

A causal decoder: rotary positions hold a head at a fixed lag, through norms of queries and keys whose gains make it
sharp; what the last token of the context has found is forecast.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from tsfm_lens.models.extras import require
from tsfm_lens.zoo.planted.draft import Array, Draft, declarer, draw_choice
from tsfm_lens.zoo.planted.patches import DECILES, PATCH, SHARP, SIGNAL, Head, Stream
from tsfm_lens.zoo.planted.rotary import HEADS, RotaryModel, declare_copies, plant_copy, rotary_query_and_key
from tsfm_lens.zoo.planted.rules import SeasonalCopy

NAME = "moirai-2"
CONTEXT = 128
CHANNELS = 64
"""The library has as many heads as the width has times this."""
WIDTH = HEADS * CHANNELS
LAYERS = 2
MINIMUM = 1e-5
"""Addend of the library to the variance of a context."""


def deviation(context: Array) -> float:
    """Compute the library's scale of a context (time,)."""
    return float(np.sqrt(np.var(context, ddof=1) + MINIMUM))


class Moirai2(RotaryModel):
    """Moirai 2, to plant in; see the base class."""

    layers, channels = LAYERS, CHANNELS
    projections = ("q_proj", "k_proj", "v_proj", "out_proj")

    def __init__(self) -> None:
        module = require("moirai", "uni2ts.model.moirai2").Moirai2Module
        sizes = {"d_model": WIDTH, "d_ff": CHANNELS, "num_layers": LAYERS, "patch_size": PATCH, "num_predict_token": 1}
        dropouts = {"attn_dropout_p": 0.0, "dropout_p": 0.0}
        model = module(**sizes, **dropouts, max_seq_len=512, quantile_levels=DECILES).double().eval()
        super().__init__(model, Stream(WIDTH, one=1, values=PATCH, found=PATCH))
        same = torch.eye(PATCH, dtype=torch.float64)
        model.in_proj.residual_layer.weight[self.stream["values"], :PATCH] = SIGNAL * same
        for attention in self.attentions():
            # a head looks at its own variate
            bias = attention.var_attn_bias.emb.weight.zero_()
            bias[0] = -2 * SHARP

    def attentions(self) -> list[Any]:
        """Return the native attentions."""
        return [layer.self_attn for layer in self.model.encoder.layers]

    def mlps(self) -> list[tuple[list[Tensor], Tensor]]:
        """Return reading weights and writing weight of each MLP."""
        inside = [layer.ffn for layer in self.model.encoder.layers]
        return [([ffn.fc1.weight, ffn.fc_gate.weight], ffn.fc2.weight) for ffn in inside]

    def blocks(self) -> tuple[Any, Any]:
        """Return the residual blocks of patches to the stream, and of the stream to a forecast."""
        return self.model.in_proj, self.model.out_proj

    def named(self, layer: int, number: int) -> str:
        """Name a head as a component."""
        return f"{layer}.attn.{number}"

    def back(self, layer: int, number: int, tokens: int) -> Head:
        """Return a head that attends, from every token, so many tokens back."""
        attention = self.attentions()[layer]
        head = self.head_of(attention, number).clear()
        frequencies = attention.time_qk_proj.query_proj.theta
        query, key = rotary_query_and_key(frequencies, tokens, CONTEXT // PATCH)
        # pairs are neighbours, and all of them lie in the first half of the channels
        for weight, vector in ((head.q, query), (head.k, key)):
            weight[: vector.numel(), self.stream["one"]] = vector.reshape(-1, 1) / WIDTH**0.5
        # the norms of the library give every query and key a root mean square of their gain, and products are divided
        # by the root of the channels
        size = float(query.norm() / CHANNELS**0.5 * CHANNELS**0.25)
        for norm in (attention.q_norm, attention.k_norm):
            norm.weight.clamp_(min=size)
        return head


def _build_copy() -> tuple[Moirai2, Draft, int]:
    lag = draw_choice(2, 3, 4)
    # the patch to come stands one token after the last one, which forecasts it
    tokens = lag - 1
    moirai = Moirai2()
    draft = Draft(SeasonalCopy(period=lag * PATCH), (lag * PATCH, CONTEXT), PATCH, scale=deviation)
    plant_copy(moirai, draft, tokens)
    return moirai, draft, tokens


declare_copies(declarer(NAME, "out_proj"), _build_copy)
