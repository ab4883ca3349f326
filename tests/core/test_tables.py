"""Tables of results in pandas, and results of which one label was selected."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from pandas.testing import assert_frame_equal

from refusals import expect_error
from tsfm_lens.core.estimates import Result, add_estimates, restore_selected
from tsfm_lens.core.tables import tabulate
from tsfm_lens.testing import assert_close

SHIFTS = np.random.default_rng(1).normal(size=(2, 3, 4))


def shifted(*names: str) -> Result:
    """Effects over (layer, head, series), with the series that they are of."""
    data = xr.Dataset(
        {
            "context": (
                ("series", "time"),
                np.random.default_rng(0).normal(size=(4, 9)),
            ),
            "forecast": (("layer", "series", "step"), np.zeros((2, 4, 5))),
        },
        {
            "layer": [0, 1],
            "layer_label": ("layer", ["layer 0", "layer 1"]),
            "series": list("abcd"),
            "units": ("series", ["kW"] * 4),
        },
        {"kind": "shifts"},
    )
    for number, name in enumerate(names):
        data[name] = (("layer", "head", "series"), SHIFTS + number)
        data = add_estimates(data, name, floor=0.5, signed=True)
    return Result(data.data_vars, data.coords, data.attrs)


def test_row_a_member_with_estimates() -> None:
    table = tabulate(shifted("shift"))
    assert list(table)[:3] == ["layer", "head", "layer_label"]
    assert len(table) == 6
    flat = SHIFTS.reshape(6, 4)
    assert_close(table["size"].to_numpy(), np.median(flat, axis=-1), depth=1)
    assert_close(table["low"].to_numpy(), flat.min(-1), depth=1)
    assert_close(table["high"].to_numpy(), flat.max(-1), depth=1)
    assert table["acts"].tolist() == (abs(flat) > 0.5).sum(-1).tolist()
    assert table["layer"].tolist() == [0, 0, 0, 1, 1, 1]


def test_several_effects_keep_their_names() -> None:
    result = shifted("shift", "rise")
    table = tabulate(result)
    assert len(table) == 6
    # the second effect is the first and 1
    difference = table["rise_size"] - table["shift_size"]
    assert_close(difference.to_numpy(), np.ones(6), depth=10)
    assert "size" in tabulate(result, "rise")


def test_several_effects_show_the_most_read_columns() -> None:
    """The rest is there on request, as it is of one effect."""
    result = shifted("shift", "rise")
    brief = tabulate(result)
    full = tabulate(result, full=True)
    effects = {column for column in brief if column.startswith(("shift_", "rise_"))}
    assert effects == {
        f"{name}_{part}"
        for name in ("shift", "rise")
        for part in ("size", "significant")
    }
    assert_frame_equal(full[list(brief)], brief)
    one = tabulate(result, "rise").rename(columns="rise_{}".format)
    assert set(one) & set(full) >= {"rise_low", "rise_p", "rise_leads"}


def test_rows_by_series_hold_values() -> None:
    table = tabulate(shifted("shift"), by_series=True)
    assert len(table) == SHIFTS.size
    chosen = table[(table["series"] == "c") & (table["layer"] == 1)]
    assert chosen["shift"].tolist() == SHIFTS[1, :, 2].tolist()
    assert chosen["size"].tolist() == np.median(SHIFTS[1], axis=-1).tolist()


def test_untested_result_gives_its_members() -> None:
    table = tabulate(shifted())
    assert list(table)[:3] == ["series", "layer", "step"]
    assert len(table) == 2 * 4 * 5
    assert tabulate(shifted(), "context")["time"].nunique() == 9


def test_twins_give_the_column_learned() -> None:
    result = shifted("shift")
    result["shift_learned"] = result["shift_significant"]
    assert "learned" in tabulate(result)


def test_effect_without_members_is_one_row() -> None:
    data = xr.Dataset({"error": ("series", [1.0, 2.0, 4.0])})
    table = tabulate(add_estimates(data, "error", floor=0.0))
    assert table["size"].tolist() == [2.0]


def test_different_dimensions_are_refused() -> None:
    result = shifted("shift")
    expect_error("share their dimensions.*table", tabulate, result, "shift", "context")
    assert len(tabulate(result, "context")) == 36
    expect_error("Closest: shift", tabulate, result, "shfit")
    expect_error("by_series", tabulate, result, "context", by_series=True)


def test_frame_of_everything_names_the_cure() -> None:
    result = shifted("shift")
    with pytest.warns(UserWarning, match=r"table\(\)"):
        frame = result.to_dataframe()
    assert len(frame) == np.prod(list(result.sizes.values()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(result[["shift", "shift_size"]].to_dataframe()) == 24


@pytest.mark.parametrize(
    "select",
    [
        lambda result: result.isel(series=2),
        lambda result: result.sel(series="c"),
        lambda result: result.isel(series=[2]).squeeze("series"),
        lambda result: result.isel(layer=0).isel(series=2),
        lambda result: result.isel(series=2, layer=0),
    ],
    ids=["isel", "sel", "squeeze", "twice", "both"],
)
def test_selected_dimensions_come_back(select: object) -> None:
    whole = shifted("shift")
    chosen = select(whole)  # type: ignore[operator]
    assert "series" not in chosen.dims
    restored = restore_selected(chosen)
    layers = slice(None)
    if "layer" not in chosen.dims:
        layers = slice(1)
    expected = whole.isel(series=[2], layer=layers)
    for name, variable in expected.variables.items():
        assert restored[name].variable.identical(variable), name
    assert list(restored.data_vars) == list(expected.data_vars)


def test_tables_of_one_series_say_which() -> None:
    table = tabulate(shifted("shift").sel(series="b"), by_series=True)
    assert set(table["series"]) == {"b"}
    assert isinstance(table, pd.DataFrame)


def test_averaged_dimensions_stay_away() -> None:
    chosen = shifted("shift").isel(layer=0).mean("series")
    restored = restore_selected(chosen)
    assert restored["shift"].dims == ("layer", "head")
