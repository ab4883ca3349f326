"""Forecaster whose tokens are time steps of all channels, as the paper's encoder on ETTh1 has them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tsfm_lens.errors import InputError
from tsfm_lens.registry import extensible
from tsfm_lens.studies.samformer import RevIN
from tsfm_lens.studies.structured.encoder import Embedding, Encoder
from tsfm_lens.studies.structured.making import form_of_name
from tsfm_lens.studies.structured.sizes import whole

__all__ = ["StepForecaster", "make_forecaster"]


@extensible
class StepForecaster(nn.Module):
    """Forecaster from windows (batch, channel, T) to (batch, channel, T): token t forecasts step t ahead.

    A linear map reads the channels of a time step into the stream and another reads those of a forecast out of it,
    between RevIN and its inverse, of which the paper says nothing. It opens behind a lens: ``load(model)``.

    Args:
        encoder: of any scoring function.
        width: of its stream.
        length: T.
        channels: of the series; 7 in the paper.
        settings: further arguments that it was made by, for the identity of a run.

    Attributes:
        horizon: T.
        settings: sizes, and the given settings.

    Source:
        Structured attention, appendix J (S2-ETT).

    Example:
        >>> encoder = structured.Encoder(16, 1, 2, structured.TokenLevels((6, 2)), causal=False)
        >>> structured.StepForecaster(encoder, 16, length=12, channels=3)(torch.zeros(2, 3, 12)).shape
        torch.Size([2, 3, 12])
    """

    def __init__(
        self, encoder: Encoder, width: int, *, length: int, channels: int, settings: dict[str, Any] | None = None
    ) -> None:
        super().__init__()
        self.length = self.horizon = whole(length, "length")
        self.channels, self.width = whole(channels, "channels"), width
        self.settings = {"length": length, "channels": channels, **(settings or {})}
        self.revin = RevIN(channels)
        self.embed = Embedding(channels, width, length, "learned")
        self.encoder, self.read_out = encoder, nn.Linear(width, channels)

    def forward(self, x: Tensor) -> Tensor:
        """Map windows (batch, channel, T) to forecasts of the same shape, in the same units."""
        mean, scale = self.revin.statistics(x)
        return self.forecast(self.encoder(self.embed(self.revin(x, mean, scale).mT)), (mean, scale))

    def statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return RevIN's statistics of windows (…, channel, T)."""
        return self.revin.statistics(x)

    def forecast(self, stream: Tensor, statistics: tuple[Tensor, Tensor]) -> Tensor:
        """Map the last stream (…, token, width) to forecasts (…, channel, T) in the units of the windows."""
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
    """Make a forecaster of time steps with drawn weights.

    Args:
        name: of ``REGRESSORS``, the names of scoring functions.
        length, horizon, channels: of windows and forecasts; the first two are the same T.
        width, layers, heads, d_mlp: of its encoder, which sees all steps.
        seed: of the weights.
        form: arguments of the scoring function, such as ``ranks``.

    Raises:
        UnknownNameError: an unknown name.
        InputError: sizes do not go together.

    Example:
        >>> structured.make_forecaster("mlr-attention", 16, 16, 7, ranks=[12, 4])(torch.ones(1, 7, 16)).shape
        torch.Size([1, 7, 16])
    """
    if horizon != length:
        raise InputError(
            f"a horizon of {horizon} steps after windows of {length}: this model takes one length for both"
        )
    scoring = form_of_name(name, form)
    sizes = {"width": width, "layers": layers, "heads": heads, "d_mlp": d_mlp}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoder = Encoder(width, layers, heads, scoring, d_mlp=d_mlp, causal=False)
        settings = {"name": name, **sizes, "form": repr(scoring), "seed": seed}
        return StepForecaster(encoder, width, length=length, channels=channels, settings=settings)
