"""Small pre-norm transformers with a scoring function of one's choice: in-context regression, and forecasting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tsfm_lens.errors import InputError, unknown_name
from tsfm_lens.registry import extensible
from tsfm_lens.studies.structured.attention import ScoredAttention
from tsfm_lens.studies.structured.forms import Form, mixed
from tsfm_lens.studies.structured.sizes import refuse_remainder, whole

__all__ = ["Encoder", "InContextRegressor", "PatchForecaster"]

DECILES = tuple(level / 10 for level in range(1, 10))


class Block(nn.Module):
    """Attention, then an MLP with GELU, each on a LayerNorm of the stream.

    Args:
        width, n_heads, form, causal: as in :class:`ScoredAttention`.
        d_mlp: hidden units.
    """

    def __init__(self, width: int, n_heads: int, form: Form, d_mlp: int, *, causal: bool) -> None:
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(width), ScoredAttention(width, n_heads, form, causal=causal)
        self.norm2 = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, d_mlp), nn.Linear(d_mlp, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, token, width) to the same shape."""
        x = x + self.attn(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Encoder(nn.Module):
    """Blocks and a last LayerNorm.

    Args:
        width: of the stream.
        n_layers: number of blocks.
        n_heads: heads of each.
        forms: the scoring function, or a pattern of several that repeats over the layers.
        d_mlp: hidden units of the MLPs; 4 · width if None.
        causal: whether a token sees none after it.

    Example:
        >>> encoder = structured.Encoder(16, 2, 4, structured.Standard())
        >>> encoder(torch.zeros(1, 5, 16)).shape
        torch.Size([1, 5, 16])
    """

    def __init__(
        self,
        width: int,
        n_layers: int,
        n_heads: int,
        forms: Form | Sequence[Form],
        *,
        d_mlp: int | None = None,
        causal: bool = True,
    ) -> None:
        super().__init__()
        self.forms = mixed(n_layers, [forms] if isinstance(forms, Form) else forms)
        hidden = 4 * width if d_mlp is None else whole(d_mlp, "d_mlp")
        self.blocks = nn.ModuleList(Block(width, n_heads, form, hidden, causal=causal) for form in self.forms)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, token, width) to the normalised stream."""
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.norm(x)
        return out


class Embedding(nn.Module):
    """Linear read-in, and a learned vector for every position where there are positions.

    Args:
        inputs: numbers of a token.
        width: of the stream.
        tokens: positions.
        positions: "learned" or "none".
    """

    def __init__(self, inputs: int, width: int, tokens: int, positions: Literal["learned", "none"]) -> None:
        super().__init__()
        if positions not in ("learned", "none"):
            raise unknown_name("kind of positions", positions, ("learned", "none"))
        self.read_in, self.tokens = nn.Linear(inputs, width), tokens
        self.positions = nn.Parameter(0.02 * torch.randn(tokens, width)) if positions == "learned" else None

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, token, inputs) to (batch, token, width)."""
        if x.shape[1] > self.tokens:
            raise InputError(f"{x.shape[1]} tokens are more than the {self.tokens} that the model was made for")
        out: Tensor = self.read_in(x)
        return out if self.positions is None else out + self.positions[: x.shape[1]]


class InContextRegressor(nn.Module):
    """Regressor that predicts y of each x from the pairs before it.

    Args:
        d_input: numbers in an x.
        points: pairs of a prompt at most.
        encoder: causal.
        width: of its stream.
        positions: "learned" or "none".
        tokens: "single", x_1, y_1, x_2, y_2, …, y filled up with zeros, as in the paper; or "pairs", where token i
            holds x_i and the pair before it, so that no layer has to bring an x together with its y.

    Source:
        Structured attention, section 4 (S2-ICL): linear read-in, and a linear read-out that begins at zero, so that the
        loss begins at the mean square of y.

    Raises:
        InputError: the encoder is not causal.
        UnknownNameError: other tokens or positions.

    Example:
        >>> encoder = structured.Encoder(16, 1, 2, structured.BilinearTrain())
        >>> model = structured.InContextRegressor(4, 8, encoder, 16)
        >>> model(torch.ones(1, 8, 4), torch.ones(1, 8)).abs().max().item()
        0.0
    """

    def __init__(
        self,
        d_input: int,
        points: int,
        encoder: Encoder,
        width: int,
        positions: Literal["learned", "none"] = "learned",
        tokens: Literal["single", "pairs"] = "single",
    ) -> None:
        super().__init__()
        if tokens not in ("single", "pairs"):
            raise unknown_name("kind of tokens", tokens, ("single", "pairs"))
        self.d_input, self.points, self.paired = whole(d_input, "d_input"), whole(points, "points"), tokens == "pairs"
        sizes = (2 * d_input + 1, points) if self.paired else (d_input, 2 * points)
        self.embed = Embedding(sizes[0], width, sizes[1], positions)
        self.encoder, self.read_out = encoder, nn.Linear(width, 1)
        if not all(block.attn.causal for block in encoder.blocks):  # type: ignore[union-attr]
            raise InputError("the encoder is not causal, so that every y would be seen; make it with causal=True")
        nn.init.zeros_(self.read_out.weight)
        nn.init.zeros_(self.read_out.bias)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Predict y, (batch, point), from (batch, point, d_input) and (batch, point), each from earlier pairs."""
        if self.paired:
            before = F.pad(torch.cat([x, y[..., None]], -1)[:, :-1], (0, 0, 1, 0))
            tokens = torch.cat([x, before], -1)
        else:
            tokens = torch.stack([x, F.pad(y[..., None], (0, self.d_input - 1))], 2).flatten(1, 2)
        out: Tensor = self.read_out(self.encoder(self.embed(tokens)))
        return out[..., 0] if self.paired else out[:, ::2, 0]


@extensible
class PatchForecaster(nn.Module):
    """Forecaster from patches of a normalised series to quantiles of all steps ahead, out of the last token.

    Args:
        encoder: of any scoring function.
        width: of its stream.
        patch: steps of a token.
        context_length: steps read, a multiple of ``patch``; shorter series are filled with NaN on the left.
        prediction_length: steps ahead.
        levels: quantile levels.
        positions: "learned" or "none".

    Example:
        >>> encoder = structured.Encoder(16, 1, 2, structured.TokenLevels((4, 4)))
        >>> model = structured.PatchForecaster(encoder, 16, patch=4, context_length=32, prediction_length=6)
        >>> model(torch.ones(2, 32)).shape
        torch.Size([2, 9, 6])
    """

    def __init__(
        self,
        encoder: Encoder,
        width: int,
        *,
        patch: int,
        context_length: int,
        prediction_length: int,
        levels: Sequence[float] = DECILES,
        positions: Literal["learned", "none"] = "learned",
    ) -> None:
        super().__init__()
        self.patch, self.context_length = whole(patch, "patch"), whole(context_length, "context_length")
        self.prediction_length, self.levels = whole(prediction_length, "prediction_length"), tuple(levels)
        if context_length % patch:
            raise InputError(
                f"context_length {context_length} is no multiple of the patch of {patch}; the nearest is "
                f"{max(round(context_length / patch), 1) * patch}"
            )
        refuse_remainder(context_length, patch, "a context")
        # values, and the mask of those that are there
        self.embed = Embedding(2 * patch, width, context_length // patch, positions)
        self.encoder = encoder
        self.head = nn.Linear(width, len(self.levels) * prediction_length)

    def forward(self, context: Tensor) -> Tensor:
        """Map (batch, step), NaN where missing, to quantiles in data units, (batch, quantile, step)."""
        if context.shape[-1] != self.context_length:
            raise InputError(f"a context of {context.shape[-1]} steps, expected {self.context_length}, NaN on the left")
        loc, scale = self.location(context)
        mask = ~torch.isnan(context)
        values = torch.where(mask, (context - loc[:, None]) / scale[:, None], 0.0)
        tokens = torch.cat([part.unflatten(1, (-1, self.patch)) for part in (values, mask.to(values))], -1)
        return self.quantiles(self.encoder(self.embed(tokens)), loc, scale)

    def location(self, context: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation of the finite values of each series, (batch,); 0 and 1 without any."""
        mask = ~torch.isnan(context)
        count = mask.sum(-1).clamp(min=1)
        loc = torch.nan_to_num(context).sum(-1) / count
        variance = torch.where(mask, context - loc[:, None], 0.0).square().sum(-1) / count
        return loc, torch.where(variance > 0, variance.sqrt(), 1.0)

    def quantiles(self, normalized: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
        """Map the last stream (…, batch, token, width) to quantiles in data units, (…, batch, quantile, step)."""
        flat = self.head(normalized[..., -1, :]).unflatten(-1, (len(self.levels), self.prediction_length))
        return flat * scale[:, None, None] + loc[:, None, None]
