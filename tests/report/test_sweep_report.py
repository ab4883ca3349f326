"""The report of a sweep: its page, its files, its tables and what it says."""

from __future__ import annotations

import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import plotly.io as pio
import pytest
import xarray as xr

from tsfm_lens.errors import InputError, UnknownNameError
from tsfm_lens.report import readings_sweep as read
from tsfm_lens.report import sweep as room
from tsfm_lens.report.plates_sweep import CHAPTERS
from tsfm_lens.report.sweep import build_sweep_report, written
from tsfm_lens.report.sweep_tables import latex, tidy
from tsfm_lens.sweep.plan.config import parse_config
from tsfm_lens.sweep.results.gathering import gather
from tsfm_lens.sweep.run.sweeping import run_sweep

PROVENANCE = {"models": {"alpha": {"layers": 4, "revision": None}}, "datasets": [{"name": "x", "windows": 8}]}


class Text(HTMLParser):
    """What a page loads, and what it says outside of scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.scripts, self.words, self._in = 0, "", False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [value or "" for key, value in attrs if key in ("src", "href")]
        self._in = tag in ("script", "style")
        self.scripts += tag == "script"

    def handle_endtag(self, tag: str) -> None:
        self._in = False

    def handle_data(self, data: str) -> None:
        self.words += "" if self._in else data


@pytest.fixture(scope="module")
def built(swept: dict[str, xr.Dataset], tmp_path_factory: pytest.TempPathFactory) -> Path:
    notes = ["This sweep is not finished: 3 of the 40 cells planned so far are missing."]
    folder = tmp_path_factory.mktemp("sweep")
    return build_sweep_report(swept, folder, title="A sweep", provenance=PROVENANCE, notes=notes)


def test_page_figures_and_tables_are_there(built: Path, swept: dict[str, xr.Dataset]) -> None:
    folder = built.parent
    assert built.name == "index.html"
    figures = {path.stem for path in (folder / "figures").iterdir()}
    assert figures == {
        *(f"layer_distances-{part}" for part in ("both", "heads", "mlp")),
        *("component_errors", "range_curves", "head_curves", "head_curves-alpha", "head_curves-beta"),
        *("heads_at_layers", "dataset_heatmap-alpha", "dataset_heatmap-beta"),
        *("recipe_table", "recipe_changes", "selection_comparison"),
    }
    assert {path.name for path in (folder / "tables").iterdir()} == {f"{n}.{k}" for n in swept for k in ("csv", "tex")}
    for path in (folder / "figures").iterdir():
        assert pio.from_json(path.read_text()).layout.meta["title"]


def test_the_page_loads_nothing_and_says_what_is_missing_and_how_intervals_are_made(built: Path) -> None:
    page = Text(built.read_text())
    assert all(address.startswith(("#", "data:")) for address in page.loads)
    words = " ".join(page.words.split())
    assert "3 of the 40 cells planned so far are missing" in words
    assert words.count("percentiles of a paired bootstrap of 120 replicates") == 1
    assert "corrected by Holm's method" in words
    assert "alpha: layers 4" in words.replace('{"layers": 4, "revision": null}', "layers 4")
    assert "name x; windows 8" in words


def test_csv_files_hold_every_number(built: Path, swept: dict[str, xr.Dataset]) -> None:
    for name, ds in swept.items():
        back = pd.read_csv(built.parent / "tables" / f"{name}.csv", keep_default_na=True, float_precision="round_trip")
        expected = tidy(ds)
        pd.testing.assert_frame_equal(back, expected, check_dtype=False, check_exact=True)
    # against the Datasets themselves, by another way
    table = pd.read_csv(built.parent / "tables" / "layers.csv")
    np.testing.assert_allclose(table["mase_change_upper"], swept["layers"]["mase_change_upper"].values)
    assert table["stands"].tolist() == swept["layers"]["stands"].values.tolist()
    cells = pd.read_csv(built.parent / "tables" / "datasets.csv").set_index(["model", "layer", "dataset", "ablated"])
    at = swept["datasets"].isel(panel=1, dataset=2).sel(ablated=3)
    row = cells.loc[("alpha", 2, "set 2/H/short", 3)]
    assert row["mase"] == pytest.approx(float(at["mase"]))
    assert row["largest_within"] == int(at["largest_within"])
    # beta has 2 heads a layer
    assert cells.loc["beta"].reset_index()["ablated"].max() == 2
    choices = pd.read_csv(built.parent / "tables" / "selection.csv")
    informed = choices["selection"] == "listed"
    np.testing.assert_allclose(choices.loc[informed, "diff"], swept["selection"]["diff"].values)
    assert choices.loc[~informed, "diff"].isna().all()


def rows_of(text: str) -> list[list[str]]:
    """The cells of a LaTeX table, its head first."""
    body = [line for line in text.splitlines() if line.endswith(r"\\") and "multicolumn" not in line]
    return [[cell.strip() for cell in re.split(r"(?<!\\)&", line[:-2])] for line in body]


def test_recipes_come_as_table_1_with_standing_changes_bold(swept: dict[str, xr.Dataset]) -> None:
    ds = swept["recipes"].isel(entry=swept["recipes"]["selection"].values == "listed")
    text = latex(swept["recipes"])
    head, *rows = rows_of(text)
    assert head[0] == r"model (zero-ablated \% of heads + MLPs)"
    assert head[1:] == [rf"\% change of {m}" for m in ds["metric"].values] + ["resilient /4", "improved /4"]
    assert len(rows) == ds.sizes["entry"]
    for i, row in enumerate(rows):
        assert row[-2:] == [str(int(ds["n_resilient"].values[i])), str(int(ds["n_improved"].values[i]))]
        for k, cell in enumerate(row[1:-2]):
            value = f"${100 * ds['change'].values[i, k]:+.2f}$"
            assert cell == (rf"\bfseries \boldmath {value}" if ds["stands"].values[i, k] else value)
    assert all(rule in text for rule in (r"\toprule", r"\midrule", r"\bottomrule"))
    # as many columns as are declared
    declared = re.search(r"\\begin\{tabular\}\{([lr]+)\}", text)
    assert declared is not None
    assert {len(row) for row in rows} == {len(declared[1])}


def test_effects_are_bold_where_they_stand(swept: dict[str, xr.Dataset]) -> None:
    ds = swept["layers"]
    _, *rows = rows_of(latex(ds))
    rows = [row for row in rows if row[0] != "model"]
    assert len(rows) == ds.sizes["entry"]
    assert [r"\bfseries" in row[4] for row in rows] == ds["stands"].values.tolist()
    assert (
        rows[0][5]
        == f"$[{100 * float(ds['mase_change_lower'][0]):+.2f}, {100 * float(ds['mase_change_upper'][0]):+.2f}]$"
    )


def test_names_cannot_break_a_table_a_page_or_a_folder(planted_sweep: Any, evil: str, tmp_path: Path) -> None:
    bad = r"a\b{}_%$#~^ & \input{/etc/passwd}"
    made = planted_sweep(
        models=(bad, "../../up", evil), datasets=2, layers=(2,), heads=(2,), name=lambda i: f"{evil}\n{i}"
    )
    for ds in made.values():
        text = latex(ds)
        assert r"\input{" not in text
        names = [row[0] for row in rows_of(text)]
        assert all(re.search(r"(?<!\\)[%$#_]", name) is None for name in names)
        widths = {len(row) for row in rows_of(text)}
        assert len(widths) == 1
    page = build_sweep_report(made, tmp_path / "r", title=evil, provenance={evil: evil}, notes=[evil])
    found = Text(page.read_text())
    assert evil in found.words
    # plotly, the drawing, and one for each figure
    assert found.scripts == 2 + len(list((tmp_path / "r" / "figures").iterdir()))
    assert [path.name for path in tmp_path.iterdir()] == ["r"]
    for path in (tmp_path / "r").rglob("*"):
        assert re.fullmatch(r"[A-Za-z0-9_.-]+", path.name)


def test_a_failed_build_leaves_the_old_report(
    swept: dict[str, xr.Dataset], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = {"heads_at": swept["heads_at"]}
    page = build_sweep_report(one, tmp_path, title="Old", provenance={})
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match="of kind 'gain'; a sweep has sweep_curves"):
        build_sweep_report(one | {"x": xr.Dataset(attrs={"kind": "gain"})}, tmp_path, title="New", provenance={})
    monkeypatch.setattr(room, "latex", lambda ds: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        build_sweep_report(one, tmp_path, title="New", provenance={})
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert "Old" in page.read_text()
    with pytest.raises(InputError, match="is a file"):
        build_sweep_report(one, page, title="New", provenance={})
    with pytest.raises(InputError, match="no results"):
        build_sweep_report({}, tmp_path, title="New", provenance={})
    with pytest.raises(UnknownNameError, match="no format 'swg'"):
        build_sweep_report(one, tmp_path, title="New", provenance={}, formats=["swg"])


def test_an_unfinished_sweep_is_reported_as_far_as_it_is(swept: dict[str, xr.Dataset], tmp_path: Path) -> None:
    layers = swept["layers"].isel(entry=swept["layers"]["family"].values == "groups").copy(deep=True)
    layers["mase"][0] = layers["mase_change"][0] = layers["spearman_distance"][0] = np.nan
    heads = swept["heads_at"].isel(entry=[]).copy(deep=True)
    page = build_sweep_report({"layers": layers, "heads_at": heads}, tmp_path, title="T", provenance={})
    words = Text(page.read_text()).words
    assert "Nothing of heads_at can be drawn yet" in words
    assert f"1 of {layers.sizes['entry']} numbers of layers is missing; what is drawn leaves it out" in words
    assert {path.stem for path in (tmp_path / "figures").iterdir()} == {
        f"layer_distances-{part}" for part in ("both", "heads", "mlp")
    }
    assert pd.read_csv(io.StringIO((tmp_path / "tables" / "heads_at.csv").read_text())).empty


def test_readings_count_what_stands(swept: dict[str, xr.Dataset]) -> None:
    ds = swept["layers"].copy(deep=True)
    mine = (ds["model"] == "alpha") & (ds["part"] == "both") & (ds["family"] == "layers")
    places = np.flatnonzero(mine.values)
    ds["mase_change"][places] = [0.3, 0.005, -0.004, 0.2]
    ds["stands"][places] = [True, False, True, True]
    ds["spearman_distance"][places] = [0.9, 0.25, 0.125, 0.5]
    said = read.read_distances(ds, "both")
    assert said[0] == (
        "alpha: without the heads and MLPs of one layer, 2 of 4 layers change MASE by less than 1 %; the changes of "
        "layers 0, 2 and 3 stand after Holm's correction (family of 4 tests)."
    )
    assert "best without layer 2 (Spearman distance 0.125) and loses it most without layer 0 (0.9)" in said[1]
    ds["stands"][places] = False
    assert "no change stands after" in read.read_distances(ds, "both")[0]
    assert "alpha bears the loss of layer 2 best" in read.read_components(ds)[0]
    assert "−0.4 %" in read.read_components(ds)[0]
    assert read.runs([9, 0, 3, 4, 5, 7, 8]) == "0, 3 to 5, 7, 8 and 9" or read.runs([0, 1]) == "0 and 1"


def test_readings_of_heads_datasets_recipes_and_choices(swept: dict[str, xr.Dataset]) -> None:
    heads = swept["heads_at"].copy(deep=True)
    heads["kept"][:] = [3, 0, 0, 1, 2, 2, 2]
    assert read.read_heads_at(heads) == [
        "alpha: layer by layer, 8 of 12 heads can go (66.7 %); layer 0 needs most, 3 of 3; layers 1 and 2 need none.",
        "beta: layer by layer, 0 of 6 heads can go (0 %); layer 0 needs most, 2 of 2.",
        f"The search (scan) used {6 * 4 + 4 * 3} of {6 * 4 + 4 * 3} evaluations.",
    ]
    maps = swept["datasets"].copy(deep=True)
    maps["largest_within"][0] = [3, 3, 1, 0]
    maps["mase_change"][0, :, 3] = [-0.1, 0.009, 0.2, 0.2]
    said = read.read_datasets(maps, "alpha")[0]
    assert "all 3 heads can go within 1 % on 2 of 4 datasets, their median largest number is 2;" in said
    assert said.endswith("without all heads the MASE falls on 1.")
    recipes = swept["recipes"].copy(deep=True)
    recipes["change"][0, 0], recipes["lower"][0, 0], recipes["upper"][0, 0] = 0.0612, 0.05, 0.07
    recipes["stands"][0, 0] = True
    recipes["n_resilient"][0], recipes["n_improved"][0] = 3, 1
    assert read.read_recipes(recipes)[0].startswith(
        "alpha (25 % of heads + 2 MLPs): MASE +6.1 % [+5.0, +7.0 %], which stands"
    )
    assert "3 of 4 datasets rise by less than 5 %, 1 of them improves." in read.read_recipes(recipes)[0]
    choice = swept["selection"].copy(deep=True)
    choice["diff"][0], choice["diff_lower"][0], choice["diff_upper"][0] = -0.25, -0.3, 0.1
    assert read.read_selection(choice)[0] == (
        "alpha, light: the informed choice changes MASE by −25.0 percentage points against the mean of 3 random ones "
        "[−30.0, +10.0], an interval that holds 0."
    )


def test_readings_count_in_the_singular(swept: dict[str, xr.Dataset]) -> None:
    ds = swept["layers"].copy(deep=True)
    mine = (ds["model"] == "alpha") & (ds["part"] == "both")
    one = ds.isel(entry=np.flatnonzero(mine & (ds["family"] == "layers"))[:1])
    group = ds.isel(entry=np.flatnonzero(mine & (ds["family"] == "groups"))[:1])
    one["tests"][:], one["mase_change"][:], one["stands"][:], group["stands"][:] = 1, 0.0, True, False
    assert read.read_distances(one, "both")[0] == (
        "alpha: without the heads and MLPs of one layer, 1 of 1 layer changes MASE by less than 1 %; the change of "
        "layer 0 stands after Holm's correction (family of 1 test)."
    )
    assert read.read_distances(group, "both") == ["Of 1 change of MASE without a group of layers, 0 stand."]
    group["stands"][:] = True
    assert read.read_distances(group, "both") == ["Of 1 change of MASE without a group of layers, 1 stands."]
    chapter = CHAPTERS["sweep_effects"]
    assert chapter.subject(one.assign_attrs(n_datasets=1, n_windows=1)) == "alpha on 1 dataset, 1 window"
    assert chapter.subject(one.assign_attrs(n_datasets=2, n_windows=3)) == "alpha on 2 datasets, 3 windows"


@pytest.mark.parametrize(("counts", "harm"), [((0, 3), 0.0), ((2,), 2.0), ((3,), 2.0)])
def test_lines_with_few_counts_are_reported(
    planted_sweep: Any, tmp_path: Path, counts: tuple[int, ...], harm: float
) -> None:
    made = planted_sweep(layers=(4, 3), heads=(3, 2), counts=counts, harm=harm)
    made = {name: made[name] for name in ("curves", "heads_at", "datasets")}
    # one model has no finished line at all
    for name in ("mase", "mase_change"):
        made["curves"][name][made["curves"]["model"].values == "beta"] = np.nan
    words = Text(build_sweep_report(made, tmp_path, title="T", provenance={}).read_text()).words
    assert "numbers of datasets are missing" not in words
    assert re.search(r"\bnan\b", words) is None
    heads = pd.read_csv(tmp_path / "tables" / "heads_at.csv")
    assert (heads["order"].isna() == (heads["kept"] == heads["of"])).all()
    assert latex(made["heads_at"]).count("no head can go") == (heads["kept"] == heads["of"]).sum()
    assert read.read_curves(made["curves"], "beta") == []
    if harm:
        assert "in 0 of 4 layers all heads can go at once" in words
        assert "lowest stable rank first in 0 and highest stable rank first in 0; in 4 no head can go." in words
        assert all("median largest number is 0" in line for line in read.read_datasets(made["datasets"], "alpha"))


def test_a_bisection_that_no_count_passes_is_reported(tmp_path: Path) -> None:
    asked = {"search": "bisection", "tolerance": 0.0001, "layers": [0]}
    content = {
        "name": "few counts",
        "models": [{"source": "bolt-nano", "name": "bolt", "context_length": 128}],
        "data": [{"source": "bundled", "names": ["co2", "elnino"], "horizon": 6}],
        "variants": {"heads_at": asked},
        "statistics": {"replicates": 100},
    }
    assert not run_sweep(parse_config(content), tmp_path / "store").failed
    found = gather(tmp_path / "store")
    curves, kept = found.results["curves"], found.results["heads_at"]
    # the case at hand: the plain model and some counts of an order, all of them too costly
    first = curves["mase_change"].values[curves["order"].values == "stable_rank:low"]
    assert len(first) < 5
    page = build_sweep_report(
        found.results, tmp_path / "report", title=found.title, provenance=found.provenance, notes=found.notes
    )
    words = Text(page.read_text()).words
    assert f"layer 0 needs most, {int(kept['kept'][0])} of 4" in words
    assert (tmp_path / "report" / "figures" / "head_curves-bolt.json").exists()


def test_provenance_is_written_line_by_line() -> None:
    assert written("x") == "x"
    assert written([{"name": "a", "notes": [], "windows": 3}, "b"]) == "name a; windows 3\nb"
    assert written({"k": {"z": 1}, "j": 2}) == "k: z 1\nj: 2"
    assert json.loads(written({"k": [1, {"a": None}]}).removeprefix("k: ")) == [1, {"a": None}]


@pytest.mark.browser
def test_every_figure_is_drawn_in_a_browser(built: Path, new_browser: Any) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    driver = new_browser()
    try:
        driver.get(built.as_uri())
        script = "return document.documentElement.dataset.drawn"
        drawn = WebDriverWait(driver, 300).until(lambda d: d.execute_script(script))
        assert int(drawn) == len(list((built.parent / "figures").iterdir()))
        assert driver.get_log("browser") == []
    finally:
        driver.quit()
