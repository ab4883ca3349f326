"""What a user of the Chronos pipelines calls gives the same numbers here, or names the
call that does.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

import tsfm_lens
from tsfm_lens.models import Lens
from tsfm_lens.testing import assert_close

pytestmark = pytest.mark.filterwarnings("ignore:We recommend keeping prediction length")
MODELS = ("chronos-nano", "bolt-nano", "chronos2-nano")
EACH = pytest.mark.parametrize("name", MODELS)
LEVELS = (0.1, 0.5, 0.9)
PATHS = 5


@cache
def opened(name: str) -> Lens:
    return tsfm_lens.load(name)


def wave(length: int, shift: float = 0.0) -> np.ndarray:
    steps = np.arange(length)
    return 10 + shift + 3 * np.sin(2 * np.pi * steps / 12 + shift) + 0.02 * steps


def list_options(lens: Lens) -> dict[str, Any]:
    if lens.emits == "token":
        return {"num_samples": PATHS}
    return {}


def theirs(
    lens: Lens, inputs: Any, horizon: int | None, levels: Any = LEVELS, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Quantiles (series, step, quantile) and mean (series, step) of the library's own
    call.
    """
    torch.manual_seed(seed)
    options = {
        **list_options(lens),
        "prediction_length": horizon,
        "quantile_levels": list(levels),
    }
    quantiles, mean = lens.native.predict_quantiles(inputs, **options)
    if isinstance(quantiles, list):
        # an item each, (variate, step, quantile)
        quantiles = torch.cat(quantiles)
        mean = torch.cat(mean)
    return quantiles, mean


def ours(
    lens: Lens, inputs: Any, horizon: int | None, levels: Any = LEVELS, seed: int = 0
) -> tuple[Tensor, Tensor]:
    forecast = lens.forecast(
        inputs, horizon, quantiles=levels, seed=seed, **list_options(lens)
    )
    assert forecast.levels == tuple(levels)
    return torch.as_tensor(forecast.quantiles).transpose(1, 2), torch.as_tensor(
        forecast.mean
    )


def assert_same(found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor]) -> None:
    for mine, other in zip(found, expected, strict=True):
        assert mine.shape == other.shape
        assert torch.equal(mine, other.to(mine.dtype))
        assert bool(mine.isfinite().all())


ORDERS = [
    (0.9, 0.1),
    (0.2, 0.8, 0.5),
    (0.5, 0.5),
]


@EACH
@pytest.mark.parametrize("levels", ORDERS)
def test_quantiles_keep_the_requested_order(
    name: str, levels: tuple[float, ...]
) -> None:
    """Quantiles come in the order in which they are asked for."""
    lens = opened(name)
    series = [torch.as_tensor(wave(60)), torch.as_tensor(wave(45, 1.0))]
    found = ours(lens, series, 4, levels)
    expected = theirs(lens, series, 4, levels)
    if name == "bolt-nano" or set(levels) <= set(np.round(lens.levels or levels, 6)):
        assert_same(found, expected)
    else:
        # between the model's own levels the library interpolates in another order of
        # operations
        assert_close(found[0], expected[0], depth=100, dtype=np.float32)
    forecast = lens.forecast(series, 4, quantiles=levels, **list_options(lens))
    for index, level in enumerate(levels):
        np.testing.assert_array_equal(
            forecast.quantile(level), forecast.quantiles[:, index]
        )
    columns = list(forecast.to_frame().columns)
    assert columns[columns.index("mean") + 1 :] == [
        str(level) for level in dict.fromkeys(levels)
    ]
    # figures and files have them in ascending order
    assert list(forecast.to_dataset()["quantile"].values) == sorted(levels)
    for level in set(levels):
        rows = (
            forecast.to_dataset()["quantile_forecast"]
            .sel(quantile=level)
            .values.reshape(2, -1, 4)
        )
        np.testing.assert_array_equal(rows[:, 0], forecast.quantile(level))


EMBEDDED = {
    "chronos-nano": "encoder.ln_final.hook_normalized",
    "bolt-nano": "encoder.ln_final.hook_normalized",
    "chronos2-nano": "ln_final.hook_normalized",
}


@EACH
def test_embeddings(name: str) -> None:
    lens = opened(name)
    series = [torch.as_tensor(wave(60)), torch.as_tensor(wave(60, 1.0))]
    native = lens.native.embed(series)[0]
    expected = native
    if isinstance(native, list):
        expected = torch.cat(native)
    with torch.no_grad():
        found = lens.run_with_cache(
            series,
            names_filter=EMBEDDED[name],
            **({"horizon": 1} if "2" in name else {}),
        )[1]
    tokens = found[EMBEDDED[name]]
    assert torch.equal(tokens, expected)


def frame(ids: tuple[str, ...] = ("b", "a"), length: int = 40) -> pd.DataFrame:
    parts = [
        pd.DataFrame(
            {
                "item_id": item,
                "timestamp": pd.date_range("2024-01-01", periods=length, freq="D"),
                "target": wave(length, float(position)),
            }
        )
        for position, item in enumerate(ids)
    ]
    return pd.concat(parts, ignore_index=True)


@EACH
@pytest.mark.parametrize("levels", [(0.1, 0.5, 0.9), (0.9, 0.1)])
def test_frames(name: str, levels: tuple[float, ...]) -> None:
    lens = opened(name)
    table = frame()
    torch.manual_seed(0)
    options = {
        **list_options(lens),
        "prediction_length": 5,
        "quantile_levels": list(levels),
    }
    expected = lens.native.predict_df(table, **options)
    found = lens.forecast(table, 5, quantiles=levels, **list_options(lens)).to_frame()
    found = found.set_index(["id", "timestamp"])
    expected = expected.set_index(["item_id", "timestamp"])
    assert set(found.index) == set(expected.index)
    for level in map(str, levels):
        np.testing.assert_array_equal(
            found[level].loc[expected.index], expected[level].astype(float)
        )


@EACH
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_precisions(name: str, dtype: str) -> None:
    lens = tsfm_lens.load(name, dtype=dtype)
    series = [torch.as_tensor(wave(60)), torch.as_tensor(wave(45, 1.0))]
    assert_same(ours(lens, series, 4), theirs(lens, series, 4))
    assert lens.cfg.dtype == getattr(torch, dtype)


@EACH
def test_hooks_act_on_the_pipeline_too(name: str) -> None:
    lens = opened(name)
    series = [torch.as_tensor(wave(60))]
    plain = theirs(lens, series, 4)
    with lens.ablate("**.mlp"):
        inside = theirs(lens, series, 4)
        assert_same(ours(lens, series, 4), inside)
    assert not torch.equal(inside[0], plain[0])
    assert_same(theirs(lens, series, 4), plain)


@EACH
def test_pipeline_members_name_their_replacement(name: str) -> None:
    """Members of the pipelines name what to call."""
    lens = opened(name)
    members = [
        member for member in dir(type(lens.native)) if not member.startswith("_")
    ]
    assert "predict_quantiles" in members
    for member in members:
        if hasattr(lens, member):
            continue
        with pytest.raises(
            AttributeError, match=rf"no {member!r}: .*(lens\.|tsfm_lens)"
        ):
            getattr(lens, member)
