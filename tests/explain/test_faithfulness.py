"""Faithfulness tests of explanations: true ones hold, and decoys, wrong orders and what
no model has learned fail.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import numpy as np
import pytest
import xarray as xr
from numpy.testing import assert_allclose, assert_array_equal

from benchmarks.verdict import REFERENCE, accepted, drawn_run
from closeness import close_in_float32
from refusals import expect_error
from tsfm_lens import explain
from tsfm_lens.data import as_series
from tsfm_lens.explain import (
    deletion_curves,
    input_attribution,
    input_routes,
    route_faithfulness,
    segments,
    verdict,
)
from tsfm_lens.explain.faithfulness import matched_sets, named_routes
from tsfm_lens.models import Run
from tsfm_lens.testing import assert_close
from tsfm_lens.zoo.planted import Card, plant


@cache
def planted_run(
    mechanism: str = "decoys", architecture: str = "chronos-bolt"
) -> tuple[Run, Card]:
    """A planted seasonal copy with decoys, and a series that it forecasts."""
    planted = plant(mechanism, architecture)
    # type: ignore[union-attr]
    period = planted.card.rule.period
    length = min(planted.card.context[1], 96)
    rng = np.random.default_rng(3)
    motif = rng.permutation(period) + rng.uniform(-0.3, 0.3, period)
    values = motif[np.arange(-length, 0) % period] + 0.02 * rng.normal(size=length)
    return (
        planted.lens().run(as_series(values, seasonality=period), planted.card.horizon),
        planted.card,
    )


@cache
def routes_of_planted() -> xr.Dataset:
    run, _ = planted_run()
    return input_routes(run, parts=_parts(), reference="mean")


@cache
def _parts() -> tuple[Any, ...]:
    return segments(planted_run()[0], parts=6)


def true_segments() -> np.ndarray:
    """(segment,) whether the rule reads any of its values."""
    run, card = planted_run()
    values = np.asarray(run.batch.values[0])
    read = np.abs(card.rule.inputs(values, card.horizon)).sum(0) > 0  # type: ignore[union-attr, call-arg]
    length = len(values)
    return np.array(
        [read[part.start + length : part.stop + length].any() for part in _parts()]
    )


def test_curves_are_distances_of_masked_forecasts(bolt_run: Run) -> None:
    """Against forecasts that are made one by one."""
    parts = segments(bolt_run, parts=3)
    scores = np.array([0.5, 2.0, 1.0])[: len(parts)]
    curves = deletion_curves(
        bolt_run, {"mine": scores}, parts=parts, reference="mean", orders=4
    )
    order = np.argsort(-scores)
    assert curves["order"].values[0].tolist() == order.tolist()
    lens = bolt_run.lens
    full = bolt_run.forecast.median[0]
    for count in range(len(parts) + 1):
        first = np.isin(np.arange(len(parts)), order[:count])
        for name, keep in (("deletion", ~first), ("insertion", first)):
            batch = explain.masked(bolt_run.batch, parts, keep[None], "mean")
            away = np.abs(
                lens.forecast(batch, bolt_run.horizon).median[0] - full
            ).mean()
            found = float(curves[name].values[0, count])
            close_in_float32(
                found, away, depth=400, magnitude=float(np.abs(full).max()), what=name
            )


def test_only_true_attributions_beat_random_orders() -> None:
    """A true attribution beats random orders, and a false one fails."""
    run, _ = planted_run()
    true = true_segments().astype(float)
    options = {"parts": _parts(), "reference": "mean", "orders": 64}
    found = input_attribution(run, method="shapley", reference="mean", parts=_parts())
    tried = {
        "shapley": found,
        "flipped": found.assign(attribution=-found["attribution"]),
    }
    curves = deletion_curves(
        run, {**tried, "the rule": true, "its opposite": 1 - true}, **options
    )
    area = curves["area"].values
    p = curves["p"].values
    assert area[0] >= area[2] - 0.05 > 0 > area[3]
    assert p[0] <= 0.05 < p[3]
    assert [
        verdict(curves.isel(explanation=[position]))[0] for position in range(4)
    ] == [
        "holds",
        "fails",
        "fails",
        "fails",
    ]


def test_planted_routes_are_necessary_and_sufficient() -> None:
    """Routes of a planted model are necessary and sufficient."""
    run, card = planted_run()
    routes = routes_of_planted()
    named = named_routes(routes)
    mechanism = set(card.components("mechanism"))
    decoys = set(card.components("decoy"))
    messages = {name for names in named.values() for name in names}
    assert messages
    assert messages <= mechanism
    assert not messages & decoys
    proof = route_faithfulness(run, routes, reference="mean", controls=32)
    assert (proof["necessity"] > 0.95).all()
    # what is restored speaks in the scale of the whole series, and is read in that of
    # the masked one
    assert (proof["sufficiency"] > 0.8).all()
    assert (proof["prediction_error"] < 0.1).all()
    assert verdict(proof)[0] == "holds"
    # what works against the effect carries none of it, and routes that state another
    # effect fail
    assert not any(named_routes(routes.assign(share=-routes["share"])).values())
    flipped = route_faithfulness(
        run, routes.assign(total=-routes["total"]), reference="mean", controls=19
    )
    assert verdict(flipped)[0] == "fails"


def test_an_explanation_by_decoys_fails() -> None:
    run, card = planted_run()
    routes = routes_of_planted()
    decoys = list(card.components("decoy"))
    named = {
        segment: decoys for segment, names in named_routes(routes).items() if names
    }
    assert named
    proof = route_faithfulness(run, routes, named=named, reference="mean")
    assert np.abs(proof["necessity"]).max() < 0.1
    word, messages = verdict(proof)
    assert word == "fails"
    assert messages[0].startswith("Weak point")
    for doing in ("Cutting", "Restoring"):
        assert f"{doing} its route" in messages[0]


def test_controls_are_matched_other_components(
    bolt_run: Run,
) -> None:
    """Controls are matched, and other components where that is possible."""
    lens = bolt_run.lens
    components = lens.components(
        "decoder.0.cross_attn.0", "decoder.1.cross_attn.2", "encoder.0.mlp"
    )
    sets = matched_sets(lens, components, 16, np.random.default_rng(0))
    assert len({tuple(map(str, entry)) for entry in sets}) > 8
    for item in sets:
        assert not set(item) & set(components)
        kinds = [(one.stack, one.kind, one.head is None) for one in item]
        assert sorted(map(str, kinds)) == sorted(
            str((one.stack, one.kind, one.head is None)) for one in components
        )


def test_only_trained_models_have_faithful_routes(
    covariate_run: Run,
) -> None:
    """The known future of a covariate, which a trained model passes to the target
    through a few heads.
    """
    run = covariate_run.lens.run(covariate_run.batch.select([0, 1, 2]), 16)
    options = {"reference": "seasonal naive"}

    def word(of: Run) -> str:
        routes = input_routes(of, parts=1, **options)
        proof = route_faithfulness(of, routes, controls=19, most=2, **options)
        return verdict(proof)[0]

    assert word(run) == "holds"
    assert word(run.twin(0)) != "holds"


def test_one_wrong_input_is_found_out() -> None:
    """The covariate's own controls see what all inputs together hide: it moves a small
    part of the forecast.
    """
    cases = 2
    counts = accepted("planted", cases)
    assert counts.pop("true") == cases
    assert len(counts) == 6
    assert set(counts.values()) == {0}


def test_effects_indistinguishable_from_zero_are_named() -> None:
    """A covariate that the model does not read: whatever is stated of it, the test says
    that it cannot tell.
    """
    run = drawn_run("planted", 0, 0)
    segments_read = input_attribution(run, parts=3, reference=REFERENCE)
    sizes = np.abs(segments_read["attribution"]).mean(["step", "quantile"])
    name = str(sizes.idxmin().item())
    curves = deletion_curves(run, segments_read, orders=1, reference=REFERENCE)
    assert re.search(
        f"cannot tell from zero the effects? of .*{name}", verdict(curves)[1][0]
    )


def test_segment_controls_change_a_single_effect(
    bolt_run: Run,
) -> None:
    """A control of a segment is the explanation with that effect changed."""
    parts = segments(bolt_run, parts=4)
    found = input_attribution(bolt_run, parts=parts, reference="mean")
    tried = {"mine": found}
    for factor, label in ((0.0, "effect 0"), (-1.0, "sign flipped")):
        changed = found.copy(deep=True)
        changed["attribution"][{"segment": 1}] *= factor
        tried[label] = changed
    curves = deletion_curves(
        bolt_run, tried, parts=parts, reference="mean", orders=1, twin=False
    )
    controls = curves["segment_control_r2"].isel(explanation=0, segment=1)
    for label in ("effect 0", "sign flipped"):
        alone = curves["r2"].sel(explanation=label)
        assert_close(controls.sel(segment_control=label), alone, depth=64)
    agreement = curves["segment_agreement"]
    assert ((agreement >= 0) & (agreement <= 1 + 1e-9)).all()


def test_areas_and_bands_follow_the_curves(bolt_run: Run) -> None:
    """Areas, bands and chances are those of the curves."""
    scores = {"newest first": [0.0, 1.0, 2.0], "oldest first": [2.0, 1.0, 0.0]}
    parts = {"parts": 3, "season": 1}
    tried = deletion_curves(bolt_run, scores, parts=parts, orders=19, seed=5)
    full = tried["deletion"].values[0, -1]
    assert tried["everything_masked"] == full
    for curves in ("", "random_"):
        gap = tried[f"{curves}deletion"] - tried[f"{curves}insertion"]
        assert_allclose(tried[f"{curves}area"], gap.mean("masked") / full)
    drawn = np.stack([tried["random_deletion"], tried["random_insertion"]])
    for edge, level in (("low", 0.025), ("high", 0.975)):
        assert_array_equal(tried[f"random_{edge}"], np.quantile(drawn, level, axis=1))
    as_good = (tried["random_area"].values >= tried["area"].values[:, None]).sum(1)
    # of 3 segments there are 6 orders, so that the one on trial is drawn, too, and is
    # as good as itself
    assert min(as_good) > 0
    assert_array_equal(tried["p"], (1 + as_good) / 20)
    assert_array_equal(tried["order"], [[2, 1, 0], [0, 1, 2]])


REFUSALS = [
    (deletion_curves, {"explanations": {"mine": [1.0]}, "parts": 3}, "one a part"),
    (
        deletion_curves,
        {"explanations": {"mine": [1.0, np.nan, 0.0]}, "parts": 3},
        "one a part",
    ),
    (deletion_curves, {"explanations": {}, "parts": 3}, "no explanation"),
    (
        deletion_curves,
        {"explanations": {"mine": [1, 2, 3]}, "parts": 3, "orders": 0},
        "orders",
    ),
    (deletion_curves, {"explanations": {"mine": [1]}, "parts": 1}, "no order"),
    (route_faithfulness, {"named": {}}, "no segment has a named route to test"),
    (
        route_faithfulness,
        {"named": {"yesterday": ["decoder.0.mlp"]}},
        "not a segment of these routes",
    ),
    (lambda run: verdict(), {}, "no faithfulness test"),
    (
        lambda run: verdict(xr.Dataset(attrs={"kind": "path_patching"})),
        {},
        "is not a faithfulness test",
    ),
]


@pytest.mark.parametrize(("function", "options", "message"), REFUSALS)
def test_what_proves_nothing_is_refused(
    bolt_run: Run, function: Any, options: dict[str, Any], message: str
) -> None:
    run = bolt_run
    if function is route_faithfulness:
        run = planted_run()[0]
        options = {"routes": routes_of_planted(), **options}
    expect_error(message, function, run, **options)
