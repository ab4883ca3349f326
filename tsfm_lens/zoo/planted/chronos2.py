"""Planted models in Chronos-2's format.

Rotary positions hold a time-attention head at a fixed lag; group attention carries a known covariate to the target.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from chronos.chronos2 import Chronos2Model
from chronos.chronos2.config import Chronos2CoreConfig

from tsfm_lens.zoo.planted.basis import orthogonal
from tsfm_lens.zoo.planted.draft import Draft, declarer, drawn
from tsfm_lens.zoo.planted.patches import (
    DECILES,
    FLAG,
    LOUD,
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

NAME = "chronos-2"
CONTEXT = 128
WIDTH = 64
HEADS = 4
CHANNELS = 16
LAYERS = 3
AHEAD = 2
"""Patches of one forecast."""
HORIZON = AHEAD * PATCH
ONE = WIDTH**0.5
"""Length of the constant direction, which gives every token a root mean square of 1."""
KINDS = ("time_attn", "group_attn")


def _blank(*, arcsinh: bool) -> Chronos2Model:
    settings = {
        "context_length": CONTEXT,
        "input_patch_size": PATCH,
        "input_patch_stride": PATCH,
        "output_patch_size": PATCH,
        "max_output_patches": AHEAD,
        "quantiles": list(DECILES),
        "use_reg_token": True,
        "use_arcsinh": arcsinh,
        "time_encoding_scale": CONTEXT,
    }
    config = Chronos2CoreConfig(
        d_model=WIDTH,
        d_kv=CHANNELS,
        d_ff=WIDTH,
        num_layers=LAYERS,
        num_heads=HEADS,
        # the gain of the norms
        initializer_factor=1.0,
        dropout_rate=0.0,
        vocab_size=2,
        pad_token_id=0,
        reg_token_id=1,
        architectures=["Chronos2Model"],
        chronos_pipeline_class="Chronos2Pipeline",
        chronos_config=settings,
    )
    return Chronos2Model(config).double().eval()


class Chronos2:
    """Chronos-2 whose every head and MLP writes noise that nobody reads, until it gets a task.

    The stream has directions "one" (constant), "known" (`FLAG` times the share of the patch that is observed), "values"
    (those of the patch) and "found" (what is forecast, read at the tokens to come).

    Args:
        arcsinh: whether standardised values pass through the inverse hyperbolic sine, as in the published model.

    Attributes:
        numbers: head numbers in random order.
    """

    layers = LAYERS

    def __init__(self, *, arcsinh: bool) -> None:
        self.model = _blank(arcsinh=arcsinh)
        self.stream = Stream(WIDTH, one=1, known=1, values=PATCH, found=PATCH)
        self.numbers: list[int] = torch.randperm(HEADS).tolist()
        fill_with_noise(
            [_head(attention, number) for attention in self._attentions() for number in range(HEADS)],
            [([mlp.wi.weight], mlp.wo.weight) for mlp in self._mlps()],
            self.stream,
        )
        straighten(self.model.input_patch_embedding)
        straighten(self.model.output_patch_embedding)
        same = torch.eye(PATCH, dtype=torch.float64)
        # a patch comes as its times, its values, and whether they are known
        linear = self.model.input_patch_embedding.residual_layer
        linear.weight[self.stream["values"], PATCH : 2 * PATCH] = SIGNAL * same
        linear.weight[self.stream["known"], 2 * PATCH :] = FLAG / PATCH
        linear.bias[self.stream["one"]] = ONE
        self.model.shared.weight.zero_()[:, self.stream["one"]] = ONE
        readout = self.model.output_patch_embedding.residual_layer
        readout.weight[:, self.stream["found"]] = same.repeat(len(DECILES), 1) / SIGNAL
        readout.bias.copy_(deviates().repeat_interleave(PATCH))

    def _attentions(self) -> list[Any]:
        return [block.layer[place].self_attention for block in self.model.encoder.block for place in range(len(KINDS))]

    def _mlps(self) -> list[Any]:
        return [block.layer[2].mlp for block in self.model.encoder.block]

    def head(self, kind: str, layer: int, number: int) -> Head:
        """Return a head without its noise, all 0."""
        return _head(self._attentions()[layer * len(KINDS) + KINDS.index(kind)], number).clear()

    def named(self, layer: int, number: int) -> str:
        """Name a time-attention head as a component."""
        return f"{layer}.time_attn.{number}"

    def back(self, layer: int, number: int, tokens: int) -> Head:
        """Return a time-attention head that attends, from every token, so many tokens back."""
        head = self.head("time_attn", layer, number)
        frequencies = self._attentions()[0].rope_embed.inv_freq
        far = CONTEXT // PATCH + 1 + AHEAD
        query, key = rotary_query_and_key(frequencies, tokens, far)
        # a pair is a channel and the one half of all channels further on
        head.q[:, self.stream["one"]] = query.T.reshape(-1, 1) / ONE
        head.k[:, self.stream["one"]] = key.T.reshape(-1, 1) / ONE
        return head

    def known(self, layer: int, number: int) -> Head:
        """Return a group-attention head that attends to the series whose values are known at this time."""
        head = self.head("group_attn", layer, number)
        head.q[-1, self.stream["one"]] = 1 / ONE
        # one known value of a patch is enough
        head.k[-1, self.stream["known"]] = PATCH * SHARP / FLAG
        return head

    def finish(self, *, rotate: bool) -> Chronos2Model:
        """Turn the stream at random, and return the model in single precision."""
        if rotate:
            in_weights = [self.model.shared.weight, *read_by(self.model.output_patch_embedding)]
            out_weights = written_by(self.model.input_patch_embedding)
            for attention in self._attentions():
                in_weights += [attention.q.weight, attention.k.weight, attention.v.weight]
                out_weights.append(attention.o.weight)
            for mlp in self._mlps():
                in_weights.append(mlp.wi.weight)
                out_weights.append(mlp.wo.weight)
            turn(in_weights, out_weights, orthogonal(WIDTH, int(torch.randint(2**31, ()))))
        return self.model.float()


def _head(attention: Any, number: int) -> Head:
    channels = slice(number * CHANNELS, (number + 1) * CHANNELS)
    q, k, v = (part.weight[channels] for part in (attention.q, attention.k, attention.v))
    return Head(q, k, v, attention.o.weight[:, channels])


declare = declarer(NAME, "output_patch_embedding")


def _build_copy() -> tuple[Chronos2, Draft, int]:
    lag = drawn(2, 3, 4)
    # the REG token stands between the context and what is to come
    tokens = lag + 1
    chronos = Chronos2(arcsinh=True)
    draft = Draft(SeasonalCopy(period=lag * PATCH), (lag * PATCH, CONTEXT), HORIZON, squash=np.arcsinh)
    plant_copy(chronos, draft, tokens)
    return chronos, draft, tokens


@declare("seasonal-copy")
def _seasonal_copy() -> tuple[Chronos2, Draft]:
    chronos, draft, _ = _build_copy()
    return chronos, draft


@declare("decoys")
def _decoys() -> tuple[Chronos2, Draft]:
    chronos, draft, tokens = _build_copy()
    plant_decoys(chronos, draft, tokens)
    layer, number = LAYERS - 1, drawn(*range(HEADS))
    chronos.known(layer, number).carry(chronos.stream["found"], chronos.stream.rest("found"), gain=LOUD)
    task = f"writes {LOUD} times what is found to where nobody reads"
    draft.part(f"{layer}.group_attn.{number}", "decoy", task)
    return chronos, draft
