"""Circuit curves against forecasts of edited models, and on a planted mechanism."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from closeness import close_in_float32
from refusals import expect_error
from tiny_lenses import lens_of
from tsfm_lens.data import bundled
from tsfm_lens.hooks import Component
from tsfm_lens.probes import ablation_effects, circuit_curve, minimal_circuit
from tsfm_lens.probes.circuit_curve import _orders_by_score
from tsfm_lens.testing import assert_close
from tsfm_lens.viz.circuit_curve import read_curve
from tsfm_lens.zoo.planted import add_cancelling_pair, draw_contexts, plant

RANKING = {"decoder.0.mlp": 1.0, "decoder.1.mlp": 3.0, "decoder.1.cross_attn.1": 2.0}
BEST = ["decoder.1.mlp", "decoder.1.cross_attn.1", "decoder.0.mlp"]


def test_curves_are_of_ablated_models() -> None:
    """Every point is the share recovered by a model with the rest ablated by hand, and
    the areas are sums of trapezoids.
    """
    lens = lens_of("chronos-bolt")
    context = bundled("co2", "elnino").tail(40)
    found = circuit_curve(lens.run(context, 4), RANKING, draws=2)
    assert found["component"].values.tolist() == BEST

    def forecast(*ablated: str) -> np.ndarray:
        with lens.ablate(*ablated):
            return lens.forecast(context, 4).median

    model = lens.forecast(context, 4).median
    nothing = forecast(*BEST)
    way = model - nothing
    for size in range(1, 3):
        kept, removed = forecast(*BEST[size:]), forecast(*BEST[:size])
        for direction, changed in (("best kept", kept), ("best removed", removed)):
            at = found.sel(direction=direction, size=size)
            share = ((changed - nothing) * way).sum(-1) / (way**2).sum(-1)
            close_in_float32(at["recovered"], share, depth=300, magnitude=1.0)
            distance = np.sqrt(((changed - model) ** 2).sum(-1) / (way**2).sum(-1))
            close_in_float32(at["faithfulness"], 1 - distance, depth=300, magnitude=1.0)
    # all components kept are the model, and all removed are nothing
    assert_array_equal(found["recovered"].isel(size=0), [[0, 0], [1, 1]])
    assert_array_equal(found["recovered"].isel(size=-1), [[1, 1], [0, 0]])
    for name, curve in (
        ("cpr", found["recovered"]),
        ("cmd", abs(1 - found["recovered"])),
    ):
        area = np.trapezoid(curve.values, dx=1 / 3, axis=1)
        close_in_float32(found[name], area, magnitude=1.0)


def test_some_sizes_are_those_of_all() -> None:
    run = lens_of("chronos-bolt").run(bundled("co2").tail(40), 4)
    nodes = ["*.*.mlp"]
    ranking = ablation_effects(run, components=nodes)
    every, some, more = (
        circuit_curve(run, ranking, draws=1, most=most) for most in (None, 2, 100)
    )
    sizes = some["size"].values.tolist()
    assert sizes[0] == 0
    assert sizes[-1] == every["size"].values[-1]
    assert len(sizes) == 3
    at = every["recovered"].sel(size=sizes)
    close_in_float32(some["recovered"], at, depth=300, magnitude=1.0)
    assert_array_equal(more["size"], every["size"])
    expect_error("most is 0", circuit_curve, run, ranking, most=0)


TIED = {
    "decoder.0.mlp": 1.0,
    "decoder.1.cross_attn.1": 1.0,
    "decoder.1.mlp": 1.0,
    "decoder.0.cross_attn.0": 3.0,
}


def test_equal_scores_have_the_mean_over_their_orders() -> None:
    """Curves and areas are the means of those of rankings that break the tie in every
    way, and do not depend on the order in which scores are given.
    """
    run = lens_of("chronos-bolt").run(bundled("co2", "elnino").tail(40), 4)
    found = circuit_curve(run, TIED, draws=1)
    assert found.attrs["orders"] == 6
    broken = []
    for order in permutations(list(TIED)[:3]):
        scores = TIED | dict(zip(order, (1.3, 1.2, 1.1), strict=True))
        broken.append(circuit_curve(run, scores, draws=0))
    for name in ("recovered", "faithfulness", "cpr", "cmd"):
        mean = np.mean([one[name].values for one in broken], axis=0)
        close_in_float32(found[name], mean, depth=300, magnitude=1.0)
    again = circuit_curve(run, dict(reversed(TIED.items())), draws=1)
    for name in ("recovered", "cmd", "random_cpr"):
        assert_array_equal(again[name], found[name])
    assert "6 orders" in str(read_curve(found))
    assert "equal scores" not in str(read_curve(broken[0]))


def test_places_in_a_tie_are_even() -> None:
    """The mean place of a component is the middle of its tie, by which the areas are
    exact where effects add up; as they are of one number for all components.
    """
    parts = [Component("decoder", 0, "self_attn", head) for head in range(8)]
    scores = dict(zip(parts, (2, 1, 1, 1, 1, 1, 0, 0), strict=True))
    orders = _orders_by_score(scores, np.random.default_rng(0))
    places = [np.mean([order.index(part) for order in orders]) for part in parts]
    assert places == [0, 3, 3, 3, 3, 3, 6.5, 6.5]
    assert len({tuple(order) for order in orders}) > 2
    # an area is a sum over sizes of what has been added before
    effects = np.random.default_rng(1).normal(size=8)
    gains = [[effects[parts.index(part)] for part in order] for order in orders]
    areas = np.cumsum(gains, axis=1).sum(1)
    assert_close(areas.mean(), (effects * (8 - np.array(places))).sum(), depth=100)


def test_rankings_of_a_planted_mechanism_are_told_apart() -> None:
    """On a trend beside heads that cancel, the order of a circuit comes near to 1 in
    CMD and CPR. Zero ablation ranks the pair first, so its circuits overshoot: its CPR
    is above 1, which CMD tells.
    """
    lens_of("chronos-bolt")  # skips where the library is missing
    planted = add_cancelling_pair(plant("trend", "chronos-bolt"))
    card = planted.card
    series = draw_contexts(card.rule, 2, card.context, seed=1)
    run = planted.lens().run(series, card.horizon)
    nodes = sorted({part.component for part in card.parts} | {"decoder.0.mlp"})
    circuit = minimal_circuit(run, nodes=nodes)
    by_circuit = circuit_curve(run, circuit)
    by_ablation = circuit_curve(run, ablation_effects(run, components=nodes), draws=0)
    pair = set(card.components("cancelling"))
    assert not pair & set(by_circuit["component"].values[:4])
    kept = by_circuit.sel(direction="best kept")
    overshoot = by_ablation.sel(direction="best kept")
    assert (kept["cmd"] < overshoot["cmd"]).all()
    assert (overshoot["cpr"] > 1).all()
    assert "CPR of 5 random orders" in str(read_curve(by_circuit))
    assert "random orders" not in str(read_curve(by_ablation))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ranking": {}}, "ranking is empty"),
        ({"ranking": "decoder.0.mlp"}, "ranking is a str"),
        ({"ranking": {"decoder.0.mlp": "high"}}, "the score of decoder.0.mlp"),
        ({"ranking": {"decoder.0.mpl": 1.0}}, "decoder.0.mlp"),
        ({"ranking": RANKING, "nodes": ["decoder.0.*_attn.*"]}, "has no score of"),
        ({"ranking": RANKING, "draws": -1}, "draws is -1"),
        ({"ranking": RANKING, "draws": True}, "draws is True"),
        ({"ranking": RANKING, "most": True}, "most is True"),
        ({"ranking": RANKING, "variable": "odds"}, "variable='odds'"),
        ({"variable": "odds"}, "ranking is None"),
    ],
)
def test_rankings_without_scores_are_refused(
    arguments: dict[str, object], message: str
) -> None:
    """A ranking that lacks a score is refused, and named."""
    run = lens_of("chronos-bolt").run(bundled("co2").tail(40), 4)
    expect_error(message, circuit_curve, run, **arguments)
    result = minimal_circuit(run, nodes=["decoder.*.mlp"])
    expect_error("taken", circuit_curve, run, result, variable="takn")
    expect_error("no numbers over", circuit_curve, run, run.dataset())


def test_one_random_order_has_no_range() -> None:
    """Counts of numpy are counts, and a sentence on one order is singular."""
    run = lens_of("chronos-bolt").run(bundled("co2").tail(40), 4)
    result = circuit_curve(run, RANKING, draws=np.int64(1), most=np.int64(2))
    text = str(read_curve(result))
    assert "a random order" in text
    assert "1 random orders" not in text
