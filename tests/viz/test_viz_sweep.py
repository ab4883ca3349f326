"""Figures of sweeps carry exactly the numbers of their results: values, intervals,
significance.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import planted
from planted.sweep import Planted, single_heads
from refusals import expect_error
from tsfm_lens import viz
from tsfm_lens.testing import assert_close
from tsfm_lens.viz.sweep_costs import read_costs
from viz.marks import heatmaps

EVIL = '<script>x</script>&%{y}"$'


@pytest.fixture(scope="module")
def sweep() -> dict[str, pd.DataFrame]:
    return planted.sweep()


@pytest.mark.parametrize("part", ["both", "heads", "mlp"])
def test_distances_have_intervals_at_their_layers(
    sweep: dict[str, pd.DataFrame], part: str
) -> None:
    """Distances stand at their layers, with their intervals."""
    table = sweep["layers"]
    for model in ("alpha", "beta"):
        fig = viz.plot(table, "spearman_distance", model=model, part=part)
        assert len(fig.data) == 3
        for trace, size in zip(fig.data, (1, 2, 3), strict=True):
            mine = table[
                (table["model"] == model)
                & (table["part"] == part)
                & (table["last"] - table["first"] == size - 1)
                & table["family"].isin(("layers", "groups"))
            ].set_index("first")
            y = pd.Series(trace.y, trace.x)[mine.index]
            np.testing.assert_array_equal(y, mine["spearman_distance"])
            for end, bars, sign in (
                ("upper", trace.error_y.array, 1),
                ("lower", trace.error_y.arrayminus, -1),
            ):
                distance = pd.Series(bars, trace.x)[mine.index]
                expected = mine[f"spearman_distance_{end}"]
                assert_close(y + sign * distance, expected, depth=1000)
            symbols = pd.Series(trace.marker.symbol, trace.x)[mine.index]
            if mine["significant"].any():
                assert (symbols == "circle").tolist() == mine["significant"].tolist()


@pytest.mark.parametrize(("datasets", "drawn"), [(5, False), (6, True)])
def test_few_datasets_have_no_intervals(
    datasets: int, drawn: bool, sweep: dict[str, pd.DataFrame]
) -> None:
    """Below 6 datasets no test can be significant at 5 %, and no interval is drawn."""
    table = sweep["layers"].assign(units=datasets)
    table.attrs = sweep["layers"].attrs
    fig = viz.plot(table, "spearman_distance", model="alpha", part="both")
    bars = [trace.error_y.array is not None for trace in fig.data]
    assert bars == [drawn] * 3


def test_costs_are_a_forest_with_all_datasets(
    sweep: dict[str, pd.DataFrame],
) -> None:
    """Each entry stands at its median, with its interval and all datasets."""
    table = sweep["costs"]
    table = table[table["model"] == "beta"].copy()
    table.attrs = sweep["costs"].attrs
    entries = table.drop_duplicates("label").sort_values("median", kind="stable")
    fig = viz.cost_forest(table, top=len(entries))
    units, medians = (trace for trace in fig.data if len(trace.x) >= len(entries))
    np.testing.assert_allclose(medians.x, 1 + entries["median"])
    np.testing.assert_array_equal(medians.y, np.arange(len(entries)))
    high = medians.x + medians.error_x.array
    low = medians.x - medians.error_x.arrayminus
    np.testing.assert_allclose(high, 1 + entries["median_upper"])
    np.testing.assert_allclose(low, 1 + entries["median_lower"])
    by_row = pd.Series(units.x).groupby(units.y).apply(sorted)
    changes = table.groupby("label")["member_change"].apply(sorted)
    for row, label in enumerate(entries["label"]):
        np.testing.assert_allclose(by_row[row], 1 + np.array(changes[label]))


def test_few_rows_are_the_cheapest_and_the_costliest(
    sweep: dict[str, pd.DataFrame],
) -> None:
    """Half of the rows are of either end, and one between says how many are hidden."""
    table = sweep["costs"][sweep["costs"]["model"] == "beta"]
    table = table[(table["part"] != "both") | (table["family"] == "heads")].copy()
    table.attrs = sweep["costs"].attrs
    medians = table.drop_duplicates("label")["median"].sort_values(kind="stable")
    fig = viz.cost_forest(table, top=8)
    texts = dict(zip(fig.layout.yaxis.tickvals, fig.layout.yaxis.ticktext, strict=True))
    assert texts[4] == f"{len(medians) - 8} more between"
    assert len(texts) == 9
    (dots,) = (trace for trace in fig.data if len(trace.x) == 8)
    np.testing.assert_allclose(dots.x, 1 + medians.iloc[[0, 1, 2, 3, -4, -3, -2, -1]])
    assert list(dots.y) == [0, 1, 2, 3, 5, 6, 7, 8]


@pytest.mark.parametrize("top", [1, 8, 16])
def test_whole_layers_are_never_hidden(
    top: int, sweep: dict[str, pd.DataFrame]
) -> None:
    """Heads and parts of layers are hidden, in numbers that add up; no layer is."""
    entries = sweep["costs"].drop_duplicates(["model", "label"])
    fig = viz.cost_forest(sweep["costs"], top=top)
    axes = {"alpha": fig.layout.yaxis, "beta": fig.layout.yaxis2}
    for model, axis in axes.items():
        mine = entries[entries["model"] == model]
        texts = list(axis.ticktext)
        hidden = [int(text.split()[0]) for text in texts if "more between" in text]
        assert len(texts) - len(hidden) + sum(hidden) == len(mine)
        whole = mine[(mine["family"] == "layers") & (mine["part"] == "both")]
        for layer in whole["layer"]:
            assert any(text.startswith(f"layer {layer}  ") for text in texts)
        # rows that are not hidden stand at their medians, in the order of cost
        assert list(axis.tickvals) == list(range(len(texts)))
    for trace in fig.data:
        for at, text in zip(trace.y, trace.text or (), strict=False):
            axis = {"y": fig.layout.yaxis, "y2": fig.layout.yaxis2}[trace.yaxis or "y"]
            name = axis.ticktext[int(at)].rpartition("  ")[0]
            assert text.startswith((f"{name}<br>", f"{name} on "))


def test_nothing_significant_is_drawn_open(sweep: dict[str, pd.DataFrame]) -> None:
    """Where nothing is significant every mark is open, of every figure of a sweep, and
    the caption says how many units a test needs where there are too few.
    """
    for name in ("costs", "layers", "curves", "recipes", "selection"):
        table = sweep[name].assign(significant=False)
        table.attrs = sweep[name].attrs
        if name == "selection":
            table["diff_significant"] = False
        few = table.assign(units=3, unit="datasets", tests=21)
        for each, too_few in ((table, False), (few, True)):
            fig = viz.plot(each)
            marked = []
            for trace in fig.data:
                symbols = trace.marker.symbol
                if isinstance(symbols, tuple | list | np.ndarray):
                    marked += list(symbols)
            assert marked or heatmaps(fig), name
            assert all(symbol.endswith("-open") for symbol in marked), name
            subtitle = fig.layout.meta["subtitle"]
            assert "not significant" in subtitle
            assert ("3 datasets are too few" in subtitle) is too_few
            # 2 / 2**n * 21 <= 0.05 from n = 10 on
            assert ("needs 10" in subtitle) is too_few


def test_arrows_of_costs_are_open_unless_significant(
    sweep: dict[str, pd.DataFrame],
) -> None:
    """A median off the axis is marked as one on it."""
    table = sweep["costs"].copy()
    first = table.iloc[0]
    rows = (table["model"] == first["model"]) & (table["label"] == first["label"])
    table.loc[rows, ["median", "median_upper"]] = 40.0
    for significant, symbol in (
        (True, "triangle-right"),
        (False, "triangle-right-open"),
    ):
        table.loc[rows, "significant"] = significant
        fig = viz.cost_forest(table)
        (arrow,) = (
            trace for trace in fig.data if trace.text and "4000.0 %" in trace.text[0]
        )
        assert list(arrow.marker.symbol) == [symbol]


def test_costs_off_the_axis_have_an_arrow(sweep: dict[str, pd.DataFrame]) -> None:
    """An error that is many times as large neither stretches the axis nor vanishes."""
    table = sweep["costs"].copy()
    label = table["label"].iloc[0]
    rows = table["label"] == label
    table.loc[rows, ["median", "median_upper", "member_change"]] = 40.0
    fig = viz.cost_forest(table)
    high = fig.layout.xaxis.range[1]
    assert 10**high < 6
    arrows = [trace for trace in fig.data if trace.marker.symbol == "triangle-right"]
    assert {text for trace in arrows for text in trace.text if "4000.0 %" in text}
    assert "arrow" in fig.layout.meta["subtitle"]
    assert "arrow" not in viz.cost_forest(sweep["costs"]).layout.meta["subtitle"]


def test_reading_of_costs_names_what_can_go(sweep: dict[str, pd.DataFrame]) -> None:
    """The first sentence follows from the tests; medians, which are not tested, come
    after it.
    """
    table = sweep["costs"][sweep["costs"]["model"] == "beta"].copy()
    table.attrs = sweep["costs"].attrs
    heads = table["family"] == "heads"
    layers = (table["part"] == "heads") & ~heads
    table.loc[heads, "median"] = 0.02
    table.loc[layers, "median"] = 0.1
    assert "no layer tolerates losing all its heads" in read_costs(table)[1]
    assert "none of 15 heads" in read_costs(table)[1]
    table.loc[heads & (table["head"] == 1), "median"] = 0.001
    table.loc[layers & (table["layer"] == 2), "median"] = -0.03
    table.loc[layers & (table["layer"] == 3), "median"] = 0.25
    table["significant"] = False
    table["median_upper"] = 0.5
    finding, medians, *_ = read_costs(table)
    assert "only layer 2 tolerates" in medians
    assert "largest median: layer 3, +25.0 %" in medians
    assert "5 of 15 heads" in medians
    assert "not tested" in medians
    count = table["label"].nunique()
    assert f"none of {count} costs is significant" in finding
    assert "no interval is wholly below 1 %" in finding
    assert "tolerates" not in finding
    chosen = layers & (table["layer"] == 3)
    table.loc[chosen, "significant"] = True
    table.loc[heads & (table["head"] == 1) & (table["layer"] == 0), "median_upper"] = 0
    finding = read_costs(table)[0]
    assert (
        f"1 of {count} costs is significant: layer 3, all heads (median +25.0 %)"
        in finding
    )
    assert finding.endswith("by the whole interval: layer 0, head 1.")
    # of several kinds of attention, a name without its kind would be of no head
    table.loc[heads, "attention"] = "cross_attn"
    assert read_costs(table)[0].endswith(": layer 0, cross-attention head 1.")


def test_parts_that_cost_more_than_their_layer_are_told(
    sweep: dict[str, pd.DataFrame],
) -> None:
    """A part with a larger cost than its whole layer looks like an error, and is
    explained; there is no such sentence where none has.
    """
    table = sweep["costs"][sweep["costs"]["model"] == "beta"].copy()
    table.attrs = sweep["costs"].attrs
    layers = table["family"] == "layers"
    table.loc[layers, "median"] = 0.1
    assert "whole layer" not in " ".join(read_costs(table))
    chosen = layers & (table["layer"] == 2) & (table["part"] == "heads")
    table.loc[chosen, "median"] = 0.695
    (text,) = (text for text in read_costs(table) if "whole layer" in text)
    assert "layer 2, all heads" in text
    assert "+69.5 %" in text
    assert "+10.0 %" in text
    assert "add up" in text


def test_who_costs_most_follows_from_the_test(
    sweep: dict[str, pd.DataFrame],
) -> None:
    """Neither the order of medians nor a share of resamples says who costs most."""
    for model in ("alpha", "beta"):
        table = sweep["costs"][sweep["costs"]["model"] == model].copy()
        table.attrs = sweep["costs"].attrs
        table["lead_share"] = 0.9
        text = " ".join(read_costs(table))
        assert "no layer or head costs significantly most" in text
        assert text.count("most") == 1
        rows = (table["family"] == "layers") & (table["layer"] == 1)
        table.loc[rows & (table["part"] == "mlp"), "leads"] = "highest"
        text = " ".join(read_costs(table))
        assert "without its MLP, layer 1, MLP costs significantly most" in text
        assert text.count("costs significantly most") == 1


def test_single_heads_are_mapped_by_change(
    sweep: dict[str, pd.DataFrame],
) -> None:
    """Single heads are a map of their changes."""
    table = sweep["heads"]
    for model in ("alpha", "beta"):
        mine = table[table["model"] == model]
        (cells,) = heatmaps(viz.plot(table, model=model))
        changes = mine.pivot(index="layer", columns="head", values="change")
        np.testing.assert_allclose(cells.z, 100 * changes)
        stands = mine.pivot(index="layer", columns="head", values="significant")
        inside = np.array(
            [[text.startswith("(") for text in row] for row in cells.text]
        )
        np.testing.assert_array_equal(inside, ~stands.to_numpy(dtype=bool))
    both = single_heads(
        [Planted("alpha", ["a", "b"], 1, 2, 3)], ("self_attn", "cross_attn")
    )
    (cells,) = heatmaps(viz.plot(both))
    assert list(cells.y)[:2] == ["layer 0 self-attention", "layer 0 cross-attention"]


def test_choices_stand_beside_each_seed(sweep: dict[str, pd.DataFrame]) -> None:
    table = sweep["selection"]
    (dots,) = viz.plot(table).data
    np.testing.assert_allclose(dots.x, 100 * table["change"])
    filled = [not symbol.endswith("-open") for symbol in dots.marker.symbol]
    assert filled == (table["diff_significant"] == True).tolist()  # noqa: E712


def test_what_is_missing_leaves_a_gap(sweep: dict[str, pd.DataFrame]) -> None:
    table = sweep["heads"].copy()
    table.loc[table.index[0], ["change", "lower", "upper"]] = np.nan
    fig = viz.plot(table)
    assert np.isnan(np.asarray(heatmaps(fig)[0].z, dtype=float)[0, 0])


def test_parts_not_yet_swept_are_named(sweep: dict[str, pd.DataFrame]) -> None:
    """What a sweep has not run is named."""
    table = sweep["layers"]
    rest = table[table["family"] != "ranges"]
    expect_error("no finished entry for change", viz.plot, rest, "change")
    expect_error("no part 'head'. Closest: heads", viz.plot, table, part="head")
    curves = sweep["curves"]
    expect_error(r"no model 'alfa'. Closest: alpha", viz.plot, curves, model="alfa")


def test_literal_names_and_printable_figures() -> None:
    """Names are shown letter by letter, and figures can be printed."""
    made = planted.sweep(
        models=(EVIL, "b"),
        datasets=3,
        layers=(3, 2),
        heads=(2,),
        name=lambda i: f"{EVIL} {i}",
    )
    for table in made.values():
        fig = viz.plot(table)
        parts = fig.to_dict()
        meta = parts["layout"].pop("meta")
        assert meta["title"]
        assert "<script" not in str(parts)
        assert '%{y}"' not in str(parts)
        printed = viz.for_print(fig)
        assert not printed.layout.title.text
        assert printed.layout.meta["width_mm"] in (89.0, 183.0)


def test_repeated_labels_need_one_value(sweep: dict[str, pd.DataFrame]) -> None:
    """A variant of two families is drawn once, and two values of one place never."""
    table = sweep["heads"]
    twice = pd.concat([table, table.iloc[:3]])
    twice.attrs = table.attrs
    for model in table["model"].unique():
        expected, found = (
            heatmaps(viz.plot(item, "change", model=model)) for item in (table, twice)
        )
        for one, other in zip(expected, found, strict=True):
            np.testing.assert_array_equal(one.z, other.z)
    twice = pd.concat([table, table.iloc[:1].assign(change=7.0)])
    twice.attrs = table.attrs
    expect_error("several values of change for model", viz.plot, twice, "change")
