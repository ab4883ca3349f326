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
from tsfm_lens.cli import app
from tsfm_lens.errors import InputError
from tsfm_lens.studies import rank_theory
from tsfm_lens.studies.papers import measures_theory
from tsfm_lens.studies.papers import values_theory as said
from tsfm_lens.studies.papers.measures import MEASURES
from tsfm_lens.studies.papers.measuring import Asked, Found
from tsfm_lens.studies.papers.reproduce import item_of, reproduce
from tsfm_lens.studies.papers.values import ITEMS

SMALL: dict[str, Callable[[Asked], Found]] = {
    "S0-J1A": partial(measures_theory.by_rank, width=48, n_tokens=128, n_ranks=12),
    "S0-J1B": partial(measures_theory.by_width, widths=(16, 32, 64), n_tokens=64),
    "S0-J2": partial(measures_theory.sketching, width=256, heads=(1, 2, 4, 8), decay=50.0),
    "S0-J3": partial(measures_theory.head_spectra, width=64, n_tokens=96, heads=(1, 2, 4)),
    "S0-F14": partial(measures_theory.chebyshev, dimension=40, n_points=200),
}
IDS = [item.id for item in ITEMS if item.theory and item.source == said.SOURCE]


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Callable[..., xr.Dataset]:
    for name, measure in SMALL.items():
        monkeypatch.setitem(MEASURES, name, measure)
    return reproduce


@pytest.mark.parametrize("name", IDS)
def test_every_number_of_the_theory_is_measured_without_a_model(name: str, found: Callable[..., xr.Dataset]) -> None:
    result = found(name, seeds=2)
    item = item_of(name)
    assert {value.quantity for value in item.values} <= set(result["quantity"].values.tolist())
    assert result.attrs["source"] == said.SOURCE
    assert result.attrs["note"] == item.note
    assert result.sizes["setting"]
    # nothing that a theorem says of its own proof is contradicted; the printed index of the corollary is
    printed = result.where(result["paper"] == 0, drop=True)
    for quantity, ours in zip(printed["quantity"].values, printed["ours"].values, strict=True):
        assert (ours == 0) == (quantity != said.ABOVE_PRINTED), quantity


def test_slopes_have_intervals_over_draws_that_hold_those_of_the_paper(found: Callable[..., xr.Dataset]) -> None:
    for name, quantity in (("S0-J1A", said.SLOPE_OF_RANK), ("S0-J1B", said.SLOPE_OF_WIDTH)):
        one = found(name, seeds=12).sel(quantity=quantity)
        assert float(one["low"]) < float(one["ours"]) < float(one["high"])
        assert float(one["low"]) - 0.1 < float(one["paper"]) < float(one["high"]) + 0.1
    # of one draw there is none
    assert np.isnan(float(found("S0-J1A", seeds=1).sel(quantity=said.SLOPE_OF_RANK)["low"]))
    # without the growth of W_V the same draws have no such slope
    other = found("S0-J1B", seeds=12).sel(quantity="slope with all weights of variance 1/d")
    assert float(other["ours"]) < float(one["ours"]) - 0.3


def test_claims_are_tested_over_draws(found: Callable[..., xr.Dataset]) -> None:
    for name, claim in (("S0-J2", said.COMPARABLE), ("S0-J3", said.HIGHER_RANK_BY_HEADS)):
        assert str(found(name, seeds=8)["verdict"].sel(quantity=claim).values) == "holds"
        assert found(name, seeds=8).attrs["over"] == "draw"
        few = found(name, seeds=2)
        assert str(few["verdict"].sel(quantity=claim).values) == "undecided"
        # rows are draws, not series
        assert str(few["why"].sel(quantity=claim).values).startswith("2 draws, too few")


def test_the_command_says_what_claims_are_tested_over(found: Callable[..., xr.Dataset]) -> None:
    told = CliRunner().invoke(app, ["reproduce", "S0-J2", "--seeds", "2"])
    assert "is true of the median draw: it holds" in told.stdout, told.output
    assert "window" not in told.stdout
    with_windows = CliRunner().invoke(app, ["reproduce", "S3-F22", "--model", "bolt-nano", "--windows", "2"])
    assert "is true of the median series or window: it holds" in with_windows.stdout


def test_further_ids_give_the_same_numbers(found: Callable[..., xr.Dataset]) -> None:
    every = [name for item in ITEMS for name in item.ids]
    assert len(set(every)) == len(every)
    for other, name in {"S0-F15": "S0-J1A", "S0-F16": "S0-J2", "S0-F17": "S0-J3", "S0-cheb": "S0-F14"}.items():
        assert item_of(other).id == name
    xr.testing.assert_identical(found("S0-CHEB"), found("S0-F14"))
    listed = CliRunner().invoke(app, ["reproduce", "--list", "--json"]).stdout
    assert ["S0-F17"] in [each["also"] for each in json.loads(listed)]


def test_a_claim_can_fail(found: Callable[..., xr.Dataset], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = rank_theory.spectra_by_heads

    def backwards(**options: object) -> xr.Dataset:
        made = whole(**options)  # type: ignore[arg-type]
        return made.assign(rank=made["rank"].isel(heads=slice(None, None, -1)).assign_coords(heads=made["heads"]))

    monkeypatch.setattr(rank_theory, "spectra_by_heads", backwards)
    verdict = found("S0-J3", seeds=8)["verdict"].sel(quantity=said.HIGHER_RANK_BY_HEADS)
    assert str(verdict.values) == "does not hold"


def test_full_sizes_are_the_papers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked for by command has the sizes that the paper gives, so that no setting of these differs."""
    asked: dict[str, dict[str, object]] = {}

    def stop(name: str) -> Callable[..., xr.Dataset]:
        def told(**options: object) -> xr.Dataset:
            asked[name] = options
            raise InterruptedError

        return told

    for name in ("compression_by_rank", "sketching_by_heads", "chebyshev_curves"):
        monkeypatch.setattr(rank_theory, name, stop(name))
    for item in ("S0-j1a", "S0-J2", "S0-F14"):
        with pytest.raises(InterruptedError):
            reproduce(item)
    assert (asked["compression_by_rank"]["width"], asked["compression_by_rank"]["n_tokens"]) == (512, 4096)
    assert (asked["sketching_by_heads"]["width"], max(asked["sketching_by_heads"]["heads"])) == (2048, 128)  # type: ignore[call-overload]
    assert (asked["chebyshev_curves"]["dimension"], asked["chebyshev_curves"]["n_points"]) == (768, 4096)


def test_the_docs_name_what_exists_and_every_id() -> None:
    text = (Path(tsfm_lens.__file__).parent.parent / "docs" / "papers.md").read_text()
    named = re.findall(r"`(rank_theory|ranks|viz)\.(\w+)`", text)
    assert len(named) > 30
    for package, name in named:
        home = rank_theory if package == "rank_theory" else getattr(tsfm_lens, package)
        assert hasattr(home, name), f"{package}.{name}"
    ranks = [item for item in ITEMS if item.source == said.SOURCE]
    assert set(re.findall(r"`reproduce (S0-\w+)`", text)) == {item.id for item in ranks}
    assert {name for item in ranks for name in item.ids} <= set(re.findall(r"S0-\w+", text.upper()))


@pytest.mark.parametrize(
    "options", [{"model": "bolt-nano"}, {"data": [1.0]}, {"windows": 2}, {"horizon": 3}, {"num_samples": 1}]
)
def test_what_only_models_have_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(InputError, match="S0-TH6 is of no model"):
        reproduce("S0-TH6", **options)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="seeds is 0"):
        reproduce("S0-TH6", seeds=0)
