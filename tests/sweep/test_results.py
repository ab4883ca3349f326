"""What a report is made of, against the same numbers computed by hand from the stored rows."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from tsfm_lens.errors import InputError, StoreError
from tsfm_lens.sweep.plan.config import parse_config
from tsfm_lens.sweep.results.gathering import Gathered, gather
from tsfm_lens.sweep.run.saved_plans import read_saved
from tsfm_lens.sweep.run.sweeping import run_sweep
from tsfm_lens.sweep.store.folder import Store
from tsfm_lens.testing import assert_close

CONTENT: dict[str, Any] = {
    "name": "results",
    "models": [{"source": "bolt-nano", "name": "bolt", "context_length": 128}],
    "data": [
        {"source": "bundled", "names": ["co2", "elnino", "pedestrians", "unemployment"], "horizon": 12, "windows": 2}
    ],
    "variants": {
        "layers": {"sizes": [1, 2], "parts": ["both", "mlp"]},
        "heads_at": {"tolerance": 0.05, "orders": ["stable_rank"]},
        "random_seeds": 2,
    },
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
    """(dataset, variant): pooled MASE from the stored rows, in three lines of pandas."""
    store = Store(folder, create=False)
    rows = store.read(store.done()).to_pandas()
    sums = rows.groupby(["dataset", "variant"], observed=True)[["scaled_error", "n_scaled"]].sum()
    return (sums["scaled_error"] / sums["n_scaled"]).unstack("variant")


@pytest.fixture(scope="module")
def plan(folder: Path) -> pd.DataFrame:
    return read_saved(Store(folder, create=False), "results").entries


def geometric(values: pd.Series) -> float:
    return float(np.exp(np.log(values).mean()))


def test_effects_are_ratios_of_geometric_means(gathered: Gathered, mase: pd.DataFrame, plan: pd.DataFrame) -> None:
    ds = gathered.results["effects"]
    assert ds.sizes["entry"] == 3 + 2 + 3 + 2
    assert float(ds["baseline_mase"][0]) == pytest.approx(geometric(mase["plain"] / mase["seasonal_naive"]))
    variant = plan.set_index("label")["variant"]
    for index in range(ds.sizes["entry"]):
        row = ds.isel(entry=index)
        own = mase[variant[str(row["label"].values)]]
        assert float(row["mase"]) == pytest.approx(geometric(own / mase["seasonal_naive"]))
        assert float(row["mase_change"]) == pytest.approx(geometric(own / mase["plain"]) - 1)
        assert row["mase_change_lower"] <= row["mase_change"] <= row["mase_change_upper"]
        assert row["spearman_distance_lower"] <= row["spearman_distance"] <= row["spearman_distance_upper"]
        assert bool(row["stands"]) == (float(row["p_holm"]) < 0.05)
    # a family of tests is one kind of variant and one part
    sizes = {(str(p), int(last - first)): int(t) for p, first, last, t in zip(*_values(ds, "part first last tests"))}  # noqa: B905
    assert sizes == {("both", 0): 3, ("both", 1): 2, ("mlp", 0): 3, ("mlp", 1): 2}


def _values(ds: xr.Dataset, names: str) -> list[np.ndarray]:
    return [ds[name].values for name in names.split()]


def test_curves_begin_at_the_plain_model(gathered: Gathered, mase: pd.DataFrame, plan: pd.DataFrame) -> None:
    ds = gathered.results["curves"]
    assert ds.sizes["entry"] == 3 * 2 * 5
    start = ds.where(ds["ablated"] == 0, drop=True)
    assert np.allclose(start["mase"], ds["baseline_mase"][0])
    assert not start["mase_change"].any()
    # all heads of a layer are the same variant, in whatever order they went
    for layer in range(3):
        ends = ds["mase"][(ds["layer"] == layer).values & (ds["ablated"] == 4).values]
        assert len(ends) == 2
        assert ends[0] == ends[1]


def test_heads_kept_follow_the_definition(gathered: Gathered, mase: pd.DataFrame, plan: pd.DataFrame) -> None:
    ds = gathered.results["heads_at"]
    counts = plan[plan["family"] == "head_counts"]
    for index in range(ds.sizes["entry"]):
        best = 4
        for order in ("stable_rank:low", "stable_rank:high"):
            line = counts[(counts["layer"] == int(ds["layer"][index])) & (counts["order"] == order)]
            passed = [
                4 - int(row.ablated)
                for row in line.itertuples()
                if geometric(mase[row.variant] / mase["plain"]) - 1 < 0.05
            ]
            place = list(ds["order_name"].values).index(order)
            assert int(ds["kept_by_order"][index, place]) == min(passed)
            best = min(best, *passed)
        assert int(ds["kept"][index]) == best
        assert int(ds["ablated"][index]) == 4 - best


def test_maps_show_every_dataset(gathered: Gathered, mase: pd.DataFrame, plan: pd.DataFrame) -> None:
    ds, kept = gathered.results["datasets"], gathered.results["heads_at"]["kept"].values
    assert list(ds["role"].values) == ["most important", "most ablatable"]
    assert [kept[int(layer)] for layer in ds["layer"]] == [kept.max(), kept.min()]
    counts = plan[plan["family"] == "head_counts"]
    for panel in range(2):
        own = (counts["layer"] == int(ds["layer"][panel])) & (counts["order"] == str(ds["order"].values[panel]))
        variant = counts[own].set_index("ablated")["variant"]
        for place, dataset in enumerate(ds["dataset"].values):
            changes = [mase.loc[dataset, variant[k]] / mase.loc[dataset, "plain"] - 1 for k in range(5)]
            assert_close(ds["mase_change"][panel, place], changes, depth=1000, magnitude=1.0)
            largest = max(k for k in range(5) if changes[k] < 0.05)
            assert int(ds["largest_within"][panel, place]) == largest


def test_recipes_count_resilient_and_improved_datasets(
    gathered: Gathered, mase: pd.DataFrame, plan: pd.DataFrame
) -> None:
    ds = gathered.results["recipes"]
    assert list(ds["selection"].values) == ["stable_rank", "random", "random"]
    heavy = plan[plan["family"].isin(["recipes", "random"])]
    for index, variant in enumerate(heavy["variant"]):
        change = mase[variant] / mase["plain"] - 1
        assert int(ds["n_resilient"][index]) == int((change < 0.05).sum())
        assert int(ds["n_improved"][index]) == int((change < 0).sum())
        found = float(ds["change"].sel(metric="MASE")[index])
        assert found == pytest.approx(geometric(mase[variant] / mase["plain"]) - 1)


def test_informed_choices_are_compared_with_the_mean_of_random_ones(gathered: Gathered) -> None:
    ds, recipes = gathered.results["selection"], gathered.results["recipes"]
    change = recipes["change"].sel(metric="MASE").values
    assert float(ds["diff"][0]) == pytest.approx(change[0] - change[1:].mean())
    assert ds["diff_lower"][0] <= ds["diff"][0] <= ds["diff_upper"][0]


def without(folder: Path, path: Path, gone: pd.Series) -> Path:
    """A copy of a store without some cells."""
    full = Store(folder, create=False)
    store = Store(path, values=full.values)
    shutil.copytree(folder / "plans", path / "plans", dirs_exist_ok=True)
    keys = sorted(set(read_saved(full).cells["key"]) - set(gone))
    store.write(full.read(keys).to_pandas(), keys)
    return path


def test_an_unfinished_sweep_shows_the_variants_that_are_whole(
    folder: Path, gathered: Gathered, tmp_path: Path, plan: pd.DataFrame
) -> None:
    cells = read_saved(Store(folder, create=False)).cells
    gone = plan[plan["family"] == "layers"]["variant"].iloc[0]
    missing = cells[(cells["variant"] == gone) & (cells["dataset"] == "bundled/elnino")]["key"]
    found = gather(without(folder, tmp_path / "store", missing))
    assert any(f"of {len(cells)} cells planned so far 1 is missing" in note for note in found.notes)
    assert gathered.results["effects"].sizes["entry"] - found.results["effects"].sizes["entry"] == 1


def test_an_unfinished_sweep_shows_the_datasets_that_are_whole(
    folder: Path, tmp_path: Path, mase: pd.DataFrame, plan: pd.DataFrame
) -> None:
    cells = read_saved(Store(folder, create=False)).cells
    missing = cells[(cells["dataset"] == "bundled/elnino") & (cells["model"] == "bolt")]["key"]
    found = gather(without(folder, tmp_path / "store", missing))
    assert any("bolt is shown on the 3 of 4 datasets" in note for note in found.notes)
    rest = mase.drop("bundled/elnino")
    ds = found.results["effects"].isel(entry=0)
    own = rest[plan.set_index("label")["variant"][str(ds["label"].values)]]
    assert float(ds["mase_change"]) == pytest.approx(geometric(own / rest["plain"]) - 1)
    assert float(ds["mase"]) == pytest.approx(geometric(own / rest["seasonal_naive"]))


def test_what_was_asked_for_is_known_from_the_first_cell_on(folder: Path, tmp_path: Path) -> None:
    config = parse_config({**CONTENT, "name": "stopped"})

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    outcome = run_sweep(config, tmp_path / "store", progress=stop)
    assert outcome.cancelled
    saved = read_saved(Store(tmp_path / "store", create=False))
    assert len(saved.cells) == outcome.cells > 100
    with pytest.raises(InputError, match=r"no variant of 'stopped-.*is finished on a whole dataset"):
        gather(tmp_path / "store")
    # stopping a run that only resumes loses nothing of what is known
    before = read_saved(Store(folder, create=False), "results")
    run_sweep(parse_config(before.about["config"]), folder, progress=stop)
    after = read_saved(Store(folder, create=False), "results")
    pd.testing.assert_frame_equal(before.cells, after.cells)
    assert after.about == before.about


def test_a_store_without_the_naive_forecast_says_how_to_get_it(folder: Path, tmp_path: Path) -> None:
    cells = read_saved(Store(folder, create=False), "results").cells
    store = without(folder, tmp_path / "store", cells[cells["variant"] == "seasonal_naive"]["key"])
    with pytest.raises(InputError, match=re.escape(f"is not in {store}: `tsfm-lens sweep` goes on with 'results")):
        gather(store)


def test_cells_of_other_configurations_are_counted_and_not_used(folder: Path, gathered: Gathered) -> None:
    assert not any("other configurations" in note for note in gathered.notes)
    run_sweep(parse_config({**CONTENT, "name": "other", "seed": 5, "variants": {"heads": {}}}), folder)
    with pytest.raises(InputError, match=r"other-.*, results-"):
        gather(folder)
    again = gather(folder, "results")
    assert any("other configurations" in note for note in again.notes)
    for name, ds in gathered.results.items():
        xr.testing.assert_identical(ds, again.results[name])


def test_nothing_to_report_is_said(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no store"):
        gather(tmp_path)
    Store(tmp_path / "store")
    with pytest.raises(InputError, match="no sweep was planned"):
        gather(tmp_path / "store")


@pytest.mark.parametrize("search", ["bisection", "sequential"])
def test_shorter_searches_find_what_the_scan_finds(search: str, tmp_path: Path) -> None:
    variants = {"heads_at": {"tolerance": 0.05, "orders": ["stable_rank:low"], "search": search, "layers": [0, 2]}}
    content = {**CONTENT, "variants": variants}
    assert not run_sweep(parse_config(content), tmp_path / "store").failed
    found = gather(tmp_path / "store").results["heads_at"]
    variants["heads_at"]["search"] = "scan"
    assert not run_sweep(parse_config({**content, "name": "scan"}), tmp_path / "store").failed
    scan = gather(tmp_path / "store", "scan").results["heads_at"]
    assert found["kept"].values.tolist() == scan["kept"].values.tolist()
    assert (found["evaluations"] <= scan["evaluations"]).all()
    assert_close(found["change"], scan["change"], depth=100, magnitude=1.0, dtype=np.float32)
