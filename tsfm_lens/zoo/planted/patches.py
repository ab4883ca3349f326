"""Base of the planted patch models, whose weights are set to a known mechanism.

:class:`PatchModel` has residual streams of named directions (:class:`Stream`) and heads
that are set along them (:class:`Head`); :func:`declare` turns a function that sets
weights into a planter. The formats themselves are in modules such as
:mod:`tsfm_lens.zoo.planted.bolt`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor

from tsfm_lens.zoo.planted.card import Query
from tsfm_lens.zoo.planted.draft import (
    Draft,
    add_weight_noise,
    allot,
    draw_choice,
    orthogonal,
    steps_ago,
)
from tsfm_lens.zoo.planted.planting import Planted, planter
from tsfm_lens.zoo.planted.rules import Reads, SeasonalCopy

SIGNAL = 0.004
"""Coordinate of the stream for a value of one standard deviation of the context.

All coordinates together have a root mean square of 1. A larger signal would change that
and so be bent by the norms, a smaller one is rounded in single precision; at 0.004 both
cost about 1e-5.
"""
FLAG = 10 * SIGNAL
"""Coordinate of the stream that stands for a true condition, where 0 is a false one."""
SPREAD = 0.1
"""Standard deviation of the forecast distribution around the rule's value.

It is in standard deviations of the context.
"""
SHARP = 40.0
"""Logits by which the key that a planted head looks for exceeds every other.

All other keys together get less than 1e-15 of the attention.
"""
LOUD = 5.0
"""Gain of a decoy's output, where a mechanism's is 1."""
LARGEST_ERROR = 1e-3
"""Largest error that is allowed without weight noise, in mean absolute values.

It occurs at outliers of a series, and comes from single precision in the stream (see
`SIGNAL`).
"""
DECILES = tuple(level / 10 for level in range(1, 10))
PATCH = 8
"""Steps of a patch."""
CONTEXT = 128
"""Most steps of a context."""
WIDTH = 64
CHANNELS = 16
"""Channels of a head."""
HEADS = 4
PATCHES = {
    "context_length": CONTEXT,
    "input_patch_size": PATCH,
    "input_patch_stride": PATCH,
    "quantiles": list(DECILES),
    "use_reg_token": True,
}
"""Settings of patches and quantiles that the T5-like formats share."""
SIZES = {
    "d_model": WIDTH,
    "d_kv": CHANNELS,
    "d_ff": WIDTH,
    "num_heads": HEADS,
    "vocab_size": 2,
    "dropout_rate": 0.0,
}
# the two tokens of the vocabulary
SIZES |= {"pad_token_id": 0, "reg_token_id": 1}
"""Other entries that the configurations of the T5-like formats share."""


def deviates() -> Tensor:
    """Return offsets (quantile,) of the quantile levels from the median.

    They are in standard deviations of the context.
    """
    return SPREAD * torch.tensor(
        [NormalDist().inv_cdf(level) for level in DECILES], dtype=torch.float64
    )


class Stream:
    """Coordinates of a residual stream, in named blocks, until the stream is turned.

    Coordinates outside all blocks are the block "junk", which no part of the mechanism
    reads.

    Args:
        width: number of coordinates.
        sizes: number of coordinates of each block, in order.
    """

    def __init__(self, width: int, **sizes: int) -> None:
        self.width = width
        self.positions = allot(width, sizes)

    def __getitem__(self, name: str) -> slice:
        return self.positions[name]

    def size(self, name: str) -> int:
        """Return the number of coordinates of a block."""
        return int(self[name].stop - self[name].start)

    def rest(self, name: str) -> slice:
        """Return a part of "junk" as large as a block, for writing without effect."""
        return slice(self["junk"].start, self["junk"].start + self.size(name))


@dataclass(frozen=True)
class Head:
    """Weights of one head, as views: q, k, v (channel, stream), o (stream, channel)."""

    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor

    def clear(self) -> Head:
        """Set everything to 0."""
        for weight in (self.q, self.k, self.v, self.o):
            weight.zero_()
        return self

    def carry(
        self, source: slice, target: slice, *, gain: float = 1.0, channel: int = 0
    ) -> Head:
        """Copy coordinates from the attended to the attending token, times the gain.

        If ``target`` is a single coordinate, the mean of ``source`` is added to it.

        Args:
            source: coordinates that are read.
            target: coordinates that the result is added to.
            gain: factor of the copy.
            channel: the first channel of the head that is used.

        Returns:
            The head itself.
        """
        n_source, n_target = (block.stop - block.start for block in (source, target))
        reading = torch.eye(n_source)
        # for a mean, all values are summed in one channel
        if n_target == 1:
            reading = torch.full((1, n_source), 1.0 / n_source, dtype=torch.float64)
        self.v[channel : channel + len(reading), source] = reading.to(self.v)
        channels = slice(channel, channel + n_target)
        self.o[target, channels] = gain * torch.eye(n_target).to(self.o)
        return self

    def whisper(self, stream: Stream) -> Head:
        """Write a random linear map of the attended token to "junk".

        The vector written has a length of about `SIGNAL`.

        Returns:
            The head itself.
        """
        junk = stream["junk"]
        # each channel is about SIGNAL, as a token has the length √width; this gain
        # offsets the sum over channels and the number of coordinates of "junk"
        gain = (stream.size("junk") * self.v.shape[0]) ** -0.5
        self.v.copy_(SIGNAL * stream.width**-0.5 * torch.randn_like(self.v))
        self.o.zero_()
        self.o[junk] = gain * torch.randn(self.o[junk].shape, dtype=self.o.dtype)
        return self


Mlp = tuple[Sequence[Tensor], Tensor]
"""Reading weights (unit, stream), and the writing weight (stream, unit)."""


class PatchModel:
    """Model in which heads and MLPs write noise until they get a task.

    The noise goes to "junk", so that it does not reach the forecast.

    Attributes:
        draft: ground truth, written while weights are set.
        streams: residual stream of each stack: the first holds the patches, the last
            the forecast.
        stream: the first of these, with the blocks "one", constant, and "values", those
            of the patch.
        numbers: numbers of the heads of a layer in random order, by stack.
        layers: number of layers of the first stack.
        channels: number of channels of a head.
        projections: names of a native attention's query, key, value and output layers.
        one: coordinate "one" of a patch.
        columns: inputs of the input block that hold the values of the patch.
    """

    draft: Draft
    layers: int
    channels = CHANNELS
    projections: tuple[str, ...] = ("q", "k", "v", "o")
    one = WIDTH**0.5
    columns = slice(0, PATCH)

    def __init__(self, model: Any, streams: dict[str, Stream]) -> None:
        self.model = model
        self.streams = streams
        self.stream = next(iter(streams.values()))
        # in random order, so that the number of a head does not tell its task
        self.numbers: dict[str, list[int]] = {
            stack: torch.randperm(HEADS).tolist() for stack in streams
        }
        for stack, stream in streams.items():
            self._fill_with_noise(stack, stream)
        for block in self.blocks():
            # the linear skip and the layers beside it both give 0, whatever they read
            block.output_layer.weight.zero_()
            block.residual_layer.weight.zero_()
            for layer in (block.hidden_layer, block.output_layer, block.residual_layer):
                layer.bias.zero_()
        # the skip alone carries the patch, as the layers beside it give 0
        linear = self.blocks()[0].residual_layer
        linear.weight[self.stream["values"], self.columns] = SIGNAL * torch.eye(
            PATCH, dtype=torch.float64
        )
        linear.bias[self.stream["one"]] = self.one

    def _fill_with_noise(self, stack: str, stream: Stream) -> None:
        """Let all heads and MLPs of a stack write noise to "junk"."""
        attentions = self.attentions(stack)
        junk = stream["junk"]
        for attention, number in product(attentions, range(HEADS)):
            head = self.view_head(attention, number)
            # scores of about one logit: they do not move a head whose position bias
            # exceeds the others by SHARP
            for weight in (head.q, head.k):
                gain = (stream.width * self.channels**0.5) ** -0.5
                weight.copy_(gain * torch.randn_like(weight))
            head.whisper(stream)
        for in_weights, out_weight in self.mlps(stack):
            for weight in in_weights:
                weight.copy_(stream.width**-0.5 * torch.randn_like(weight))
            out_weight.zero_()
            gain = SIGNAL * (stream.size("junk") * out_weight.shape[1]) ** -0.5
            out_weight[junk] = gain * torch.randn_like(out_weight[junk])
        # T5's position biases, which all layers share, are weaker than these scores
        bias = getattr(attentions[0], "relative_attention_bias", None)
        if bias is not None:
            bias.weight.copy_(0.3 * torch.randn(bias.weight.shape))

    def attentions(self, stack: str) -> list[Any]:
        """Return the native attentions of a stack."""
        raise NotImplementedError

    def mlps(self, stack: str) -> list[Mlp]:
        """Return the weights of each MLP of a stack."""
        raise NotImplementedError

    def blocks(self) -> tuple[Any, Any]:
        """Return the residual blocks into the stream and out of it."""
        return self.model.input_patch_embedding, self.model.output_patch_embedding

    def embeddings(self, stack: str) -> list[Tensor]:
        """Return the embeddings (token, stream) of the stack's special tokens."""
        return [self.model.shared.weight]

    def keys_from(self, stack: str, attention: Any) -> str:
        """Name the stack whose stream an attention's keys and values read."""
        return stack

    def complete(self) -> None:
        """Add to the draft what the format makes heads do besides the mechanism."""

    def back(self, layer: int, number: int, lags: Sequence[int]) -> Head:
        """Return a head of the first stack that attends so many tokens back."""
        raise NotImplementedError

    def named(self, layer: int, number: int) -> str:
        """Name the component of a head that :meth:`back` returns."""
        raise NotImplementedError

    def rest(self, layer: int, number: int) -> tuple[Head, str, Query]:
        """Return a head that attends to one token without a task there.

        Returns:
            The head, the token, and the queries of which this is true.
        """
        return self.back(layer, number, [0]), "its own token", "every token"

    def plant_decoys(self, lags: Sequence[int]) -> None:
        """Plant heads that look like mechanisms, but do not move the forecast.

        One attends where the copying head does, one writes much, and one attends to a
        single token.
        """
        stack, stream = next(iter(self.streams.items()))
        # the first number is the copying head's
        lookalike, loud, sharp = (
            (draw_choice(*range(self.layers)), number)
            for number in self.numbers[stack][1:]
        )
        task = "looks where the copying head looks and copies, to where nobody reads"
        loudly = f"writes {LOUD} times the patch before to where nobody reads"
        for head, back, gain, does in (
            (lookalike, lags, 1.0, task),
            (loud, [1], LOUD, loudly),
        ):
            unread = stream.rest("values")
            self.back(*head, back).carry(stream["values"], unread, gain=gain)
            self.draft.part(self.named(*head), "decoy", does, "every token", back)
        resting, token, query = self.rest(*sharp)
        resting.whisper(stream)
        task = f"looks at {token} alone and writes noise"
        self.draft.part(self.named(*sharp), "decoy", task, query, [0])

    def view_head(self, attention: Any, number: int) -> Head:
        """Return the weights of a head as views, to be written to."""
        rows = slice(number * self.channels, (number + 1) * self.channels)
        q, k, v, o = self._list_weights(attention)
        return Head(q[rows], k[rows], v[rows], o[:, rows])

    def _list_weights(self, attention: Any) -> list[Tensor]:
        return [getattr(attention, name).weight for name in self.projections]

    def read_out(self, **weights: Tensor) -> None:
        """Make the median forecast a linear map of blocks of the last stream.

        ``weights`` are (step, coordinate) for each block, by its name.
        """
        linear = self.blocks()[1].residual_layer
        stream = list(self.streams.values())[-1]
        for name, weight in weights.items():
            # repeated, as rows of the output are (quantile, step), steps innermost;
            # divided, as the stream holds values times SIGNAL
            linear.weight[:, stream[name]] = (
                weight.double().repeat(len(DECILES), 1) / SIGNAL
            )
        # in standard deviations of the context, all quantiles keep their distances from
        # the rule's value
        linear.bias.copy_(deviates().repeat_interleave(PATCH))

    def finish(self, *, rotate: bool) -> Any:
        """Return the model in single precision, with streams turned if ``rotate``."""
        if rotate:
            width = self.stream.width
            turns = {
                stack: orthogonal(width, int(torch.randint(2**31, ())))
                for stack in self.streams
            }
            self._turn(turns)
        # weights are set and turned in double precision, and rounded once
        return self.model.float()

    def _turn(self, turns: dict[str, Tensor]) -> None:
        """Turn each stream by its orthogonal matrix T (stream, stream).

        All weights that read or write the stream are turned with it. The output stays
        the same, since RMSNorms of unit gain keep the length of a turned stream.
        """

        def read(stack: str, *weights: Tensor) -> None:
            for weight in weights:
                # a stream x becomes T x, and (W Tᵀ)(T x) = W x
                weight.copy_(weight @ turns[stack].T)

        def write(stack: str, *weights: Tensor) -> None:
            for weight in weights:
                weight.copy_(turns[stack] @ weight)

        for stack in turns:
            read(stack, *self.embeddings(stack))
            for attention in self.attentions(stack):
                q, k, v, o = self._list_weights(attention)
                read(stack, q)
                read(self.keys_from(stack, attention), k, v)
                write(stack, o)
            for in_weights, out_weight in self.mlps(stack):
                read(stack, *in_weights)
                write(stack, out_weight)
        stacks = list(turns)
        into, out = self.blocks()
        for layer in (into.output_layer, into.residual_layer):
            write(stacks[0], layer.weight, layer.bias)
        # ``into.hidden_layer`` reads values and ``out.output_layer`` writes quantiles,
        # neither of them in a stream
        read(stacks[-1], out.hidden_layer.weight, out.residual_layer.weight)


Build = Callable[[Reads], PatchModel]


def declare(mechanism: str, architecture: str) -> Callable[[Build], Build]:
    """Register a planter that sets the weights of a mechanism by a function.

    Returns:
        A decorator.
    """

    def wrap(build: Build) -> Build:
        @planter(mechanism, architecture)
        def grow(
            *, reads: Reads, seed: int, rotate: bool, weight_noise: float
        ) -> Planted:
            # draws come from torch's global generator, which the caller gets back as it
            # was
            with torch.random.fork_rng(devices=[]), torch.no_grad():
                torch.manual_seed(seed)
                builder = build(reads)
                builder.complete()
                draft = builder.draft
                model = builder.finish(rotate=rotate)
                add_weight_noise(model, weight_noise, seed)
                # the constant part of the error is subtracted from the bias, after the
                # noise, so that what the noise adds to it is subtracted, too
                bias = builder.blocks()[1].residual_layer.bias.view(len(DECILES), PATCH)
                error = draft.offsets(model) - deviates().numpy()[:, None]
                # (quantile, patch of the forecast, step); all patches share the bias
                by_patch = error.reshape(len(error), -1, PATCH)
                bias -= torch.as_tensor(by_patch.mean(1), dtype=bias.dtype)
                return draft.finish(
                    model,
                    draft.hard(),
                    allowed=LARGEST_ERROR,
                    mechanism=mechanism,
                    architecture=architecture,
                    seed=seed,
                    rotated=rotate,
                    weight_noise=weight_noise,
                )

        return build

    return wrap


def declare_copies(
    architecture: str,
    make: Callable[[], PatchModel],
    later: int,
    horizon: int,
    **scale: Any,
) -> None:
    """Register planters of seasonal copies, without decoys and with them.

    Args:
        architecture: name of the format.
        make: builds a model without a mechanism.
        later: tokens from the last patch to the token that the forecast is read from.
        horizon: steps of one forecast.
        scale: ``squash`` and ``scale`` of the model, as in :class:`.Draft`.
    """

    def build(reads: Reads, *, decoys: bool = False) -> PatchModel:
        period = draw_choice(2, 3, 4) * PATCH
        ago = steps_ago(reads, period, PATCH)
        model = make()
        model.draft = Draft(
            SeasonalCopy(period=period, ago=ago),
            context=(period + max(ago), CONTEXT),
            horizon=horizon,
            **scale,
        )
        model.read_out(found=torch.eye(PATCH))
        # tokens from that of the forecast back to the patch to copy, which is a period
        # and ``steps`` older than the patch after the last one
        distances = [(period + steps) // PATCH - 1 + later for steps in ago]
        # one head for each stretch that the mechanism reads, each in another layer
        layer = draw_choice(*range(model.layers))
        number = model.numbers[""][0]
        for index, tokens in enumerate(distances):
            # the same number in all layers, since the others are kept for decoys
            head = ((layer + index) % model.layers, number)
            model.back(*head, [tokens]).carry(
                model.stream["values"], model.stream["found"], gain=1 / len(ago)
            )
            fraction = f"1/{len(ago)} of " if len(ago) > 1 else ""
            task = f"copies {fraction}the patch {tokens} tokens back"
            name = model.draft.part(
                model.named(*head), "mechanism", task, "every token", [tokens]
            )
            model.draft.path(name, "output")
        if decoys:
            model.plant_decoys(distances[-1:])
        return model

    declare("seasonal-copy", architecture)(build)
    declare("decoys", architecture)(partial(build, decoys=True))


def rotary_query_and_key(
    frequencies: Tensor, lag: int, far: int
) -> tuple[Tensor, Tensor]:
    """Return a constant query and key that attend ``lag`` tokens back.

    Their rotated product is `SHARP` larger there than at any other distance up to
    ``far`` tokens. Both are (pair, 2), for the pairs of channels that are rotated at
    ``frequencies``, in radians a token.
    """
    distance = torch.arange(-far, far + 1, dtype=torch.float64)
    # later keys, at negative distances, count as well, since not every format masks
    # them
    off_target = distance[distance != lag] - lag
    gap = (1 - torch.cos(off_target[:, None] * frequencies.double())).sum(1).min()
    # the factor stands in the query and in the key, hence the root
    size = float((SHARP / gap) ** 0.5)
    phase = lag * frequencies.double()
    # rotating the query by its position and the key by its own leaves cos(frequency ·
    # (distance - lag))
    query = size * torch.stack([torch.cos(phase), -torch.sin(phase)], dim=1)
    key = size * torch.stack([torch.ones_like(phase), torch.zeros_like(phase)], dim=1)
    return query, key
