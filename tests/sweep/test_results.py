"""What a report is made of, against the same numbers computed by hand from the stored
rows.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.stats

import planted
from closeness import close_in_float32
from refusals import expect_error
from tsfm_lens.sweep.engine.status import stored_status
from tsfm_lens.sweep.engine.sweeping import plan_sweep, run_sweep
from tsfm_lens.sweep.planner.config import SweepConfig, parse_config
from tsfm_lens.sweep.results.families import chosen_and_drawn
from tsfm_lens.sweep.results.gathering import Gathered, gather
from tsfm_lens.sweep.store import Store
from tsfm_lens.viz.sweep_recipes import read_selection

CONTENT = {
    "name": "results",
    "models": [{"source": "bolt-nano", "name": "bolt", "context_length": 128}],
    "data": [
        {
            "source": "bundled",
            "names": ["co2", "elnino", "pedestrians", "unemployment"],
            "horizon": 12,
            "windows": 2,
        }
    ],
    "variants": {
        "layers": {"sizes": [1, 2], "parts": ["both", "mlp"]},
        "heads": {},
        "heads_at": {"tolerance": 0.05, "orders": ["stable_rank"]},
        "random_seeds": 2,
    },
    # of older configurations, and no longer read
    "statistics": {"replicates": 200},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("results") / "store"
    recipe = path.with_name("half.yaml")
    recipe.write_text("name: half\nkept_heads: {0: 2, 2: 2}\nmlps: [1]\n")
    content = {**CONTENT, "variants": {**CONTENT["variants"], "recipes": [str(recipe)]}}
    assert not run_sweep(parse_config(content), path).failed
    return path


@pytest.fixture(scope="module")
def gathered(folder: Path) -> Gathered:
    return gather(folder)


@pytest.fixture(scope="module")
def mase(folder: Path) -> pd.DataFrame:
    """(dataset, variant): pooled MASE of the stored rows, in three lines of pandas."""
    store = Store(folder, create=False)
    rows = store.read(store.done()).to_pandas()
    sums = rows.groupby(["dataset", "variant"], observed=True)[
        ["scaled_error", "n_scaled"]
    ].sum()
    return (sums["scaled_error"] / sums["n_scaled"]).unstack("variant")


@pytest.fixture(scope="module")
def plan(folder: Path) -> pd.DataFrame:
    return Store(folder, create=False).read_plan("results").entries


def geometric(values: pd.Series) -> float:
    return float(np.exp(np.log(values).mean()))


def test_planted_tables_look_like_gathered_ones(gathered: Gathered) -> None:
    """Planted tables have the columns and types of gathered ones."""
    real = {table.attrs["kind"]: table for table in gathered.results.values()}
    made = {table.attrs["kind"]: table for table in planted.sweep().values()}
    assert set(made) == set(real)
    differing = {
        kind: planted.table_differences(table, real[kind])
        for kind, table in made.items()
    }
    assert differing == {kind: [] for kind in made}


def test_effects_are_ratios_of_geometric_means(
    gathered: Gathered, mase: pd.DataFrame, plan: pd.DataFrame
) -> None:
    table = gathered.results["effects"]
    assert len(table) == 3 + 2 + 3 + 2
    variant = plan.set_index("label")["variant"]
    for _, row in table.iterrows():
        errors = mase[variant[row["label"]]]
        assert row["baseline_relative_mase"] == pytest.approx(
            geometric(mase["plain"] / mase["seasonal_naive"])
        )
        assert row["relative_mase"] == pytest.approx(
            geometric(errors / mase["seasonal_naive"])
        )
        assert row["change"] == pytest.approx(geometric(errors / mase["plain"]) - 1)
        assert row["lower"] <= row["change"] <= row["upper"]
        assert (
            row["spearman_distance_lower"]
            <= row["spearman_distance"]
            <= row["spearman_distance_upper"]
        )
        assert row["significant"] == (row["p_holm"] <= 0.05)
        logs = np.log(errors / mase["plain"]).drop(index=errors.index[errors.isna()])
        assert np.log1p(
            row[["median", "least", "most"]].astype(float)
        ).tolist() == pytest.approx([logs.median(), logs.min(), logs.max()])
        assert row["p_value"] == pytest.approx(
            scipy.stats.binomtest(int((logs > 0).sum()), 4).pvalue
        )
    assert "exact sign test over 4 datasets" in table.attrs["test"]


def test_draws_of_the_same_heads_count_once() -> None:
    """Plans of earlier versions may repeat a draw, or draw the heads of the recipe."""
    lines = pd.DataFrame(
        {
            "family": ["recipes", *["random"] * 5],
            "variant": ["x", "a", "b", "b", "x", "b"],
            "seed": [-1, 0, 1, 2, 3, 4],
        }
    )
    chosen, draws = chosen_and_drawn(lines)
    assert chosen["variant"].tolist() == ["x"]
    assert draws["seed"].tolist() == [0, 1]


def test_choices_say_how_many_there_are(gathered: Gathered) -> None:
    """Of two layers with four heads each, two of them stay in 6 x 6 ways."""
    table = gathered.results["selection"]
    assert set(table["possible"]) == {35}
    assert "cannot be chosen in another way" not in " ".join(read_selection(table))
    few = table.assign(possible=2)
    assert "cannot be chosen in another way" in " ".join(read_selection(few))
    assert "2 distinct random ones" in " ".join(read_selection(few))


def test_each_number_has_one_verdict(gathered: Gathered, plan: pd.DataFrame) -> None:
    """One number has one verdict on a page."""
    tested = [table for table in gathered.results.values() if "p_holm" in table]
    of_mase = [
        table[table.assign(metric=table.get("metric", "MASE"))["metric"] == "MASE"]
        for table in tested
    ]
    # one family of tests: every variant, and every choice that is held against others
    orders = (
        gathered.results["heads_at"]
        .query("better and 0 < ablated < of")["layer"]
        .nunique()
    )
    choices = int(gathered.results["selection"]["diff_p"].notna().sum())
    tests = plan.loc[plan["variant"] != "plain", "variant"].nunique() + orders + choices
    assert all(set(table["tests"]) == {tests} for table in of_mase)
    variant = plan.drop_duplicates("label").set_index("label")["variant"]
    rows = pd.concat(of_mase)
    rows = rows.assign(variant=rows["label"].map(variant))
    assert rows["variant"].duplicated().sum() > 10
    for name in ("change", "lower", "upper", "p_value", "p_holm", "significant"):
        assert rows.groupby("variant")[name].nunique(dropna=False).max() == 1, name


def test_heads_kept_follow_the_definition(
    gathered: Gathered, mase: pd.DataFrame, plan: pd.DataFrame
) -> None:
    table = gathered.results["heads_at"]
    counts = plan[plan["family"] == "head_counts"]
    assert len(table) == 3 * 2
    for _, row in table.iterrows():
        line = counts[
            (counts["layer"] == row["layer"]) & (counts["order"] == row["order"])
        ]
        passed = {
            4 - int(itertuple.ablated): (
                geometric(mase[itertuple.variant] / mase["plain"]) - 1
            )
            for itertuple in line.itertuples()
            if geometric(mase[itertuple.variant] / mase["plain"]) - 1 < 0.05
        }
        assert row["kept"] == 4 - row["ablated"] == min(passed)
        assert row["change"] == pytest.approx(passed[min(passed)])
    for _, rows in table.groupby("layer"):
        best = rows.sort_values(["kept", "change"], kind="stable").iloc[0]
        assert rows.loc[rows["better"], "order"].tolist() == [best["order"]]
    # figures and readings read who is better from the same decision
    curves = gathered.results["curves"]
    for _, row in table[table["better"]].iterrows():
        rows = curves[curves["layer"] == row["layer"]]
        assert set(rows["within"]) == {row["ablated"]}
        assert set(rows.loc[rows["better"], "order"]) == {row["order"]}
        assert set(rows["judged_by"]) == {"MASE"}


def without(folder: Path, path: Path, gone: pd.Series) -> Path:
    """A copy of a store without some cells."""
    full = Store(folder, create=False)
    store = Store(path)
    shutil.copytree(folder / "plans", path / "plans", dirs_exist_ok=True)
    keys = sorted(set(full.read_plan().cells["key"]) - set(gone))
    store.write(full.read(keys).to_pandas(), keys)
    return path


def test_unfinished_sweep_shows_whole_variants(
    folder: Path, gathered: Gathered, tmp_path: Path, plan: pd.DataFrame
) -> None:
    """An unfinished sweep shows the variants that are complete."""
    cells = Store(folder, create=False).read_plan().cells
    gone = plan[plan["family"] == "layers"]["variant"].iloc[0]
    missing = cells[
        (cells["variant"] == gone) & (cells["dataset"] == "bundled/elnino")
    ]["key"]
    found = gather(without(folder, tmp_path / "store", missing))
    assert any(
        f"of {len(cells)} cells planned so far 1 are missing" in note
        for note in found.notes
    )
    assert len(gathered.results["effects"]) - len(found.results["effects"]) == 1


def test_unfinished_sweep_shows_whole_datasets(
    folder: Path, tmp_path: Path, mase: pd.DataFrame, plan: pd.DataFrame
) -> None:
    """An unfinished sweep shows the datasets that are complete."""
    cells = Store(folder, create=False).read_plan().cells
    missing = cells[
        (cells["dataset"] == "bundled/elnino") & (cells["model"] == "bolt")
    ]["key"]
    found = gather(without(folder, tmp_path / "store", missing))
    assert any("bolt is shown on the 3 of 4 datasets" in note for note in found.notes)
    rest = mase.drop("bundled/elnino")
    row = found.results["effects"].iloc[0]
    errors = rest[plan.set_index("label")["variant"][row["label"]]]
    assert row["change"] == pytest.approx(geometric(errors / rest["plain"]) - 1)
    assert row["relative_mase"] == pytest.approx(
        geometric(errors / rest["seasonal_naive"])
    )
    no_naive = without(
        folder, tmp_path / "part", cells[cells["variant"] == "seasonal_naive"]["key"]
    )
    expect_error(r"is not in .*: `tsfm-lens sweep` resumes 'results", gather, no_naive)


def test_requests_are_known_from_first_cell(folder: Path, tmp_path: Path) -> None:
    """What was asked for is known from the first cell on."""
    config = parse_config({**CONTENT, "name": "stopped"})

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    outcome = run_sweep(config, tmp_path / "store", progress=stop)
    assert outcome.cancelled
    assert (
        len(Store(tmp_path / "store", create=False).read_plan().cells)
        == outcome.cells
        > 100
    )
    expect_error(
        r"no variant of 'stopped-.*is finished on a whole dataset",
        gather,
        tmp_path / "store",
    )
    # stopping a run that only resumes loses nothing of what is known
    before = Store(folder, create=False).read_plan("results")
    run_sweep(parse_config(before.about["config"]), folder, progress=stop)
    after = Store(folder, create=False).read_plan("results")
    pd.testing.assert_frame_equal(before.cells, after.cells)
    assert after.about == before.about


def test_cells_of_other_configurations_are_ignored(
    folder: Path, gathered: Gathered
) -> None:
    """Cells of other configurations are counted and not used."""
    assert not any("other configurations" in note for note in gathered.notes)
    run_sweep(
        parse_config(
            {**CONTENT, "name": "other", "seed": 5, "variants": {"heads": {}}}
        ),
        folder,
    )
    expect_error(r"other-.*, results-", gather, folder)
    again = gather(folder, "results")
    assert any("other configurations" in note for note in again.notes)
    for name, table in gathered.results.items():
        pd.testing.assert_frame_equal(table, again.results[name])
        assert table.attrs == again.results[name].attrs


@pytest.mark.parametrize("search", ["bisection", "sequential"])
def test_shorter_searches_agree_with_the_scan(search: str, tmp_path: Path) -> None:
    """Shorter searches find what the scan finds."""
    variants = {
        "heads_at": {
            "tolerance": 0.05,
            "orders": ["stable_rank:low"],
            "search": search,
            "layers": [0, 2],
        }
    }
    content = {**CONTENT, "variants": variants}
    assert not run_sweep(parse_config(content), tmp_path / "store").failed
    found = gather(tmp_path / "store").results["heads_at"]
    variants["heads_at"]["search"] = "scan"
    assert not run_sweep(
        parse_config({**content, "name": "scan"}), tmp_path / "store"
    ).failed
    scan = gather(tmp_path / "store", "scan").results["heads_at"]
    assert found["kept"].tolist() == scan["kept"].tolist()
    assert (found["evaluations"] <= scan["evaluations"]).all()
    close_in_float32(found["change"], scan["change"], magnitude=1.0)


def test_plan_run_and_end_count_the_same_cells(tmp_path: Path) -> None:
    """What a plan, the bar of a run and its end count adds up: cells that are known
    beforehand, and those that may depend on results.
    """
    recipe = tmp_path / "measured.yaml"
    recipe.write_text("name: measured\nlayers_at: [{layers: middle third, extra: 1}]\n")
    variants = {
        "layers": {"sizes": [1]},
        "heads_at": {"tolerance": 0.5, "orders": ["stable_rank"]},
        "recipes": [str(recipe)],
        "random_seeds": 9,
    }
    data = [{"source": "bundled", "names": ["nile"], "horizon": 6, "windows": 2}]
    config = parse_config({**CONTENT, "data": data, "variants": variants})
    planned = plan_sweep(config, tmp_path / "store")
    totals = []
    outcome = run_sweep(
        config,
        tmp_path / "store",
        progress=lambda what, count, total, left: totals.append((count, total)),
    )
    # a recipe and nine random choices, on one chunk of windows
    assert "up to 10 further variants (10 cells)" in planned.later
    assert outcome.most == planned.cells + 10
    assert totals[0][1] == outcome.most
    assert totals[-1] == (outcome.cells, outcome.cells)
    assert outcome.cells == outcome.finished == stored_cells(config, tmp_path)
    assert planned.cells < outcome.cells < outcome.most


def stored_cells(config: SweepConfig, folder: Path) -> int:
    """The number of cells that the status of the finished sweep has."""
    progress = stored_status(config, folder / "store")
    assert progress is not None
    return progress.cells
