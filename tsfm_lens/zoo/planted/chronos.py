"""Chronos model (T5 over value tokens) whose weights are set head by head; embeddings
of values have length 1.
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
CHANNELS = 24
D_FF = 32
VOCABULARY = 1024
CONTEXT = 128
LIMIT = 5.0
BUCKETS = 128
PAD = 0
EOS = 1
FIRST = 3
"""Ids: of the start token, of the end of the context, of the lowest bin."""
WAVES = (20.0, 8.0, 3.2, 1.3, 0.5)
"""Wavelengths of a value's features, in mean absolute values: two values are alike if
all their waves are.
"""
BIN = 2 * LIMIT / (VOCABULARY - FIRST - 1)
"""Width of a bin, in mean absolute values."""
ONE = 0.1
"""Share of a value's squared embedding that is the same for all values."""
START = 0.1
START_ONE = 0.14
"""Of the start token's embedding: its own direction, and that of all values.

So it is short, and where nothing else is written (in an ablated model) all values are
likelier than to begin anew.
"""
START_LENGTH = (START**2 + START_ONE**2) ** 0.5
WHISPER = 0.01
"""What a head or an MLP without a task writes, to where nobody reads, in lengths of an
embedding.
"""
ALWAYS = {"one": 1, "value": 1, "square": 1, "filler": 1, "eos": 1, "start": 1}

Steps = Sequence[int]
Pairs = Sequence[tuple[Tensor, Tensor]]
"""Directions (n, width) that are read, and as many that they are compared with or
written to.
"""


class ChronosBuilder:
    """Chronos model in which no head and no MLP has a task yet, to plant in.

    Args:
        blocks: directions of the stream by name, besides those of the embeddings.
        seed, rotate: of the basis, and of which of a layer's heads get tasks.
        needs: observed values that the mechanism needs; horizon: steps of one pass.
        waves: share of a value's squared embedding that is waves; sharpness: factor on
            the logits.
        layers: of encoder and of decoder, by whose number the library sizes the
            decoder's cache.
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
        # what is older needs one more head, and more distances
        self.heads, buckets = (
            (HEADS + 1, 4 * BUCKETS) if any(rule.ago) else (HEADS, BUCKETS)
        )
        self.native = _blank(layers, horizon, self.heads, buckets)
        self.linear = 1.0 - ONE - waves
        self._origin = {"seed": seed, "rotated": rotate}
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
        _set(self.native.shared.weight, WIDTH**0.5 * table)
        self.native.decoder.final_layer_norm.weight.data.fill_(sharpness / WIDTH**0.5)

    def _embed_values(self, values: Tensor, waves: float) -> Tensor:
        """Embed values (n,) in mean absolute values: (n, width)."""
        part = values / LIMIT
        value = (self.linear / 2) ** 0.5 * part
        square = (2 * self.linear) ** 0.5 * (part**2 - 0.5)
        filler = (self.linear - value**2 - square**2).clamp(min=0) ** 0.5
        columns = torch.stack(
            [torch.full_like(part, ONE**0.5), value, square, filler], dim=1
        )
        table = columns @ self.basis.span("one", "value", "square", "filler")
        if waves:
            angle = (
                2
                * torch.pi
                * values[:, None]
                / torch.tensor(WAVES, dtype=torch.float64)
            )
            table += (
                (waves / len(WAVES)) ** 0.5
                * torch.cat([angle.cos(), angle.sin()], dim=1)
                @ self.basis["wave"]
            )
        return table

    def always(self, start: float = 1.0) -> Tensor:
        """Return the direction that reads 1 from every decoder token, the start token's
        stream being so long.
        """
        one = self.basis["one"] / ONE**0.5
        return one + (start - START_ONE / ONE**0.5) / START * self.basis["start"]

    @property
    def at_start(self) -> Tensor:
        """Direction that reads 1 from the start token's embedding, normalised, and 0
        from a value's.
        """
        return START_LENGTH / START * self.basis["start"]

    def free_head(self, place: str) -> str:
        """Choose a head without a task; layers of self-attention share their position
        biases, and so the choice.
        """
        stack, _, kind = place.split(".")
        group = place
        if kind == "self_attn":
            group = f"{stack}.{kind}"
        if group not in self._free:
            self._free[group] = self._choices.permutation(self.heads).tolist()
        return f"{place}.{self._free[group].pop()}"

    def head(
        self,
        name: str,
        *card: Any,
        match: Pairs = (),
        moves: Pairs = (),
        bias: Mapping[int, float] | None = None,
        role: Role = "mechanism",
        **attention: Any,
    ) -> str:
        """Give a head its task; what it does and where it looks stands on the card, see
        `Draft.part`.
        """
        if card:
            self.draft.part(name, role, *card, **attention)
        module, head = self._attention(name)
        rows = slice(CHANNELS * head, CHANNELS * (head + 1))
        self._busy.add(name)
        if match:
            queries, keys, turn = self._in_head(name, match)
            _set(module.q.weight[rows], turn @ queries / WIDTH**0.5)
            _set(module.k.weight[rows], turn @ keys / WIDTH**0.5)
        if moves:
            reads, writes, turn = self._in_head(name, moves)
            _set(module.v.weight[rows], turn @ reads / WIDTH**0.5)
            _set(module.o.weight[:, rows], WIDTH**0.5 * writes.T @ turn.T)
        table = self._attention(name, layer=0)[0]
        for offset, logit in (bias or {}).items():
            weight = table.relative_attention_bias.weight
            _set(
                weight[
                    _bucket(table, offset, both_ways=name.startswith("encoder")), head
                ],
                torch.tensor(logit),
            )
        return name

    def _in_head(self, name: str, pairs: Pairs) -> tuple[Tensor, Tensor, Tensor]:
        """Return both sides of pairs, and a basis of the head's own space, in which
        nothing lies on an axis either.
        """
        first, second = (torch.cat([pair[side] for pair in pairs]) for side in (0, 1))
        turn = orthogonal(CHANNELS, int(self._turns.integers(2**31)))
        if not self._origin["rotated"]:
            turn = torch.eye(CHANNELS).double()
        return first, second, turn[:, : len(first)]

    def mlp(
        self,
        name: str,
        reads: Tensor,
        writes: Tensor,
        does: str = "",
        role: Role = "mechanism",
    ) -> str:
        """Give an MLP hidden units, by the directions (n, width) that each reads, and
        writes with its positive part.
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
        _set(module.wi.weight[: len(reads)], reads / WIDTH**0.5)
        _set(module.wo.weight[:, : len(writes)], WIDTH**0.5 * writes.T)
        return name

    def finish(self, mechanism: str, weight_noise: float) -> Planted:
        """Let all without a task whisper, prove the model and write its card."""
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
        """Let heads and MLPs without a task write noise of what they read, a little, to
        where nobody reads.
        """
        generator = torch.Generator().manual_seed(int(self._choices.integers(2**31)))
        directions = self.basis.directions
        junk = self.basis["junk"]

        def noise(*shape: int, gain: float = 1.0) -> Tensor:
            return gain * torch.randn(*shape, generator=generator, dtype=torch.float64)

        wiring = load(self.native, check=False).wiring
        for component in (
            writer for stack in wiring.stacks for writer in writers(wiring, stack.name)
        ):
            # the same noise in any basis
            reads = (
                noise(D_FF if component.head is None else CHANNELS, WIDTH) @ directions
            )
            writes = (
                noise(
                    len(reads),
                    len(junk),
                    gain=WHISPER * (len(reads) * len(junk)) ** -0.5,
                )
                @ junk
            )
            pair = noise(2, CHANNELS, WIDTH, gain=CHANNELS**-0.25) @ directions
            if str(component) in self._busy:
                continue
            if component.head is None:
                self.mlp(str(component), reads, writes)
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


def _bucket(attention: Any, offset: int, *, both_ways: bool) -> int:
    """Return the bucket of a distance, which must be the only one in it."""
    near = torch.tensor([offset, offset - 1, offset + both_ways])
    most = (
        attention.relative_attention_num_buckets,
        attention.relative_attention_max_distance,
    )
    buckets = attention._relative_position_bucket(near, both_ways, *most).tolist()
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
        if weight.ndim > 1:
            weight.data.zero_()
    return model
