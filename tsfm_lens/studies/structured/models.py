"""Attention with any scoring function, and small models made of it.

:class:`ScoredAttention` is the layer and :class:`Encoder` a stack of it;
:class:`InContextRegressor` and :class:`StepForecaster` are the models, made by name in
:func:`make_forecaster` and in :mod:`tsfm_lens.studies.structured.training`. Scoring
functions are in :mod:`tsfm_lens.studies.structured.forms`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from tsfm_lens.core.errors import InputError, unknown_name
from tsfm_lens.core.extensions import extensible
from tsfm_lens.studies.samformer.models import RevIN
from tsfm_lens.studies.structured.forms import (
    ScoringForm,
    form_of_name,
    mixed,
)
from tsfm_lens.studies.structured.matrices import check_divisible, whole

__all__ = [
    "Encoder",
    "InContextRegressor",
    "ScoredAttention",
    "StepForecaster",
    "make_forecaster",
]


class ScoredAttention(nn.Module):
    """Multi-head attention of (batch, token, width) with a scoring function.

    The form makes the projections of queries and keys; those of values and output are
    dense.

    Raises:
        InputError: ``n_heads`` does not divide the width, or the form refuses
            the sizes.
    """

    def __init__(
        self,
        width: int,
        n_heads: int,
        form: ScoringForm,
        *,
        causal: bool = True,
    ) -> None:
        super().__init__()
        self.width = whole(width, "width")
        self.n_heads = n_heads
        self.form = form
        self.causal = causal
        self.d_head = check_divisible(width, n_heads, "a width for heads")
        # d_score is the number of features of a head's queries and keys
        self.q, self.k, self.d_score = form.projections(width, n_heads, self.d_head)
        self.v = nn.Linear(width, n_heads * self.d_head, bias=False)
        self.o = nn.Linear(n_heads * self.d_head, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, token, width) to the same shape."""
        query, key, value = self.projected(x)
        z = self.form.attend(query, key, value, self.causal)
        return self.o(
            rearrange(z, "batch head token feature -> batch token (head feature)")
        )

    def projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries and keys as they enter the dot product, and values.

        Returns:
            (batch, head, token, feature) each.
        """
        query, key, value = (
            rearrange(
                part(x),
                "batch token (head feature) -> batch head token feature",
                head=self.n_heads,
            )
            for part in (self.q, self.k, self.v)
        )
        return *self.form.prepared(query, key, self.width), value


class EncoderBlock(nn.Module):
    """Attention, then an MLP of ``d_mlp`` hidden units with GELU.

    Each reads a LayerNorm of the stream.
    """

    def __init__(
        self, width: int, n_heads: int, form: ScoringForm, d_mlp: int, *, causal: bool
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attn = ScoredAttention(width, n_heads, form, causal=causal)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, d_mlp)
        self.down = nn.Linear(d_mlp, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, token, width) to the same shape."""
        x = x + self.attn(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Encoder(nn.Module):
    """Blocks with a scoring function each, and a last LayerNorm.

    Several ``forms`` are a pattern that repeats over the layers.
    """

    def __init__(
        self,
        width: int,
        n_layers: int,
        n_heads: int,
        forms: ScoringForm | Sequence[ScoringForm],
        *,
        d_mlp: int | None = None,
        causal: bool = True,
    ) -> None:
        super().__init__()
        self.forms = mixed(
            n_layers, [forms] if isinstance(forms, ScoringForm) else forms
        )
        hidden = 4 * width if d_mlp is None else whole(d_mlp, "d_mlp")
        self.blocks = nn.ModuleList(
            EncoderBlock(width, n_heads, form, hidden, causal=causal)
            for form in self.forms
        )
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, token, width) to the normalised stream."""
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


class TokenEmbedding(nn.Module):
    """Linear read-in of a token's inputs, and a learned vector for every position.

    ``inputs`` is how many numbers a token has, ``tokens`` the largest number of tokens.
    """

    def __init__(
        self,
        inputs: int,
        width: int,
        tokens: int,
    ) -> None:
        super().__init__()
        self.read_in = nn.Linear(inputs, width)
        self.tokens = tokens
        self.positions = nn.Parameter(0.02 * torch.randn(tokens, width))

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, token, inputs) to (batch, token, width)."""
        if x.shape[1] > self.tokens:
            raise InputError(
                f"{x.shape[1]} tokens are more than the {self.tokens} that the model"
                " was made for"
            )
        return self.read_in(x) + self.positions[: x.shape[1]]


class InContextRegressor(nn.Module):
    """Regressor that predicts y of each x from the pairs before it.

    Args:
        d_input: how many numbers each x has; y is one number.
        points: largest number of pairs.
        encoder: stack that reads the tokens; it must be causal.
        width: width of the encoder's stream.
        tokens: with "single", as in the paper (S2-ICL), tokens are x_1, y_1, x_2, y_2,
            …, each y filled up with zeros; with "pairs", token i is x_i and the pair
            before it.

    Raises:
        InputError: the encoder is not causal.
        UnknownNameError: ``tokens`` is neither of these.
    """

    def __init__(
        self,
        d_input: int,
        points: int,
        encoder: Encoder,
        width: int,
        tokens: Literal["single", "pairs"] = "single",
    ) -> None:
        super().__init__()
        if tokens not in ("single", "pairs"):
            raise unknown_name("kind of tokens", tokens, ("single", "pairs"))
        self.d_input = whole(d_input, "d_input")
        self.points = whole(points, "points")
        self.paired = tokens == "pairs"
        if self.paired:
            self.embed = TokenEmbedding(2 * d_input + 1, width, points)
        else:
            self.embed = TokenEmbedding(d_input, width, 2 * points)
        self.encoder = encoder
        self.read_out = nn.Linear(width, 1)
        if not all(block.attn.causal for block in encoder.blocks):  # type: ignore[union-attr]
            raise InputError(
                "the encoder is not causal, so that every y would be seen; make it with"
                " causal=True"
            )
        # the untrained model predicts 0
        nn.init.zeros_(self.read_out.weight)
        nn.init.zeros_(self.read_out.bias)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Predict each y from earlier pairs, (batch, point).

        x is (batch, point, d_input) and y (batch, point).
        """
        if self.paired:
            pairs = torch.cat([x, y[..., None]], -1)
            # one point later, with zeros before the first
            earlier_pairs = F.pad(pairs[:, :-1], (0, 0, 1, 0))
            tokens = torch.cat([x, earlier_pairs], -1)
        else:
            padded = F.pad(y[..., None], (0, self.d_input - 1))
            tokens = torch.stack([x, padded], 2).flatten(1, 2)
        out = self.read_out(self.encoder(self.embed(tokens)))[..., 0]
        if self.paired:
            return out
        # every other token is an x, and there its y is predicted
        return out[:, ::2]


@extensible
class StepForecaster(nn.Module):
    """Forecaster whose token t reads step t and forecasts step T + t (S2-ETT).

    It maps windows (batch, channel, T) to the T steps after them, of the same shape.
    RevIN normalises the window. One linear map takes the channels of a step into the
    stream, another takes the last stream to the channels of a forecast step, and the
    inverse of RevIN restores the units. ``load(model)`` opens a lens on it.
    """

    def __init__(
        self,
        encoder: Encoder,
        width: int,
        *,
        length: int,
        channels: int,
        settings: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.length = self.horizon = whole(length, "length")
        self.channels = whole(channels, "channels")
        self.width = width
        self.settings = {"length": length, "channels": channels, **(settings or {})}
        self.revin = RevIN(channels)
        self.embed = TokenEmbedding(channels, width, length)
        self.encoder = encoder
        self.read_out = nn.Linear(width, channels)

    def forward(self, x: Tensor) -> Tensor:
        """Map windows (batch, channel, T) to forecasts of the same shape and units."""
        statistics = self.statistics(x)
        # (batch, T, channel)
        tokens = self.revin(x, *statistics).mT
        return self.forecast(self.encoder(self.embed(tokens)), statistics)

    def statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return RevIN's statistics of windows (…, channel, T)."""
        return self.revin.statistics(x)

    def forecast(self, stream: Tensor, statistics: tuple[Tensor, Tensor]) -> Tensor:
        """Map the last stream (…, token, width) to forecasts (…, channel, T).

        They are in the units of the windows.
        """
        return self.revin.inverse(self.read_out(stream).mT, *statistics)


def make_forecaster(
    name: str,
    length: int,
    horizon: int,
    channels: int,
    *,
    width: int = 64,
    layers: int = 2,
    heads: int = 4,
    d_mlp: int | None = None,
    seed: int = 0,
    **form: Any,
) -> StepForecaster:
    """Make a forecaster of time steps with random weights.

    Args:
        name: scoring function, one of ``REGRESSORS``.
        length, horizon: steps of windows and of forecasts, which must be equal.
        channels: number of channels of both.
        form: arguments of the scoring function, such as ``ranks``.

    Raises:
        UnknownNameError: there is no such scoring function.
        InputError: sizes do not fit each other.

    Example:
        >>> model = structured.make_forecaster(
        ...     "mlr-attention", 16, 16, 7, ranks=[12, 4]
        ... )
        >>> model(torch.ones(1, 7, 16)).shape
        torch.Size([1, 7, 16])
    """
    if horizon != length:
        raise InputError(
            f"a horizon of {horizon} steps after windows of {length}: this model takes"
            " one length for both"
        )
    scoring = form_of_name(name, form)
    sizes = {"width": width, "layers": layers, "heads": heads, "d_mlp": d_mlp}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoder = Encoder(width, layers, heads, scoring, d_mlp=d_mlp, causal=False)
        settings = {"name": name, **sizes, "form": repr(scoring), "seed": seed}
        return StepForecaster(
            encoder, width, length=length, channels=channels, settings=settings
        )
