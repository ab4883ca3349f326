"""Attention module with a scoring function of one's choice, and its decoding with a cache of the keys it needs."""

from __future__ import annotations

from dataclasses import replace

import torch
from einops import rearrange
from torch import Tensor, nn

from tsfm_lens.errors import InputError
from tsfm_lens.studies.structured.forms import Form, TokenLevels
from tsfm_lens.studies.structured.sizes import refuse_remainder, whole
from tsfm_lens.studies.structured.tiles import Reach

__all__ = ["KeyCache", "ScoredAttention"]


class ScoredAttention(nn.Module):
    """Multi-head attention: queries and keys as the form makes them, dense values and output.

    Args:
        width: of a token.
        n_heads: number of heads.
        form: the scoring function.
        d_head: features of a head's values; width / heads if None.
        causal: whether a token sees none after it.

    Attributes:
        q, k, v, o: the projections, none with a bias.

    Raises:
        InputError: the heads do not divide the width, or as the form says.

    Example:
        >>> attention = structured.ScoredAttention(16, 2, structured.BilinearTrain())
        >>> attention(torch.zeros(1, 5, 16)).shape
        torch.Size([1, 5, 16])
    """

    def __init__(self, width: int, n_heads: int, form: Form, *, d_head: int | None = None, causal: bool = True) -> None:
        super().__init__()
        self.width, self.n_heads, self.form, self.causal = whole(width, "width"), n_heads, form, causal
        if d_head is None:
            d_head = refuse_remainder(width, n_heads, "a width for heads")
        self.d_head = whole(d_head, "d_head")
        self.q, self.k, self.d_score = form.projections(width, n_heads, self.d_head)
        self.v = nn.Linear(width, n_heads * self.d_head, bias=False)
        self.o = nn.Linear(n_heads * self.d_head, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, token, width) to the same shape."""
        query, key, value = self.projected(x)
        z = self.form.attend(query, key, value, self.causal)
        return self.o(rearrange(z, "batch head token feature -> batch token (head feature)"))

    def projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys as they enter the dot product, and values, each (batch, head, token, feature)."""
        query, key, value = (
            rearrange(part(x), "batch token (head feature) -> batch head token feature", head=self.n_heads)
            for part in (self.q, self.k, self.v)
        )
        return *self.form.prepared(query, key, self.width), value

    def cache(self, batch: int, length: int) -> KeyCache:
        """Make an empty cache for so many tokens of so many sequences.

        Raises:
                InputError: the attention is not causal, so that every token's output depends on the last one.
        """
        if not self.causal:
            raise InputError("attention that is not causal cannot be decoded token by token; make it with causal=True")
        form = self.form
        if isinstance(form, TokenLevels) and form.length is None:
            # blocks are those of the whole sequence from the first token on
            form = replace(form, length=length)
        reach = form.reach(self.d_score, length, True)
        return KeyCache(reach, batch, self.n_heads, length, self.d_head, self.o.weight)

    def step(self, x: Tensor, cache: KeyCache) -> Tensor:
        """Compute one more token (batch, 1, width) from the cached keys and values, as ``forward`` does.

        Raises:
            InputError: the cache is full.
        """
        query, key, value = self.projected(x)
        cache.append(key, value)
        z = torch.softmax(cache.scores(query), -1) @ cache.values()
        return self.o(rearrange(z, "batch head token feature -> batch token (head feature)"))


class KeyCache:
    """Keys and values of the tokens so far: of each level the keys of the present block alone.

    At the last of T tokens it holds T Σ_l r_l / 2^(l-1) numbers of keys a head, for T r of standard attention.

    Args:
        reach: keys that a query scores.
        batch, heads: sequences, and heads of each.
        length: largest number of tokens.
        d_value: features of values.
        like: a tensor of the type and device to use.
    """

    def __init__(self, reach: Reach, batch: int, heads: int, length: int, d_value: int, like: Tensor) -> None:
        self.reach, self.length, self.tokens = reach, length, 0
        capacities = [min(block, length) for block in reach.blocks]
        self._value_capacity = length
        if reach.window is not None:
            self._value_capacity = min(length, reach.window + 1)
            capacities = [min(count, self._value_capacity) for count in capacities]
        self._keys = [
            like.new_empty(batch, heads, count, rank) for count, rank in zip(capacities, reach.ranks, strict=True)
        ]
        self._values = like.new_empty(batch, heads, self._value_capacity, d_value)

    @property
    def key_bytes(self) -> int:
        """Bytes of the keys, all heads and sequences together."""
        return sum(keys.untyped_storage().nbytes() for keys in self._keys)

    @property
    def value_bytes(self) -> int:
        """Bytes of the values."""
        return self._values.untyped_storage().nbytes()

    def append(self, key: Tensor, value: Tensor) -> None:
        """Store one more token's key (batch, head, 1, feature) and value.

        Raises:
            InputError: the cache is full.
        """
        if self.tokens >= self.length:
            raise InputError(f"the cache has room for {self.length} tokens and is full; make one for more")
        start = 0
        for keys, rank, block in zip(self._keys, self.reach.ranks, self.reach.blocks, strict=True):
            keys[:, :, self.tokens % block % keys.shape[2]] = key[:, :, 0, start : start + rank].detach()
            start += rank
        self._values[:, :, self.tokens % self._value_capacity] = value[:, :, 0].detach()
        self.tokens += 1

    def scores(self, query: Tensor) -> Tensor:
        """Compute the scores (batch, head, 1, key) of the newest token's query, in the order of :meth:`values`."""
        visible = min(self.tokens, self._value_capacity)
        scores = query.new_zeros(*query.shape[:3], visible)
        depth = query.new_zeros(visible)
        start = 0
        for keys, rank, block in zip(self._keys, self.reach.ranks, self.reach.blocks, strict=True):
            inside = min((self.tokens - 1) % block + 1, keys.shape[2])
            features = query[..., start : start + rank]
            scores[..., visible - inside :] += features @ keys[:, :, :inside].transpose(2, 3)
            depth[visible - inside :] += 1
            start += rank
        return scores * self.reach.scale / (depth if self.reach.by_depth else 1)

    def values(self) -> Tensor:
        """Return the values (batch, head, key, feature) of the tokens that the newest one sees."""
        return self._values[:, :, : min(self.tokens, self._value_capacity)]
