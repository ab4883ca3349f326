"""Series that tiny models read, and pairs of them to contrast."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from tiny_lenses import lens_of
from tsfm_lens.data import SeriesBatch, bundled
from tsfm_lens.models import Lens, Run


def centred(*names: str) -> SeriesBatch:
    """Real series around zero: the few bins of a tiny token model then tell their
    values apart.
    """
    series = bundled(*names).tail(40)
    return replace(
        series, values=tuple(values - values.mean() for values in series.values)
    )


@cache
def make_pair(name: str) -> tuple[SeriesBatch, SeriesBatch]:
    """Series and the same values backwards: what a model scales by is alike, to the
    last digits.
    """
    example = getattr(lens_of(name).adapter, "example", None)
    if example:
        clean = example(0, 40)
    else:
        clean = centred("pedestrians", "electricity")
    return clean, replace(
        clean, values=tuple(values[::-1].copy() for values in clean.values)
    )


def make_runs(
    name: str, horizon: int = 4, *, select: Any = None, **options: Any
) -> tuple[Run, Run]:
    """Runs of that pair, or of some of its series."""
    if select is None:
        pair = make_pair(name)
    else:
        pair = [item.select(select) for item in make_pair(name)]
    clean, corrupted = (lens_of(name).run(item, horizon, **options) for item in pair)
    return clean, corrupted


def make_series(lens: Lens, *names: str, example: int = 0) -> Any:
    """Series that a model reads: real ones by name, or an example of its own."""
    adapter_example = getattr(lens.adapter, "example", None)
    if adapter_example:
        return adapter_example(example, 40)
    return bundled(*(names or ["co2"])).tail(40)


def few_draws(lens: Lens) -> dict[str, int]:
    """Two sample paths, where a model samples."""
    if lens.adapter.readout != "quantile":
        return {"num_samples": 2}
    return {}


def forecast_instead(monkeypatch: pytest.MonkeyPatch, lens: Lens, values: Any) -> None:
    """Let a model forecast these values, (step,) or (series, 1, step), whatever it
    reads.
    """
    original = lens.forecast

    def forecast(series: object, horizon: int, **options: Any) -> object:
        result = original(series, horizon, **options)
        result.quantiles[:] = np.asarray(values)[..., :horizon]
        return result

    monkeypatch.setattr(lens, "forecast", forecast)


def make_reader(
    lag: int, *, special: int = 1
) -> Callable[[torch.Tensor], torch.Tensor]:
    """A pattern whose queries look so many steps before the step that they forecast;
    special keys come last.
    """

    def moved(pattern: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(pattern)
        for query in range(out.shape[-2]):
            out[..., query, out.shape[-1] - special + query - lag] = 1.0
        return out

    return moved
