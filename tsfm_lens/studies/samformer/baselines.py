"""Baselines of the transformer: a linear map, with the least squares that it can reach, and TSMixer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tsfm_lens.errors import InputError, unknown_name
from tsfm_lens.studies.samformer.revin import RevIN
from tsfm_lens.studies.samformer.transformer import glorot, refuse_sizes

__all__ = ["LinearForecaster", "TSMixer", "least_squares", "oracle_loss"]


class LinearForecaster(nn.Module):
    """f(X) = X W, between RevIN and its inverse: windows (batch, channel, L) to (batch, channel, H).

    Its closed form in data units is :func:`tsfm_lens.studies.rank_theory.revin_linear`. It has no stream that
    anything writes to, so there is nothing for a lens to open.

    Args:
        length, horizon: L and H.
        channels: D; None for any number, without RevIN.
        bias: whether the map has one.
        normalise: whether RevIN stands around it.
        seed: of the draw.

    Source:
        SAMformer, appendix D.1 (S1-LIN).

    Raises:
        InputError: a size is below 1, or RevIN has no number of channels.
    """

    def __init__(
        self,
        length: int,
        horizon: int,
        channels: int | None = None,
        *,
        bias: bool = False,
        normalise: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__()
        refuse_sizes(length=length, horizon=horizon, channels=1 if channels is None else channels)
        if normalise and channels is None:
            raise InputError("channels is None, but RevIN is made for a number of channels")
        self.settings: dict[str, Any] = {
            "length": length,
            "horizon": horizon,
            "channels": channels,
            "bias": bias,
            "normalise": normalise,
            "seed": seed,
        }
        self.length, self.horizon, self.channels = length, horizon, channels
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.revin = RevIN(channels) if normalise and channels else None
            self.readout = nn.Linear(length, horizon, bias=bias)
            glorot(self)

    def forward(self, x: Tensor) -> Tensor:
        """Map windows (batch, channel, L) to forecasts (batch, channel, H), in the same units."""
        if self.revin is None:
            return self.readout(x)
        mean, scale = self.revin.statistics(x)
        return self.revin.inverse(self.readout(self.revin(x, mean, scale)), mean, scale)

    def fit(self, batches: Iterable[tuple[Tensor, Tensor]]) -> LinearForecaster:
        """Set W to the least squares over batches of windows and what followed them, exactly.

        With RevIN its γ and β become 1 and 0. RevIN then only shifts by the mean of each window, which is taken off
        both sides.

        Raises:
            InputError: the map has a bias, or there are fewer rows than steps in a window.
        """
        if self.readout.bias is not None:
            raise InputError("the closed form is that of a map without bias; make the model with bias=False")
        pairs = batches
        if self.revin is not None:
            pairs = ((x - x.mean(-1, keepdim=True), y - x.mean(-1, keepdim=True)) for x, y in batches)
        with torch.no_grad():
            self.readout.weight.copy_(least_squares(pairs).mT)
            if self.revin is not None:
                self.revin.weight.fill_(1.0)
                self.revin.bias.zero_()
        return self


def least_squares(batches: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    """Compute Ŵ = argmin Σ ‖Y − XW‖² over all rows, (L, H) in float64; each batch is read once and not kept.

    Args:
        batches: pairs (…, L) and (…, H).

    Source:
        SAMformer, section 2.2: the oracle (S1-ORACLE).

    Raises:
        InputError: there is no batch, or there are fewer rows than L, so that no one solution is the least.

    Example:
        >>> x = torch.eye(3).repeat(2, 1)
        >>> samformer.least_squares([(x, x.sum(-1, keepdim=True))]).squeeze().tolist()
        [1.0, 1.0, 1.0]
    """
    squares: Tensor | None = None
    rows, products = 0, torch.empty(0)
    for x, y in batches:
        left, right = (part.detach().flatten(0, -2).double() for part in (x, y))
        rows += len(left)
        if squares is None:
            squares, products = left.mT @ left, left.mT @ right
        else:
            squares += left.mT @ left
            products += left.mT @ right
    if squares is None or rows < len(squares):
        raise InputError(
            f"{rows} rows for {0 if squares is None else len(squares)} unknowns a column: give at least as many rows"
        )
    # through eigenvalues, so that constant or repeated columns give the solution of least norm
    return torch.linalg.pinv(squares, hermitian=True) @ products


def oracle_loss(length: int, rows: int, *, noise: float = 1.0) -> float:
    """Compute the expected mean squared error of least squares on new rows, with independent normal inputs and noise.

    Args:
        length: L unknowns a column.
        rows: n that were fitted.
        noise: σ.

    Returns:
        σ² (1 + L / (n − L − 1)).

    Raises:
        InputError: n is not above L + 1, where the expectation is infinite.

    Example:
        >>> round(samformer.oracle_loss(512, 70_000), 4)
        1.0074
    """
    if rows <= length + 1:
        raise InputError(f"{rows} rows for {length} unknowns: the expected error is finite from {length + 2} rows on")
    return noise**2 * (1 + length / (rows - length - 1))


class MixerBlock(nn.Module):
    """Linear map over time and a two-layer one over channels, each on a norm and added to its input."""

    def __init__(self, length: int, channels: int, hidden: int, dropout: float, norm: str) -> None:
        super().__init__()
        self.norms = nn.ModuleList(_norm(norm, channels, length) for _ in range(2))
        self.time = nn.Linear(length, length)
        self.up, self.down = nn.Linear(channels, hidden), nn.Linear(hidden, channels)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, channel, L) to the same shape."""
        x = x + self._drop(F.relu(self.time(self.norms[0](x))))
        mixed = self.down(self._drop(F.relu(self.up(self.norms[1](x).mT))))
        return x + self._drop(mixed).mT

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)


class TSMixer(nn.Module):
    """TSMixer as published: blocks that mix over time and over channels, a linear map to the horizon, RevIN around.

    It has no wiring and does not open behind a lens: its maps over time have no output matrix after the activation, and
    those over channels act across the tokens of the others. No stack of one residual stream has either.

    Args:
        length, horizon, channels: L, H and D.
        blocks: how many.
        hidden: width of the map over channels.
        dropout: in training.
        norm: "batch" or "layer", each over channels and time together.
        normalise: whether RevIN stands around it.
        seed: of the draw.

    Source:
        Chen et al., 2023, sections 3 and B, figure 1; of SAMformer only for comparison (S1-TSM), which does not print
        its sizes.

    Raises:
        InputError: a size is below 1, or dropout is not from 0 to below 1.
        UnknownNameError: an unknown norm.
    """

    def __init__(
        self,
        length: int,
        horizon: int,
        channels: int,
        *,
        blocks: int = 2,
        hidden: int = 64,
        dropout: float = 0.0,
        norm: Literal["batch", "layer"] = "batch",
        normalise: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__()
        refuse_sizes(length=length, horizon=horizon, channels=channels, blocks=blocks, hidden=hidden)
        if not 0 <= dropout < 1:
            raise InputError(f"dropout={dropout}, expected from 0 to below 1")
        self.settings: dict[str, Any] = {
            "length": length,
            "horizon": horizon,
            "channels": channels,
            "blocks": blocks,
            "hidden": hidden,
            "dropout": dropout,
            "norm": norm,
            "normalise": normalise,
            "seed": seed,
        }
        self.length, self.horizon, self.channels = length, horizon, channels
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.revin = RevIN(channels) if normalise else None
            self.blocks = nn.ModuleList(MixerBlock(length, channels, hidden, dropout, norm) for _ in range(blocks))
            self.readout = nn.Linear(length, horizon)
            glorot(self)

    def forward(self, x: Tensor) -> Tensor:
        """Map windows (batch, channel, L) to forecasts (batch, channel, H), in the same units."""
        if self.revin is None:
            return self.readout(self._mix(x))
        mean, scale = self.revin.statistics(x)
        return self.revin.inverse(self.readout(self._mix(self.revin(x, mean, scale))), mean, scale)

    def _mix(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class _WholeBatchNorm(nn.BatchNorm1d):
    """Batch norm of every channel and time step by itself."""

    def forward(self, input: Tensor) -> Tensor:
        """Map (batch, channel, L) to the same shape."""
        return super().forward(input.flatten(1)).view_as(input)


def _norm(name: str, channels: int, length: int) -> nn.Module:
    if name == "batch":
        return _WholeBatchNorm(channels * length)
    if name == "layer":
        return nn.LayerNorm((channels, length))
    raise unknown_name("norm", name, ("batch", "layer"))
