"""Planted models in Moirai 2's format.

Heads attend a fixed number of patches back by rotary positions, with queries and keys
that have passed a norm. Read :class:`Moirai2`; the mechanisms are declared by
:func:`tsfm_lens.zoo.planted.patches.declare_copies`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from tsfm_lens.models.wirings.moirai_2 import LIBRARY
from tsfm_lens.zoo.planted.draft import Array
from tsfm_lens.zoo.planted.patches import (
    CONTEXT,
    DECILES,
    HEADS,
    PATCH,
    SHARP,
    Head,
    Mlp,
    PatchModel,
    Stream,
    declare_copies,
    rotary_query_and_key,
)

NAME = "moirai-2"
CHANNELS = 64
"""Channels of a head; the library makes d_model // 64 heads."""
WIDTH = HEADS * CHANNELS


def deviation(context: Array) -> float:
    """Compute the scale by which the library divides a context (time,)."""
    # the library adds 1e-5 to the variance, so that no scale is 0
    return float(np.sqrt(np.var(context, ddof=1) + 1e-5))


class Moirai2(PatchModel):
    """Moirai 2, in which mechanisms are planted; see the base class."""

    layers = 2
    channels = CHANNELS
    one = WIDTH**0.5
    projections = ("q_proj", "k_proj", "v_proj", "out_proj")

    def __init__(self) -> None:
        # required only here, since the library is an extra
        module = LIBRARY.require("uni2ts.model.moirai2").Moirai2Module
        sizes = {
            "d_model": WIDTH,
            "d_ff": CHANNELS,
            "num_layers": self.layers,
            "patch_size": PATCH,
        }
        settings = {
            "num_predict_token": 1,
            "attn_dropout_p": 0.0,
            "dropout_p": 0.0,
            "max_seq_len": 512,
        }
        model = module(**sizes, **settings, quantile_levels=DECILES).double().eval()
        # the only stack has no name
        super().__init__(model, {"": Stream(WIDTH, one=1, values=PATCH, found=PATCH)})
        for attention in self.attentions(""):
            # heads attend only to their own variate: row 0 is the bias (head,) of keys
            # of other variates
            bias = attention.var_attn_bias.emb.weight.zero_()
            bias[0] = -2 * SHARP

    def attentions(self, stack: str) -> list[Any]:
        """Return the native attention of each layer."""
        return [layer.self_attn for layer in self.model.encoder.layers]

    def mlps(self, stack: str) -> list[Mlp]:
        """Return the weights of each MLP."""
        feed_forwards = [layer.ffn for layer in self.model.encoder.layers]
        return [
            ([ffn.fc1.weight, ffn.fc_gate.weight], ffn.fc2.weight)
            for ffn in feed_forwards
        ]

    def blocks(self) -> tuple[Any, Any]:
        """Return the residual blocks into the stream and out of it."""
        return self.model.in_proj, self.model.out_proj

    def embeddings(self, stack: str) -> list[Tensor]:
        """Return nothing: all tokens are patches."""
        return []

    def named(self, layer: int, number: int) -> str:
        """Name a head as a component."""
        return f"{layer}.attn.{number}"

    def back(self, layer: int, number: int, lags: Sequence[int]) -> Head:
        """Return a head that attends, from every token, one number of tokens back."""
        (tokens,) = lags
        attention = self.attentions("")[layer]
        head = self.view_head(attention, number).clear()
        query, key = rotary_query_and_key(
            attention.time_qk_proj.query_proj.theta, tokens, CONTEXT // PATCH
        )
        # the library rotates the first half of the channels, in pairs of neighbours
        for weight, vector in ((head.q, query), (head.k, key)):
            weight[: vector.numel(), self.stream["one"]] = (
                vector.reshape(-1, 1) / self.one
            )
        # A norm with a gain gives a query and a key a length of gain · √channels each.
        # Their product is divided by √channels, and must become the square of the
        # length of `query`.
        gain = float(query.norm() / CHANNELS**0.25)
        # all heads of a layer share the norms; a larger gain only sharpens the others
        for norm in (attention.q_norm, attention.k_norm):
            norm.weight.clamp_(min=gain)
        return head


# later=0: the token of the last patch forecasts the next one
declare_copies(NAME, Moirai2, 0, PATCH, scale=deviation)
