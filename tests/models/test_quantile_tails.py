"""No model gives the nearest quantile in place of one that it does not emit."""

from __future__ import annotations

import numpy as np
import pytest

from tiny_lenses import lens_of
from tsfm_lens.ablation import Variant, forecast_variants
from tsfm_lens.errors import InputError
from tsfm_lens.models import architectures

SERIES = np.sin(np.arange(64) / 3)


@pytest.mark.parametrize("name", [name for name, each in architectures().items() if each.readout == "quantile"])
def test_levels_outside_are_refused_wherever_they_are_asked_for(name: str) -> None:
    lens = lens_of(name)
    low, high = lens.adapter.levels[0], lens.adapter.levels[-1]  # type: ignore[attr-defined]
    for level in (low / 2, (1 + high) / 2):
        with pytest.raises(InputError, match=f"quantile {level} was asked for"):
            lens.forecast(SERIES, 2, quantiles=[level])
        with pytest.raises(InputError, match=f"quantile {level} was asked for"):
            forecast_variants(lens, SERIES, 2, [Variant("plain", ())], quantiles=[level])
    assert lens.forecast(SERIES, 2, quantiles=[low, high]).levels == (low, high)
