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
from tsfm_lens.zoo.planted.draft import Draft, declarer, draw_choice
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
    head_of,
    read_by,
    straighten,
    turn,
    written_by,
)
from tsfm_lens.zoo.planted.rules import Gate, LinearTrend, LocalMean, SeasonalCopy

NAME = "chronos-bolt"
CONTEXT = 128
WIDTH = 64
HEADS = 4
CHANNELS = 16
LAYERS = {"encoder": 3, "decoder": 2}
SIDE = (WIDTH / 2) ** 0.5
"""Length of the constant direction, and of the mark: together they give every token a root mean square of 1."""

SHARES = (0.6, 0.4, 0.4)
"""Shares of the copy that the primary head, its partner and, without the primary, the backup write."""
TOLERANCE = 0.25
"""Mean absolute difference of two periods, in standard deviations of the context, up to which they are a season."""
HALF_OPEN = 4e-3
"""Width of the band around the tolerance within which the gate is half open; narrower, and rounding moves the flag."""
LARGEST = 1.1 * (2 * CONTEXT) ** 0.5
"""More than any two values of a context can differ, in their standard deviations."""


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
        return [
            head_of(attention, number, CHANNELS) for attention in self._attentions(stack) for number in range(HEADS)
        ]

    def _mlp(self, stack: str, layer: int) -> tuple[list[Tensor], Tensor]:
        inside = getattr(self.model, stack).block[layer].layer[-1].DenseReluDense
        return [inside.wi.weight], inside.wo.weight

    def mlp(self, stack: str, layer: int) -> tuple[Tensor, Tensor]:
        """Return an MLP without its noise: reading (unit, stream) and writing (stream, unit) weights, all 0."""
        (in_weights,), out_weights = self._mlp(stack, layer)
        return in_weights.zero_(), out_weights.zero_()

    def head(self, layer: int, number: int) -> Head:
        """Return a head of the encoder as it stands."""
        return head_of(self.model.encoder.block[layer].layer[0].SelfAttention, number, CHANNELS)

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
        head = head_of(self.model.decoder.block[layer].layer[1].EncDecAttention, number, CHANNELS).clear()
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


@declare("seasonal-copy")
def _seasonal_copy() -> tuple[Bolt, Draft]:
    bolt, draft, _ = _build_copy(lag=draw_choice(2, 3, 4))
    return bolt, draft


def _build_copy(lag: int) -> tuple[Bolt, Draft, str]:
    """Build a seasonal copy: an encoder head copies the patch `lag` patches back, a cross-attention head fetches it."""
    layer, late = draw_choice(0, 1, 2), draw_choice(0, 1)
    bolt = Bolt({"copy": PATCH}, {"copy": PATCH})
    draft = Draft(SeasonalCopy(period=lag * PATCH), (lag * PATCH, CONTEXT), PATCH)
    head = encoder_head(layer, bolt.numbers[0])
    bolt.back(layer, bolt.numbers[0], [lag]).carry(bolt.encoder["values"], bolt.encoder["copy"])
    draft.part(head, "mechanism", f"copies the patch {lag} patches back to the REG token")
    draft.looks(head, "every token", [lag])
    cross = _fetch(bolt, draft, late, copy="copy")
    bolt.read_out(copy=torch.eye(PATCH))
    draft.path(head, cross, "output")
    return bolt, draft, head


def _fetch(bolt: Bolt, draft: Draft, layer: int, **places: str) -> str:
    """Add a cross-attention head that carries places of the REG token to places of the decoder."""
    number = bolt.cross_numbers[0]
    head, channel = bolt.fetch(layer, number), 0
    for source, target in places.items():
        head.carry(bolt.encoder[source], bolt.decoder[target], channel=channel)
        channel += bolt.encoder.size(source)
    cross = cross_head(layer, number)
    draft.part(cross, "mechanism", f"fetches {' and '.join(places)} from the REG token")
    draft.looks(cross, "forecast token", [0])
    return cross


@declare("backup")
def _backup() -> tuple[Bolt, Draft]:
    lag, early, late = draw_choice(2, 3, 4), draw_choice(0, 1), draw_choice(0, 1)
    bolt = Bolt({"copy": PATCH, "flag": 1}, {"copy": PATCH})
    draft = Draft(SeasonalCopy(period=lag * PATCH), (lag * PATCH, CONTEXT), PATCH)
    stream, (primary, partner, backup, _) = bolt.encoder, bolt.numbers
    last = draw_choice(*range(early + 1, 3))
    for layer, number, share in zip((early, early, last), (primary, partner, backup), SHARES, strict=True):
        bolt.back(layer, number, [lag]).carry(stream["values"], stream["copy"], gain=share)
    bolt.head(early, primary).carry(stream["one"], stream["flag"], gain=FLAG / SIDE, channel=PATCH)
    # the primary's flag turns the backup's query to the REG token itself, which holds no values
    head = bolt.head(last, backup)
    head.q[-1] = head.k[-1] = 0.0
    head.q[-1, stream["flag"]] = SHARP / (SIDE * FLAG)
    head.k[-1, stream["mark"]] = 1.0
    names = [encoder_head(early, primary), encoder_head(early, partner), encoder_head(last, backup)]
    for name, share in zip(names[:2], SHARES, strict=False):
        draft.part(name, "mechanism", f"copies {share} of the patch {lag} patches back to the REG token")
        draft.looks(name, "every token", [lag])
    task = (
        f"looks at the REG token and writes nothing, unless its primary is gone: then copies {SHARES[2]} of the patch"
    )
    draft.part(names[2], "backup", task, stands_in_for=names[0])
    draft.looks(names[2], "last token", [0])
    cross = _fetch(bolt, draft, late, copy="copy")
    bolt.read_out(copy=torch.eye(PATCH))
    draft.path(names[0], names[2], cross, "output")
    for name in names[:2]:
        draft.path(name, cross)
    return bolt, draft


@declare("local-mean")
def _local_mean() -> tuple[Bolt, Draft]:
    patches, layer, late = draw_choice(2, 3, 4), draw_choice(0, 1, 2), draw_choice(0, 1)
    bolt = Bolt({"level": 1}, {"level": 1})
    draft = Draft(LocalMean(width=patches * PATCH), (patches * PATCH, CONTEXT), PATCH)
    head = _level(bolt, draft, layer, 0, range(1, patches + 1), "level")
    cross = _fetch(bolt, draft, late, level="level")
    bolt.read_out(level=torch.ones(PATCH, 1))
    draft.path(head, cross, "output")
    return bolt, draft


def _level(bolt: Bolt, draft: Draft, layer: int, which: int, lags: range, name: str) -> str:
    """Add a head that attends to some patches alike and writes the mean of their values."""
    number = bolt.numbers[which]
    bolt.back(layer, number, lags).carry(bolt.encoder["values"], bolt.encoder[name])
    head = encoder_head(layer, number)
    draft.part(head, "mechanism", f"writes the mean of the patches {lags[0]} to {lags[-1]} back")
    draft.looks(head, "every token", lags)
    return head


@declare("trend")
def _trend() -> tuple[Bolt, Draft]:
    patches, apart = draw_choice(1, 2), draw_choice(2, 3, 4)
    at = draw_choice(0, 1, 2)
    bolt = Bolt({"level": 1, "early": 1, "slope": 1}, {"level": 1, "slope": 1})
    rule = LinearTrend(width=patches * PATCH, lag=apart * PATCH)
    draft = Draft(rule, (rule.width + rule.lag, CONTEXT), PATCH)
    stream = bolt.encoder
    level = _level(bolt, draft, draw_choice(*range(at + 1)), 0, range(1, patches + 1), "level")
    early = _level(bolt, draft, draw_choice(*range(at + 1)), 1, range(apart + 1, apart + patches + 1), "early")
    in_weights, out_weights = bolt.mlp("encoder", at)
    # relu(x) - relu(-x) is x
    for unit, sign in enumerate((1.0, -1.0)):
        in_weights[unit, stream["level"]] = sign
        in_weights[unit, stream["early"]] = -sign
        out_weights[stream["slope"], unit] = sign
    mlp = draft.part(f"encoder.{at}.mlp", "mechanism", "subtracts the early level from the late one")
    cross = _fetch(bolt, draft, draw_choice(0, 1), level="level", slope="slope")
    ahead = torch.arange(1, PATCH + 1) + (rule.width - 1) / 2
    bolt.read_out(level=torch.ones(PATCH, 1), slope=ahead[:, None] / rule.lag)
    draft.path(level, cross, "output")
    draft.path(level, mlp, cross)
    draft.path(early, mlp)
    return bolt, draft


@declare("gate")
def _gate() -> tuple[Bolt, Draft]:
    at, late = draw_choice(0, 1), draw_choice(0, 1)
    bolt = Bolt({"last": PATCH, "before": PATCH, "apart": 1, "open": 1}, {"last": PATCH, "open": 1, "copy": PATCH})
    rule = Gate(period=PATCH, tolerance=TOLERANCE, unit="standard deviation")
    draft = Draft(rule, (2 * PATCH, CONTEXT), PATCH)
    heads = []
    for which, (name, lag) in enumerate((("last", 1), ("before", 2))):
        layer, number = draw_choice(*range(at + 1)), bolt.numbers[which]
        bolt.back(layer, number, [lag]).carry(bolt.encoder["values"], bolt.encoder[name])
        heads.append(encoder_head(layer, number))
        draft.part(heads[-1], "mechanism", f"copies the patch {lag} back to the REG token")
        draft.looks(heads[-1], "every token", [lag])
    compare_mlp = _compare(bolt, draft, at)
    decide_mlp = _decide(bolt, draft, draw_choice(*range(at + 1, 3)))
    cross = _fetch(bolt, draft, late, last="last", open="open")
    gate_mlp = _let_through(bolt, draft, draw_choice(*range(late, 2)))
    last = torch.zeros(PATCH, PATCH)
    last[:, -1] = 1.0
    bolt.read_out(last=last, copy=torch.eye(PATCH))
    draft.path(heads[0], compare_mlp, decide_mlp, cross, gate_mlp, "output")
    draft.path(heads[1], compare_mlp)
    draft.path(heads[0], cross, "output")
    return bolt, draft


def _compare(bolt: Bolt, draft: Draft, layer: int) -> str:
    """Add an MLP that writes the mean absolute difference of the last two patches."""
    in_weights, out_weights = bolt.mlp("encoder", layer)
    same = torch.eye(PATCH, dtype=in_weights.dtype)
    in_weights[: 2 * PATCH, bolt.encoder["last"]] = torch.cat([same, -same])
    in_weights[: 2 * PATCH, bolt.encoder["before"]] = torch.cat([-same, same])
    out_weights[bolt.encoder["apart"], : 2 * PATCH] = 1 / PATCH
    return draft.part(f"encoder.{layer}.mlp", "mechanism", "writes the mean absolute difference of two patches")


def _decide(bolt: Bolt, draft: Draft, layer: int) -> str:
    """Add an MLP that writes a flag if the difference is within the tolerance."""
    in_weights, out_weights = bolt.mlp("encoder", layer)
    gain = (FLAG / (HALF_OPEN * SIGNAL)) ** 0.5
    for unit, (side, sign) in enumerate(((0.5, 1.0), (-0.5, -1.0))):
        in_weights[unit, bolt.encoder["one"]] = gain * (TOLERANCE + side * HALF_OPEN) * SIGNAL / SIDE
        in_weights[unit, bolt.encoder["apart"]] = -gain
        out_weights[bolt.encoder["open"], unit] = sign * gain
    return draft.part(f"encoder.{layer}.mlp", "mechanism", "writes a flag if that is a season")


def _let_through(bolt: Bolt, draft: Draft, layer: int) -> str:
    """Add an MLP that writes the copy's distance from the last value if the flag is set, else nothing."""
    in_weights, out_weights = bolt.mlp("decoder", layer)
    # all units are shut below -LARGEST, and open above it; what opens them is subtracted again by the last one
    in_weights[: PATCH + 1, bolt.decoder["open"]] = 2 * LARGEST * SIGNAL / FLAG
    in_weights[: PATCH + 1, bolt.decoder["one"]] = -LARGEST * SIGNAL / WIDTH**0.5
    last = bolt.decoder["last"]
    in_weights[:PATCH, last] += torch.eye(PATCH, dtype=in_weights.dtype)
    in_weights[:PATCH, last.stop - 1] -= 1.0
    out_weights[bolt.decoder["copy"], :PATCH] = torch.eye(PATCH, dtype=in_weights.dtype)
    out_weights[bolt.decoder["copy"], PATCH] = -1.0
    return draft.part(f"decoder.{layer}.mlp", "mechanism", "lets the copy through if the flag is set")


@declare("decoys")
def _decoys() -> tuple[Bolt, Draft]:
    lag = draw_choice(2, 3, 4)
    bolt, draft, _ = _build_copy(lag)
    values, rest = bolt.encoder["values"], bolt.encoder.rest("values")
    like, loud, sharp = ((draw_choice(0, 1, 2), number) for number in bolt.numbers[1:])
    bolt.back(*like, [lag]).carry(values, rest)
    draft.part(encoder_head(*like), "decoy", "looks where the copying head looks and copies, to where nobody reads")
    draft.looks(encoder_head(*like), "every token", [lag])
    bolt.back(*loud, [1]).carry(values, rest, gain=LOUD)
    draft.part(encoder_head(*loud), "decoy", f"writes {LOUD} times the patch before to where nobody reads")
    draft.looks(encoder_head(*loud), "every token", [1])
    bolt.face(*sharp).whisper(bolt.encoder)
    draft.part(encoder_head(*sharp), "decoy", "looks at the REG token alone and writes noise")
    draft.looks(encoder_head(*sharp), "last token", [0])
    crosses = [(draw_choice(0, 1), number) for number in bolt.cross_numbers[1:3]]
    bolt.fetch(*crosses[0]).carry(bolt.encoder["copy"], bolt.decoder.rest("copy"), gain=LOUD)
    draft.part(cross_head(*crosses[0]), "decoy", f"fetches {LOUD} times the copy to where nobody reads")
    bolt.fetch(*crosses[1]).whisper(bolt.decoder)
    draft.part(cross_head(*crosses[1]), "decoy", "looks at the REG token alone and writes noise")
    for cross in crosses:
        draft.looks(cross_head(*cross), "forecast token", [0])
    layer = draw_choice(0, 1, 2)
    in_weights, out_weights = bolt.mlp("encoder", layer)
    same = torch.eye(PATCH, dtype=in_weights.dtype)
    in_weights[:PATCH, values], out_weights[rest, :PATCH] = same, LOUD * same
    draft.part(f"encoder.{layer}.mlp", "decoy", f"writes {LOUD} times the positive values to where nobody reads")
    return bolt, draft
