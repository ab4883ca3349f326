"""Figures of what inputs do show the numbers of their results."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
import xarray as xr

from tsfm_lens import explain, viz
from tsfm_lens.core.errors import InputError
from tsfm_lens.core.verdict import list_checks, verdict
from tsfm_lens.data import as_series
from tsfm_lens.models import Run, load
from tsfm_lens.viz.contributions import contributions
from tsfm_lens.viz.faithfulness import checks_table, read_tests
from tsfm_lens.viz.input_attribution import read_inputs
from tsfm_lens.viz.input_routes import read_routes
from tsfm_lens.viz.scenarios import read_change, read_what_if
from tsfm_lens.viz.theme import ORANGE, SKY, mixed
from tsfm_lens.viz.words import num, signed

HORIZON = 8


@cache
def results() -> dict[str, xr.Dataset]:
    """Of three items with a covariate: a short and a long cut, and the effects over
    all.
    """
    rng = np.random.default_rng(0)
    items = []
    for _ in range(3):
        known = rng.normal(size=72 + HORIZON)
        target = 20 + 5 * np.sin(np.arange(72) / 4) + known[:72]
        items.append(
            {
                "target": target,
                "past_covariates": {"k": known[:72]},
                "future_covariates": {"k": known[72:]},
            }
        )
    run = load("chronos2-nano").run(as_series(items), HORIZON)
    sampled = {"parts": 8, "others": "stretches", "season": 1}
    return {
        "exact": explain.input_attribution(run, 0, reference="mean", parts=3),
        "occlusion": explain.input_attribution(
            run, 1, method="occlusion", reference="zero", parts=2
        ),
        "sampled": explain.input_attribution(
            run, 0, reference="mean", parts=sampled, budget=100, tolerance=0
        ),
        "effects": explain.input_effects(run, parts=2),
    }


def by_step(ds: xr.Dataset) -> np.ndarray:
    """(segment, step) at the median."""
    return ds["attribution"].sel(quantile=0.5).transpose("segment", "step").values


def groups(ds: xr.Dataset) -> list[np.ndarray]:
    """Sites of each stretch of the target, and of the covariate (the second series) in
    all, largest first.
    """
    steps = by_step(ds)
    row = ds["row"].values
    parts = [*np.flatnonzero(row == 0)[:, None], np.flatnonzero(row == 1)]
    return sorted(parts, key=lambda positions: -np.abs(steps[positions].sum(0)).mean())


def totals(ds: xr.Dataset) -> list[np.ndarray]:
    """(step,) of each group."""
    return [by_step(ds)[positions].sum(0) for positions in groups(ds)]


def cells(fig: go.Figure) -> list[go.Bar]:
    """Cells of the strips: bars that begin at a step."""
    return [trace for trace in fig.data if trace.type == "bar" and trace.base]


def stack(fig: go.Figure) -> np.ndarray:
    """(contribution, step), what stands upon one another at each step."""
    return np.array(
        [
            trace.y
            for trace in fig.data
            if trace.type == "bar" and trace.orientation is None
        ]
    )


def test_cells_cover_segments_of_each_series() -> None:
    ds = results()["exact"]
    drawn = {
        (cell.y[0], cell.base[0] + 0.5, cell.base[0] + 0.5 + cell.x[0])
        for cell in cells(viz.input_timeline(ds))
    }
    assert drawn == set(
        zip(*(ds[name].values for name in ("row", "start", "stop")), strict=True)
    )


def test_cells_have_the_colour_of_their_steps() -> None:
    """A cell is as its contribution, in a paler tone; so are all of one covariate."""
    ds = results()["exact"]
    fig = viz.input_timeline(ds)
    (ranking,) = (
        trace for trace in fig.data if trace.orientation == "h" and not trace.base
    )
    found = {cell.marker.color for cell in cells(fig)}
    assert found == {mixed(colour, 0.6) for colour in ranking.marker.color}
    assert len({cell.marker.color for cell in cells(fig) if cell.y[0] == 1}) == 1


@pytest.mark.parametrize("name", ["exact", "occlusion", "sampled"])
@pytest.mark.parametrize("quantile", [None, (0.1, 0.9)])
def test_steps_lead_from_reference_to_forecast(
    name: str, quantile: tuple[float, float] | None
) -> None:
    """At each step all contributions add up to what lies between both forecasts."""
    ds = results()[name]
    if quantile is None:
        shown = ds.sel(quantile=0.5)
    else:
        shown = ds.sel(quantile=quantile[1]) - ds.sel(quantile=quantile[0])
    change = shown["forecast"] - shown["reference_forecast"]
    fig = viz.input_timeline(ds, quantile=quantile)
    np.testing.assert_allclose(stack(fig).sum(0), change, atol=2 * ds.attrs["rounding"])
    assert len(stack(fig)) <= 9
    # none of a kind is lost in what is summed up
    sizes = np.abs(shown["attribution"].transpose("segment", "step").values)
    assert np.abs(stack(fig)).sum() <= sizes.sum() + np.abs(shown["remainder"]).sum()


def test_forecasts_are_drawn() -> None:
    ds = results()["exact"]
    drawn = {trace.name: trace for trace in viz.input_timeline(ds).data if trace.name}
    np.testing.assert_array_equal(drawn["forecast"].y, ds["forecast"].sel(quantile=0.5))
    np.testing.assert_array_equal(
        drawn["reference forecast"].y, ds["reference_forecast"].sel(quantile=0.5)
    )


@pytest.mark.parametrize("name", ["input_timeline", "input_waterfall"])
def test_items_missing_a_series_are_refused(name: str) -> None:
    """An item without one of its series is refused."""
    with pytest.raises(InputError, match="covers 2 series, of which 1 are left"):
        getattr(viz, name)(results()["exact"].isel(series=[0]))


def test_a_single_step_is_drawn() -> None:
    ds = results()["exact"].isel(step=[0])
    fig = viz.input_timeline(ds)
    drawn = {trace.name: trace for trace in fig.data if trace.name}
    for name, variable in (
        ("forecast", "forecast"),
        ("reference forecast", "reference_forecast"),
    ):
        assert drawn[name].mode == "lines+markers"
        assert float(drawn[name].y[0]) == float(ds[variable].sel(quantile=0.5)[0])
    assert "one step" in str(fig.layout.title.text)


@pytest.mark.parametrize("name", ["exact", "occlusion", "sampled"])
def test_bars_lead_from_reference_to_forecast(name: str) -> None:
    ds = results()[name]
    fig = viz.input_waterfall(ds, top=3)
    (way,) = fig.data
    rounding = ds.attrs["rounding"]
    reference, forecast = (
        float(ds[item].sel(quantile=0.5).mean())
        for item in ("reference_forecast", "forecast")
    )
    assert way.base == pytest.approx(reference)
    assert way.base + sum(way.x) == pytest.approx(forecast, abs=rounding)
    means = [total.mean() for total in totals(ds)[:3]]
    np.testing.assert_allclose(way.x[:3], means)
    assert ("±" in way.text[0]) == (name == "sampled")
    if name == "sampled":
        distance = ds["mean_half_width"].sel(quantile=0.5).values
        first = distance[groups(ds)[0]].sum()
        assert way.text[0].endswith(f"± {first:.3g}")


def test_readings_name_sum_and_outliers() -> None:
    """Readings give the sum and what stands out."""
    exact = results()["exact"]
    reported = read_inputs(exact)
    sizes = [f"by {np.abs(total).mean():.3g}" for total in totals(exact)[:3]]
    assert [reported[0].index(size) for size in sizes] == sorted(
        reported[0].index(size) for size in sizes
    )
    # a mean that hides the moves of single steps is told beside their size
    steps = np.where(np.arange(HORIZON) % 2, -60.0, 59.0)
    alone = xr.DataArray(steps, dims="step") * (exact["segment"] == "k, past")
    hidden, *_ = read_inputs(exact.assign(attribution=exact["attribution"] * 0 + alone))
    assert hidden.startswith("K moves the forecast")
    assert "by 59.5 a step (up at 4 of 8 steps" in hidden
    always_up = exact.assign(attribution=abs(alone) + exact["attribution"] * 0)
    assert read_inputs(always_up)[0].startswith("K raises the forecast")
    always_down = exact.assign(attribution=-always_up["attribution"])
    assert read_inputs(always_down)[0].startswith("K lowers the forecast")
    # a step that goes the other way takes from the mean, which the verb goes with
    uneven = xr.where(exact["step"] == 0, -10.0, 60.0) * (exact["segment"] == "k, past")
    mostly_up = exact.assign(attribution=uneven + exact["attribution"] * 0)
    up = read_inputs(mostly_up)[0]
    assert up.startswith("K raises the forecast")
    assert "by 51.2 a step" in up
    down = read_inputs(exact.assign(attribution=-mostly_up["attribution"]))[0]
    assert down.startswith("K lowers the forecast")
    assert "by 51.2 a step" in down
    assert (
        "Verdict: the explanation holds in part."
        in read_inputs(exact.assign_attrs(verdict="holds in part"))[0]
    )
    # what was not tested is not to be quoted
    unmasked = exact.assign_attrs(verdict="holds in part", masked=0)
    assert "by its routes alone" in read_inputs(unmasked)[0]
    assert "do not quote" in read_inputs(unmasked)[0]
    assert "below" not in read_inputs(unmasked)[0]
    separate = results()["exact"].assign(remainder=results()["exact"]["remainder"] + 5)
    assert "Segments also act jointly: +5 belongs to no single one." in read_inputs(
        separate
    )
    assert not any("act jointly" in item for item in reported)
    assert any(
        "Masks were sampled" in item for item in read_inputs(results()["sampled"])
    )
    forecast = 100 + np.repeat([0.0, 10.0], HORIZON // 2)
    for course, text in (
        (forecast, "10 higher in its second half than in its first"),
        (forecast[::-1], "10 lower in its second half"),
        (np.resize([1.0, -1.0], HORIZON), "as high in its second half as in its first"),
    ):
        steps_of = xr.DataArray(course, dims="step")
        changed = exact.assign(forecast=0 * exact["forecast"] + steps_of)
        assert text in read_inputs(changed)[1]
    same = results()["exact"].assign(attribution=0 * results()["exact"]["attribution"])
    assert "No part of the input moves" in read_inputs(same)[0]
    far = results()["exact"].assign_attrs(reference_distance=50.0)
    assert "50 standard deviations from the mean of the context" in " ".join(
        read_inputs(far)
    )


def test_interval_width_is_split_exactly() -> None:
    """The width of an interval is divided among the inputs exactly."""
    ds = results()["exact"]
    low, high = (ds.sel(quantile=level) for level in (0.1, 0.9))
    parts = (high["attribution"] - low["attribution"]).mean("step").values
    widths = [
        float((high[name] - low[name]).mean())
        for name in ("reference_forecast", "forecast")
    ]
    fig = viz.input_waterfall(ds, quantile=(0.1, 0.9))
    (way,) = (trace for trace in fig.data if trace.type == "waterfall")
    bars = np.array(way.x)
    np.testing.assert_allclose(
        sum(bars), widths[1] - widths[0], atol=ds.attrs["rounding"]
    )
    assert sorted(np.abs(bars))[-1] <= np.abs(parts).sum()
    assert way.base == pytest.approx(widths[0])
    assert "width of the 0.1 to 0.9 interval" in fig.layout.meta["subtitle"]
    with pytest.raises(InputError, match="lower and the upper end"):
        viz.input_timeline(ds, quantile=(0.9, 0.1))


@cache
def scenarios() -> dict[str, xr.Dataset]:
    """What if two covariates were others, and what is new since two steps earlier."""
    rng = np.random.default_rng(1)
    steps = 96
    known = {"k": rng.normal(size=steps + HORIZON), "flag": np.zeros(steps + HORIZON)}
    known["flag"][::6] = 1
    target = 20 + 5 * np.sin(np.arange(steps) / 4) + known["k"][:steps]

    def run(stop: int) -> Run:
        past = {name: values[:stop] for name, values in known.items()}
        future = {name: values[stop : stop + HORIZON] for name, values in known.items()}
        item = {
            "target": target[:stop],
            "past_covariates": past,
            "future_covariates": future,
        }
        return lens.run(as_series([item], freq="h"), HORIZON)

    lens = load("chronos2-nano")
    later = run(steps)
    changes = {"k": "+2", "flag": "=1"}
    return {
        "what_if": explain.what_if(later, changes, start=3, routes=False),
        "change": explain.explain_change(run(steps - 2), later, shift=2),
    }


def ranking_colours(fig: go.Figure) -> list[str]:
    """Colours of the bars that rank what adds up."""
    (bars,) = (
        trace for trace in fig.data if trace.orientation == "h" and not trace.base
    )
    return list(bars.marker.color)


def ranking(fig: go.Figure) -> tuple[list[str], list[float]]:
    """Names and lengths of the bars that rank what adds up."""
    (bars,) = (
        trace
        for trace in fig.data
        if trace.type == "bar" and trace.orientation == "h" and not trace.base
    )
    return list(bars.customdata), list(bars.x)


@pytest.mark.parametrize(
    ("name", "draw", "ends", "dim"),
    [
        ("what_if", "what_if_lines", ("forecast", "changed_forecast"), "change"),
        ("change", "change_bars", ("before", "after"), "part"),
    ],
)
def test_changes_lead_from_one_forecast_to_the_other(
    name: str, draw: str, ends: tuple[str, str], dim: str
) -> None:
    ds = scenarios()[name]
    fig = getattr(viz, draw)(ds)
    before, after = (ds[end].sel(quantile=0.5).values for end in ends)
    near = {"atol": 4 * ds.attrs["rounding"] * ds.sizes[dim]}
    np.testing.assert_allclose(stack(fig).sum(0), after - before, **near)
    _, sizes = ranking(fig)
    assert np.abs(sizes).tolist() == sorted(np.abs(sizes), reverse=True)
    np.testing.assert_allclose(sum(sizes), (after - before).mean(), **near)
    drawn = {trace.name: trace.y for trace in fig.data if trace.name}
    names = {
        "before": "earlier forecast",
        "after": "this forecast",
        "changed_forecast": "with the change",
    }
    for end, values in zip(ends, (before, after), strict=True):
        np.testing.assert_array_equal(drawn[names.get(end, end)], values)


def test_sentence_ranks_as_the_bars() -> None:
    ds = scenarios()["change"]
    labels, sizes = ranking(viz.change_bars(ds))
    text = read_change(ds)[0]
    told = [
        f"{label} {signed(size)}" for label, size in zip(labels, sizes, strict=True)
    ]
    assert len(told) > 1
    assert [text.index(part) for part in told[:3]] == sorted(
        text.index(part) for part in told[:3]
    )


def test_changed_steps_are_not_joined_to_the_past() -> None:
    """A covariate of two values is drawn in steps, and only where it is another."""
    ds = scenarios()["what_if"]
    changed = [trace for trace in viz.what_if_lines(ds).data if trace.name == "changed"]
    flags = [trace for trace in changed if trace.line.shape == "hvh"]
    assert len(changed) == 4
    assert len(flags) == 2
    future = ds.sel(series="series-0/flag")
    differs = (future["known_future"] != future["changed_future"]).values
    np.testing.assert_array_equal(np.isfinite(flags[1].y), differs)
    assert not np.isfinite(flags[0].y).any()


def test_what_if_says_the_way_first() -> None:
    ds = scenarios()["what_if"]
    before, after = (
        float(ds[name].sel(quantile=0.5).mean())
        for name in ("forecast", "changed_forecast")
    )
    text = read_what_if(ds)[0]
    assert ("rises by" in text) == (after > before)
    assert f"{abs(after - before):.3g}" in text
    # levels have a digit more, so that their difference is the change
    for level in (before, after):
        assert f"{level:.4g}" in text


def test_what_if_stands_beside_the_band() -> None:
    """A change is told beside the width of the interval, with what was changed."""
    ds = scenarios()["what_if"]
    quantiles = ds["forecast"].sel(quantile=[0.1, 0.9])
    width = float(quantiles.diff("quantile").mean())
    change = (ds["changed_forecast"] - ds["forecast"]).sel(quantile=0.5).mean()
    text = read_what_if(ds)[0]
    word = "less" if abs(float(change)) < width else "no less"
    assert f", {word} than its 80 % band is wide ({num(width)})" in text
    assert "Only future values were changed" in text
    both = ds.assign_coords(start=ds["start"] - 50)
    assert "Only" not in read_what_if(both)[0]


def test_a_single_change_has_no_bars() -> None:
    """One bar would repeat the difference of both forecasts, and so would its steps."""
    ds = scenarios()["what_if"].isel(change=[0])
    fig = viz.what_if_lines(ds)
    assert not [trace for trace in fig.data if trace.type == "bar"]
    drawn = {trace.name for trace in fig.data}
    assert {"forecast", "with the change", "changed"} <= drawn


def test_forecasts_and_covariates_keep_their_colours() -> None:
    """The forecast has one colour in all answers, and so has a covariate."""
    found = results()["exact"]
    figures = [
        viz.input_timeline(found),
        viz.what_if_lines(scenarios()["what_if"]),
        viz.change_bars(scenarios()["change"]),
    ]
    names = ["forecast", "forecast", "this forecast"]
    colours = {
        trace.line.color
        for fig, name in zip(figures, names, strict=True)
        for trace in fig.data
        if trace.name == name
    }
    assert len(colours) == 1
    effects = np.arange(1.0, 5.0)[:, None]
    groups = [(name, [at]) for at, name in enumerate("abcd")]
    for order in (effects, effects[::-1]):
        parts = contributions(groups, order, covariates=["c", "a"])
        by_name = {part.label: part.colour for part in parts}
        assert [by_name["c"], by_name["a"]] == [ORANGE, SKY]
        assert len(set(by_name.values())) == 4


def test_revisions_have_a_direction() -> None:
    """Revised values of a future say how far they lie from the announced ones."""
    ds = scenarios()["change"]
    future = [name for name in ds["part"].values if str(name).endswith(", future")]
    assert not future
    renamed = ds.isel(part=[0, 1]).assign_coords(part=["origin", "k, future"])
    for revision, words in ((-2.5, "2.5 lower"), (3.0, "3 higher")):
        revised = renamed.assign(revision=("part", [np.nan, revision]))
        assert f"revised future k ({words} on average)" in read_change(revised)[0]
    unknown = renamed.assign(revision=("part", [np.nan, np.nan]))
    assert "on average" not in read_change(unknown)[0]


def test_effects_that_do_not_pass_are_told_and_pale() -> None:
    """The sentence names both sorts, and the bars of those that fail are paler."""
    ds = results()["exact"].assign_attrs(verdict="fails")
    stands = np.ones(ds.sizes["segment"], dtype=int)
    first = groups(ds)[0]
    for failing, words in (
        ([], "every effect passes"),
        (first, "that do not: "),
        (range(len(stands)), "no effect passes"),
    ):
        marked = stands.copy()
        marked[list(failing)] = 0
        tested = ds.assign_coords(stands=("segment", marked))
        told = read_inputs(tested)[0]
        assert words in told
        if "that do not: " in words:
            passing, others = told.split(words)
            # sentences have a minus sign where names have a hyphen
            named = str(ds["segment"].values[first[0]]).replace("-", "−")
            assert named in others
            assert named not in passing.split("that pass their tests: ")[1]
        plain, pale = (ranking_colours(viz.input_timeline(one)) for one in (ds, tested))
        changed = [old != new for old, new in zip(plain, pale, strict=True)]
        n_groups = len(groups(ds))
        if len(failing) == len(first):
            assert changed == [True] + [False] * (len(plain) - 1)
        else:
            assert sum(changed) == (n_groups if len(failing) else 0)
    assert "pass" not in read_inputs(ds)[0]


@cache
def routes() -> xr.Dataset:
    """Shares of two segments, one of which overshoots and one random sets match."""
    draws = {"random_necessity": 0.05, "random_sufficiency": 0.1}
    values = {
        "necessity": [2.55, 0.9],
        "sufficiency": [0.26, 1.1],
        "prediction_error": [0.2, 0.7],
        "necessity_p": [0.03, 0.03],
        "sufficiency_p": [0.03, 0.03],
    }
    return xr.Dataset(
        {
            **{name: ("segment", column) for name, column in values.items()},
            **{
                name: (("segment", "draw"), np.full((2, 39), share))
                for name, share in draws.items()
            },
            "overlap": ("segment", [1.0, 1.0]),
            "cut_name": (("segment", "cut"), [["0.mlp", "all together"]] * 2),
        },
        coords={
            "segment": ["k, future", "past"],
            "start": ("segment", [0, -8]),
            "stop": ("segment", [4, 0]),
            "series": ["x"],
        },
        attrs={"kind": "route_faithfulness", "target": "x", "model": "m"},
    )


def test_tests_are_drawn_with_their_results() -> None:
    """A value that fails is a cross, or an arrow where it is beyond the axis."""
    fig = viz.route_tests(routes())
    dots = [trace for trace in fig.data if trace.marker.symbol != "line-ns-open"]
    assert [trace.customdata[0] for trace in dots] == [2.55, 0.9, 0.26, 1.1, 0.2, 0.7]
    assert [trace.marker.symbol for trace in dots] == [
        "triangle-right",
        "circle",
        "x",
        "circle",
        "circle",
        "x",
    ]
    results = [note.text.rpartition(" ")[2] for note in fig.layout.annotations]
    expected = ["failed", "passed", "failed", "passed", "passed", "failed"]
    assert [word for word in results if word in expected] == expected
    first, *_ = read_tests(routes())
    assert first.startswith("Weak point: k, future.")
    assert "removes 255 % of the effect, far more than all" in first
    assert "recovers 26 % of the effect (half is needed)" in first
    assert "Of 6 values here 3 pass" in first


def test_checks_agree_with_the_verdict() -> None:
    run = load("bolt-nano").run(10 + np.sin(np.arange(96) / 4), 8)
    curves = explain.deletion_curves(run, {"mine": [0, 1]}, parts=2, orders=4)
    assert all(not check.passed for check in list_checks(curves))
    found = explain.input_attribution(run, parts=3)
    curves = explain.deletion_curves(run, found, orders=4, twin=False)
    passed = all(check.passed for check in list_checks(curves))
    assert (verdict(curves)[0] == "holds") == passed
    table = checks_table(curves)
    assert (table["result"] == "passed").all() == passed
    assert table["value"][0] == float(curves["r2"][0])


def input_routes() -> xr.Dataset:
    """Two segments: the first goes through head 1 of layer 0, the second through the
    MLP of layer 1 and, less, through head 1; one effect is noise.
    """
    effect = np.zeros((2, 3, 2))
    effect[0, 0] = [4.0, 4.0]
    effect[1, 2] = [-1.0, -3.0]
    effect[1, 0] = [1.0, -1.0]
    effect[0, 1] = 1e-9
    size = np.abs(effect).mean(-1)
    return xr.Dataset(
        {
            "effect": (("segment", "component", "step"), effect),
            "size": (("segment", "component"), size),
            "share": (("segment", "component"), size / 4),
            "size_acts": (("segment", "component"), (size > 1e-6).astype(int)),
            "total": (("segment", "step"), effect.sum(1)),
            "rest": (("segment", "step"), np.zeros((2, 2))),
            "no_attention_share": (("segment",), np.zeros(2)),
            "total_floor": ((), 1e-6),
        },
        {
            "segment": ["x -8 to -5", "x -4 to -1"],
            "start": ("segment", [-8, -4]),
            "stop": ("segment", [-4, 0]),
            "component": ["0.attn.1", "0.mlp", "1.mlp"],
            "component_kind": ("component", ["attn", "mlp", "mlp"]),
            "stack": ("component", [""] * 3),
            "layer": ("component", [0, 0, 1]),
            "head": ("component", [1, -1, -1]),
            "series": ["x"],
        },
        {"kind": "input_routes", "target": "x", "model": "m"},
    )


def test_route_map_draws_the_largest_routes() -> None:
    """Ribbons are the routes that act, the widest is the largest, and each passes its
    component's layer.
    """
    fig = viz.route_map(input_routes())
    ribbons = [trace for trace in fig.data if trace.hovertemplate]
    widths = {trace.hovertemplate: trace.line.width for trace in ribbons}
    assert len(widths) == 3
    largest = max(widths, key=lambda text: widths[text])
    assert "−8 to −5" in largest
    assert "head 1" in largest
    assert fig.layout.xaxis.ticktext == ("input", "layer 0", "layer 1", "forecast")
    texts = [note.text for note in fig.layout.annotations]
    # the first raises, the second lowers, the third does both
    assert [text for text in texts if text[0].isdigit()] == ["4 ↑", "1 ↕", "2 ↓"]
    assert len(viz.route_map(input_routes(), top=1).data) < len(fig.data)
    first, *_ = read_routes(input_routes())
    assert re.search(
        r"−8 to −5 moves .* by 4 a step, most through layer 0 .*1 \(4\)", first
    )


def test_categories_are_drawn_by_their_words() -> None:
    """A covariate of words is drawn as steps between its words, not as numbers."""
    rng = np.random.default_rng(0)
    past = pd.DataFrame({"y": rng.normal(size=40), "sky": ["sun", "<fog>"] * 20})
    future = pd.DataFrame({"sky": ["sun"] * 4})
    run = load("chronos2-nano").run(past, 4, targets=["y"], future=future)
    inputs = explain.input_attribution(run, parts=1, method="occlusion")
    strip = viz.input_timeline(inputs)
    assert "sun<br>&lt;fog&gt;" in [note.text for note in strip.layout.annotations]
    changed = explain.what_if(run, {"sky": "<fog>"}, routes=False)
    fig = viz.what_if_lines(changed)
    labels = [axis.ticktext for axis in fig.select_yaxes() if axis.ticktext]
    assert ("&lt;fog&gt;", "sun") in labels
    shapes = {line.line.shape for line in fig.data if line.name == "changed"}
    assert shapes == {"hvh"}
    text = next(
        line.text for line in fig.data if line.name == "changed" and len(line.x) == 4
    )
    assert set(text) == {"&lt;fog&gt;"}
