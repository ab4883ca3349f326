"""The paper's errors over the benchmark, run as sweeps and read: against forecasts
without parts by hand.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import tsfm_lens
from refusals import expect_error
from reproductions import nano, ours, row, settings
from tsfm_lens.core.errors import (
    CheckpointError,
    InputError,
    SweepFailedError,
    UnknownNameError,
)
from tsfm_lens.studies.papers.comparing import compare_by_name
from tsfm_lens.studies.papers.items import ITEMS
from tsfm_lens.studies.papers.measures.benchmark import DESIGNS, Subject, assign_rows
from tsfm_lens.studies.papers.reproduce import find_item, reproduce
from tsfm_lens.sweep.engine.sweeping import Outcome
from tsfm_lens.sweep.planner.recipes import released_lists
from tsfm_lens.sweep.results.gathering import Gathered
from tsfm_lens.testing import assert_close, last_digit

SWEEPS = [item.id for item in ITEMS if item.sweep]
SERIES = ["elnino", "nile", "sunspots"]
STEPS = 12


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("paper") / "store"


def run(name: str, store: Path, model: str = "bolt-nano", **options: Any) -> xr.Dataset:
    return reproduce(
        name, model, options.pop("data", SERIES), horizon=STEPS, store=store, **options
    )


@cache
def split_series(name: str) -> tuple[Any, np.ndarray, float, float]:
    """Context as shown to bolt-nano, truth, seasonal error, and MASE of the seasonal
    naive forecast.
    """
    series = tsfm_lens.bundled(name)
    values = series.values[0]
    season = series.seasonalities[0]
    before = values[:-STEPS]
    truth = values[-STEPS:]
    scale = np.abs(before[season:] - before[:-season]).mean()
    naive = np.resize(before[-season:], STEPS)
    context, _ = series.split(STEPS)
    return (
        context.tail(nano("bolt-nano").context_length),
        truth,
        scale,
        float(np.abs(truth - naive).mean() / scale),
    )


@cache
def mase(*gone: str) -> np.ndarray:
    """MASE of bolt-nano's median forecast on each of the series without some
    components.
    """
    found = []
    for name in SERIES:
        context, truth, scale, _ = split_series(name)
        if gone:
            with nano("bolt-nano").ablate(*gone):
                forecast = nano("bolt-nano").forecast(context, STEPS)
        else:
            forecast = nano("bolt-nano").forecast(context, STEPS)
        found.append(np.abs(forecast.quantiles[0, 4] - truth).mean() / scale)
    return np.array(found)


def change(*gone: str) -> float:
    """Relative change of the geometric mean."""
    if gone:
        return float(np.exp(np.log(mase(*gone) / mase()).mean()) - 1)
    return 0.0


def assert_change(found: xr.Dataset, quantity: str, *gone: str) -> None:
    """A change in percent is that of forecasts without the components."""
    expected = 100 * change(*gone)
    assert_close(
        ours(found, quantity), expected, depth=10, magnitude=100.0, dtype=np.float32
    )


@cache
def by_stable_rank(layer: int) -> tuple[int, ...]:
    """Heads of the cross-attention of a layer, the lowest stable rank of W_Q W_K^T
    first, from the native weights.
    """
    block = (
        nano("bolt-nano")
        .native.inner_model.decoder.block[layer]
        .layer[1]
        .EncDecAttention
    )
    q, k = (
        part.weight.detach().double().numpy().reshape(4, -1, part.in_features)
        for part in (block.q, block.k)
    )
    values = [np.linalg.svd(q[head].T @ k[head], compute_uv=False) for head in range(4)]
    return tuple(
        np.argsort([(value**2).sum() / value[0] ** 2 for value in values]).tolist()
    )


def heads(layer: int, numbers: tuple[int, ...]) -> list[str]:
    return [
        f"decoder.{layer}.{kind}.{head}"
        for kind in ("self_attn", "cross_attn")
        for head in numbers
    ]


def fewest_heads(layer: int, order: tuple[int, ...]) -> int:
    """Definition 5.2 by trying every count: fewest heads kept with the error within 1
    %, the first of an order gone.
    """
    within = [
        count for count in range(5) if change(*heads(layer, order[: 4 - count])) < 0.01
    ]
    return min(within)


@pytest.mark.parametrize("name", SWEEPS)
def test_every_sweep_is_run_and_read(name: str, store: Path) -> None:
    found = run(name, store)
    item = find_item(name)
    assert found.attrs["kind"] == "reproduction"
    assert found.attrs["model"] == "bolt-nano"
    assert "mechanics only" in found.attrs["note"]
    assert np.isfinite(found["ours"].values[found["verdict"].values == ""]).all()
    printed = {value.quantity: value.paper for value in item.values}
    papers = [
        printed.get(str(quantity), np.nan) for quantity in found["quantity"].values
    ]
    np.testing.assert_allclose(found["paper"], papers)
    here = settings(found)
    assert here["model"] == "bolt-nano"
    assert here["datasets"] == here["windows"] == "3"
    assert here["horizon"] == str(STEPS)
    # settings that are the paper's are not listed, and bolt-nano is shown as much as
    # the paper's Chronos-Bolt
    assert "context of Chronos-Bolt" not in here
    known = found.isel(quantity=np.flatnonzero(found["low"].notnull()))
    assert bool(known.sizes["quantity"]) == (name != "S3-F11")
    assert (known["low"] <= known["high"]).all()
    assert (known["unit"] == "%").all()


def test_recipes_cost_what_their_ablations_cost(
    store: Path,
) -> None:
    """Recipes cost what forecasts without their heads and MLPs cost."""
    found = run("S3-T4", store)
    # layers 7 to 13 of 20 are the middle one of three; its place keeps 0 of 16 heads;
    # MLPs 10 and 11 of 20 are its MLP
    gone = [*heads(1, (0, 1, 2, 3)), "decoder.1.mlp"]
    # what is scaled to another model has a name of its own, so that the paper's numbers
    # are not put beside it
    name = "timesfm-28 scaled to bolt-nano"
    assert not any("TimesFM" in str(quantity) for quantity in found["quantity"].values)
    assert np.isnan(found["paper"]).all()
    assert_change(found, f"{name}: change of MASE", *gone)
    assert ours(found, f"{name}: heads ablated") == pytest.approx(100 / 3)
    assert ours(found, f"{name}: MLPs ablated") == 1
    # Toto's layers 2 and 10 of 12 lie where the first and last of three do: 2 of 12
    # heads stay, and none
    gone = [*heads(0, by_stable_rank(0)[:3]), *heads(2, (0, 1, 2, 3))]
    name = "toto-29 scaled to bolt-nano"
    assert_change(found, f"{name}: change of MASE", *gone)
    ratio = mase(*gone) / mase()
    assert ours(found, f"{name}: resilient datasets") == (ratio < 1.05).sum()
    assert ours(found, f"{name}: improved datasets") == (ratio < 1).sum()
    table_1 = run("S3-T1", store)
    quantities = table_1["quantity"].values.tolist()
    assert [ours(table_1, quantity) for quantity in quantities] == [
        ours(found, quantity) for quantity in quantities
    ]
    columns = {"heads ablated", "MLPs ablated", "change of MASE", "change of CRPS"}
    assert {quantity.split(": ")[1] for quantity in quantities} == columns


def test_kept_heads_follow_the_definition(store: Path) -> None:
    single = run("S3-F10", store)
    counted = run("S3-F11", store)
    for layer in range(3):
        low = by_stable_rank(layer)
        both = {"low": fewest_heads(layer, low), "high": fewest_heads(layer, low[::-1])}
        for end, count in both.items():
            text = f"heads kept: bolt-nano, layer {layer}, {end} stable rank first"
            assert ours(single, text) == count
        assert ours(counted, f"bolt-nano: heads kept in layer {layer}") == min(
            both.values()
        )
        where = f"bolt-nano, layer {layer}"
        assert_change(
            single,
            f"change of MASE without all heads: {where}",
            *heads(layer, (0, 1, 2, 3)),
        )
        half = f"change of MASE without 2 of 4 heads: {where}, low stable rank first"
        assert_change(single, half, *heads(layer, low[:2]))
    # counts of three layers of four heads are not put beside those of twelve of twelve
    assert counted["paper"].isnull().all()
    assert "3 layers of 4 heads" in counted.attrs["note"]


def test_the_smallest_rise_is_most_ablatable(store: Path) -> None:
    """The most ablatable layer is that with the smallest rise of the error."""
    found = run("S3-F3", store)
    rises = [change(f"decoder.{layer}") for layer in range(3)]
    layer = int(np.argmin(rises))
    assert ours(found, "bolt-nano: most ablatable layer") == layer
    for text, gone in (
        ("heads and MLP", [f"decoder.{layer}"]),
        ("all heads", heads(layer, (0, 1, 2, 3))),
        ("the MLP", [f"decoder.{layer}.mlp"]),
    ):
        quantity = f"bolt-nano: change of MASE without {text} of that layer"
        assert_change(found, quantity, *gone)
    ranges = run("S3-F4", store)
    quantity = "bolt-nano: change of MASE without MLPs of layers 1 to 2"
    assert_change(ranges, quantity, "decoder.1.mlp", "decoder.2.mlp")


def test_missing_data_are_named_before_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is missing is named before anything is written."""
    folder = tmp_path / "store"
    expect_error(
        "lacks 97 of 97",
        reproduce,
        "S3-T1",
        "bolt-nano",
        store=folder,
        benchmark=tmp_path,
    )

    def away(*args: object) -> None:
        raise CheckpointError(
            "not in the local hub cache; `hf download Datadog/Toto-Open-Base-1.0`"
        )

    with monkeypatch.context() as patched:
        patched.setattr("tsfm_lens.sweep.planner.table.open_model", away)
        expect_error(
            "hf download", reproduce, "S3-F17", None, SERIES, horizon=8, store=folder
        )
    assert not folder.exists()


@pytest.mark.parametrize(
    ("name", "model", "data", "options", "error", "message"),
    [
        (
            "S3-F7",
            ["bolt-nano", "chronos-nano"],
            SERIES,
            {},
            InputError,
            "about one model, and 2",
        ),
        (
            "S3-T1",
            ["bolt-nano", "chronos-nano"],
            SERIES,
            {},
            InputError,
            "both stand for the row",
        ),
        ("S3-T1", None, SERIES, {}, InputError, "give a horizon"),
        ("S3-T1", "bolt-nano", ["elnino", "nyle"], {}, UnknownNameError, "nile"),
        (
            "S3-T1",
            "bolt-nano",
            np.zeros((1, 50)),
            {},
            InputError,
            "names of bundled series or CSV",
        ),
        ("S3-T1", "bolt-nano", SERIES, {"benchmark": "."}, InputError, "not both"),
        ("S3-T1", "bolt-nano", SERIES, {"windows": 0}, InputError, "windows is 0"),
        (
            "S3-T5",
            "chronos-nano",
            None,
            {"store": "."},
            InputError,
            "S3-T5 is no sweep",
        ),
        (
            "S3-T5",
            ["bolt-nano", "chronos-nano"],
            None,
            {},
            InputError,
            "on one model, and 2",
        ),
    ],
)
def test_options_that_conflict_are_refused(
    name: str,
    model: Any,
    data: Any,
    options: dict[str, Any],
    error: type[Exception],
    message: str,
    tmp_path: Path,
) -> None:
    if name != "S3-T5":
        options = {"store": tmp_path / "store", **options}
    with pytest.raises(error, match=message):
        reproduce(name, model, data, **options)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        ({"failed": ["out of memory"]}, SweepFailedError),
        ({"cancelled": True}, KeyboardInterrupt),
    ],
)
def test_unfinished_sweeps_give_no_numbers(
    outcome: dict[str, Any],
    error: type[BaseException],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "tsfm_lens.studies.papers.sweeps.run_sweep",
        lambda *args, **options: Outcome(**outcome),
    )
    with pytest.raises(error):
        run("S3-T1", tmp_path / "store")


def test_which_model_stands_for_which_row() -> None:
    known = ["TimesFM 2.5, 28 % of heads, 2 MLPs", "Toto, 29 % of heads"]
    timesfm = Subject("a", "timesfm-2.5", 20, 16)
    toto = Subject("b", "toto-1", 2, 2)
    assert assign_rows([timesfm, toto]) == dict(
        zip(known, (timesfm, toto), strict=True)
    )
    assert assign_rows([timesfm]) == {known[0]: timesfm}
    small = Subject("c", "chronos-bolt", 6, 8)
    base = Subject("d", "chronos-bolt", 12, 12)
    assert list(assign_rows([small])) == known
    # the paper's own model, whose rows it leaves open, stands for no other
    expect_error("does not say which layers", assign_rows, [base])
    assert list(assign_rows([timesfm, base])) == known[:1]
    expect_error("both stand for the row", assign_rows, [timesfm, small])


def gathered(**results: pd.DataFrame) -> Gathered:
    return Gathered("made", results, {}, [])


def test_released_results_give_the_printed_numbers() -> None:
    timesfm = Subject("a", "timesfm-2.5", 20, 16)
    toto = Subject("b", "toto-1", 12, 12)
    printed = {
        "timesfm-28": ([6.12, 2.46, 4.72, 5.86, 6.59], 33, 12),
        "toto-29": ([3.54, -38, 2.73, 3.6, -24.64], 41, 30),
    }
    metrics = ("MASE", "NRMSE", "sMAPE", "CRPS", "MSIS")
    sizes = {"a": (88, 320, 2), "b": (42, 144, 0)}
    rows = [
        {
            "model": model,
            "recipe": recipe,
            "metric": metric,
            "n_resilient": resilient,
            "n_improved": improved,
        }
        | dict(
            zip(("heads_ablated", "heads_total", "n_mlps"), sizes[model], strict=True)
        )
        | dict.fromkeys(("change", "lower", "upper"), percent / 100)
        for model, (recipe, (changes, resilient, improved)) in zip(
            "ab", printed.items(), strict=True
        )
        for metric, percent in zip(metrics, changes, strict=True)
    ]
    table = pd.DataFrame(rows)
    for name, count in (("S3-T4", 18), ("S3-T1", 8)):
        found = compare_by_name(
            find_item(name),
            DESIGNS[name].read(gathered(recipes=table), [timesfm, toto]),
        )
        assert found.sizes["quantity"] == count
        # 27.5 and 29.2 % of heads are printed without decimals
        np.testing.assert_allclose(found["difference"], 0, atol=last_digit(0))
        assert (np.abs(found["difference"]) > 1e-9).sum() == 2
        assert "scaled" not in found.attrs["note"]


def test_the_released_counts_give_figure_11() -> None:
    subjects = [
        Subject(name, name, len(released_list.kept), released_list.n_heads)
        for name, released_list in released_lists().items()
    ]
    table = pd.DataFrame(
        [
            {
                "model": s.source,
                "layer": layer,
                "of": s.heads,
                "kept": n_kept,
                "ablated": s.heads - n_kept,
                "better": True,
            }
            for s in subjects
            for layer, n_kept in enumerate(released_lists()[s.source].kept)
        ]
    )
    # what the other order keeps does not count
    table = pd.concat([table, table.assign(kept=99, better=False)])
    found = compare_by_name(
        find_item("S3-F11"), DESIGNS["S3-F11"].read(gathered(heads_at=table), subjects)
    )
    printed = found.where(found["paper"].notnull(), drop=True)
    assert printed.sizes["quantity"] == 20 + 3 * 12
    np.testing.assert_array_equal(printed["difference"], 0)
    # 177 of 320
    text = "timesfm-2.5: heads ablated of all, every layer at heads@1pp by itself"
    assert ours(found, text) == pytest.approx(100 * 177 / 320)


@pytest.mark.parametrize(("bolt_rise", "holds"), [(0.02, 1.0), (0.5, 0.0)])
def test_ranges_of_six_mlps_decide(bolt_rise: float, holds: float) -> None:
    """Only ranges of six MLPs, half of those of Bolt and Toto, decide the claim."""
    subjects = [Subject("a", "chronos-bolt", 12, 12), Subject("b", "toto-1", 12, 12)]
    rows = [
        (model, part, 6 - width, 5 + width)
        for model in "ab"
        for part in ("mlp", "heads")
        for width in (2, 3)
    ]
    half = {"a": bolt_rise, "b": 0.1}
    # only ranges of six MLPs count
    rise = [
        half[m] if part == "mlp" and last - first == 5 else 1 - half[m]
        for m, part, first, last in rows
    ]
    table = pd.DataFrame(rows, columns=["model", "part", "first", "last"])
    table = table.assign(family="ranges", change=rise, lower=rise, upper=rise)
    table["baseline_relative_mase"] = table["model"].map({"a": 0.8, "b": 0.7})
    table["label"] = [
        f"{part} of layers {first} to {last}" for _, part, first, last in rows
    ]
    found = compare_by_name(
        find_item("S3-F4"), DESIGNS["S3-F4"].read(gathered(effects=table), subjects)
    )
    assert float(row(found, "half_mlps")["paper"]) == 1
    assert ours(found, "half_mlps") == holds
    assert ours(found, "Toto: MASE over the seasonal naive's, whole model") == 0.7
