"""What is no series, no horizon or no argument is named, and odd forms of numbers are
read.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from tiny_lenses import lens_of
from tsfm_lens.core.errors import InputError
from tsfm_lens.models import architectures

NAN = float("nan")
BAD_HORIZONS = (0, -1, 2.5, 3.0, "3", True, NAN, np.float32(2.0), [1], 10**30)


def test_odd_numbers_are_numbers() -> None:
    """Whatever holds the same values gives the same forecast."""
    lens = lens_of("chronos-bolt")
    expected = lens.forecast(np.array([1.0, NAN, 3.0, 0.0])).quantiles
    for data in (
        [1, None, 3, 0],
        (True, pd.NA, 3.0, False),
        np.ma.masked_array([1, 77, 3, 0], [False, True, False, False]),
        pd.Series([1, None, 3, 0], dtype="Int64"),
        torch.tensor([1.0, NAN, 3.0, 0.0], dtype=torch.bfloat16),
        torch.tensor([1.0, NAN, 3.0, 0.0]).to(torch.float8_e5m2),
        torch.tensor([1.0, NAN, 3.0, 0.0], requires_grad=True),
        np.array([1.0, NAN, 3.0, 0.0], dtype=">f4")[::1],
        np.array([0.0, 3.0, NAN, 1.0])[::-1],
    ):
        np.testing.assert_array_equal(lens.forecast(data).quantiles, expected)


@pytest.mark.parametrize("name", ["chronos", "moirai-2"])
def test_bad_horizons_are_named(name: str) -> None:
    for horizon in BAD_HORIZONS:
        for call in (lens_of(name).forecast, lens_of(name).forward):
            with pytest.raises(InputError, match=re.escape(f"horizon {horizon!r} ")):
                call(np.arange(9), horizon=horizon)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"quantiles": 0.5}, "quantiles 0.5 are not levels between 0 and 1"),
        ({"quantiles": [0.1, "x"]}, "'x'"),
        ({"num_samples": 2.5}, "num_samples 2.5 is not a number of sample paths"),
        ({"seed": "a"}, "seed 'a' is not an integer"),
        *(({"batch_size": wrong}, "batch_size") for wrong in (0, -1, 2.5, True, "all")),
    ],
    ids=str,
)
def test_bad_arguments_are_named(arguments: dict, message: str) -> None:
    for name in ("chronos", "chronos-bolt"):
        with pytest.raises(InputError) as caught:
            lens_of(name).forecast(np.arange(9.0), 2, **arguments)
        assert message in str(caught.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"future": [["a"]]}, "the future holds 'a' at position 0"),
        (
            {"future": [1.0, 2.0]},
            "future values have shape (2,), expected (series, step) with 1 series",
        ),
        ({"tokens": [[1, 64]]}, "decoder tokens are ids from 0 to 63; got 64"),
        ({"tokens": "ab"}, "the array of tokens holds np.str_('ab')"),
    ],
    ids=str,
)
def test_invalid_future_is_named(given: dict, message: str) -> None:
    """A future that cannot be used is refused by name."""
    with pytest.raises(InputError) as caught:
        lens_of("chronos").forward(np.arange(9.0), **given)
    assert message in str(caught.value)


def test_forecast_without_numbers_is_refused() -> None:
    """Whoever makes it: here a hook, in the second of two series."""
    lens = lens_of("chronos-bolt")

    def spoil(value: torch.Tensor, hook: Any) -> torch.Tensor:
        return value * torch.tensor([1.0, NAN])[:, None, None]

    data = {"good": np.arange(9.0), "bad": np.full(9, 1e5)}
    messages = (
        r"chronos-bolt forecasts no number at step 0 of series 'bad' \(1 of 2 series"
        r" have NaN or infinity\)"
    )
    with pytest.raises(InputError, match=messages + r".*reaches 1e\+05"):
        lens.run_with_hooks(
            data, [("decoder_blocks.2.hook_resid_post", spoil)], rollout=True
        )
    lens.forecast(data)


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, architecture in architectures().items()
        if architecture.readout == "quantile"
    ],
)
def test_unsupported_quantile_levels_are_refused(name: str) -> None:
    """Levels that a model does not emit are refused."""
    lens = lens_of(name)
    for level in (lens.levels[0] / 2, (1 + lens.levels[-1]) / 2):
        with pytest.raises(InputError, match=f"quantile {level} is outside"):
            lens.forecast(np.arange(64.0), 2, quantiles=[level])
