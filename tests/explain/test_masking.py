"""Masked copies hold what they should, and their forecasts are those of the masks one
by one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

import tsfm_lens
from closeness import close_in_float32
from refusals import expect_error
from tiny_lenses import having, lens_of
from tsfm_lens import explain
from tsfm_lens.core.errors import InputError
from tsfm_lens.data import SeriesBatch, as_series
from tsfm_lens.data.batch import item_rows
from tsfm_lens.models import Lens, Run
from tsfm_lens.testing import assert_close

BLOCKS = 300


@settings(max_examples=30, deadline=None)
@given(data=st.data(), reference=st.sampled_from(explain.REFERENCES))
def test_masked_copies_show_the_reference_elsewhere(
    items: SeriesBatch, data: st.DataObject, reference: str
) -> None:
    """A masked copy shows what is kept, and the reference elsewhere."""
    one = items.select(item_rows(items, 1))
    parts = explain.segments(one, horizon=16, parts=3)
    keep = np.array(
        data.draw(
            st.lists(
                st.lists(st.booleans(), min_size=7, max_size=7), min_size=1, max_size=3
            )
        )
    )
    keep = keep[:, : len(parts)]
    copies = explain.masked(one, parts, keep, reference, horizon=16)
    stands = explain.reference_values(one, reference, 16)
    assert len(set(copies.groups)) == len(keep)
    for mask, visible in enumerate(keep):
        for row in range(len(one)):
            at = mask * len(one) + row
            if one.futures[row] is None:
                future = []
            else:
                future = one.futures[row]
            plain = np.concatenate([one.values[row], future])
            got = np.concatenate(
                [
                    copies.values[at],
                    [] if copies.futures[at] is None else copies.futures[at],
                ]
            )
            for part, retained in zip(parts, visible, strict=True):
                if part.row == row:
                    position = slice(part.start + 96, part.stop + 96)
                    assert_array_equal(
                        got[position], (plain if retained else stands[row])[position]
                    )


def test_references_are_what_they_are_called(items: SeriesBatch) -> None:
    one = items.select(item_rows(items, 0))
    values = {
        name: explain.reference_values(one, name, 16, seed=3)
        for name in explain.REFERENCES
    }
    assert np.isnan(values["missing"][0]).all()
    assert not values["zero"][2].any()
    assert_close(values["mean"][1], one.values[1].mean(), depth=1)
    naive = values["seasonal naive"][2]
    assert_array_equal(naive[24:96], one.values[2][:72])
    assert_array_equal(naive[96:], one.values[2][72:88])
    assert_array_equal(naive[:24], one.values[2][24:48])
    full = np.concatenate([one.values[2], one.futures[2]])
    assert_array_equal(np.sort(values["shuffled"][2]), np.sort(full))
    assert not np.array_equal(values["shuffled"][2], full)


def test_seasonal_references_continue_and_fill_gaps() -> None:
    """A seasonal reference goes on over seasons and fills gaps."""
    series = np.array([1.0, 2, 3, np.nan, 2, 5])
    batch = SeriesBatch(
        (np.arange(6.0), series),
        roles=("target", "known"),
        futures=(None, np.zeros(5)),
        groups="gg",
        variates="yk",
        seasonality=3,
    )
    naive = explain.reference_values(batch, "seasonal naive", 5)[1]
    # the gap at its phase is filled by the mean of that phase, which is 1
    assert_array_equal(naive, [1, 2, 5, 1, 2, 3, 1, 2, 5, 1, 2])


def test_references_differ_by_role(items: SeriesBatch) -> None:
    """References differ by the role of a series and say what they lack."""
    one = items.select(item_rows(items, 0))
    mixed = explain.reference_values(
        one, {"target": "mean", "past": "zero", "known": "missing"}, 16
    )
    assert np.isfinite(mixed[0]).all()
    assert not mixed[1].any()
    assert np.isnan(mixed[2]).all()
    refused = {
        "has no value for known": {"target": "mean", "past": "zero"},
        "naive": "seasonal",
        "past": {"x": "mean"},
    }
    for text, reference in refused.items():
        expect_error(text, explain.reference_values, one, reference, 16)
    parts = explain.segments(items, 0, horizon=16, parts=2)
    expect_error(
        "of one item", explain.masked, items, parts, np.ones((1, 4)), horizon=16
    )
    for kind in (None, 3.0):
        expect_error(
            "expected one of 'missing'",
            explain.masked,
            one,
            parts,
            np.ones((1, len(parts))),
            kind,
            horizon=16,
        )  # type: ignore[arg-type]


@pytest.mark.parametrize("reference", ["missing", "shuffled"])
def test_masks_together_equal_masks_alone(covariate_run: Run, reference: str) -> None:
    """Masks that run side by side give what each gives by itself."""
    parts = explain.segments(covariate_run, 1, parts=3)
    keep = np.random.default_rng(0).random((9, len(parts))) < 0.5
    together = explain.forecasts(covariate_run, parts, keep, reference, item=1)
    one = covariate_run.item(1)
    for mask, got in zip(keep, together, strict=True):
        alone = one.lens.forecast(
            explain.masked(one.batch, parts, mask, reference, horizon=16), 16
        )
        close_in_float32(got, alone.quantiles[0], depth=BLOCKS, magnitude=40.0)


def test_each_mask_runs_once(bolt_run: Run) -> None:
    masks = explain.Masks(bolt_run, explain.segments(bolt_run, parts=3))
    first = masks(explain.shapley.all_masks(len(masks.segments)))
    made = masks.made
    again = masks(explain.shapley.all_masks(len(masks.segments))[::-1])
    assert masks.made == made == len(first)
    assert_array_equal(first[::-1], again)


def test_token_models_follow_their_own_path() -> None:
    """A token model is led along the path of its own forecast."""
    run = tsfm_lens.load("chronos-nano").run(10 + np.sin(np.arange(60) / 3), 8)
    parts = explain.segments(run, parts=3)
    values = explain.forecasts(
        run,
        parts,
        [[True] * len(parts), [False, *[True] * (len(parts) - 1)]],
        "missing",
    )
    close_in_float32(values[0, 0], run.point[0], depth=BLOCKS, magnitude=20.0)
    hidden = np.array(run.batch.values[0])
    hidden[: len(parts[0])] = np.nan
    alone = run.lens.run(hidden, 8, forced_path=run.path)
    close_in_float32(values[1, 0], alone.point[0], depth=BLOCKS, magnitude=20.0)


# what each library does with a gap, by what its documentation or code says
FILLS = {
    "timesfm-2.5": "linear interpolation",
    "timesfm-2.5-transformers": "linear interpolation",
}


@pytest.mark.parametrize("name", having("numeric_series"))
def test_missing_references_depend_on_the_model(name: str) -> None:
    """A model that fills gaps by itself refuses a reference of missing values."""
    lens = lens_of(name)
    run = lens.run(5 + np.sin(np.arange(64) / 3), 4)
    assert explain.masking.mask_seen(lens, run.batch) == FILLS.get(
        name, "the model's own mask"
    )
    parts = explain.segments(run, parts=2)
    nothing = np.zeros((1, len(parts)), bool)
    if name in FILLS or name == "fracast":
        expect_error(
            "reference='mean'", explain.forecasts, run, parts, nothing, "missing"
        )
    else:
        assert np.isfinite(explain.forecasts(run, parts, nothing, "missing")).all()


def test_categories_are_masked_as_numbers(
    covariate_run: Run,
) -> None:
    """Categories are masked as the numbers that the model is shown."""
    lens = covariate_run.lens
    steps = 48
    text = np.resize(["low", "high"], steps + 8)
    target = np.where(text[:steps] == "low", 1.0, 9.0) + 0.1 * np.sin(np.arange(steps))
    item = {
        "target": target,
        "past_covariates": {"w": text[:steps]},
        "future_covariates": {"w": text[steps:]},
    }
    run = lens.run(as_series([item]), 8)
    found = explain.input_attribution(run, reference="missing", parts=2)
    assert np.isfinite(found["attribution"]).all()
    assert_close(found["remainder"], 0.0, depth=100, magnitude=10.0)
    expect_error(
        "categories, which have no zero",
        explain.input_attribution,
        run,
        reference="zero",
        parts=2,
    )
    codes = [np.zeros(steps + 8), np.full(steps + 8, 7.0)]
    expect_error(
        r"never 7 in its series.*'high', 'low'",
        explain.input_attribution,
        run,
        reference=codes,
        parts=2,
    )


@pytest.mark.parametrize(
    "keep", [np.ones((1, 99)), np.full((1, 3), 0.5), np.ones((0, 3)), "all"]
)
def test_masks_of_another_shape_are_refused(bolt_run: Run, keep: Any) -> None:
    parts = explain.segments(bolt_run, parts=3, season=1)
    expect_error("expected bools", explain.forecasts, bolt_run, parts, keep)


def test_masks_need_the_run_s_model(bolt: Lens) -> None:
    """Masks are refused under other hooks than those of the run."""
    run = bolt.run(10 + np.sin(np.arange(96) / 4), 8)
    parts = explain.segments(run, parts=2)
    with (
        bolt.ablate("decoder.0.mlp"),
        pytest.raises(InputError, match="under other hooks"),
    ):
        explain.forecasts(run, parts, np.ones((1, len(parts))))
    with bolt.ablate("decoder.0.mlp"):
        inside = bolt.run(run.batch, 8)
        visible = explain.forecasts(inside, parts, np.ones((1, len(parts))))
        assert_array_equal(visible[0], inside.forecast.quantiles[0])


def test_distant_references_are_reported(bolt: Lens) -> None:
    """A reference that leads to no forecast of the series is told by its distance."""
    far = bolt.run(1000 + np.sin(np.arange(96) / 4), 8)
    reported = {
        name: (
            explain.input_attribution(
                far, method="occlusion", reference=name, parts=2
            ).attrs["reference_distance"]
        )
        for name in ("missing", "mean")
    }
    # nothing is known of the level, and the model forecasts about 0 of a series about
    # 1000 whose deviation is below 1
    assert reported["missing"] > 500
    assert reported["mean"] < 1
