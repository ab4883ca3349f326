"""Figures of sweeps carry exactly the numbers of their results: values, intervals, significance, what is framed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest

import planted
from planted.sweep import Planted, single_heads
from refusals import expect_error
from tsfm_lens import viz
from tsfm_lens.testing import assert_close
from tsfm_lens.viz.sweep_entries import baseline_of, order_words

EVIL = '<script>x</script>&%{y}"$'
DRAW = {
    "layers": viz.range_curves,
    "heads": viz.head_changes,
    "curves": viz.head_curves,
    "heads_at": viz.heads_at_layers,
    "datasets": viz.dataset_heatmap,
    "recipes": viz.recipe_table,
    "selection": viz.selection_comparison,
}


@pytest.fixture(scope="module")
def sweep() -> dict[str, pd.DataFrame]:
    return planted.sweep()


def ends(bars: Any, values: np.ndarray) -> np.ndarray:
    """Lower and upper ends of error bars."""
    return np.stack(
        [
            values - np.array(bars.arrayminus, float),
            values + np.array(bars.array, float),
        ]
    )


def traces(fig: go.Figure, axis: str, **same: Any) -> list[Any]:
    """The traces with data of one panel."""
    return [
        t
        for t in fig.data
        if t.xaxis in (axis, None if axis == "x" else axis)
        and t.x is not None
        and t.x[0] is not None
        and all(getattr(t, key) == value for key, value in same.items())
    ]


@pytest.mark.parametrize("part", ["both", "heads", "mlp"])
def test_distances_stand_at_their_layers_with_their_intervals(
    sweep: dict[str, pd.DataFrame], part: str
) -> None:
    table = sweep["layers"]
    fig = viz.layer_distances(sweep["layers"], part=part)
    filled = 0
    for model, axis in (("alpha", "x"), ("beta", "x2")):
        drawn = traces(fig, axis)
        assert len(drawn) == 3
        for trace, size in zip(drawn, (1, 2, 3), strict=True):
            mine = table[
                (table["model"] == model)
                & (table["part"] == part)
                & (table["last"] - table["first"] == size - 1)
            ]
            mine = mine[mine["family"].isin(("layers", "groups"))].sort_values("first")
            np.testing.assert_allclose(trace.x, (mine["first"] + mine["last"]) / 2)
            np.testing.assert_array_equal(trace.y, mine["spearman_distance"])
            expected = (
                mine[["spearman_distance_lower", "spearman_distance_upper"]]
                .to_numpy()
                .T
            )
            assert_close(ends(trace.error_y, np.array(trace.y)), expected, depth=1000)
            filled_in = [not symbol.endswith("-open") for symbol in trace.marker.symbol]
            assert filled_in == mine["significant"].tolist()
            filled += sum(filled_in)
            if size > 1:
                np.testing.assert_allclose(trace.error_x.array, (size - 1) / 2)
    # the planted ends of the models matter, their middles do not
    assert 0 < filled < 20


def test_ranges_are_lines_by_part_with_bands(sweep: dict[str, pd.DataFrame]) -> None:
    ds = table = sweep["layers"]
    fig = viz.range_curves(ds)
    mine = table[
        (table["family"] == "ranges")
        & (table["model"] == "beta")
        & (table["part"] == "mlp")
    ]
    line = traces(fig, "x2", name="without their MLPs")[0]
    low, high = (
        traces(fig, "x2", name=name)[2] for name in ("interval from", "interval")
    )
    np.testing.assert_array_equal(line.x, mine["last"] - mine["first"] + 1)
    np.testing.assert_array_equal(line.y, mine["mase"])
    base = baseline_of(ds, "beta")
    upper, lower = base * (1 + mine["upper"]), base * (1 + mine["lower"])
    np.testing.assert_allclose([low.y, high.y], [lower, upper])
    assert [not s.endswith("-open") for s in line.marker.symbol] == mine[
        "significant"
    ].tolist()
    assert [shape.y0 for shape in fig.layout.shapes] == [baseline_of(ds, "alpha"), base]


def test_single_heads_stand_at_their_layers_and_those_that_are_significant_have_their_number(
    sweep: dict[str, pd.DataFrame],
) -> None:
    table = sweep["heads"]
    fig = viz.head_changes(table)
    for model, axis in (("alpha", "x"), ("beta", "x2")):
        mine = table[table["model"] == model].sort_values(["layer", "head"])
        (dots,) = traces(fig, axis)
        np.testing.assert_array_equal(np.round(dots.x), mine["layer"])
        # the heads of a layer side by side, in their order
        assert (np.diff(dots.x) > 0).all()
        np.testing.assert_array_equal(dots.y, 100 * mine["change"])
        assert_close(
            ends(dots.error_y, np.array(dots.y)),
            100 * mine[["lower", "upper"]].to_numpy().T,
            depth=1000,
        )
        assert [not symbol.endswith("-open") for symbol in dots.marker.symbol] == mine[
            "significant"
        ].tolist()
        said = [
            str(head) if named else ""
            for head, named in zip(mine["head"], mine["significant"], strict=True)
        ]
        assert list(dots.text) == said
        # both heads that were planted
        ends_of_model = mine["layer"].isin([0, mine["layer"].max()]) & (
            mine["head"] == 0
        )
        assert mine.loc[ends_of_model, "significant"].all()
    both = viz.head_changes(
        single_heads(
            [Planted("alpha", ["a", "b"], 1, 2, 3)], ("self_attn", "cross_attn")
        )
    )
    assert [trace.name for trace in both.data] == [
        "self-attention heads",
        "cross-attention heads",
    ]
    places = np.concatenate([trace.x for trace in both.data])
    assert len(set(places)) == len(places)


def test_curves_have_every_count_and_the_lines_of_baseline_and_tolerance(
    sweep: dict[str, pd.DataFrame],
) -> None:
    ds = table = sweep["curves"]
    fig = viz.head_curves(ds, model="beta")
    base = baseline_of(ds, "beta")
    layers = sorted(set(table.loc[table["model"] == "beta", "layer"]))
    for axis, layer in (("x", layers[0]), ("x2", layers[1])):
        mine = table[(table["model"] == "beta") & (table["layer"] == layer)]
        lines = [t for t in traces(fig, axis) if "interval" not in t.name]
        assert {t.name for t in lines} == {
            "lowest stable rank first",
            "highest stable rank first",
            "at random",
        }
        for line in lines:
            order = next(
                o
                for o in mine["order"].unique()
                if order_words(o).startswith(line.name)
            )
            rows = mine[mine["order"] == order].sort_values("ablated")
            np.testing.assert_allclose(line.x, 100 * rows["share"])
            np.testing.assert_array_equal(line.y, rows["mase"])
        best = mine.loc[mine["better"] & (mine["within"] > 0), "order"]
        assert [t.name for t in lines if t.line.width > 2] == [
            order_words(each) for each in best.unique()
        ]
    np.testing.assert_allclose(
        [s.y0 for s in fig.layout.shapes], [base, 1.01 * base] * len(layers)
    )
    # without its first point a curve still starts at the unablated model
    bare = viz.head_curves(ds[ds["ablated"] > 0], model="beta")
    starts = [(t.x[0], t.y[0]) for t in bare.data if "interval" not in (t.name or "")]
    assert starts == [(0.0, base)] * 3 * len(layers)


# where no head can go, counts decide nothing but which columns are empty
@pytest.mark.parametrize(
    ("counts", "harm"), [(None, 0.0), ((2,), 0.0), ((0, 3), 0.0), ((1, 4), 2.0)]
)
def test_one_order_wins_on_every_figure_whatever_counts_a_search_evaluated(
    counts: tuple[int, ...] | None, harm: float
) -> None:
    made = planted.sweep(models=("alpha",), counts=counts, harm=harm)
    table = made["heads_at"][made["heads_at"]["better"]].set_index("layer")
    titles = [
        note.text.split("<br>")
        for note in viz.head_curves(made["curves"]).layout.annotations
    ]
    dots = next(
        t
        for t in viz.heads_at_layers(made["heads_at"]).data
        if t.name == "heads that must stay"
    )
    verdicts = {
        int(words[0].split()[1]): words[1] for words in titles if len(words) == 2
    }
    assert len(verdicts) == 6
    for layer, verdict in verdicts.items():
        row = table.loc[layer]
        order = order_words(row["order"]) if row["ablated"] else "no head can go"
        first = f"{order.split()[0]} first"
        assert verdict == (
            f"{int(row['ablated'])} of 4, {first}" if row["ablated"] else order
        )
        assert order in dots.customdata[list(dots.x).index(layer)]
    assert (set(verdicts.values()) == {"no head can go"}) == (harm > 0)
    cells = viz.dataset_heatmap(made["datasets"])
    evaluated = set(range(5)) if counts is None else set(counts)
    assert set(map(int, cells.layout.xaxis.ticktext)) == evaluated | {1, 2, 3, 4}
    assert ("empty columns were not evaluated" in cells.layout.meta["subtitle"]) == (
        not {1, 2, 3, 4} <= evaluated
    )


def test_heads_kept_are_bars_before_all_of_the_layer(
    sweep: dict[str, pd.DataFrame],
) -> None:
    table = sweep["heads_at"][sweep["heads_at"]["better"]]
    fig = viz.heads_at_layers(sweep["heads_at"])
    mine = table[table["model"] == "alpha"]
    for bars, name in zip(traces(fig, "x"), ("of", "kept"), strict=True):
        np.testing.assert_array_equal(bars.x, mine["layer"])
        np.testing.assert_array_equal(bars.y, mine[name])
    gone = int((mine["of"] - mine["kept"]).sum())
    assert (
        f"{gone} of {int(mine['of'].sum())} heads can go"
        in fig.layout.annotations[0].text
    )


def test_maps_are_capped_bold_and_framed_at_the_largest_count_within(
    sweep: dict[str, pd.DataFrame],
) -> None:
    ds = sweep["datasets"]
    fig = viz.dataset_heatmap(ds, model="alpha")
    maps = [t for t in fig.data if t.type == "heatmap"]
    assert len(maps) == 2
    panels = [rows for _, rows in ds[ds["model"] == "alpha"].groupby("layer")]
    for number, (panel, cells) in enumerate(zip(panels, maps, strict=True), start=1):
        mase, change = (
            panel.pivot(index="dataset", columns="ablated", values=name)
            for name in ("mase", "change")
        )
        assert_close(cells.z, np.clip(100 * change, -25, 25), depth=1000)
        largest = panel.groupby("dataset")["largest_within"].first().to_numpy()
        for row, line in enumerate(cells.text):
            plain = [text.replace("<b>", "").replace("</b>", "") for text in line]
            assert plain == [f"{value:.2f}" for value in mase.iloc[row]]
            assert [i for i, text in enumerate(line) if "<b>" in text] == [largest[row]]
        frames = [
            s for s in fig.layout.shapes if s.xref == ("x" if number == 1 else "x2")
        ]
        np.testing.assert_allclose([(s.x0 + s.x1) / 2 for s in frames], largest)
        np.testing.assert_allclose(
            [(s.y0 + s.y1) / 2 for s in frames], np.arange(len(largest))
        )
    assert np.abs(maps[0].z).max() == 25
    # a model of 3 heads in a result of 4 has no column for the fourth
    assert len(viz.dataset_heatmap(ds, model="beta").data[0].x) == 4


def test_the_table_of_recipes_holds_their_changes(
    sweep: dict[str, pd.DataFrame],
) -> None:
    ds = sweep["recipes"]
    listed, cells = ds[ds["selection"] == "listed"], viz.recipe_table(ds).data[0].text
    for k, (_, own) in enumerate(listed.groupby("metric", sort=False)):
        for text, (_, row) in zip(
            [each[k] for each in cells], own.iterrows(), strict=True
        ):
            assert f"{100 * row['change']:+.2f}".replace("-", "−") in text
            assert ("<b>" in text) == row["significant"]
    assert 0 < int(listed["significant"].sum()) < listed["significant"].size
    once = listed[listed["metric"] == "MASE"]
    counts = [
        [f"{v} of 4" for v in once[name]] for name in ("n_resilient", "n_improved")
    ]
    assert [list(row[-2:]) for row in cells] == [
        list(pair) for pair in zip(*counts, strict=True)
    ]


def test_choices_stand_beside_each_seed(sweep: dict[str, pd.DataFrame]) -> None:
    table = sweep["selection"]
    by_name = {trace.name: trace for trace in viz.selection_comparison(table).data}
    for name, selection in (
        ("heads as listed", "listed"),
        ("heads at random, a seed each", "random"),
    ):
        mine, dots = table[table["selection"] == selection], by_name[name]
        np.testing.assert_allclose(dots.x, 100 * mine["change"])
        expected = 100 * mine[["lower", "upper"]].to_numpy().T
        np.testing.assert_allclose(ends(dots.error_x, np.array(dots.x)), expected)
        filled = [not symbol.endswith("-open") for symbol in dots.marker.symbol]
        assert filled == (mine["diff_significant"] == True).tolist()  # noqa: E712


def test_what_is_missing_is_left_out_and_counted(
    sweep: dict[str, pd.DataFrame],
) -> None:
    ds = sweep["layers"].copy()
    lost = ds.index[(ds["part"] == "both") & (ds["family"] == "layers")][:2]
    ds.loc[lost, ["spearman_distance", "mase", "change"]] = np.nan
    fig = viz.layer_distances(ds)
    assert "2 without a result are left out" in fig.layout.meta["subtitle"]
    assert len(traces(fig, "x")[0].x) == 4
    # no interval, as from a single series: the points stay, without bars
    for end in ("lower", "upper"):
        ds[f"spearman_distance_{end}"] = ds[end] = np.nan
    assert len(traces(viz.layer_distances(ds), "x")[0].x) == 4
    assert not [t for t in viz.range_curves(ds).data if "interval" in t.name]


def test_what_a_sweep_has_not_run_is_named(sweep: dict[str, pd.DataFrame]) -> None:
    ds = sweep["layers"]
    expect_error(
        "no finished entry for growing ranges",
        viz.range_curves,
        ds[ds["family"] != "ranges"],
    )
    expect_error(
        r"no part 'head'. Closest: heads", viz.layer_distances, ds, part="head"
    )
    expect_error(
        r"no model 'alfa'. Closest: alpha",
        viz.head_curves,
        sweep["curves"],
        model="alfa",
    )
    expect_error("head_curves draws that kind", viz.heads_at_layers, sweep["curves"])


def test_names_show_letter_by_letter_and_figures_print() -> None:
    made = planted.sweep(
        models=(EVIL, "b"),
        datasets=3,
        layers=(3, 2),
        heads=(2,),
        name=lambda i: f"{EVIL} {i}",
    )
    for fig in (
        viz.layer_distances(made["layers"]),
        *(draw(made[name]) for name, draw in DRAW.items()),
    ):
        parts = fig.to_dict()
        meta = parts["layout"].pop("meta")
        assert meta["title"]
        assert meta["subtitle"]
        assert "<script" not in str(parts)
        assert '%{y}"' not in str(parts)
        printed = viz.for_print(fig)
        assert not printed.layout.title.text
        assert printed.layout.meta["width_mm"] in (89.0, 183.0)
