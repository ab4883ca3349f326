"""Which order is the better one, and which layer needs its heads most, on planted errors whose answer is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from simulated_studies import study

from tsfm_lens.sweep.plan.config import Statistics
from tsfm_lens.sweep.results.gathering import Results, curves, heads_at
from tsfm_lens.sweep.statistics.scores import per_series

LOW, HIGH = "stable_rank:low", "stable_rank:high"
# log rise of the error by layer, order and heads ablated: in layer 0 one order is far better, in layer 1 none is
RISES = {
    (0, LOW, 1): 0.0,
    (0, HIGH, 1): 0.4,
    (0, "random:0", 1): -0.3,
    (1, LOW, 1): 0.001,
    (1, HIGH, 1): 0.0,
    (0, LOW, 2): 1.0,
    (1, LOW, 2): 0.1,
}


def planted() -> tuple[Results, list[dict[str, Any]]]:
    rng = np.random.default_rng(0)
    plain = {f"d{number:02d}": list(rng.random(3) + 0.5) for number in range(14)}
    errors, lines = {"plain": plain, "seasonal_naive": plain}, []
    for (layer, order, ablated), rise in RISES.items():
        name = f"{layer}-{order}-{ablated}"
        errors[name] = {d: [e * np.exp(rise + 0.02 * rng.normal()) for e in each] for d, each in plain.items()}
        # all heads of a layer are one variant in every order
        for each in (LOW, HIGH) if ablated == 2 else (order,):
            own = {"model": "m", "family": "head_counts", "label": name, "variant": name, "layer": layer}
            lines.append(own | {"order": each, "ablated": ablated, "of": 2})
    found = [
        {"model": "m", "layer": layer, "order": order, "of": 2, "kept": 1, "change": float(np.expm1(rise))}
        | {"evaluations": 2, "total": 2}
        for (layer, order, ablated), rise in RISES.items()
        if ablated == 1
    ]
    return Results(per_series(study(errors)), pd.DataFrame(lines), {"m": 2}, Statistics(), 0), found


def test_orders_and_layers_stand_where_they_were_planted_and_nowhere_else() -> None:
    results, found = planted()
    kept = heads_at(results, found, 0.05, "MASE", "scan")
    assert kept is not None
    best = kept[kept["better"]].set_index("layer")
    # chance does not win, though it costs least
    assert best["order"].to_dict() == {0: LOW, 1: HIGH}
    assert best["order_stands"].to_dict() == {0: True, 1: False}
    assert best["leads"].to_dict() == {0: "highest", 1: "lowest"}
    drawn = curves(results, kept, 0.05)
    assert drawn is not None
    assert drawn.groupby("layer")["within"].agg(set).to_dict() == {0: {1}, 1: {1}}
    assert set(drawn.loc[drawn["better"], "order"][drawn["layer"] == 0]) == {LOW}
    assert drawn.loc[drawn["layer"] == 0, "order_stands"].all()
    before = curves(results, None, 0.05)
    assert before is not None
    assert not before["better"].any()
    assert set(before["within"]) == {-1}
