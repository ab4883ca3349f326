"""A sweep with a model: its rows against plain forecasts; other engines and other
configurations.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import spearmanr
from sweep_toys import ReadTable

from closeness import close_in_float32
from refusals import expect_error
from tsfm_lens import load
from tsfm_lens.core.errors import InputError
from tsfm_lens.models import Lens
from tsfm_lens.sweep import plan, run
from tsfm_lens.sweep.engine import engines
from tsfm_lens.sweep.engine.sweeping import plan_sweep, run_sweep
from tsfm_lens.sweep.planner.config import SweepConfig, parse_config
from tsfm_lens.sweep.planner.models import model_fingerprint
from tsfm_lens.sweep.planner.table import plan_name
from tsfm_lens.sweep.store import Store

# rounding swaps neighbours among twelve ranks: four swaps, each of 6 * 2 / (12 * 143)
TIES = 4 * 6 * 2 / (12 * 143)

CONTENT = {
    "name": "small",
    "models": [{"source": "bolt-nano", "context_length": 200}],
    "data": [
        {
            "source": "bundled",
            "names": ["co2", "pedestrians"],
            "horizon": 12,
            "windows": 3,
        }
    ],
    "variants": {"layers": {"sizes": [1, 2], "parts": ["both", "mlp"]}, "heads": {}},
    "chunk": 2,
    "block": 5,
}


def config(**changes: Any) -> SweepConfig:
    return parse_config({**CONTENT, **changes})


def sweep(path: str, content: dict[str, Any], engine: str = "single") -> None:
    torch.set_num_threads(1)
    outcome = run_sweep(
        parse_config(content),
        path,
        engine=engine,
        workers=1 if engine == "single" else 2,
    )
    assert not outcome.failed
    assert not outcome.cancelled


@pytest.fixture(scope="module")
def lens() -> Lens:
    return load("bolt-nano", check=False)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sweep") / "store"
    sweep(str(path), CONTENT)
    return path


def list_entries(path: Path, name: str = "small") -> pd.DataFrame:
    return Store(path, create=False).read_plan(name).entries


def test_rows_are_those_of_plain_forecasts(
    undisturbed: Path, lens: Lens, parse_table: ReadTable
) -> None:
    rows = (
        parse_table(undisturbed)
        .set_index(["variant", "dataset", "item", "window"])
        .sort_index()
    )
    sets = {
        evaluation_set.name: evaluation_set
        for evaluation_set in config().evaluation_sets()
    }
    entries = list_entries(undisturbed)
    chosen = entries.drop_duplicates("variant").iloc[[0, 3, 7, 11, 15]]
    for entry in chosen.itertuples():
        for name, item in sets.items():
            batch, truth = item.batch(range(len(item)), 200)
            plain = lens.forecast(batch, 12).quantiles
            if len(entry.components):
                with lens.ablate(*entry.components):
                    made = lens.forecast(batch, 12).quantiles
            else:
                made = plain
            for position, window in enumerate(item.windows):
                row = rows.loc[(entry.variant, name, window.item, window.index)]
                context = window.context[0]
                season = np.nanmean(
                    np.abs(context[item.seasonality :] - context[: -item.seasonality])
                )
                error = np.abs(truth[position] - made[position, 4])
                known = np.isfinite(error)
                close_in_float32(
                    row["scaled_error"], (error[known] / season).sum(), depth=1000
                )
                assert row["n_scaled"] == known.sum()
                levels = np.arange(1, 10) / 10
                below = truth[position] <= made[position]
                loss = 2 * np.abs(
                    (truth[position] - made[position]) * (below - levels[:, None])
                )
                # gluonts averages over the levels
                close_in_float32(row["quantile_loss"], np.nansum(loss) / 9, depth=1000)
                distance = (
                    1 - spearmanr(made[position, 4], plain[position, 4]).statistic
                )
                assert row["spearman_distance"] == pytest.approx(distance, abs=TIES)


def test_unreadable_plan_is_written_anew(undisturbed: Path, tmp_path: Path) -> None:
    """A plan that cannot be read is written anew."""
    path = tmp_path / "store"
    shutil.copytree(undisturbed, path)
    before = Store(path, create=False).read_plan()
    file = path / "plans" / f"{before.name}.plan"
    for spoil in (Path.unlink, Path.touch, lambda file: file.write_bytes(b"PAR1")):
        file.write_bytes(b"")
        spoil(file)
        expect_error(
            f"tsfm-lens sweep CONFIG.*{path}|in {path}.*tsfm-lens sweep CONFIG",
            Store(path, create=False).read_plan,
        )
        outcome = run_sweep(config(), path)
        assert outcome.resumed == outcome.cells
        after = Store(path, create=False).read_plan()
        assert after.about == before.about
        pd.testing.assert_frame_equal(after.cells, before.cells)
        pd.testing.assert_frame_equal(after.entries, before.entries)


# that processes give the same table is held by the tests of a whole plan
@pytest.mark.parametrize(
    "engine", ["single", pytest.param("processes", marks=pytest.mark.exhaustive)]
)
def test_chosen_rows_of_plan_can_run(
    undisturbed: Path,
    tmp_path: Path,
    parse_table: ReadTable,
    monkeypatch: pytest.MonkeyPatch,
    engine: str,
) -> None:
    """Some rows of a plan can be run without the others."""
    # as many threads as the other run had
    monkeypatch.setattr(engines, "cores", lambda: 1)
    cells = plan(config())
    assert list(cells.columns[:6]) == [
        *("key", "model", "variant", "dataset", "chunk", "series")
    ]
    assert set(cells["key"]) == Store(undisturbed).done()
    some = cells.groupby(["model", "dataset"]).head(2)
    store = Store(tmp_path / "store")
    outcomes = run(some, store, engine, workers=1, block=2)
    assert {group.how for group in outcomes} == {"finished"}
    assert store.done() == set(some["key"])
    found = parse_table(store.path)
    expected = parse_table(undisturbed, list(some["key"]))
    assert found["cell"].equals(expected["cell"])
    # other variants stand beside them in a batch
    close_in_float32(found["scaled_error"], expected["scaled_error"], depth=1000)
    assert run(some, store) == []


def test_changed_configuration_computes_only_new_cells(
    undisturbed: Path, tmp_path: Path, parse_table: ReadTable
) -> None:
    """A changed configuration computes only what is new and mixes nothing."""
    path = tmp_path / "store"
    shutil.copytree(undisturbed, path)
    more = {
        **CONTENT,
        "variants": {
            **CONTENT["variants"],
            "components": {"first MLP and head": ["decoder.0.mlp"]},
        },
    }
    # the MLP of a layer is one of the parts that have run
    assert run_sweep(parse_config(more), path).finished == Store(path).done().__len__()
    other = {
        **CONTENT,
        "models": [{"source": "bolt-nano", "context_length": 64}],
        "name": "short",
    }
    outcome = run_sweep(parse_config(other), path)
    # only the seasonal naive forecast does not depend on the context that the model is
    # shown
    assert outcome.resumed == 4
    cells = Store(path).read_plan("short").cells
    short = parse_table(path, list(cells["key"]))
    long = parse_table(undisturbed)
    together = short.merge(
        long, on=["variant", "dataset", "item", "window"], suffixes=("", "_long")
    )
    moved = together["variant"] != "seasonal_naive"
    assert len(together) == len(short)
    assert not np.isclose(together["scaled_error"], together["scaled_error_long"])[
        moved
    ].all()
    assert parse_table(
        path, list(Store(path).read_plan(plan_name(config())).cells["key"])
    ).equals(long)


def test_settings_of_model_decide_the_cell(lens: Lens) -> None:
    model = config().models[0]
    before = model_fingerprint(lens, model)
    # scores come from gluonts, whose next version may compute others
    assert {"gluonts", "torch"} <= set(before["versions"])
    assert model_fingerprint(load("bolt-nano", check=False), model) == before
    other = load("chronos-nano", check=False)
    plain = model_fingerprint(other, model)
    retained = other.native.model.config.temperature
    try:
        other.native.model.config.temperature = 3.0
        assert model_fingerprint(other, model) != plain
    finally:
        other.native.model.config.temperature = retained
    assert model_fingerprint(other, model) == plain


@pytest.mark.parametrize(
    "change", [{"seed": 1}, {"distance_steps": 4}, {"how": "noise"}]
)
def test_everything_behind_a_number_decides_cell(
    change: dict[str, Any], undisturbed: Path
) -> None:
    """Whatever decides a number decides the cell that holds it."""
    standing = plan_sweep(config(**change), undisturbed)
    # the naive forecast is no model's, and noise leaves the plain model as it is
    assert standing.finished == (8 if "how" in change else 4)
    assert plan_sweep(config(), undisturbed).finished == standing.cells


def test_processes_give_the_same_table(
    undisturbed: Path,
    tmp_path: Path,
    parse_table: ReadTable,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # as many threads a worker as the other run had: one
    monkeypatch.setattr(engines, "cores", lambda: 2)
    sweep(str(tmp_path / "store"), CONTENT, "processes")
    # to the last bit: no engine decides how variants are batched
    pd.testing.assert_frame_equal(
        parse_table(tmp_path / "store"), parse_table(undisturbed), check_exact=True
    )


def test_failing_group_is_reported_others_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group that fails is reported, and the other groups go on."""
    import tsfm_lens.sweep.engine.cells as cells

    true = cells.run_cells

    def failing(lens: Lens, group: Any, shared: Any, keys: Any) -> Any:
        if shared.chunk.dataset == "bundled/co2":
            raise RuntimeError("the disk has eaten the weights")
        return true(lens, group, shared, keys)

    monkeypatch.setattr(cells, "run_cells", failing)
    few = config(
        data=[{**CONTENT["data"][0], "windows": 1}],
        variants={"layers": {}, "heads": {}, "heads_at": {}},
    )
    outcome = run_sweep(few, tmp_path / "store")
    assert outcome.failed
    assert all("co2" in line and "eaten the weights" in line for line in outcome.failed)
    assert any("wait for the cells that failed" in note for note in outcome.notes)
    assert 0 < outcome.finished < outcome.cells
    monkeypatch.undo()
    assert run_sweep(few, tmp_path / "store").failed == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"variants": {"heads_at": {"layers": [9]}}}, "layer 9"),
        ({"variants": {"recipes": ["timesfm-28"]}}, "scale_recipes"),
        ({"variants": {"components": {"x": ["decoder.7.mlp"]}}}, "decoder.7.mlp"),
        ({"variants": {"heads_at": {"orders": ["stable_ranks:low"]}}}, "stable_rank"),
        ({"data": [CONTENT["data"][0], CONTENT["data"][0]]}, "more than once"),
        (
            {"variants": {"recipes": ["toto-29", "toto-29"], "scale_recipes": True}},
            "two recipes are called",
        ),
        ({"models": [{"source": "bolt-nano", "device": "gpu"}]}, "device 'gpu'"),
    ],
)
def test_errors_appear_before_anything_is_written(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    """What is wrong is reported before anything is written."""
    with pytest.raises((InputError, KeyError), match=message):
        run_sweep(config(**change), tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_configurations_name_every_wrong_field(tmp_path: Path) -> None:
    file = tmp_path / "sweep.yaml"
    wrong = {**CONTENT, "chunk": 0, "variants": {"layer": {}}, "devices": 4}
    file.write_text(json.dumps(wrong))
    from tsfm_lens.sweep.planner.config import read_config

    with pytest.raises(InputError) as caught:
        read_config(file)
    for text in ("chunk", "variants.layer", "'layers'", "devices"):
        assert text in str(caught.value)
    expect_error("there is no file", read_config, tmp_path / "none.yaml")
    file.write_text("models: [")
    expect_error("no YAML", read_config, file)


def test_models_by_their_names_alone(tmp_path: Path) -> None:
    """A name in a file means the same as a mapping of its source."""
    from tsfm_lens.sweep.planner.config import read_config

    file = tmp_path / "sweep.yaml"
    read = []
    for models in (["bolt-nano"], [{"source": "bolt-nano"}]):
        file.write_text(json.dumps({**CONTENT, "models": models}))
        read.append(read_config(file))
    assert read[0] == read[1]
    assert parse_config({**CONTENT, "models": ["bolt-nano"]}).models == (
        read[0].models[0].model_copy(update={"name": ""}),
    )
