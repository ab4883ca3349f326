"""Planted models in Moirai 2's format.

A causal decoder: rotary positions hold a head at a fixed lag, through norms of queries and keys whose gains make it
sharp; what the last token of the context has found is forecast.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tsfm_lens.models.extras import require
from tsfm_lens.zoo.planted.basis import orthogonal
from tsfm_lens.zoo.planted.draft import Array, Draft, declarer, drawn
from tsfm_lens.zoo.planted.patches import (
    DECILES,
    PATCH,
    SHARP,
    SIGNAL,
    Head,
    Stream,
    deviates,
    fill_with_noise,
    read_by,
    straighten,
    turn,
    written_by,
)
from tsfm_lens.zoo.planted.rotary import plant_copy, plant_decoys, rotary_query_and_key
from tsfm_lens.zoo.planted.rules import SeasonalCopy

NAME = "moirai-2"
CONTEXT = 128
HEADS = 4
CHANNELS = 64
"""The library has as many heads as the width has times this."""
WIDTH = HEADS * CHANNELS
LAYERS = 2
ONE = WIDTH**0.5
"""Length of the constant direction, which gives every token a root mean square of 1."""
MINIMUM = 1e-5
"""Addend of the library to the variance of a context."""


def deviation(context: Array) -> float:
    """Compute the library's scale of a context (time,)."""
    return float(np.sqrt(np.var(context, ddof=1) + MINIMUM))


class Moirai2:
    """Moirai 2 whose every head and MLP writes noise that nobody reads, until it gets a task.

    The stream has directions "one" (constant), "values" (those of the patch) and "found" (the forecast).

    Attributes:
        numbers: head numbers in random order.
    """

    layers = LAYERS

    def __init__(self) -> None:
        module = require("moirai", "uni2ts.model.moirai2").Moirai2Module
        sizes = {"d_model": WIDTH, "d_ff": CHANNELS, "num_layers": LAYERS, "patch_size": PATCH, "num_predict_token": 1}
        dropouts = {"attn_dropout_p": 0.0, "dropout_p": 0.0}
        self.model = module(**sizes, **dropouts, max_seq_len=512, quantile_levels=DECILES).double().eval()
        self.stream = Stream(WIDTH, one=1, values=PATCH, found=PATCH)
        self.numbers: list[int] = torch.randperm(HEADS).tolist()
        layers = self.model.encoder.layers
        heads = [_head(layer.self_attn, number) for layer in layers for number in range(HEADS)]
        mlps = [([layer.ffn.fc1.weight, layer.ffn.fc_gate.weight], layer.ffn.fc2.weight) for layer in layers]
        fill_with_noise(heads, mlps, self.stream)
        self._embed()
        for layer in layers:
            # a head looks at its own variate
            bias = layer.self_attn.var_attn_bias.emb.weight.zero_()
            bias[0] = -2 * SHARP

    def _embed(self) -> None:
        straighten(self.model.in_proj)
        straighten(self.model.out_proj)
        same = torch.eye(PATCH, dtype=torch.float64)
        into, out = self.model.in_proj.residual_layer, self.model.out_proj.residual_layer
        into.weight[self.stream["values"], :PATCH] = SIGNAL * same
        into.bias[self.stream["one"]] = ONE
        out.weight[:, self.stream["found"]] = same.repeat(len(DECILES), 1) / SIGNAL
        out.bias.copy_(deviates().repeat_interleave(PATCH))

    def named(self, layer: int, number: int) -> str:
        """Name a head as a component."""
        return f"{layer}.attn.{number}"

    def back(self, layer: int, number: int, tokens: int) -> Head:
        """Return a head that attends, from every token, so many tokens back."""
        attention = self.model.encoder.layers[layer].self_attn
        head = _head(attention, number).clear()
        frequencies = attention.time_qk_proj.query_proj.theta
        query, key = rotary_query_and_key(frequencies, tokens, CONTEXT // PATCH)
        # pairs are neighbours, and all of them lie in the first half of the channels
        for weight, vector in ((head.q, query), (head.k, key)):
            weight[: vector.numel(), self.stream["one"]] = vector.reshape(-1, 1) / ONE
        # the norms of the library give every query and key a root mean square of their gain, and products are divided
        # by the root of the channels
        size = float(query.norm() / CHANNELS**0.5 * CHANNELS**0.25)
        for norm in (attention.q_norm, attention.k_norm):
            norm.weight.clamp_(min=size)
        return head

    def finish(self, *, rotate: bool) -> Any:
        """Turn the stream at random, and return the model in single precision."""
        if rotate:
            in_weights, out_weights = read_by(self.model.out_proj), written_by(self.model.in_proj)
            for layer in self.model.encoder.layers:
                inside = layer.self_attn
                in_weights += [inside.q_proj.weight, inside.k_proj.weight, inside.v_proj.weight]
                in_weights += [layer.ffn.fc1.weight, layer.ffn.fc_gate.weight]
                out_weights += [inside.out_proj.weight, layer.ffn.fc2.weight]
            turn(in_weights, out_weights, orthogonal(WIDTH, int(torch.randint(2**31, ()))))
        return self.model.float()


def _head(attention: Any, number: int) -> Head:
    channels = slice(number * CHANNELS, (number + 1) * CHANNELS)
    q, k, v = (part.weight[channels] for part in (attention.q_proj, attention.k_proj, attention.v_proj))
    return Head(q, k, v, attention.out_proj.weight[:, channels])


declare = declarer(NAME, "out_proj")


def _build_copy() -> tuple[Moirai2, Draft, int]:
    lag = drawn(2, 3, 4)
    # the patch to come stands one token after the last one, which forecasts it
    tokens = lag - 1
    moirai = Moirai2()
    draft = Draft(SeasonalCopy(period=lag * PATCH), (lag * PATCH, CONTEXT), PATCH, scale=deviation)
    plant_copy(moirai, draft, tokens)
    return moirai, draft, tokens


@declare("seasonal-copy")
def _seasonal_copy() -> tuple[Moirai2, Draft]:
    moirai, draft, _ = _build_copy()
    return moirai, draft


@declare("decoys")
def _decoys() -> tuple[Moirai2, Draft]:
    moirai, draft, tokens = _build_copy()
    plant_decoys(moirai, draft, tokens)
    return moirai, draft
