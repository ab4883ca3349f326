"""The stated rules of a verdict, one by one, on proofs that are written down."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from tsfm_lens.explain import verdict
from tsfm_lens.verdict import rules_of
from tsfm_lens.viz.input_attribution import read_proof

DRAWS = 39
"""So many that 5 % of them can be told."""
HOLD = {"necessity": 0.9, "necessity_p": 0.03, "sufficiency": 0.9, "sufficiency_p": 0.03, "prediction_error": 0.1}


def curves(area: float, p: float, rival: float | None = None, below: float = 1.0) -> xr.Dataset:
    """Of an order on trial, of whose random orders the share ``below`` has a smaller area, and of a rival."""
    areas = [area] if rival is None else [area, rival]
    drawn = np.where(np.arange(DRAWS) < round(below * DRAWS), area - 1, area + 1)
    return xr.Dataset(
        {"area": ("explanation", areas), "p": ("explanation", [p] * len(areas)), "random_area": ("draw", drawn)},
        coords={"explanation": ["mine", "theirs"][: len(areas)]},
        attrs={"kind": "deletion_curves"},
    )


def routes(*segments: dict[str, float]) -> xr.Dataset:
    """Of segments in the order of their effects; what is not given is of routes that hold."""
    given = {name: ("segment", [each.get(name, value) for each in segments]) for name, value in HOLD.items()}
    cut = ("segment", "cut"), [["0.mlp", "1.mlp", "all together"]] * len(segments)
    drawn = ("segment", "draw"), np.zeros((len(segments), DRAWS))
    return xr.Dataset(
        {**given, "random_necessity": drawn, "random_sufficiency": drawn, "cut_name": cut},
        coords={"segment": [f"part {number}" for number in range(len(segments))]},
        attrs={"kind": "route_faithfulness"},
    )


NONE = {"necessity": 0.1, "sufficiency": 0.1, "prediction_error": 2.0}


@pytest.mark.parametrize(
    ("proofs", "word"),
    [
        ([curves(0.3, 0.025)], "holds"),
        # above 0, and above all but 5 % of random orders
        ([curves(0.3, 0.05)], "holds"),
        ([curves(0.3, 0.08)], "fails"),
        ([curves(-0.1, 0.025)], "fails"),
        ([curves(0.3, 0.025, rival=0.4)], "holds in part"),
        ([curves(0.3, 0.025, rival=0.2)], "holds"),
        ([routes({})], "holds"),
        # half or more, and more than all but 5 % of random sets
        ([routes({"necessity": 0.5, "sufficiency": 0.5})], "holds"),
        *(
            ([routes({name: value})], "holds in part")
            for name, value in (("necessity", 0.49), ("sufficiency", 0.49), ("prediction_error", 0.5))
        ),
        *(([routes({f"{name}_p": 0.08})], "holds in part") for name in ("necessity", "sufficiency")),
        ([routes(NONE)], "fails"),
        # what matters most decides
        ([routes({}, NONE)], "holds in part"),
        ([routes(NONE, {})], "fails"),
        ([curves(0.3, 0.025), routes({})], "holds"),
        ([curves(0.3, 0.08), routes({})], "fails"),
        ([curves(0.3, 0.025), routes({}, NONE)], "holds in part"),
    ],
)
def test_rules(proofs: list[xr.Dataset], word: str) -> None:
    assert verdict(*proofs)[0] == word


def test_few_draws_are_judged_by_what_they_can_show_at_best() -> None:
    few = curves(0.3, 0.2).isel(draw=slice(4))
    assert verdict(few)[0] == "holds"
    assert verdict(few.assign(p=few["p"] + 0.2))[0] == "fails"


@pytest.mark.parametrize("proof", [routes({}, NONE), curves(0.3, 0.025, rival=0.4)], ids=["routes", "curves"])
def test_a_section_begins_with_the_verdict(proof: xr.Dataset) -> None:
    word, said = verdict(proof)
    first, *rest = read_proof(proof)
    assert first == f"By the rules below the explanation {word}. {said[0]}"
    assert tuple(rest) == (*said[1:], *rules_of(proof))


@pytest.mark.parametrize(
    ("proof", "said"),
    [
        (
            curves(0.3, 0.08, below=36 / DRAWS),
            "sooner than in 92 % of 39 random orders (area between the curves 0.30): the order does not hold.",
        ),
        (curves(0.3, 0.025, rival=0.4), "theirs orders the segments better."),
        (
            routes({}),
            "Of part 0, cutting 0.mlp and 1.mlp takes 90 % of its effect away (random components 0 %), restoring "
            "them brings 90 % of it back (random components 0 %): the routes are necessary and sufficient.",
        ),
        (routes({"necessity": 0.2}), "the routes are sufficient."),
        (routes({**NONE, "sufficiency": -0.2}), "brings nothing of it back but takes 20 % more away"),
        (
            routes(NONE),
            "neither necessary nor sufficient. The forecast without the segment is predicted with an error of 200 %.",
        ),
    ],
)
def test_sentences(proof: xr.Dataset, said: str) -> None:
    assert said in " ".join(verdict(proof)[1])
