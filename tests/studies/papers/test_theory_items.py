"""Experiments and theorems on rank beside what their paper prints, at sizes of a test."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from typer.testing import CliRunner

import tsfm_lens
from reproductions import ours, row, verdict, words
from tsfm_lens.cli import app
from tsfm_lens.errors import InputError
from tsfm_lens.studies import rank_theory
from tsfm_lens.studies.papers.context import MEASURES, Context, MeasuredValues
from tsfm_lens.studies.papers.items import BY_ID, ITEMS
from tsfm_lens.studies.papers.measures import theory
from tsfm_lens.studies.papers.reproduce import item_of, reproduce

SMALL: dict[str, Callable[[Context], MeasuredValues]] = {
    "S0-J1A": partial(theory.by_rank, width=48, n_tokens=128, n_ranks=12),
    "S0-J1B": partial(theory.by_width, widths=(16, 32, 64), n_tokens=64),
    "S0-J2": partial(theory.sketching, width=256, heads=(1, 2, 4, 8), decay=50.0),
    "S0-J3": partial(theory.head_spectra, width=64, n_tokens=96, heads=(1, 2, 4)),
    "S0-F14": partial(theory.chebyshev, dimension=40, n_points=200),
}
SOURCE = item_of("S0-J1A").source


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Callable[..., xr.Dataset]:
    for name, measure in SMALL.items():
        monkeypatch.setitem(MEASURES, name, measure)
    return reproduce


@pytest.mark.parametrize("name", [item.id for item in ITEMS if item.theory and item.source == SOURCE])
def test_every_number_of_the_theory_is_measured_without_a_model(name: str, found: Callable[..., xr.Dataset]) -> None:
    result, item = found(name, seeds=2), item_of(name)
    assert {value.quantity for value in item.values} <= set(result["quantity"].values.tolist())
    assert result.attrs["source"] == SOURCE
    assert result.attrs["note"] == item.note
    assert result.sizes["setting"]
    # nothing that a theorem says of its own proof is contradicted; the printed index of the corollary is
    printed = result.where(result["paper"] == 0, drop=True)
    for quantity, number in zip(printed["quantity"].values, printed["ours"].values, strict=True):
        assert (number == 0) == (quantity != words("S0-C1", "above_printed")), quantity


def test_slopes_have_intervals_over_draws_that_hold_those_of_the_paper(found: Callable[..., xr.Dataset]) -> None:
    for name, key in (("S0-J1A", "slope_of_rank"), ("S0-J1B", "slope_of_width")):
        result = found(name, seeds=12)
        one = row(result, key)
        assert float(one["low"]) < float(one["ours"]) < float(one["high"])
        assert float(one["low"]) - 0.1 < float(one["paper"]) < float(one["high"]) + 0.1
    # without the growth of W_V the same draws have no such slope
    assert ours(result, "slope with all weights of variance 1/d") < float(one["ours"]) - 0.3
    # of one draw there is none
    assert np.isnan(float(row(found("S0-J1A", seeds=1), "slope_of_rank")["low"]))


@pytest.mark.parametrize(("name", "key"), [("S0-J2", "comparable"), ("S0-J3", "higher_rank_by_heads")])
def test_claims_are_tested_over_draws(name: str, key: str, found: Callable[..., xr.Dataset]) -> None:
    many, few = found(name, seeds=8), found(name, seeds=2)
    assert verdict(many, key) == "holds"
    assert many.attrs["over"] == "draw"
    assert verdict(few, key) == "undecided"
    # rows are draws, not series
    assert str(row(few, key)["why"].values).startswith("2 draws, too few")


def test_the_command_says_what_claims_are_tested_over(found: Callable[..., xr.Dataset]) -> None:
    told = CliRunner().invoke(app, ["reproduce", "S0-J2", "--seeds", "2"])
    assert "is true of the median draw: it holds" in told.stdout, told.output
    assert "window" not in told.stdout
    with_windows = CliRunner().invoke(app, ["reproduce", "S3-F22", "--model", "bolt-nano", "--windows", "2"])
    assert "is true of the median series or window: it holds" in with_windows.stdout


def test_further_ids_give_the_same_numbers(found: Callable[..., xr.Dataset]) -> None:
    assert len(BY_ID) == sum(len(item.ids) for item in ITEMS)
    for other, name in {"S0-F15": "S0-J1A", "S0-F16": "S0-J2", "S0-F17": "S0-J3", "S0-cheb": "S0-F14"}.items():
        assert item_of(other).id == name
    xr.testing.assert_identical(found("S0-CHEB"), found("S0-F14"))
    listed = CliRunner().invoke(app, ["reproduce", "--list", "--json"]).stdout
    assert ["S0-F17"] in [each["also"] for each in json.loads(listed)]


def test_a_claim_can_fail(found: Callable[..., xr.Dataset], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = rank_theory.spectra_by_heads

    def backwards(**options: object) -> xr.Dataset:
        data = whole(**options)  # type: ignore[arg-type]
        return data.assign(rank=data["rank"].isel(heads=slice(None, None, -1)).assign_coords(heads=data["heads"]))

    monkeypatch.setattr(rank_theory, "spectra_by_heads", backwards)
    assert verdict(found("S0-J3", seeds=8), "higher_rank_by_heads") == "does not hold"


@pytest.mark.parametrize(
    ("item", "function", "sizes"),
    [
        ("S0-j1a", "compression_by_rank", {"width": 512, "n_tokens": 4096}),
        ("S0-J2", "sketching_by_heads", {"width": 2048, "heads": (1, 2, 4, 8, 16, 32, 64, 128)}),
        ("S0-F14", "chebyshev_curves", {"dimension": 768, "n_points": 4096}),
    ],
)
def test_full_sizes(item: str, function: str, sizes: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    """The command measures at the sizes that the paper gives, so that no setting of these differs."""

    def stop(**options: object) -> xr.Dataset:
        assert sizes.items() <= options.items()
        raise InterruptedError

    monkeypatch.setattr(rank_theory, function, stop)
    with pytest.raises(InterruptedError):
        reproduce(item)


def test_the_docs_name_what_exists_and_every_id() -> None:
    text = (Path(tsfm_lens.__file__).parent.parent / "docs" / "papers.md").read_text()
    named = re.findall(r"`(rank_theory|ranks|viz)\.(\w+)`", text)
    assert len(named) > 30
    for package, name in named:
        home = rank_theory if package == "rank_theory" else getattr(tsfm_lens, package)
        assert hasattr(home, name), f"{package}.{name}"
    ranks = [item for item in ITEMS if item.source == SOURCE]
    assert set(re.findall(r"`reproduce (S0-\w+)`", text)) == {item.id for item in ranks}
    assert {name for item in ranks for name in item.ids} <= set(re.findall(r"S0-\w+", text.upper()))


@pytest.mark.parametrize(
    "options", [{"model": "bolt-nano"}, {"data": [1.0]}, {"windows": 2}, {"horizon": 3}, {"num_samples": 1}]
)
def test_options_of_models_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(InputError, match="S0-TH6 is of no model"):
        reproduce("S0-TH6", **options)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="seeds is 0"):
        reproduce("S0-TH6", seeds=0)
