"""Planted results have the form of computed ones, so that what is tested on them holds
for those.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import xarray as xr
from numpy.testing import assert_array_equal

import planted
from tsfm_lens.core.errors import LensError
from tsfm_lens.core.estimates import add_estimates
from tsfm_lens.core.needs import NEEDS
from tsfm_lens.core.registry import Figure, find
from tsfm_lens.core.results import Results

EVERY = planted.everything()


@pytest.mark.parametrize("name", EVERY)
def test_planted_results_look_like_computed_ones(
    name: str, works: dict[str, Results]
) -> None:
    """Of one embedded model at least: token models and those of quantiles give
    different results.
    """
    made = EVERY[name]
    needs = find(made.attrs["kind"]).needs
    found = {}
    for model, work in works.items():
        if needs and not NEEDS[needs].met(work.run.lens):
            continue
        found[model] = planted.differences(made, work[made.attrs["kind"]])
        if not found[model]:
            return
    raise AssertionError(found)


def test_differences_are_found() -> None:
    real = planted.ablation()
    assert planted.differences(real, real) == []
    spoiled = {
        "kind": real.assign_attrs(kind="causal_effects"),
        "extra": real.assign(extra=real["mase_change"]),
        "mase_change": real.assign(mase_change=real["mase_change"].mean("series")),
        "forecast": real.assign(forecast=real["forecast"].astype(int)),
        "stack": real.reset_coords("stack"),
        "attribute extra": real.assign_attrs(extra=1),
        "mase_change_leads": real.drop_vars("mase_change_leads"),
    }
    for name, made in spoiled.items():
        (reported,) = planted.differences(made, real)
        assert reported.startswith(f"{name}: "), reported


def test_planted_judgements_match_the_probes() -> None:
    """What stands out and leads is decided by ``add_estimates``, from the values that
    are planted.
    """
    ds = planted.ablation()
    first = ds["component"].values[ds["spearman_distance_lead_share"].values == 1.0]
    assert {"decoder.1.cross_attn.1", "decoder.0.mlp"} <= set(first)
    again = add_estimates(ds, "spearman_distance", floor=0.9, groups="kind")
    assert not again["spearman_distance_significant"].any()
    assert_array_equal(
        again["spearman_distance_size"], ds["spearman_distance"].median("series")
    )


def find_read(figure: Figure, ds: xr.Dataset) -> set[Any]:
    """Coordinates, which come with every variable, and what the figure looks up."""
    names = set(ds.coords)

    def noting(method: Any) -> Any:
        def note(data: xr.Dataset, key: Any) -> Any:
            names.update([key] if isinstance(key, str) else key)
            return method(data, key)

        return note

    with pytest.MonkeyPatch.context() as patch:
        for name in ("__getitem__", "__contains__"):
            patch.setattr(xr.Dataset, name, noting(getattr(xr.Dataset, name)))
        with suppress(LensError):
            figure.draw(ds)
    return names & set(ds.variables)


def draw_incomplete(name: str, first: int, step: int) -> None:
    """Draw a result without a variable that a figure looks up: every so many of them,
    by name.
    """
    ds = EVERY[name]
    for figure in (item for item in find(ds.attrs["kind"]).figures if not item.beside):
        for variable in sorted(find_read(figure, ds))[first::step]:
            with suppress(LensError):
                figure.draw(ds.drop_vars(variable))


DRAWN = [name for name, made in EVERY.items() if hasattr(made, "data_vars")]


@pytest.mark.parametrize("name", DRAWN)
def test_incomplete_results_are_drawn_or_refused(name: str) -> None:
    """A result without a variable that a figure looks up is drawn or refused in words.

    Most variables are those of many results, each of which goes without others.
    """
    draw_incomplete(name, first=DRAWN.index(name) % 6, step=6)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", DRAWN)
def test_results_without_any_variable_are_drawn_or_refused(name: str) -> None:
    draw_incomplete(name, first=0, step=1)
