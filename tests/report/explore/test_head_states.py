"""The states of every head against independent computations."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr
from scipy.stats import spearmanr

import planted
from tiny_lenses import fresh
from tsfm_lens.core.errors import InputError, UnknownNameError
from tsfm_lens.data import bundled
from tsfm_lens.models import Lens
from tsfm_lens.probes import attribution, head_states
from tsfm_lens.testing import assert_close
from tsfm_lens.viz.head_states import describe_attention, find_cycle
from tsfm_lens.viz.panels import Timeline

# forecasts of a few steps hold values that rounding ties or parts: one swap among eight
# ranks moves the distance so far
TIES = 0.2

H = 6
# the tiny token model has wide bins: in one of them a series would be flat to it
CONTEXT, TRUTH = bundled("nile").tail(46).split(H)


@pytest.fixture(
    scope="module",
    params=["chronos", "chronos-bolt", "timesfm-2.5-transformers", "toto-2"],
)
def lens(request: pytest.FixtureRequest) -> Lens:
    return fresh(request.param)


@pytest.fixture(scope="module")
def ds(lens: Lens) -> xr.Dataset:
    return head_states(lens.run(CONTEXT, H, truth=TRUTH)).isel(series=0)


def test_forecasts_use_the_edited_weights(lens: Lens, ds: xr.Dataset) -> None:
    """Forecasts are those of the model with edited weights."""
    stack = lens.wiring.output_stack
    kind = str(ds.attrs["attention"])
    layer = int(ds["layer"].values[-1])
    head = 1
    row = stack.attention(kind, int(layer))
    matrix = lens.adapter.model.get_submodule(
        f"{stack.block(int(layer))}.{row.o.module}"
    ).weight
    run = lens.run(CONTEXT, H)
    np.testing.assert_array_equal(ds["quantile_forecast"], run.forecast.quantiles[0])
    # of a token model along the path of the unchanged one
    encoded = run.encoded
    plain = run.point[0]
    # heads lie side by side in the columns of the output projection
    columns = slice(head * stack.d_head, (head + 1) * stack.d_head)
    retained = matrix.detach().clone()
    with torch.no_grad():
        matrix[:, columns] = 0
        try:
            edited = run.read(lens.forward(encoded), encoded)[0].double().numpy()
        finally:
            matrix.copy_(retained)
    assert not np.allclose(edited, plain)
    assert_close(ds["baseline_forecast"], plain, depth=100, dtype=np.float32)
    name = str(ds["name"].sel(layer=layer, head=head).values)
    found = ds.sel(component=name)
    assert_close(found["forecast"], edited, depth=100, dtype=np.float32)
    if run.tokens_read:
        later = slice(1, None)
    else:
        later = slice(None)
    a = edited[later]
    b = plain[later]
    assert_close(
        found["mean_shift"], np.abs(a - b).mean(), depth=1000, dtype=np.float32
    )
    if np.ptp(a) and np.ptp(b):
        assert float(found["spearman_distance"]) == pytest.approx(
            1 - spearmanr(a, b).statistic, abs=TIES
        )


def test_writes_sum_to_the_attributed_forecast(lens: Lens, ds: xr.Dataset) -> None:
    """The writes of heads and the remainder sum to the attributed forecast."""
    parts = attribution(lens.run(CONTEXT, H), decompositions=ds.attrs["decomposition"])
    attributed, total = (
        parts[name].isel(series=0).sel(quantile=0.5, method="nearest")
        for name in ("attribution", "total")
    )
    heads = set(ds["name"].values.ravel())
    rest = attributed.isel(
        component=[str(c) not in heads for c in attributed["component"].values]
    ).sum("component")
    assert len(heads) == ds.sizes["layer"] * ds.sizes["head"]
    gap = ds["write"].sum(["layer", "head"]) + rest - total
    assert float(np.abs(gap).max()) < 0.05 * float(np.abs(total).max())
    later = slice(parts.attrs["first_step"], None)
    np.testing.assert_allclose(
        ds["write_size"], np.abs(ds["write"].isel(step=later)).mean("step")
    )
    full = np.abs(attributed.isel(step=later)).mean("step").sum()
    np.testing.assert_allclose(ds["write_share"], ds["write_size"] / float(full))
    assert ds.attrs["decomposition"] == (
        "lens_difference"
        if not lens.wiring.true_gradients
        else ds.attrs["decomposition"]
    )


def test_attention_shares_sum_to_one(lens: Lens, ds: xr.Dataset) -> None:
    """Attention is divided without loss, and every share is at its place."""
    # every step of the forecast counts alike
    mean = ds["attention"].isel(query=ds["step_query"]).mean("step")
    total = mean.sum("key") + ds["attention_forecast"] + ds["attention_other"]
    assert_close(total, 1, depth=16, dtype=np.float32)
    # the same from the raw pattern, token by token
    stack = lens.wiring.output_stack
    kind = str(ds.attrs["attention"])
    if lens.adapter.readout != "token":
        median = None
    else:
        median = lens.forecast(CONTEXT, H).median
    if median is not None:
        encoded = lens.encode(CONTEXT, future=median)
    else:
        encoded = lens.encode(CONTEXT, horizon=H)
    layer = int(ds["layer"].values[-1])
    point = f"{stack.prefix}.{layer}.{kind}.hook_pattern"
    with torch.no_grad():
        _, activations = lens.run_with_cache(encoded, names_filter=point)
    queries = encoded.spans[stack.name]
    keys = encoded.spans[stack.attention(kind, layer).keys_from or stack.name]
    rows = [
        q
        for q in range(len(queries))
        if not queries.special[q] and 0 <= queries.start[q] < H
    ]
    rows = rows or [max(range(len(queries)), key=lambda q: queries.stop[q])]
    pattern = activations[point][0].double().numpy()
    length = len(CONTEXT.values[0])
    past = [
        k
        for k in range(len(keys))
        if not keys.special[k] and keys.start[k] < 0 and keys.stop[k] > -length
    ]
    assert ds["key_start"].values.tolist() == [keys.start[k] for k in past]
    assert ds["key_stop"].values.tolist() == [keys.stop[k] for k in past]
    expected = pattern[:, rows][:, :, past]
    assert_close(
        ds["attention"].sel(layer=layer),
        expected,
        depth=16,
        magnitude=1.0,
        dtype=np.float32,
    )
    assert ds["step_query"].values.tolist() == sorted(ds["step_query"].values.tolist())


def test_one_step_has_no_rank_correlation() -> None:
    lens = fresh("chronos-bolt")
    calls: list[tuple[int, int]] = []
    ds = head_states(
        lens.run(CONTEXT, 1),
        kind="self_attn",
        progress=lambda *done: calls.append(done),
    )
    assert "spearman_distance" not in ds
    assert float(np.abs(ds["mean_shift"]).max()) > 0
    # the one token of the decoder can only attend to itself, a token of the forecast
    np.testing.assert_allclose(ds["attention_forecast"], 1)
    assert ds.sizes["key"] == 0
    assert not ds["lag_share"].any()
    assert calls[-1] == (27, 27)


@pytest.mark.parametrize(
    ("name", "series", "steps", "kind", "message"),
    [
        ("chronos-bolt", ("co2",), H, "crossattn", "cross_attn"),
        ("chronos-bolt", ("co2",), 17, None, "at most 16 steps"),
        (
            "chronos-2",
            ("co2",),
            H,
            "group_attn",
            "group_attn attends over variates, not over time",
        ),
    ],
)
def test_what_cannot_be_explored_is_refused(
    name: str, series: tuple[str, ...], steps: int, kind: str | None, message: str
) -> None:
    lens = fresh(name)
    with pytest.raises((InputError, UnknownNameError), match=message):
        head_states(lens.run(bundled(*series), steps), kind=kind)


@pytest.mark.parametrize(
    ("freq", "lag", "width", "words"),
    [
        ("h", 24, 1, "the same hour of the day before"),
        ("h", 24, 4, "the same 4 hours of the day before"),
        ("h", 24, 24, ""),
        ("MS", 12, 3, "the same 3 months of the year before"),
        ("h", 48, 1, "the same hour 2 days before"),
        ("h", 168, 1, "the same hour of the week before"),
        ("h", 25, 1, ""),
        ("15min", 96, 1, "the same time of the day before"),
        ("D", 14, 1, "the same weekday 2 weeks before"),
        ("MS", 120, 1, "the same month 10 years before"),
        ("QE", 4, 1, "the same quarter of the year before"),
    ],
)
def test_lags_are_named_by_the_calendar(
    freq: str, lag: int, width: int, words: str
) -> None:
    stamps = pd.date_range("2001-01-01", periods=300, freq=freq).values
    cycle = find_cycle(Timeline(steps=np.arange(-300, 0), stamps=stamps))
    assert cycle is not None
    assert cycle.words(lag, width) == words


@pytest.mark.parametrize("freq", ["YS", "3D", "7h"])
def test_steps_that_divide_no_cycle_have_none(freq: str) -> None:
    stamps = pd.date_range("2001-01-01", periods=30, freq=freq).values
    assert find_cycle(Timeline(steps=np.arange(-30, 0), stamps=stamps)) is None


def test_attention_on_all_like_steps_is_summed() -> None:
    """A head that spreads over several weeks reads the weekday, with all of its share;
    one that is even reads none, though a seventh of it is on that weekday.
    """
    ds = planted.explore()
    weights = np.zeros((5, 24))
    for step in range(5):
        weights[step, 24 + step - 7] = 0.3
        weights[step, 24 + step - 14] = 0.25
        weights[step, 24 + step - 21] = 0.25
    attention = ds["attention"].copy()
    attention[0, 1, 0] = weights
    share = ds["lag_share"].copy()
    share[0, 1, 0] = 0.3
    found = describe_attention(ds.assign(attention=attention, lag_share=share), 0, 1, 0)
    assert found.words == "the same weekday of earlier weeks"
    assert round(found.most, 6) == 0.8
    # of 24 days 3 or 4 are this weekday
    assert abs(found.even_share - np.mean([3, 3, 3, 4, 4]) / 24) < 0.02
    attention[0, 1, 0] = 1 / 24
    share[0, 1, 0] = 2.1 / 24
    ds["place_share"][0, 1, 0] = 1 / 24
    even = describe_attention(ds.assign(attention=attention, lag_share=share), 0, 1, 0)
    assert even.words == "the same weekday of the week before"
