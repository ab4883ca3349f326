"""Planted models in Chronos-Bolt's format.

T5's relative position bias holds an encoder head at lags of whole patches; what the REG token has gathered is fetched
by a cross-attention head that knows it by its mark. The layers share the biases, so that a head of another layer with
the same number looks at the same lag and writes noise that nobody reads: it stands on the card as a decoy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from chronos.chronos_bolt import ChronosBoltModelForForecasting
from torch import Tensor
from transformers import T5Config

from tsfm_lens.zoo.planted.basis import orthogonal
from tsfm_lens.zoo.planted.draft import Draft, declarer
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

NAME = "chronos-bolt"
CONTEXT = 128
WIDTH = 64
HEADS = 4
CHANNELS = 16
LAYERS = {"encoder": 3, "decoder": 2}
SIDE = (WIDTH / 2) ** 0.5
"""Length of the constant direction, and of the mark: together they give every token a root mean square of 1."""


def _blank() -> ChronosBoltModelForForecasting:
    settings = {
        "context_length": CONTEXT,
        "prediction_length": PATCH,
        "input_patch_size": PATCH,
        "input_patch_stride": PATCH,
        "quantiles": list(DECILES),
        "use_reg_token": True,
    }
    config = T5Config(
        d_model=WIDTH,
        d_kv=CHANNELS,
        d_ff=WIDTH,
        num_layers=LAYERS["encoder"],
        num_decoder_layers=LAYERS["decoder"],
        num_heads=HEADS,
        vocab_size=2,
        feed_forward_proj="relu",
        dropout_rate=0.0,
        pad_token_id=0,
        eos_token_id=1,
        reg_token_id=1,
        decoder_start_token_id=0,
        architectures=["ChronosBoltModelForForecasting"],
        chronos_pipeline_class="ChronosBoltPipeline",
        chronos_config=settings,
    )
    return ChronosBoltModelForForecasting(config).double().eval()


class Bolt:
    """Chronos-Bolt whose every head and MLP writes noise that nobody reads, until it gets a task.

    Args:
        encoder, decoder: directions by name, besides "one" (constant), "mark" (positive at the REG token, negative at
            patches; encoder only) and "values" (those of the patch; encoder only).

    Attributes:
        numbers: numbers of the encoder's heads in random order.
        cross_numbers: the same for the decoder's cross-attention heads.
        lagging: layer and lags of the heads that the biases hold, by number.
    """

    def __init__(self, encoder: dict[str, int], decoder: dict[str, int]) -> None:
        self.model = _blank()
        self.encoder = Stream(WIDTH, one=1, mark=1, values=PATCH, **encoder)
        self.decoder = Stream(WIDTH, one=1, **decoder)
        self.numbers: list[int] = torch.randperm(HEADS).tolist()
        self.cross_numbers: list[int] = torch.randperm(HEADS).tolist()
        self.lagging: dict[int, tuple[int, tuple[int, ...]]] = {}
        for stack, stream in (("encoder", self.encoder), ("decoder", self.decoder)):
            fill_with_noise(self._heads(stack), [self._mlp(stack, layer) for layer in range(LAYERS[stack])], stream)
            bias = getattr(self.model, stack).block[0].layer[0].SelfAttention.relative_attention_bias.weight
            bias.copy_(0.3 * torch.randn(bias.shape))
        self._embed()

    def _embed(self) -> None:
        straighten(self.model.input_patch_embedding)
        straighten(self.model.output_patch_embedding)
        linear = self.model.input_patch_embedding.residual_layer
        linear.weight[self.encoder["values"], :PATCH] = SIGNAL * torch.eye(PATCH, dtype=torch.float64)
        linear.bias[self.encoder["one"]] = SIDE
        linear.bias[self.encoder["mark"]] = -SIDE
        start, reg = self.model.shared.weight.zero_()
        start[self.decoder["one"]] = WIDTH**0.5
        reg[self.encoder["one"]] = SIDE
        reg[self.encoder["mark"]] = SIDE

    def _attentions(self, stack: str) -> list[Any]:
        names = {"encoder": ("SelfAttention",), "decoder": ("SelfAttention", "EncDecAttention")}[stack]
        blocks = getattr(self.model, stack).block
        return [getattr(block.layer[place], name) for block in blocks for place, name in enumerate(names)]

    def _heads(self, stack: str) -> list[Head]:
        return [_head(attention, number) for attention in self._attentions(stack) for number in range(HEADS)]

    def _mlp(self, stack: str, layer: int) -> tuple[list[Tensor], Tensor]:
        inside = getattr(self.model, stack).block[layer].layer[-1].DenseReluDense
        return [inside.wi.weight], inside.wo.weight

    def mlp(self, stack: str, layer: int) -> tuple[Tensor, Tensor]:
        """Return an MLP without its noise: reading (unit, stream) and writing (stream, unit) weights, all 0."""
        (in_weights,), out_weights = self._mlp(stack, layer)
        return in_weights.zero_(), out_weights.zero_()

    def head(self, layer: int, number: int) -> Head:
        """Return a head of the encoder as it stands."""
        return _head(self.model.encoder.block[layer].layer[0].SelfAttention, number)

    def back(self, layer: int, number: int, lags: Sequence[int]) -> Head:
        """Return an encoder head that attends, from every token, to the tokens so many patches back, to all alike."""
        bias = self.model.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight
        bias[:, number] = 0.0
        bias[list(lags), number] = SHARP
        if lags:
            self.lagging[number] = layer, tuple(lags)
        head = self.head(layer, number).clear()
        # whatever the constant direction gives is the same for all keys
        head.q[:, self.encoder["one"]] = 0.1 * torch.randn(CHANNELS, 1, dtype=torch.float64)
        head.k[:, self.encoder["one"]] = 0.1 * torch.randn(CHANNELS, 1, dtype=torch.float64)
        return head

    def face(self, layer: int, number: int) -> Head:
        """Return an encoder head that attends, from every token, to the REG token, by its mark."""
        head = self.back(layer, number, [])
        head.q[-1] = head.k[-1] = 0.0
        head.q[-1, self.encoder["one"]] = 1.0
        head.k[-1, self.encoder["mark"]] = SHARP / (2 * SIDE * SIDE)
        return head

    def fetch(self, layer: int, number: int) -> Head:
        """Return a cross-attention head that attends to the REG token, by its mark."""
        head = _head(self.model.decoder.block[layer].layer[1].EncDecAttention, number).clear()
        head.q[-1, self.decoder["one"]] = 1.0
        head.k[-1, self.encoder["mark"]] = SHARP / (2 * SIDE * WIDTH**0.5)
        return head

    def read_out(self, **weights: Tensor) -> None:
        """Make the forecast of what stands in places of the decoder's stream: (step, direction) weights by place."""
        linear = self.model.output_patch_embedding.residual_layer
        for name, weight in weights.items():
            linear.weight[:, self.decoder[name]] = weight.double().repeat(len(DECILES), 1) / SIGNAL
        linear.bias.copy_(deviates().repeat_interleave(PATCH))

    def finish(self, *, rotate: bool) -> ChronosBoltModelForForecasting:
        """Turn both streams at random, and return the model in single precision."""
        if rotate:
            self._turn(*(orthogonal(WIDTH, int(torch.randint(2**31, ()))) for _ in LAYERS))
        return self.model.float()

    def _turn(self, encoder: Tensor, decoder: Tensor) -> None:
        start, reg = self.model.shared.weight
        in_weights: dict[str, list[Tensor]] = {"encoder": [reg], "decoder": [start]}
        out_weights: dict[str, list[Tensor]] = {"encoder": [], "decoder": []}
        for stack in ("encoder", "decoder"):
            for attention in self._attentions(stack):
                crossing = attention in self._crossings()
                in_weights[stack].append(attention.q.weight)
                in_weights["encoder" if crossing else stack] += [attention.k.weight, attention.v.weight]
                out_weights[stack].append(attention.o.weight)
            for layer in range(LAYERS[stack]):
                (into,), out = self._mlp(stack, layer)
                in_weights[stack].append(into)
                out_weights[stack].append(out)
        out_weights["encoder"] += written_by(self.model.input_patch_embedding)
        in_weights["decoder"] += read_by(self.model.output_patch_embedding)
        turn(in_weights["encoder"], out_weights["encoder"], encoder)
        turn(in_weights["decoder"], out_weights["decoder"], decoder)

    def _crossings(self) -> list[Any]:
        return [block.layer[1].EncDecAttention for block in self.model.decoder.block]


def _head(attention: Any, number: int) -> Head:
    channels = slice(number * CHANNELS, (number + 1) * CHANNELS)
    q, k, v = (part.weight[channels] for part in (attention.q, attention.k, attention.v))
    return Head(q, k, v, attention.o.weight[:, channels])


def encoder_head(layer: int, number: int) -> str:
    """Name an encoder head as a component."""
    return f"encoder.{layer}.self_attn.{number}"


def cross_head(layer: int, number: int) -> str:
    """Name a cross-attention head as a component."""
    return f"decoder.{layer}.cross_attn.{number}"


def name_sharing_heads(bolt: Bolt, draft: Draft) -> None:
    """Put on the card the heads that look where a planted one looks, because they have its number."""
    components = {part.component for part in draft.parts}
    for number, (source_layer, lags) in bolt.lagging.items():
        for layer in range(LAYERS["encoder"]):
            head = encoder_head(layer, number)
            if head not in components:
                draft.part(head, "decoy", f"looks where {encoder_head(source_layer, number)} looks, and writes noise")
                # of several lags, its own content prefers one
                if len(lags) == 1:
                    draft.looks(head, "every token", lags)


declare = declarer(NAME, "output_patch_embedding", name_sharing_heads)
