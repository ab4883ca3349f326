"""Planted models in Chronos-Bolt's format.

Encoder heads find patches by position biases, cross-attention heads find the REG token
by its mark. Read :class:`Bolt` first; the functions declared below it each build one
mechanism. What all patch formats share is in :mod:`tsfm_lens.zoo.planted.patches`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from chronos.chronos_bolt import ChronosBoltModelForForecasting
from torch import Tensor
from transformers import T5Config

from tsfm_lens.zoo.planted import patches
from tsfm_lens.zoo.planted.card import Query, Role
from tsfm_lens.zoo.planted.draft import HALF_OPEN, Draft, draw_choice, steps_ago
from tsfm_lens.zoo.planted.patches import (
    CHANNELS,
    CONTEXT,
    FLAG,
    LOUD,
    PATCH,
    SHARP,
    SIGNAL,
    WIDTH,
    Head,
    Mlp,
    Stream,
)
from tsfm_lens.zoo.planted.rules import (
    Gate,
    LinearTrend,
    LocalMean,
    Reads,
    SeasonalCopy,
)

NAME = "chronos-bolt"
LAYERS = {"encoder": 3, "decoder": 2}
SIDE = (WIDTH / 2) ** 0.5
"""Length of the constant direction, and of the mark.

Together they give every token a root mean square of 1, up to what the values add, so
that the norm before each layer leaves it as it is.
"""
SHARES = (0.6, 0.4, 0.4)
"""Shares of the copy that the primary head, its partner and the backup write.

The backup writes its share only without the primary.
"""
TOLERANCE = 0.25
"""Largest mean absolute difference of two periods that count as equal.

It is in standard deviations of the context.
"""
# of n values, two that differ by d alone give a variance of d² / (2n) or more
# (Szőkefalvi-Nagy's inequality)
LARGEST = 1.1 * (2 * CONTEXT) ** 0.5
"""More than any two values of a context can differ, in their standard deviations."""

declare = partial(patches.declare, architecture=NAME)

Weights = Mapping[str, Tensor]
"""What hidden units read from blocks or write to them, (unit, coordinate) by block."""


class Bolt(patches.PatchModel):
    """Chronos-Bolt, in which mechanisms are planted.

    The stream of its encoder also has "mark", positive at the REG token and negative at
    patches.
    """

    layers = LAYERS["encoder"]
    one = SIDE

    def __init__(
        self, encoder: dict[str, int], decoder: dict[str, int], rule: Any, needed: int
    ) -> None:
        self.draft = Draft(rule, (needed + max(rule.ago), CONTEXT), PATCH)
        config = T5Config(
            **patches.SIZES,
            # enough that every distance to an old patch has its own bucket
            relative_attention_num_buckets=64 if any(rule.ago) else 32,
            num_layers=LAYERS["encoder"],
            num_decoder_layers=LAYERS["decoder"],
            feed_forward_proj="relu",
            eos_token_id=1,
            decoder_start_token_id=0,
            architectures=["ChronosBoltModelForForecasting"],
            chronos_pipeline_class="ChronosBoltPipeline",
            chronos_config={**patches.PATCHES, "prediction_length": PATCH},
        )
        self.encoder = Stream(WIDTH, one=1, mark=1, values=PATCH, **encoder)
        self.decoder = Stream(WIDTH, one=1, **decoder)
        # number of a planted head -> its layer and the lags of its position bias, which
        # T5 shares among the heads of this number in all layers
        self.lagging: dict[int, tuple[int, tuple[int, ...]]] = {}
        model = ChronosBoltModelForForecasting(config).double().eval()
        # the base class fills all weights, so the special ones are set after it
        super().__init__(model, {"encoder": self.encoder, "decoder": self.decoder})
        model.input_patch_embedding.residual_layer.bias[self.encoder["mark"]] = -SIDE
        # row 0 is the padding token, with which the decoder also starts; row 1 is REG
        start, reg = model.shared.weight.zero_()
        start[self.decoder["one"]] = WIDTH**0.5
        reg[self.encoder["one"]] = SIDE
        reg[self.encoder["mark"]] = SIDE

    def attentions(self, stack: str) -> list[Any]:
        """Return the native attentions of a stack."""
        attentions = []
        for block in getattr(self.model, stack).block:
            attentions.append(block.layer[0].SelfAttention)
            if stack == "decoder":
                attentions.append(block.layer[1].EncDecAttention)
        return attentions

    def mlps(self, stack: str) -> list[Mlp]:
        """Return the weights of each MLP of a stack."""
        feed_forwards = [
            block.layer[-1].DenseReluDense for block in getattr(self.model, stack).block
        ]
        return [([mlp.wi.weight], mlp.wo.weight) for mlp in feed_forwards]

    def embeddings(self, stack: str) -> list[Tensor]:
        """Return the REG token's embedding, or the start token's."""
        # both stacks have the same table; each rotates only the row that it reads
        return [self.model.shared.weight[int(stack == "encoder")]]

    def keys_from(self, stack: str, attention: Any) -> str:
        """Name the stack whose stream keys and values read."""
        # self-attention and cross-attention take turns in the list
        if attention in self.attentions("decoder")[1::2]:
            return "encoder"
        return stack

    def plant_mlp(
        self,
        stack: str,
        layer: int,
        does: str,
        reads: Weights,
        writes: Weights,
        role: Role = "mechanism",
    ) -> str:
        """Plant an MLP, by what its units read from blocks and write to them.

        Returns:
            Name of the MLP.
        """
        (in_weights,), out_weights = self.mlps(stack)[layer]
        stream = self.streams[stack]
        for weights, sides in ((in_weights, reads), (out_weights.T, writes)):
            weights.zero_()
            for block, values in sides.items():
                weights[: len(values), stream[block]] = values.to(weights)
        return self.draft.part(f"{stack}.{layer}.mlp", role, does)

    def head(self, layer: int, number: int) -> Head:
        """Return a head of the encoder with its present weights."""
        return self.view_head(self.attentions("encoder")[layer], number)

    def back(self, layer: int, number: int, lags: Sequence[int]) -> Head:
        """Return an encoder head that attends from every token to earlier patches.

        ``lags`` are the distances in patches; the head attends to all of them equally.
        """
        bias = self.attentions("encoder")[0].relative_attention_bias.weight
        # all buckets first, since the base class has filled the table with noise
        bias[:, number] = 0.0
        # T5 gives the first half of its buckets to earlier keys, and half of these to
        # single distances, so that the bucket of so near a patch is its distance
        bias[list(lags), number] = SHARP
        if lags:
            self.lagging[number] = layer, tuple(lags)
        head = self.head(layer, number).clear()
        # whatever the constant direction gives is the same for all keys
        for weight in (head.q, head.k):
            noise = torch.randn(CHANNELS, 1, dtype=torch.float64)
            weight[:, self.encoder["one"]] = 0.1 * noise
        return head

    def lags(self, lags: Collection[int]) -> list[int]:
        """Convert lags within a stretch that the rule reads to lags in the context.

        Both are in patches, counted back from the end, and each lag is returned for
        every stretch.

        Returns:
            The lags, in patches.
        """
        return [lag + steps // PATCH for steps in self.draft.rule.ago for lag in lags]

    def fetch(self, layer: int, number: int) -> Head:
        """Return a cross-attention head that attends to the REG token, by its mark."""
        head = self.view_head(self.attentions("decoder")[2 * layer + 1], number).clear()
        head.q[-1, self.decoder["one"]] = 1.0
        # T5 does not divide scores; the mark differs by 2 · SIDE between the REG token
        # and a patch, and the query reads √WIDTH
        head.k[-1, self.encoder["mark"]] = SHARP / (2 * SIDE * WIDTH**0.5)
        return head

    def rest(self, layer: int, number: int) -> tuple[Head, str, Query]:
        """Return a head that finds the REG token by its mark, so it has no lags."""
        head = self.back(layer, number, [])
        head.q[-1] = head.k[-1] = 0.0
        head.q[-1, self.encoder["one"]] = 1.0
        # in the encoder, "one" has the length SIDE, and the mark differs by 2 · SIDE
        head.k[-1, self.encoder["mark"]] = SHARP / (2 * SIDE * SIDE)
        return head, "the REG token", "last token"

    def named(self, layer: int, number: int) -> str:
        """Name a head of the encoder as a component."""
        return f"encoder.{layer}.self_attn.{number}"

    def complete(self) -> None:
        """Add the heads that share a planted head's position bias to the draft.

        They look where it looks, because they have its number in another layer.
        """
        components = {part.component for part in self.draft.parts}
        for number, (source_layer, lags) in self.lagging.items():
            source = self.named(source_layer, number)
            task = f"looks where {source} looks, and writes noise"
            # with several lags, the noise in its queries and keys makes it prefer one,
            # so that the card does not say where it looks
            query: Query | None = "every token" if len(lags) == 1 else None
            for layer in range(self.layers):
                head = self.named(layer, number)
                if head not in components:
                    self.draft.part(head, "decoy", task, query, lags)

    def plant_fetch(self, layer: int, index: int = 0, **blocks: str) -> str:
        """Plant a cross-attention head that carries blocks of the REG token's stream.

        ``blocks`` maps blocks of the encoder's stream to blocks of the decoder's.

        Returns:
            Name of the head.
        """
        number = self.numbers["decoder"][index]
        channel = 0
        head = self.fetch(layer, number)
        for source, target in blocks.items():
            head.carry(self.encoder[source], self.decoder[target], channel=channel)
            # blocks that one head carries lie side by side in its channels
            channel += self.encoder.size(source)
        task = f"fetches {' and '.join(blocks)} from the REG token"
        return self.draft.part(
            cross_head(layer, number), "mechanism", task, "forecast token", [0]
        )

    def plant_back(
        self,
        layer: int,
        index: int,
        lags: Sequence[int],
        name: str,
        does: str,
        gain: float = 1.0,
    ) -> str:
        """Plant a head that attends equally to some patches and writes their mean.

        If the block that it writes to has one direction, it writes the mean of all
        their values. Lags are in the whole context, see :meth:`lags`.

        Returns:
            Name of the head.
        """
        number = self.numbers["encoder"][index]
        self.back(layer, number, lags).carry(
            self.encoder["values"], self.encoder[name], gain=gain
        )
        task = f"{does} the patch {', '.join(map(str, lags))} back to the REG token"
        name = self.named(layer, number)
        return self.draft.part(name, "mechanism", task, "every token", lags)


def cross_head(layer: int, number: int) -> str:
    """Name a cross-attention head as a component."""
    return f"decoder.{layer}.cross_attn.{number}"


def copying(reads: Reads, lag: int, **blocks: int) -> tuple[Bolt, list[int]]:
    """Return a model for a copy of the patch some patches back, and the lags to it.

    ``blocks`` are further blocks of the encoder.
    """
    period = lag * PATCH
    rule = SeasonalCopy(period=period, ago=steps_ago(reads, period, PATCH))
    bolt = Bolt({"copy": PATCH, **blocks}, {"copy": PATCH}, rule, period)
    bolt.read_out(copy=torch.eye(PATCH))
    return bolt, bolt.lags([lag])


def _seasonal_copy(reads: Reads, *, decoys: bool = False) -> Bolt:
    """Build a copy of an older patch, by an encoder and a cross-attention head."""
    lag = draw_choice(2, 3, 4)
    layer = draw_choice(0, 1, 2)
    cross_layer = draw_choice(0, 1)
    bolt, lags = copying(reads, lag)
    head = bolt.plant_back(layer, 0, lags, "copy", "copies")
    cross = bolt.plant_fetch(cross_layer, copy="copy")
    bolt.draft.path(head, cross, "output")
    if decoys:
        bolt.plant_decoys(lags)
        _plant_later_decoys(bolt)
    return bolt


declare("seasonal-copy")(_seasonal_copy)
declare("decoys")(partial(_seasonal_copy, decoys=True))


@declare("backup")
def _backup(reads: Reads) -> Bolt:
    """Build a copy by two heads, with a third that stands in for the first."""
    lag = draw_choice(2, 3, 4)
    early = draw_choice(0, 1)
    cross_layer = draw_choice(0, 1)
    bolt, lags = copying(reads, lag, flag=1)
    stream = bolt.encoder
    primary, _, backup, _ = bolt.numbers["encoder"]
    # later than the primary, whose flag the backup must read
    last = draw_choice(*range(early + 1, 3))
    primary_name, partner_name = (
        bolt.plant_back(
            early, index, lags, "copy", f"copies {SHARES[index]} of", SHARES[index]
        )
        for index in (0, 1)
    )
    head = bolt.back(last, backup, lags)
    head.carry(stream["values"], stream["copy"], gain=SHARES[2])
    # the channels before `PATCH` carry the copy; every attended token has the same
    # "one", so that the flag does not depend on the series
    bolt.head(early, primary).carry(
        stream["one"], stream["flag"], gain=FLAG / SIDE, channel=PATCH
    )
    # the primary's flag turns the backup's query to the REG token itself, which holds
    # no values
    head.q[-1] = head.k[-1] = 0.0
    # with the flag, REG gains SHARP and patches lose as much, which outweighs the bias
    # of SHARP on the copied patch
    head.q[-1, stream["flag"]] = SHARP / (SIDE * FLAG)
    head.k[-1, stream["mark"]] = 1.0
    task = (
        "looks at the REG token and writes nothing, unless its primary is gone: "
        f"then copies {SHARES[2]} of the patch"
    )
    backup_name = bolt.draft.part(
        bolt.named(last, backup),
        "backup",
        task,
        "last token",
        [0],
        stands_in_for=primary_name,
    )
    cross = bolt.plant_fetch(cross_layer, copy="copy")
    bolt.draft.path(primary_name, backup_name, cross, "output")
    for name in (primary_name, partner_name):
        bolt.draft.path(name, cross)
    return bolt


@declare("local-mean")
def _local_mean(reads: Reads) -> Bolt:
    """Build the mean of the last patches, by equal attention to them."""
    n_patches = draw_choice(2, 3, 4)
    layer = draw_choice(0, 1, 2)
    cross_layer = draw_choice(0, 1)
    distance = n_patches * PATCH
    rule = LocalMean(width=distance, ago=steps_ago(reads, distance, PATCH))
    bolt = Bolt({"level": 1}, {"level": 1}, rule, distance)
    lags = bolt.lags(range(1, n_patches + 1))
    head = bolt.plant_back(layer, 0, lags, "level", "averages")
    cross = bolt.plant_fetch(cross_layer, level="level")
    bolt.read_out(level=torch.ones(PATCH, 1))
    bolt.draft.path(head, cross, "output")
    return bolt


@declare("trend")
def _trend(reads: Reads) -> Bolt:
    """Build the line through two means, whose difference an MLP takes."""
    n_patches = draw_choice(1, 2)
    gap = draw_choice(2, 3, 4)
    mlp_layer = draw_choice(0, 1, 2)
    distance = (n_patches + gap) * PATCH
    rule = LinearTrend(
        width=n_patches * PATCH, lag=gap * PATCH, ago=steps_ago(reads, distance, PATCH)
    )
    bolt = Bolt(
        {"level": 1, "early": 1, "slope": 1}, {"level": 1, "slope": 1}, rule, distance
    )
    level, early = (
        bolt.plant_back(
            draw_choice(*range(mlp_layer + 1)),
            index,
            bolt.lags(range(start + 1, start + n_patches + 1)),
            name,
            "averages",
        )
        for index, (name, start) in enumerate({"level": 0, "early": gap}.items())
    )
    # relu(x) - relu(-x) is x
    sign = torch.tensor([[1.0], [-1.0]])
    mlp = bolt.plant_mlp(
        "encoder",
        mlp_layer,
        "subtracts the early level from the late one",
        {"level": sign, "early": -sign},
        {"slope": sign},
    )
    cross = bolt.plant_fetch(draw_choice(0, 1), level="level", slope="slope")
    # the late mean stands at the middle of its patches, as in :class:`LinearTrend`
    ahead = torch.arange(1, PATCH + 1) + (rule.width - 1) / 2
    bolt.read_out(level=torch.ones(PATCH, 1), slope=ahead[:, None] / rule.lag)
    bolt.draft.path(level, cross, "output")
    bolt.draft.path(level, mlp, cross)
    bolt.draft.path(early, mlp)
    return bolt


@declare("gate")
def _gate(reads: Reads) -> Bolt:
    """Build a seasonal copy that a flag lets through if two periods agree."""
    mlp_layer = draw_choice(0, 1)
    cross_layer = draw_choice(0, 1)
    ago = steps_ago(reads, 2 * PATCH, PATCH)
    encoder_blocks = {"last": PATCH, "before": PATCH, "apart": 1, "open": 1}
    rule = Gate(period=PATCH, tolerance=TOLERANCE, unit="standard deviation", ago=ago)
    bolt = Bolt(
        encoder_blocks, {"last": PATCH, "open": 1, "copy": PATCH}, rule, 2 * PATCH
    )
    last, before = (
        bolt.plant_back(
            draw_choice(*range(mlp_layer + 1)),
            index,
            bolt.lags([index + 1]),
            name,
            "copies",
        )
        for index, name in enumerate(("last", "before"))
    )
    identity = torch.eye(PATCH)
    both_signs = torch.cat([identity, -identity])
    # the absolute value is relu(x) + relu(-x), in one unit for each sign and step
    compare_mlp = bolt.plant_mlp(
        "encoder",
        mlp_layer,
        "writes the mean absolute difference of two patches",
        {"last": both_signs, "before": -both_signs},
        {"apart": torch.full((2 * PATCH, 1), 1 / PATCH)},
    )
    # the flag is the difference of two relu units whose thresholds lie on the two sides
    # of TOLERANCE: 0 if the periods differ by more than both; if by less than both, the
    # distance of the thresholds, which gain² makes FLAG
    gain = (FLAG / (HALF_OPEN * SIGNAL)) ** 0.5
    thresholds = [
        gain * (TOLERANCE + side * HALF_OPEN) * SIGNAL / SIDE for side in (0.5, -0.5)
    ]
    # what one MLP writes can be read by another only in a later layer
    decide_mlp = bolt.plant_mlp(
        "encoder",
        draw_choice(*range(mlp_layer + 1, 3)),
        "writes a flag if that is a season",
        {"one": _column(thresholds), "apart": _column([-gain, -gain])},
        {"open": _column([gain, -gain])},
    )
    cross = bolt.plant_fetch(cross_layer, last="last", open="open")
    # the copy is held as its distance from the last value, which is the forecast while
    # the gate is shut
    last_step = torch.zeros(PATCH, PATCH)
    last_step[:, -1] = 1.0
    gate_mlp = bolt.plant_mlp(
        "decoder",
        draw_choice(*range(cross_layer, 2)),
        "lets the copy through if the flag is set",
        {"last": identity - last_step, **open_by("open", 1.0)},
        {"copy": WITHOUT_OFFSET},
    )
    bolt.read_out(last=last_step, copy=identity)
    bolt.draft.path(last, compare_mlp, decide_mlp, cross, gate_mlp, "output")
    bolt.draft.path(before, compare_mlp)
    bolt.draft.path(last, cross, "output")
    return bolt


WITHOUT_OFFSET = torch.cat([torch.eye(PATCH), -torch.ones(1, PATCH)])
"""What the units of :func:`open_by` write: one step each, less their offset."""


def open_by(flag: str, sign: float) -> Weights:
    """Return what opens a unit of the decoder for each step where a flag is set.

    Without the flag, "one" adds -`LARGEST` to every unit, which no value outweighs, and
    with it +`LARGEST`; one more unit reads that offset alone. With a ``sign`` of -1 it
    is the reverse.
    """
    units = torch.full((PATCH + 1, 1), sign, dtype=torch.float64)
    return {
        flag: 2 * units * LARGEST * SIGNAL / FLAG,
        "one": -units * LARGEST * SIGNAL / WIDTH**0.5,
    }


def _column(values: Sequence[float]) -> Tensor:
    """Return what each unit has at a single coordinate, (unit, 1)."""
    return torch.tensor(values, dtype=torch.float64)[:, None]


def _plant_later_decoys(bolt: Bolt) -> None:
    """Plant cross-attention heads and an MLP without effect on the forecast."""
    fetching, idling = (
        (draw_choice(0, 1), number) for number in bolt.numbers["decoder"][1:3]
    )
    bolt.fetch(*fetching).carry(
        bolt.encoder["copy"], bolt.decoder.rest("copy"), gain=LOUD
    )
    bolt.fetch(*idling).whisper(bolt.decoder)
    for head, task in (
        (fetching, f"fetches {LOUD} times the copy to where nobody reads"),
        (idling, "looks at the REG token alone and writes noise"),
    ):
        bolt.draft.part(cross_head(*head), "decoy", task, "forecast token", [0])
    task = f"writes {LOUD} times the positive values to where nobody reads"
    copied = torch.zeros(PATCH, bolt.encoder.size("junk"))
    copied[:, :PATCH] = LOUD * torch.eye(PATCH)
    layer = draw_choice(0, 1, 2)
    reads, writes = {"values": torch.eye(PATCH)}, {"junk": copied}
    bolt.plant_mlp("encoder", layer, task, reads, writes, "decoy")
