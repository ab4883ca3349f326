"""A Chronos model (T5 over value tokens) whose weights are set head by head.

The stream is thought of in units of a token's embedding: every embedding of a value has length 1, so that the first
root-mean-square norms divide by a constant and what heads read is linear. What a norm yields is thought of as the
stream divided by its length; `Canvas` puts the factors of the width in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tsfm_lens.errors import InputError
from tsfm_lens.hooks import Component
from tsfm_lens.zoo.planted.basis import Basis, orthogonal

__all__ = ["BIN", "CONTEXT", "HEAD", "LIMIT", "ONE", "WAVES", "WIDTH", "Canvas", "Pairs"]

WIDTH, HEAD, VOCABULARY, CONTEXT, LIMIT, BUCKETS = 64, 24, 1024, 128, 5.0, 128
PAD, EOS, FIRST = 0, 1, 3
"""Ids: of the start token, of the end of the context, of the lowest bin."""

WAVES = (20.0, 8.0, 3.2, 1.3, 0.5)
"""Wavelengths of a value's features, in mean absolute values: two values are alike if all their waves are."""

BIN = 2 * LIMIT / (VOCABULARY - FIRST - 1)
"""Width of a bin, in mean absolute values."""

ONE = 0.1
"""Share of a value's squared embedding that is the same for all values."""

Pairs = Sequence[tuple[Tensor, Tensor]]
"""Directions (n, width) that are read, and as many that they are compared with or written to."""

ALWAYS = {"one": 1, "value": 1, "square": 1, "filler": 1, "eos": 1, "start": 1}


class Canvas:
    """A Chronos model whose heads and MLPs all do nothing, to plant in.

    Attributes:
        basis: directions of the stream by name, the same in encoder and decoder, whose embeddings are one matrix.
        native: the transformers model.
        rng: for choices, such as which of a layer's heads gets a task.
    """

    def __init__(
        self,
        blocks: Mapping[str, int],
        *,
        seed: int,
        rotate: bool,
        horizon: int,
        waves: float,
        start: float,
        sharpness: float,
        heads: int = 4,
        layers: int = 2,
        d_ff: int = 32,
    ) -> None:
        """Lay out the stream and the embeddings.

        Args:
            blocks: directions of the stream by name, besides those of the embeddings.
            seed, rotate: of the basis.
            horizon: steps of one pass.
            waves: share of a value's squared embedding that is waves.
            start: length of the start token's embedding; short, since the head that reads it is the same matrix.
            sharpness: factor on the logits.
            heads, layers, d_ff: heads of a layer, layers of encoder and of decoder, hidden units of an MLP. (The library
                sizes the decoder's cache by the encoder's layers, so there are as many of both.)
        """
        sizes = {**ALWAYS, **({"wave": 2 * len(WAVES)} if waves else {}), **blocks}
        self.basis = Basis.draw(WIDTH, sizes, seed=seed, rotate=rotate)
        self.rng = np.random.default_rng(seed)
        self._turn = seed if rotate else None
        self._taken: dict[str, int] = {}
        self.native = _blank(heads, layers, d_ff, horizon)
        self.linear = 1.0 - ONE - waves
        table = torch.zeros(VOCABULARY, WIDTH, dtype=torch.float64)
        table[FIRST:] = self.embedded(_centers(), waves)
        table[PAD] = start * self.basis["start"][0]
        table[EOS] = self.basis["eos"][0]
        self._set(self.native.shared.weight, WIDTH**0.5 * table)
        self.native.decoder.final_layer_norm.weight.data.fill_(sharpness / WIDTH**0.5)

    def embedded(self, values: Tensor, waves: float) -> Tensor:
        """Embeddings of values (n,) in mean absolute values, each of length 1: (n, width)."""
        part = values / LIMIT
        rest = self.linear
        value, square = (rest / 2) ** 0.5 * part, (2 * rest) ** 0.5 * (part**2 - 0.5)
        filler = (rest - value**2 - square**2).clamp(min=0) ** 0.5
        of = self.basis
        columns = torch.stack([torch.full_like(part, ONE**0.5), value, square, filler], dim=1)
        table = columns @ of.span("one", "value", "square", "filler")
        if waves:
            angle = 2 * torch.pi * values[:, None] / torch.tensor(WAVES, dtype=torch.float64)
            table += (waves / len(WAVES)) ** 0.5 * torch.cat([angle.cos(), angle.sin()], dim=1) @ of["wave"]
        return table

    def free_head(self, place: str) -> str:
        """Name a head, chosen at random, that has no task yet; in self-attention one that is free in every layer.

        Args:
            place: like "decoder.1.cross_attn".
        """
        stack, _, kind = place.split(".")
        shared = f"{stack}.{kind}" if kind == "self_attn" else place
        heads = self.native.config.num_heads
        taken = self._taken.get(shared, 0)
        options = [head for head in range(heads) if not taken >> head & 1]
        head = int(self.rng.choice(options))
        self._taken[shared] = taken | 1 << head
        return f"{place}.{head}"

    def head(
        self, name: str, *, match: Pairs = (), moves: Pairs = (), bias: Mapping[int, float] | None = None
    ) -> str:
        """Give a head its task.

        Args:
            name: the head.
            match: what queries read and what keys read; the score is the sum of the products.
            moves: what is read from the attended token, and what is written with it.
            bias: by key minus query in tokens, the logit of T5's relative position bias, the same in all layers.

        Raises:
            InputError: more directions than the head has.
        """
        module, head = self._attention(name)
        rows = slice(HEAD * head, HEAD * (head + 1))
        for number, (pairs, left, right) in enumerate(((match, module.q, module.k), (moves, module.v, module.o))):
            if not pairs:
                continue
            first, second = (torch.cat([pair[side] for pair in pairs]) for side in (0, 1))
            if len(first) > HEAD:
                raise InputError(f"{name}: {len(first)} directions do not fit into a head of {HEAD}")
            # in the head's own space too, nothing lies on an axis
            turn = torch.eye(HEAD, dtype=torch.float64)
            if self._turn is not None:
                turn = orthogonal(HEAD, self._turn + 7919 * (2 * sum(map(ord, name)) + number + 1))
            turned = turn[:, : len(first)]
            self._set(left.weight[rows], turned @ first / WIDTH**0.5)
            if number:
                self._set(right.weight[:, rows], WIDTH**0.5 * second.T @ turned.T)
            else:
                self._set(right.weight[rows], turned @ second / WIDTH**0.5)
        for offset, logit in (bias or {}).items():
            table = self._attention(name, layer=0)[0]
            self._set(table.relative_attention_bias.weight[self._bucket(name, offset), head], torch.tensor(logit))
        return name

    def mlp(self, name: str, reads: Tensor, writes: Tensor) -> str:
        """Give an MLP hidden units: what each reads (n, width), and what each writes (n, width) times its positive part.

        Raises:
            InputError: more hidden units than the MLP has.
        """
        component = Component.parse(name)
        module = getattr(self.native, component.stack).block[component.layer].layer[-1].DenseReluDense
        if len(reads) > module.wi.out_features:
            raise InputError(f"{name}: {len(reads)} hidden units do not fit into {module.wi.out_features}")
        self._set(module.wi.weight[: len(reads)], reads / WIDTH**0.5)
        self._set(module.wo.weight[:, : len(writes)], WIDTH**0.5 * writes.T)
        return name

    def _attention(self, name: str, layer: int | None = None) -> tuple[Any, int]:
        component = Component.parse(name)
        block = getattr(self.native, component.stack).block[component.layer if layer is None else layer]
        assert component.head is not None
        if component.kind == "cross_attn":
            return block.layer[1].EncDecAttention, component.head
        return block.layer[0].SelfAttention, component.head

    def _bucket(self, name: str, offset: int) -> int:
        """Bucket of a distance, which must be the only one in it."""
        module, _ = self._attention(name, layer=0)
        both_ways = name.startswith("encoder")
        near = torch.tensor([offset - 1, offset, offset + 1] if both_ways else [offset - 1, offset])
        buckets = module._relative_position_bucket(near, both_ways, BUCKETS, CONTEXT).tolist()
        here = buckets[1]
        if buckets.count(here) > 1 or (offset > 0 and not both_ways):
            raise InputError(f"{name}: the distance {offset} has no bucket of its own")
        return int(here)

    @staticmethod
    def _set(weight: Tensor, value: Tensor) -> None:
        with torch.no_grad():
            weight.copy_(value)


def _centers() -> Tensor:
    """Values of the bins, in mean absolute values."""
    return torch.linspace(-LIMIT, LIMIT, VOCABULARY - FIRST, dtype=torch.float64)


def _blank(heads: int, layers: int, d_ff: int, horizon: int) -> Any:
    """A T5 of zeros, with the settings of a Chronos model."""
    from transformers import T5Config, T5ForConditionalGeneration

    settings = {
        "tokenizer_class": "MeanScaleUniformBins",
        "tokenizer_kwargs": {"low_limit": -LIMIT, "high_limit": LIMIT},
        "n_tokens": VOCABULARY,
        "n_special_tokens": FIRST - 1,
        "pad_token_id": PAD,
        "eos_token_id": EOS,
        "use_eos_token": True,
        "model_type": "seq2seq",
        "context_length": CONTEXT,
        "prediction_length": horizon,
        "num_samples": 20,
        "temperature": 1.0,
        "top_k": VOCABULARY,
        "top_p": 1.0,
    }
    config = T5Config(
        architectures=["T5ForConditionalGeneration"],
        vocab_size=VOCABULARY,
        d_model=WIDTH,
        d_kv=HEAD,
        d_ff=d_ff,
        num_layers=layers,
        num_decoder_layers=layers,
        num_heads=heads,
        relative_attention_num_buckets=BUCKETS,
        relative_attention_max_distance=CONTEXT,
        feed_forward_proj="relu",
        dropout_rate=0.0,
        pad_token_id=PAD,
        eos_token_id=EOS,
        decoder_start_token_id=PAD,
        chronos_config=settings,
    )
    model = T5ForConditionalGeneration(config).eval().float()
    for weight in model.parameters():
        if weight.ndim > 1:
            weight.data.zero_()
    return model
