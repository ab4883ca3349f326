"""Base of the planted patch models.

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
"""Length, in the stream, of a value of one standard deviation of the context.

Coordinates have a root mean square of 1. A larger signal is bent by the norms, a
smaller one is rounded in single precision; at 0.004 both cost about 1e-5.
"""
FLAG = 10 * SIGNAL
"""Length of a direction that says yes or no."""
SPREAD = 0.1
"""Standard deviation of the quantiles, in standard deviations of the context.

They lie around the rule's value.
"""
SHARP = 40.0
"""Logits by which a key stands out.

All other keys together get less than 1e-15 of the attention.
"""
LOUD = 5.0
"""Gain of a decoy's output, where a mechanism's is 1."""
LARGEST_ERROR = 1e-3
"""Largest error without weight noise, at outliers of a series.

It comes from single precision in the stream (see `SIGNAL`).
"""
DECILES = tuple(level / 10 for level in range(1, 10))
PATCH = 8
CONTEXT = 128
WIDTH = 64
CHANNELS = 16
HEADS = 4
PATCHES = {
    "context_length": CONTEXT,
    "input_patch_size": PATCH,
    "input_patch_stride": PATCH,
    "quantiles": list(DECILES),
    "use_reg_token": True,
}
SIZES = {
    "d_model": WIDTH,
    "d_kv": CHANNELS,
    "d_ff": WIDTH,
    "num_heads": HEADS,
    "vocab_size": 2,
    "dropout_rate": 0.0,
}
SIZES |= {"pad_token_id": 0, "reg_token_id": 1}
"""Entries that the configurations of the T5-like formats share."""


def deviates() -> Tensor:
    """Return offsets (quantile,) of the quantile levels from the median.

    They are in standard deviations of the context.
    """
    return SPREAD * torch.tensor(
        [NormalDist().inv_cdf(level) for level in DECILES], dtype=torch.float64
    )


class Stream:
    """Named, orthogonal directions of a residual stream.

    The remaining ones are called "junk" and read by nobody.
    """

    def __init__(self, width: int, **sizes: int) -> None:
        self.width = width
        self.positions = allot(width, sizes)

    def __getitem__(self, name: str) -> slice:
        return self.positions[name]

    def size(self, name: str) -> int:
        """Return the number of directions under a name."""
        return int(self[name].stop - self[name].start)

    def rest(self, name: str) -> slice:
        """Return the first directions of "junk", as many as there are under a name."""
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
        """Read a block of the attended token, and add it to one of the attending token.

        It is multiplied by the gain. To a block of one direction, its mean is added.
        """
        n_source, n_target = (block.stop - block.start for block in (source, target))
        # into a block of one direction, all values go through the same channel, which
        # holds their mean
        for index in range(n_source):
            source_channel = channel + (index if n_target > 1 else 0)
            self.v[source_channel, source.start + index] = (
                1.0 if n_target > 1 else 1.0 / n_source
            )
        for index in range(n_target):
            self.o[target.start + index, channel + index] = gain
        return self

    def whisper(self, stream: Stream) -> Head:
        """Write noise of what is read, about as long as a value, to "junk"."""
        junk = stream["junk"]
        # summed over the channels and spread over "junk", the whole is about SIGNAL
        # long
        gain = (stream.size("junk") * self.v.shape[0]) ** -0.5
        self.v.copy_(
            SIGNAL * stream.width**-0.5 * torch.randn(self.v.shape, dtype=self.v.dtype)
        )
        self.o.zero_()
        self.o[junk] = gain * torch.randn(self.o[junk].shape, dtype=self.o.dtype)
        return self


Mlp = tuple[Sequence[Tensor], Tensor]
"""Reading weights (unit, stream), and the writing weight (stream, unit)."""


class PatchModel:
    """Model in which heads and MLPs write noise until they get a task.

    Nobody reads the noise.

    Attributes:
        streams: by stack, that of the patches first and that of the forecast last.
        stream: the first, with "one" (constant) and "values" (those of the patch).
        numbers: by stack, head numbers in random order.
        one: length of the constant direction of a patch.
        columns: where the input block reads its values.
    """

    channels = CHANNELS
    projections: tuple[str, ...] = ("q", "k", "v", "o")
    one = WIDTH**0.5
    columns = slice(0, PATCH)

    def __init__(self, model: Any, streams: dict[str, Stream]) -> None:
        self.model = model
        self.streams = streams
        self.stream = next(iter(streams.values()))
        # in random order, so that no task belongs to a number
        self.numbers: dict[str, list[int]] = {
            stack: torch.randperm(HEADS).tolist() for stack in streams
        }
        for stack, stream in streams.items():
            self._fill_with_noise(stack, stream)
        for block in self.blocks():
            # a residual block gives 0, whatever it reads
            block.output_layer.weight.zero_()
            block.residual_layer.weight.zero_()
            for layer in (block.hidden_layer, block.output_layer, block.residual_layer):
                layer.bias.zero_()
        # the skip of a residual block is linear, and its other way is shut above
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
            # scores of a logit or so, which no head that is held somewhere by 40 of
            # them feels
            for weight in (head.q, head.k):
                gain = (stream.width * self.channels**0.5) ** -0.5
                weight.copy_(gain * torch.randn(weight.shape, dtype=weight.dtype))
            head.whisper(stream)
        for in_weights, out_weight in self.mlps(stack):
            for weight in in_weights:
                weight.copy_(
                    stream.width**-0.5 * torch.randn(weight.shape, dtype=weight.dtype)
                )
            out_weight.zero_()
            gain = SIGNAL * (stream.size("junk") * out_weight.shape[1]) ** -0.5
            out_weight[junk] = gain * torch.randn(
                out_weight[junk].shape, dtype=out_weight.dtype
            )
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
        """Return the embeddings of tokens that stand in a stack."""
        return [self.model.shared.weight]

    def keys_from(self, stack: str, attention: Any) -> str:
        """Name the stack whose stream keys and values read."""
        return stack

    def complete(self, draft: Draft) -> None:
        """Write down the parts that follow from the format."""

    def view_head(self, attention: Any, number: int) -> Head:
        """View the weights of a head."""
        rows = slice(number * self.channels, (number + 1) * self.channels)
        q, k, v, o = self._list_weights(attention)
        return Head(q[rows], k[rows], v[rows], o[:, rows])

    def _list_weights(self, attention: Any) -> list[Tensor]:
        return [getattr(attention, name).weight for name in self.projections]

    def read_out(self, **weights: Tensor) -> None:
        """Make the forecast of blocks of the last stream.

        ``weights`` are (step, direction), by block.
        """
        linear = self.blocks()[1].residual_layer
        stream = list(self.streams.values())[-1]
        for name, weight in weights.items():
            # the output is quantile by quantile, each of all steps; the stream has
            # values in units of SIGNAL
            linear.weight[:, stream[name]] = (
                weight.double().repeat(len(DECILES), 1) / SIGNAL
            )
        # quantiles have a fixed distance from the rule's value, whatever the series
        linear.bias.copy_(deviates().repeat_interleave(PATCH))

    def finish(self, *, rotate: bool) -> Any:
        """Turn the streams at random, and return the model in single precision."""
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
        """Turn streams by orthogonal matrices.

        Nothing that is computed changes, since RMSNorms of unit gain are invariant to
        it.
        """

        def read(stack: str, *weights: Tensor) -> None:
            for weight in weights:
                # rows are read directions: x turned is Tx, and (W Tᵀ)(T x) = W x
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
        # twice, so that a model of one stack also has a first and a last
        (first, *_, last), (into, out) = [*turns, *turns], self.blocks()
        for layer in (into.output_layer, into.residual_layer):
            write(first, layer.weight, layer.bias)
        # ``into.hidden_layer`` reads values and ``out.output_layer`` writes quantiles,
        # neither of them in a stream
        read(last, out.hidden_layer.weight, out.residual_layer.weight)


Build = Callable[[Reads], tuple[PatchModel, Draft]]


def declare(mechanism: str, architecture: str) -> Callable[[Build], Build]:
    """Declare a function that sets the weights of a mechanism.

    It returns the model and its draft.
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
                builder, draft = build(reads)
                builder.complete(draft)
                model = builder.finish(rotate=rotate)
                add_weight_noise(model, weight_noise, seed)
                # after the noise, whose constant part is corrected, too
                bias = builder.blocks()[1].residual_layer.bias.view(len(DECILES), PATCH)
                error = draft.offsets(model) - deviates().numpy()[:, None]
                # the error is (quantile, step), and all patches of a forecast share the
                # bias
                bias -= torch.as_tensor(
                    error.reshape(len(error), -1, PATCH).mean(1), dtype=bias.dtype
                )
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


class RotaryModel(PatchModel):
    """Model whose stream also has "found", which the forecast is read from."""

    layers: int

    def back(self, layer: int, number: int, tokens: int) -> Head:
        """Return a head that attends, from every token, so many tokens back."""
        raise NotImplementedError

    def named(self, layer: int, number: int) -> str:
        """Name such a head as a component."""
        raise NotImplementedError

    def plant_decoys(self, draft: Draft, tokens: int) -> None:
        """Plant heads that look right, write much, or look sharply, without effect."""
        values = self.stream["values"]
        unread = self.stream.rest("values")
        lookalike, loud, sharp = (
            (draw_choice(*range(self.layers)), number)
            for number in self.numbers[""][1:]
        )
        self.back(*lookalike, tokens).carry(values, unread)
        self.back(*loud, 1).carry(values, unread, gain=LOUD)
        self.back(*sharp, 0).whisper(self.stream)
        for head, back, task in (
            (
                lookalike,
                tokens,
                "looks where the copying head looks and copies, to where nobody reads",
            ),
            (loud, 1, f"writes {LOUD} times the patch before to where nobody reads"),
            (sharp, 0, "looks at its own token alone and writes noise"),
        ):
            draft.part(self.named(*head), "decoy", task, "every token", [back])


def declare_copies(
    architecture: str,
    make: Callable[[], RotaryModel],
    later: int,
    horizon: int,
    **scale: Any,
) -> None:
    """Declare seasonal copies, with decoys and without.

    The token of the forecast is ``later`` tokens after the last patch.
    """

    def build(reads: Reads, *, decoys: bool = False) -> tuple[RotaryModel, Draft]:
        period = draw_choice(2, 3, 4) * PATCH
        ago = steps_ago(reads, period, PATCH)
        model = make()
        draft = Draft(
            SeasonalCopy(period=period, ago=ago),
            (period + max(ago), CONTEXT),
            horizon,
            **scale,
        )
        model.read_out(found=torch.eye(PATCH))
        # one head for each stretch, in layers of their own
        layer = draw_choice(*range(model.layers))
        number = model.numbers[""][0]
        for index, steps in enumerate(ago):
            # the same number in both layers, since the others are kept for decoys
            head = ((layer + index) % model.layers, number)
            tokens = (period + steps) // PATCH - 1 + later
            model.back(*head, tokens).carry(
                model.stream["values"], model.stream["found"], gain=1 / len(ago)
            )
            fraction = f"1/{len(ago)} of " if len(ago) > 1 else ""
            task = f"copies {fraction}the patch {tokens} tokens back"
            name = draft.part(
                model.named(*head), "mechanism", task, "every token", [tokens]
            )
            draft.path(name, "output")
        if decoys:
            model.plant_decoys(draft, tokens)
        return model, draft

    declare("seasonal-copy", architecture)(build)
    declare("decoys", architecture)(partial(build, decoys=True))


def rotary_query_and_key(
    frequencies: Tensor, lag: int, far: int
) -> tuple[Tensor, Tensor]:
    """Return a constant query and key, (pair, 2) each, that attend `lag` tokens back.

    Their rotated product is `SHARP` larger there than at any other distance up to
    ``far``.
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
