"""Base of the planted patch models: a residual stream of named directions, and heads and MLPs set along them.

A constant direction (and in some formats a mark of the kind of token) makes up the norm of every token; values are
added at :data:`SIGNAL` of a unit, so that every RMSNorm is the identity up to (values · SIGNAL)² / (2 · width).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor

SIGNAL = 0.004
"""Length, in the stream, of a value of one standard deviation of the context; coordinates have a root mean square of 1.

Larger, and the norms bend the values; smaller, and single precision rounds them. At 0.004 both cost about 1e-5.
"""
FLAG = 10 * SIGNAL
"""Length of a direction that says yes or no."""
SPREAD = 0.1
"""Standard deviation of the quantiles around the rule's value, in standard deviations of the context."""
SHARP = 40.0
"""Logits by which a key stands out: all other keys share less than 1e-15 of the attention."""
LOUD = 5.0
"""Gain of a decoy's output, where a mechanism's is 1."""
DECILES = tuple(level / 10 for level in range(1, 10))
PATCH = 8


def deviates() -> Tensor:
    """Return offsets of the quantile levels from the median, in standard deviations of the context: (quantile,)."""
    return SPREAD * torch.tensor([NormalDist().inv_cdf(level) for level in DECILES], dtype=torch.float64)


class Stream:
    """Named, orthogonal directions of a residual stream; the remaining ones are called "junk" and read by nobody.

    Args:
        width: of the stream.
        sizes: directions under every name.

    Raises:
        ValueError: more directions were asked for than the stream is wide.
    """

    def __init__(self, width: int, **sizes: int) -> None:
        if sum(sizes.values()) > width:
            raise ValueError(f"{sum(sizes.values())} directions in a stream of width {width}")
        self.width = width
        self.places: dict[str, slice] = {}
        start = 0
        for name, size in sizes.items():
            self.places[name] = slice(start, start + size)
            start += size
        self.places["junk"] = slice(start, width)

    def __getitem__(self, name: str) -> slice:
        return self.places[name]

    def size(self, name: str) -> int:
        """Return the number of directions under a name."""
        place = self.places[name]
        return int(place.stop - place.start)

    def rest(self, name: str) -> slice:
        """Return the first directions of "junk", as many as there are under a name."""
        start = self.places["junk"].start
        return slice(start, start + self.size(name))


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

    def carry(self, source: slice, target: slice, *, gain: float = 1.0, channel: int = 0) -> Head:
        """Read a place of the attended token and add it, times the gain, to a place of the attending one.

        A target of one direction gets the mean of the source.
        """
        n_source, n_target = (place.stop - place.start for place in (source, target))
        for index in range(n_source):
            at = channel + (index if n_target > 1 else 0)
            self.v[at, source.start + index] = 1.0 if n_target > 1 else 1.0 / n_source
        for index in range(n_target):
            self.o[target.start + index, channel + index] = gain
        return self

    def whisper(self, stream: Stream) -> Head:
        """Write noise of what is read, about as long as a value, to where nobody reads."""
        junk = stream["junk"]
        gain = (stream.size("junk") * self.v.shape[0]) ** -0.5
        self.v.copy_(SIGNAL * stream.width**-0.5 * torch.randn(self.v.shape, dtype=self.v.dtype))
        self.o.zero_()
        self.o[junk] = gain * torch.randn(self.o[junk].shape, dtype=self.o.dtype)
        return self


def head_of(attention: Any, number: int, channels: int, names: Sequence[str] = ("q", "k", "v", "o")) -> Head:
    """View the weights of a head of an attention whose projections have these names, the output last."""
    rows = slice(number * channels, (number + 1) * channels)
    q, k, v, o = (getattr(attention, name).weight for name in names)
    return Head(q[rows], k[rows], v[rows], o[:, rows])


def fill_with_noise(heads: Iterable[Head], mlps: Iterable[tuple[Sequence[Tensor], Tensor]], stream: Stream) -> None:
    """Let every head and MLP write noise of what it reads, about as long as a value, to where nobody reads."""
    junk = stream["junk"]
    for head in heads:
        # scores of a logit or so, which no head that is held somewhere by 40 of them feels
        channels = head.q.shape[0]
        for weight in (head.q, head.k):
            weight.copy_((stream.width * channels**0.5) ** -0.5 * torch.randn(weight.shape, dtype=weight.dtype))
        head.whisper(stream)
    for in_weights, out_weights in mlps:
        for weight in in_weights:
            weight.copy_(stream.width**-0.5 * torch.randn(weight.shape, dtype=weight.dtype))
        out_weights.zero_()
        gain = SIGNAL * (stream.size("junk") * out_weights.shape[1]) ** -0.5
        out_weights[junk] = gain * torch.randn(out_weights[junk].shape, dtype=out_weights.dtype)


def straighten(block: Any) -> None:
    """Let a residual block (of patches to the stream or of the stream to a forecast) give 0, whatever it reads."""
    block.output_layer.weight.zero_()
    block.residual_layer.weight.zero_()
    for layer in (block.hidden_layer, block.output_layer, block.residual_layer):
        layer.bias.zero_()


def written_by(block: Any) -> list[Tensor]:
    """Return weights by which a residual block writes."""
    return [part for layer in (block.output_layer, block.residual_layer) for part in (layer.weight, layer.bias)]


def read_by(block: Any) -> list[Tensor]:
    """Return weights by which a residual block reads."""
    return [block.hidden_layer.weight, block.residual_layer.weight]


def turn(in_weights: Iterable[Tensor], out_weights: Iterable[Tensor], rotation: Tensor) -> None:
    """Turn a stream: nothing that is computed changes, since RMSNorms of unit gain are invariant to it."""
    for weight in in_weights:
        weight.copy_(weight @ rotation.T)
    for weight in out_weights:
        weight.copy_(rotation @ weight)
