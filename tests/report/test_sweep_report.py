"""The report of a sweep: its page, its files, its tables and what it says."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import plotly.io as pio
import pytest

import planted
from browsing import Page
from tsfm_lens.core.errors import InputError
from tsfm_lens.report import sweep as room
from tsfm_lens.report.sweep import build_sweep_report, latex
from tsfm_lens.viz.sweep_entries import describe_power
from tsfm_lens.viz.sweep_layers import read_distances
from tsfm_lens.viz.sweep_recipes import read_recipes, read_selection

PROVENANCE = {
    "models": {"alpha": {"layers": 4, "revision": None}},
    "datasets": [{"name": "x", "windows": 8}],
}


@pytest.fixture(scope="module")
def built(
    swept: dict[str, pd.DataFrame], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    notes = [
        "This sweep is not finished: 3 of the 40 cells planned so far are missing."
    ]
    folder = tmp_path_factory.mktemp("sweep")
    return build_sweep_report(
        swept, folder, title="A sweep", provenance=PROVENANCE, notes=notes
    )


def test_page_figures_and_tables_are_there(
    built: Path, swept: dict[str, pd.DataFrame]
) -> None:
    folder = built.parent
    assert built.name == "index.html"
    figures = {path.stem for path in (folder / "figures").iterdir()}
    models = ("alpha", "beta")
    parts = ("", "-both", "-heads", "-mlp")
    effects = {f"sweep_effects{part}-{item}" for part in parts for item in models}
    of_models = {
        f"sweep_{kind}-{item}" for kind in ("heads", "curves") for item in models
    }
    layers = swept["datasets"].groupby(["model", "layer"], sort=False).groups
    by_dataset = {f"sweep_datasets-layer-{layer}-{model}" for model, layer in layers}
    rest = {"sweep_costs", "sweep_heads_at", "sweep_recipes", "sweep_selection"}
    assert figures == effects | of_models | by_dataset | rest
    assert {path.name for path in (folder / "tables").iterdir()} == {
        f"{n}.{k}" for n in swept for k in ("csv", "tex")
    }
    for path in (folder / "figures").iterdir():
        assert pio.from_json(path.read_text()).layout.meta["title"]


def test_page_is_offline_and_explains_intervals(
    built: Path,
) -> None:
    """The page loads nothing and says what is missing and how intervals are made."""
    page = Page(built.read_text())
    assert all(address.startswith(("#", "data:")) for address in page.loads)
    text = " ".join(page.text.split())
    assert "3 of the 40 cells planned so far are missing" in text
    assert (
        text.count(
            "its direction at 5 %, Holm-corrected over all tests of this page on one"
            " model and metric"
        )
        == 1
    )
    assert "Student's t intervals of log ratios over 16 series" in text
    assert "alpha: layers 4" in text.replace(
        '{"layers": 4, "revision": null}', "layers 4"
    )
    assert "name x; windows 8" in text


def test_csv_files_hold_every_number(
    built: Path, swept: dict[str, pd.DataFrame]
) -> None:
    for name, table in swept.items():
        back = pd.read_csv(
            built.parent / "tables" / f"{name}.csv",
            keep_default_na=False,
            float_precision="round_trip",
        )
        text = table.select_dtypes(object)
        pd.testing.assert_frame_equal(back[list(text)], text)
        numbers = back[list(table.columns.difference(text.columns))].replace(
            {"": np.nan}
        )
        for column in numbers:
            expected = table[column].to_numpy()
            found = numbers[column].to_numpy(dtype=float)
            np.testing.assert_array_equal(found, expected.astype(float), err_msg=column)


def parse_cells(text: str) -> list[list[str]]:
    """The cells of a LaTeX table, its head first."""
    body = [
        line
        for line in text.splitlines()
        if line.endswith(r"\\") and "multicolumn" not in line
    ]
    return [
        [cell.strip() for cell in re.split(r"(?<!\\)&", line[:-2])] for line in body
    ]


def test_recipes_are_table_with_bold_changes(
    swept: dict[str, pd.DataFrame],
) -> None:
    """Recipes come as table 1 of the paper, with significant changes in bold."""
    table = swept["recipes"][swept["recipes"]["selection"] == "listed"]
    text = latex(swept["recipes"])
    head, *rows = parse_cells(text)
    assert head[0] == r"model (zero-ablated \% of heads + MLPs)"
    assert head[1:] == [rf"\% change of {m}" for m in table["metric"].unique()] + [
        "resilient /4",
        "improved /4",
    ]
    assert len(rows) == len(table) / 5
    for row, (_, group) in zip(
        rows, table.groupby(["model", "recipe"], sort=False), strict=True
    ):
        assert row[-2:] == [
            str(group["n_resilient"].iloc[0]),
            str(group["n_improved"].iloc[0]),
        ]
        for cell, change, bold in zip(
            row[1:-2], group["change"], group["significant"], strict=True
        ):
            value = f"${100 * change:+.2f}$"
            assert cell == (rf"\bfseries \boldmath {value}" if bold else value)
    assert all(rule in text for rule in (r"\toprule", r"\midrule", r"\bottomrule"))
    # each effect that is significant is bold
    _, *effects = parse_cells(latex(swept["layers"]))
    assert [r"\bfseries" in row[4] for row in effects if row[0] != "model"] == swept[
        "layers"
    ]["significant"].tolist()


@pytest.mark.parametrize("name", ["costs", "layers", "heads", "curves"])
@pytest.mark.parametrize("units", [3, 16])
def test_tables_explain_their_numbers(
    name: str, units: int, swept: dict[str, pd.DataFrame]
) -> None:
    """Below a table stand its statistic, what is corrected, and what a dash means."""
    table = swept[name].assign(units=units, unit="datasets", tests=21)
    table.attrs = swept[name].attrs
    if units == 3:
        ends = ["lower", "upper", "median_lower", "median_upper"]
        table[ends] = np.nan
    text = latex(table)
    notes = " ".join(line for line in text.splitlines() if "footnotesize" in line)
    # in the foot of a table that runs over pages, else below its rows
    assert text.index("bottomrule") < text.index("footnotesize")
    statistic = "geometric means"
    if name == "costs":
        statistic = f"medians over {units} datasets"
    assert statistic in notes
    assert r"95 \% intervals, not corrected" in notes
    assert f"over {units} datasets, Holm-corrected for 21 tests" in notes
    assert ("--: " in notes) is (units == 3)
    assert ("needs 6" in notes) is (units == 3 and name == "costs")
    assert ("(median)" in text) is (name == "costs")
    assert ("(geometric mean)" in text) is (name != "costs")


def test_names_cannot_break_pages_or_folders(evil: str, tmp_path: Path) -> None:
    """Names cannot break a table, a page or a folder."""
    bad = r"a\b{}_%$#~^ & \input{/etc/passwd}"
    made = planted.sweep(
        models=(bad, "../../up", evil),
        datasets=2,
        layers=(2,),
        heads=(2,),
        name=lambda i: f"{evil}\n{i}",
    )
    for ds in made.values():
        text = latex(ds)
        assert r"\input{" not in text
        names = [row[0] for row in parse_cells(text)]
        assert all(re.search(r"(?<!\\)[%$#_]", name) is None for name in names)
        assert len({len(row) for row in parse_cells(text)}) == 1
    page = build_sweep_report(
        made, tmp_path / "r", title=evil, provenance={evil: evil}, notes=[evil]
    )
    found = Page(page.read_text())
    assert evil in found.text
    # plotly, its settings, the drawing, and one for each figure, except those of heads,
    # which the leading figure has
    files = [path.stem for path in (tmp_path / "r" / "figures").iterdir()]
    shown = [stem for stem in files if not stem.startswith("sweep_heads-")]
    assert len(found.scripts) == 3 + len(shown) < 3 + len(files)
    assert [path.name for path in tmp_path.iterdir()] == ["r"]
    for path in (tmp_path / "r").rglob("*"):
        assert re.fullmatch(r"[A-Za-z0-9_.-]+", path.name)


def test_failed_build_keeps_old_report(
    swept: dict[str, pd.DataFrame], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build that fails leaves the old report."""
    one = {"heads_at": swept["heads_at"]}
    page = build_sweep_report(one, tmp_path, title="Old", provenance={})
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    gain = pd.DataFrame()
    gain.attrs["kind"] = "gain"
    with pytest.raises(InputError, match=r"of kind 'gain'.*sweep_heads"):
        build_sweep_report(one | {"x": gain}, tmp_path, title="New", provenance={})
    monkeypatch.setattr(room, "latex", lambda ds: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        build_sweep_report(one, tmp_path, title="New", provenance={})
    assert {
        path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()
    } == before
    assert "Old" in page.read_text()
    with pytest.raises(InputError, match="is a file"):
        build_sweep_report(one, page, title="New", provenance={})
    with pytest.raises(InputError, match="no results"):
        build_sweep_report({}, tmp_path, title="New", provenance={})


def test_unfinished_sweep_is_reported_so_far(
    swept: dict[str, pd.DataFrame], tmp_path: Path
) -> None:
    layers = swept["layers"][swept["layers"]["family"] == "groups"].copy()
    layers.loc[layers.index[0], ["relative_mase", "change", "spearman_distance"]] = (
        np.nan
    )
    heads = swept["heads_at"].iloc[:0]
    page = build_sweep_report(
        {"layers": layers, "heads_at": heads}, tmp_path, title="T", provenance={}
    )
    text = Page(page.read_text()).text
    assert "heads_at has no figure yet" in text
    assert (
        f"1 of {len(layers)} numbers of layers is missing; the figures leave it out"
        in text
    )
    assert {path.stem for path in (tmp_path / "figures").iterdir()} == {
        f"sweep_effects-{part}-{model}"
        for part in ("both", "heads", "mlp")
        for model in ("alpha", "beta")
    }
    assert pd.read_csv(
        io.StringIO((tmp_path / "tables" / "heads_at.csv").read_text())
    ).empty
    counts = {
        "layers": swept["layers"].assign(family="heads_per_layer"),
        "heads_at": swept["heads_at"],
    }
    text = Page(
        build_sweep_report(counts, tmp_path, title="T", provenance={}).read_text()
    ).text
    assert (
        "There is no figure of 'heads_per_layer'; the numbers are in tables/layers.csv."
        in text
    )


def changed(table: pd.DataFrame, rows: pd.Series, **values: Any) -> pd.DataFrame:
    """A copy with other values in some rows."""
    made = table.copy()
    for name, value in values.items():
        made.loc[rows, name] = value
    return made


def test_readings_name_only_significant_changes(
    swept: dict[str, pd.DataFrame],
) -> None:
    """Readings count what is significant and name nothing else."""
    table = swept["layers"]
    mine = (
        (table["model"] == "alpha")
        & (table["part"] == "both")
        & (table["family"] == "layers")
    )
    new = {
        "change": [0.3, 0.005, -0.004, 0.2],
        "spearman_distance": [0.9, 0.25, 0.125, 0.5],
    }
    table = changed(
        table,
        mine,
        **new,
        significant=[True, False, True, True],
        distance_lead_share=[0.75, 0, 0, 0.25],
    )
    messages = read_distances(table, "both")[0]
    assert messages.startswith(
        "alpha: without the heads and MLPs of one layer, MASE changes by −0.4 % to"
        " +30.0 % (geometric means over datasets); significant: 3 of 4: layer 0 (+30.0"
    )
    assert "layer 1" not in messages
    none = changed(table, mine, significant=False)
    assert "; significant: none of 4." in read_distances(none, "both")[0]
    # the test says nothing where it could not decide
    few = read_distances(none.assign(units=3, unit="sources", tests=24), "both")[0]
    assert "significant" not in few
    # who costs most is what the test says, whatever the shares of resamples are
    often = changed(table, mine, lead_share=[0.55, 0, 0, 0.45])
    assert read_distances(often, "both")[1] == "None costs significantly most."
    leading = changed(table, mine, leads=["", "", "", "highest"])
    assert read_distances(leading, "both")[1] == "Layer 3 costs significantly most."
    first = swept["recipes"].index == 0
    new = {
        "change": 0.0612,
        "lower": 0.05,
        "upper": 0.07,
        "significant": True,
        "n_resilient": 3,
        "n_improved": 1,
    }
    new |= {"median": 0.06, "least": -0.01, "most": 0.25}
    messages = read_recipes(changed(swept["recipes"], first, **new))[0]
    assert messages.startswith("alpha: with a recipe, MASE changes by ")
    assert "alpha (25 % of heads + 2 MLPs) (+6.1 % [+5.0, +7.0 %])" in messages
    new = {
        "diff": -0.25,
        "diff_lower": -0.3,
        "diff_upper": 0.1,
        "diff_significant": False,
        "n_worse": 3,
    }
    text = read_selection(
        changed(swept["selection"], swept["selection"].index == 0, **new)
    )[0]
    for words in ("alpha, light", "−25.0 % [−30.0, +10.0 %]", "not significant"):
        assert words in text
    assert "geometric mean of 3" in text
    assert "3 of these 3 cost more" in text


def test_too_few_units_are_reported_once(
    swept: dict[str, pd.DataFrame], tmp_path: Path
) -> None:
    """Units that are too few for the number of tests are reported once."""
    enough = swept["layers"].assign(units=11, tests=24)
    assert describe_power([enough, enough]) == ""
    few = enough.assign(units=9, unit="sources", tests=20)
    fewer = few.assign(tests=24)
    text = describe_power([few, enough, fewer, few])
    assert "With 9 sources" in text
    assert "24 tests" in text
    assert "10 needed" in text
    rest = [swept["heads"].assign(units=5, significant=False) for _ in range(2)]
    tables = {f"heads {at}": table for at, table in enumerate(rest)}
    page = build_sweep_report(tables, tmp_path, title="T", provenance={}).read_text()
    assert Page(page).text.count("nothing can be significant") == 1
