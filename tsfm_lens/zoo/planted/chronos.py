"""Chronos model (T5 over value tokens) whose weights are set head by head.

:class:`ChronosBuilder` is a model without tasks, whose embeddings of values have length
1; its methods ``head`` and ``mlp`` give tasks, and ``finish`` measures the model
against its rule. The mechanisms are in :mod:`tsfm_lens.zoo.planted.chronos_copy` and
:mod:`tsfm_lens.zoo.planted.chronos_means`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tsfm_lens.core.errors import InputError
from tsfm_lens.hooks.component import Component, writers
from tsfm_lens.models import load
from tsfm_lens.zoo.planted.card import Role
from tsfm_lens.zoo.planted.draft import Basis, Draft, add_weight_noise, orthogonal
from tsfm_lens.zoo.planted.planting import Planted

NAME = "chronos"
WIDTH = 64
HEADS = 4
# more than WIDTH / HEADS: the copying head needs 22 directions, as it compares two
# values by the cosine and sine of five waves each, a mark and a flag
CHANNELS = 24
D_FF = 32
VOCABULARY = 1024
CONTEXT = 128
LIMIT = 5.0
BUCKETS = 128
PAD = 0
"""Id of the start token."""
EOS = 1
"""Id of the end of the context."""
FIRST = 3
"""Id of the lowest bin."""
WAVES = (20.0, 8.0, 3.2, 1.3, 0.5)
"""Wavelengths of a value's features, in mean absolute values.

Two values are close if all their waves agree.
"""
# the centers of VOCABULARY - FIRST bins go from -LIMIT to LIMIT, both included
BIN = 2 * LIMIT / (VOCABULARY - FIRST - 1)
"""Width of a bin, in mean absolute values."""
ONE = 0.1
"""Share of a value's squared embedding that is the same for all values."""
START = 0.1
"""Length of the start token's embedding along its own direction.

It is short, so that an ablated model, in which nothing else is written, finds every
value likelier than the start token.
"""
START_ONE = 0.14
"""Length of the start token's embedding along "one", the direction of all values."""
START_LENGTH = (START**2 + START_ONE**2) ** 0.5
WHISPER = 0.01
"""Length of what a head or an MLP without a task writes to "junk".

An embedding of a value has length 1.
"""
# blocks of the stream that every model has
ALWAYS = {"one": 1, "value": 1, "square": 1, "filler": 1, "eos": 1, "start": 1}

Steps = Sequence[int]
"""Numbers of values, counted back from the end of the context."""
Direction = Tensor | str | tuple[float, str]
"""Directions (n, width), a block of them, or a block times a gain."""
Pairs = Sequence[tuple[Direction, Direction]]
"""Pairs of directions.

The first is read; the second is what it is compared with, or written to.
"""


class ChronosBuilder:
    """Chronos model in which no head and no MLP has a task yet, to plant in.

    Args:
        blocks: directions of the stream by name, besides those of the embeddings.
        seed: draws the basis, and which of a layer's heads get tasks.
        rotate: whether the basis is turned at random.
        needs: observed values that the mechanism needs.
        horizon: steps of one pass.
        waves: share of a value's squared embedding that is waves.
        sharpness: factor on the logits.
        layers: number of the encoder's and of the decoder's layers, which must agree as
            the library sizes the decoder's cache by the encoder's.
    """

    def __init__(
        self,
        rule: Any,
        blocks: Mapping[str, int],
        *,
        seed: int,
        rotate: bool,
        needs: int,
        horizon: int,
        waves: float,
        sharpness: float,
        layers: int = 2,
    ) -> None:
        sizes = {**ALWAYS, **({"wave": 2 * len(WAVES)} if waves else {}), **blocks}
        self.basis = Basis.draw(WIDTH, sizes, seed=seed, rotate=rotate)
        self.draft = Draft(rule, (needs + max(rule.ago), CONTEXT), horizon)
        self.heads = HEADS
        buckets = BUCKETS
        # a rule that reads older stretches needs one more head, and buckets for longer
        # distances: T5 gives single distances only half of a stack's buckets, or a
        # quarter if keys may come before or after the query
        if any(rule.ago):
            self.heads += 1
            buckets *= 4
        self.native = _blank(layers, horizon, self.heads, buckets)
        self.linear = 1.0 - ONE - waves
        self._origin = {"seed": seed, "rotated": rotate}
        # two generators, so that turning heads or not leaves the choice of heads as it
        # is
        self._choices, self._turns = (
            np.random.default_rng([seed, stream]) for stream in (0, 1)
        )
        self._free: dict[str, list[int]] = {}
        self._busy: set[str] = set()
        table = torch.zeros(VOCABULARY, WIDTH, dtype=torch.float64)
        values = torch.linspace(-LIMIT, LIMIT, VOCABULARY - FIRST, dtype=torch.float64)
        table[FIRST:] = self._embed_values(values, waves)
        table[PAD] = (START * self.basis["start"] + START_ONE * self.basis["one"])[0]
        table[EOS] = self.basis["eos"][0]
        # T5's norms make every stream √WIDTH long, so embeddings are this long, too; it
        # is the unit of length here: weights that read a stream are divided by it, and
        # weights that write to one are multiplied
        _set(self.native.shared.weight, WIDTH**0.5 * table)
        # T5 with tied embeddings divides the last stream by √WIDTH, which cancels with
        # that of the table; the logits are products of unit vectors times the sharpness
        self.native.decoder.final_layer_norm.weight.data.fill_(sharpness / WIDTH**0.5)

    def _embed_values(self, values: Tensor, waves: float) -> Tensor:
        """Embed values (n,) in mean absolute values: (n, width)."""
        share = values / LIMIT
        value = (self.linear / 2) ** 0.5 * share
        # at ±LIMIT, value² + square² is all of `linear` and the filler 0; in between
        # the filler makes up for the rest, so that all values are equally long
        square = (2 * self.linear) ** 0.5 * (share**2 - 0.5)
        filler = (self.linear - value**2 - square**2).clamp(min=0) ** 0.5
        columns = torch.stack(
            [torch.full_like(share, ONE**0.5), value, square, filler], dim=1
        )
        table = columns @ self.basis.span("one", "value", "square", "filler")
        if waves:
            wavelengths = torch.tensor(WAVES, dtype=torch.float64)
            angle = 2 * torch.pi * values[:, None] / wavelengths
            features = torch.cat([angle.cos(), angle.sin()], dim=1)
            table += (waves / len(WAVES)) ** 0.5 * features @ self.basis["wave"]
        return table

    def always(self, start: float = 1.0) -> Tensor:
        """Return the direction that reads 1 from every decoder token.

        ``start`` is the length of the start token's stream, by which the norm divides
        it.
        """
        one = self.basis["one"] / ONE**0.5
        # "one" reads START_ONE / √ONE from the start token, and "start" adds what is
        # missing
        return one + (start - START_ONE / ONE**0.5) / START * self.basis["start"]

    @property
    def at_start(self) -> Tensor:
        """Direction that reads 1 from the start token, and 0 from a value.

        Both are read from their normalised embeddings.
        """
        return START_LENGTH / START * self.basis["start"]

    def _free_head(self, attention: str) -> str:
        """Choose a head without a task; layers of self-attention share the choice."""
        stack, _, kind = attention.split(".")
        group = attention
        # cross-attention has no position biases, so that its layers choose apart
        if kind == "self_attn":
            group = f"{stack}.{kind}"
        if group not in self._free:
            self._free[group] = self._choices.permutation(self.heads).tolist()
        # all layers of self-attention take from the same permutation, so that no number
        # is chosen twice
        return f"{attention}.{self._free[group].pop()}"

    def head(
        self,
        place: str,
        *card: Any,
        match: Pairs = (),
        moves: Pairs = (),
        bias: Mapping[int, float] | None = None,
        role: Role = "mechanism",
        **attention: Any,
    ) -> str:
        """Give a head its task, and write it down on the card.

        ``place`` is an attention, of which a head without a task is chosen, or names
        the head. ``card`` and ``attention`` are what it does and where it looks, see
        `Draft.part`.

        Returns:
            Name of the head.
        """
        name = place
        if Component.parse(place).head is None:
            name = self._free_head(place)
        if card:
            self.draft.part(name, role, *card, **attention)
        module, head = self._attention(name)
        rows = slice(CHANNELS * head, CHANNELS * (head + 1))
        self._busy.add(name)
        if match:
            queries, keys, turn = self._in_head(name, match)
            # T5 does not divide scores by the root of the channels
            _set(module.q.weight[rows], turn @ queries / WIDTH**0.5)
            _set(module.k.weight[rows], turn @ keys / WIDTH**0.5)
        if moves:
            reads, writes, turn = self._in_head(name, moves)
            _set(module.v.weight[rows], turn @ reads / WIDTH**0.5)
            _set(module.o.weight[:, rows], WIDTH**0.5 * writes.T @ turn.T)
        # T5 keeps the position biases of all layers in the first one
        table = self._attention(name, layer=0)[0]
        for offset, logit in (bias or {}).items():
            bucket = find_bucket(table, offset, both_ways=name.startswith("encoder"))
            weight = table.relative_attention_bias.weight[bucket, head]
            _set(weight, torch.tensor(logit))
        return name

    def direction(self, given: Direction) -> Tensor:
        """Return directions (n, width)."""
        match given:
            case str():
                return self.basis[given]
            case (gain, name):
                return gain * self.basis[name]
        return given

    def _in_head(self, name: str, pairs: Pairs) -> tuple[Tensor, Tensor, Tensor]:
        """Return both sides of pairs, and a basis of the head's own space.

        The basis is turned at random if the stream's is.
        """
        first, second = (
            torch.cat([self.direction(pair[side]) for pair in pairs]) for side in (0, 1)
        )
        turn = orthogonal(CHANNELS, int(self._turns.integers(2**31)))
        if not self._origin["rotated"]:
            turn = torch.eye(CHANNELS).double()
        # queries and keys, or values and outputs, have the same turn, which cancels in
        # their product
        return first, second, turn[:, : len(first)]

    def mlp(
        self,
        name: str,
        reads: Sequence[Direction],
        writes: Sequence[Direction],
        does: str = "",
        role: Role = "mechanism",
    ) -> str:
        """Give an MLP hidden units, by what each reads and what it writes.

        ``reads`` and ``writes`` are directions; a unit writes with the positive part of
        what it reads.

        Returns:
            Name of the MLP.
        """
        if does:
            self.draft.part(name, role, does)
        component = Component.parse(name)
        module = (
            getattr(self.native, component.stack)
            .block[component.layer]
            .layer[-1]
            .DenseReluDense
        )
        self._busy.add(name)
        read, written = (
            torch.cat([self.direction(side) for side in sides])
            for sides in (reads, writes)
        )
        # units that are left over stay 0
        _set(module.wi.weight[: len(read)], read / WIDTH**0.5)
        _set(module.wo.weight[:, : len(written)], WIDTH**0.5 * written.T)
        return name

    def finish(self, mechanism: str, weight_noise: float) -> Planted:
        """Fill idle components with noise, and measure the model for its card."""
        self._whisper()
        seed = self._origin["seed"]
        if weight_noise:
            add_weight_noise(self.native, weight_noise, seed)
        return self.draft.finish(
            self.native,
            self.draft.hard(seed),
            allowed=2 * BIN,
            mechanism=mechanism,
            architecture=NAME,
            weight_noise=weight_noise,
            **self._origin,
        )

    def _whisper(self) -> None:
        """Let heads and MLPs without a task write a little noise of what they read.

        They write it to "junk", which nobody reads.
        """
        generator = torch.Generator().manual_seed(int(self._choices.integers(2**31)))
        directions = self.basis.directions
        junk = self.basis["junk"]

        def noise(*shape: int, gain: float = 1.0) -> Tensor:
            return gain * torch.randn(*shape, generator=generator, dtype=torch.float64)

        # without the check, since the model is not finished and only its wiring is read
        wiring = load(self.native, check=False).wiring
        for component in (
            writer for stack in wiring.stacks for writer in writers(wiring, stack.name)
        ):
            # noise in coordinates of the basis is the same however the basis is turned
            units = D_FF if component.head is None else CHANNELS
            reads = noise(units, WIDTH) @ directions
            gain = WHISPER * (len(reads) * len(junk)) ** -0.5
            writes = noise(len(reads), len(junk), gain=gain) @ junk
            pair = noise(2, CHANNELS, WIDTH, gain=CHANNELS**-0.25) @ directions
            # busy components draw as well, so that the noise of others does not depend
            # on which have tasks
            if str(component) in self._busy:
                continue
            if component.head is None:
                self.mlp(str(component), [reads], [writes])
            else:
                self.head(
                    str(component), match=[(pair[0], pair[1])], moves=[(reads, writes)]
                )

    def _attention(self, name: str, layer: int | None = None) -> tuple[Any, int]:
        component = Component.parse(name)
        block = getattr(self.native, component.stack).block[
            component.layer if layer is None else layer
        ]
        assert component.head is not None
        if component.kind == "cross_attn":
            return block.layer[1].EncDecAttention, component.head
        return block.layer[0].SelfAttention, component.head


def _set(weight: Tensor, value: Tensor) -> None:
    with torch.no_grad():
        weight.copy_(value)


def find_bucket(attention: Any, offset: int, *, both_ways: bool) -> int:
    """Return the bucket of a distance.

    Raises:
        InputError: another distance shares it.
    """
    # in a decoder, later keys share the bucket of distance 0 and are masked, so that
    # they do not count
    neighbours = torch.tensor([offset, offset - 1, offset + both_ways])
    limits = (
        attention.relative_attention_num_buckets,
        attention.relative_attention_max_distance,
    )
    buckets = attention._relative_position_bucket(
        neighbours, both_ways, *limits
    ).tolist()
    if buckets[0] == buckets[1] or (both_ways and buckets[0] == buckets[2]):
        raise InputError(
            f"the distance of {offset} tokens shares its bucket of T5's position bias"
            " with another"
        )
    return int(buckets[0])


def _blank(layers: int, horizon: int, heads: int, buckets: int) -> Any:
    """Build a T5 of zeros, with the settings of a Chronos model."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=VOCABULARY,
        d_model=WIDTH,
        d_kv=CHANNELS,
        d_ff=D_FF,
        num_heads=heads,
        num_layers=layers,
        num_decoder_layers=layers,
        relative_attention_num_buckets=buckets,
        relative_attention_max_distance=buckets,
        feed_forward_proj="relu",
        dropout_rate=0.0,
        pad_token_id=PAD,
        eos_token_id=EOS,
        decoder_start_token_id=PAD,
        architectures=["T5ForConditionalGeneration"],
        chronos_config={
            "tokenizer_class": "MeanScaleUniformBins",
            "tokenizer_kwargs": {"low_limit": -LIMIT, "high_limit": LIMIT},
            "n_tokens": VOCABULARY,
            # the library numbers bins from 1 and adds this
            "n_special_tokens": FIRST - 1,
            "pad_token_id": PAD,
            "eos_token_id": EOS,
            "num_samples": 20,
            "temperature": 1.0,
            "top_k": VOCABULARY,
            "top_p": 1.0,
            "context_length": CONTEXT,
            "prediction_length": horizon,
            "use_eos_token": True,
            "model_type": "seq2seq",
        },
    )
    model = T5ForConditionalGeneration(config).eval().float()
    for weight in model.parameters():
        # the gains of norms are vectors, and stay 1
        if weight.ndim > 1:
            weight.data.zero_()
    return model
