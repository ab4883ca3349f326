"""The stated rules of a verdict, one by one, on proofs that are written down."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from tsfm_lens.core.verdict import (
    ALIKE,
    BEYOND,
    EXCHANGED,
    EXPLAINED,
    MARGIN,
    SEGMENT_CONTROLS,
    SIGNED,
    SLOPES,
)
from tsfm_lens.explain import verdict
from tsfm_lens.explain.faithfulness import CONTROLS
from tsfm_lens.report.cards import make_cards
from tsfm_lens.viz.faithfulness import read_tests

DRAWS = 39
"""So many that 5 % of them can be told."""
HOLD = {
    "necessity": 0.9,
    "necessity_p": 0.03,
    "sufficiency": 0.9,
    "sufficiency_p": 0.03,
    "prediction_error": 0.1,
}


def curves(
    r2: float = 0.9, slope: float = 1.0, sign: float = 0.95, **tried: float
) -> xr.Dataset:
    """Of an explanation that agrees with what was measured, and of controls that do
    not.
    """
    of = dict.fromkeys(CONTROLS, -1.0) | {
        name.replace("_", " "): value for name, value in tried.items()
    }
    marks = {"r2": r2, "slope": slope, "sign_agreement": sign}
    return xr.Dataset(
        {name: ("explanation", [value]) for name, value in marks.items()}
        | {"control_r2": (("explanation", "control"), [list(of.values())])},
        coords={"explanation": ["mine"], "control": list(of)},
        attrs={"kind": "deletion_curves"},
    )


def by_segment(
    zero: tuple[float, float],
    flipped: tuple[float, float] = (-1.0, -1.0),
    agreement: tuple[float, float] = (1.0, 1.0),
) -> xr.Dataset:
    """Of two segments, without whose effects, or with the other signs, it predicts so
    well, and how clear each is.
    """
    controls = np.stack([zero, flipped], axis=-1)
    return (
        curves(r2=0.9)
        .assign(
            segment_control_r2=(
                ("explanation", "segment", "segment_control"),
                controls[None],
            ),
            segment_agreement=(("explanation", "segment"), np.array(agreement)[None]),
        )
        .assign_coords(
            segment=["x1, future", "x2, future"], segment_control=list(SEGMENT_CONTROLS)
        )
    )


def routes(*segments: dict[str, float]) -> xr.Dataset:
    """Of segments in the order of their effects; what is not given is of routes that
    hold.
    """
    given = {
        name: ("segment", [segment.get(name, value) for segment in segments])
        for name, value in HOLD.items()
    }
    trimmed = ("segment", "cut"), [["0.mlp", "1.mlp", "all together"]] * len(segments)
    drawn = ("segment", "draw"), np.zeros((len(segments), DRAWS))
    return xr.Dataset(
        {
            **given,
            "random_necessity": drawn,
            "random_sufficiency": drawn,
            "cut_name": trimmed,
        },
        coords={"segment": [f"part {number}" for number in range(len(segments))]},
        attrs={"kind": "route_faithfulness"},
    )


def with_random(proof: xr.Dataset, name: str, share: float) -> xr.Dataset:
    """With random sets that remove, or bring back, such a share of the effect."""
    return proof.assign(
        {f"random_{name}": xr.full_like(proof[f"random_{name}"], share)}
    )


NONE = {"necessity": 0.1, "sufficiency": 0.1, "prediction_error": 2.0}


@pytest.mark.parametrize(
    ("proofs", "word"),
    [
        ([curves()], "holds"),
        ([curves(EXPLAINED, SLOPES[0], SIGNED)], "holds"),
        ([curves(r2=EXPLAINED - 0.01)], "fails"),
        ([curves(sign=SIGNED - 0.01)], "fails"),
        *(
            ([curves(slope=slope)], "fails")
            for slope in (SLOPES[0] - 0.01, SLOPES[1] + 0.01, -1.0)
        ),
        *(
            ([curves(**{name: 0.9})], "fails")
            for name in ("signs_flipped", "equal_sizes", "the_untrained_twin")
        ),
        # two segments alike can change places, and a control that a model refuses is
        # none
        ([curves(**{EXCHANGED: 0.9 + MARGIN - 0.01})], "holds"),
        ([curves(**{EXCHANGED: 0.9 + MARGIN + 0.01})], "fails"),
        ([curves(the_untrained_twin=np.nan)], "holds"),
        ([curves(r2=np.nan)], "fails"),
        # the other sign must predict worse for each segment whose effect is clear; an
        # effect of 0 need not
        ([by_segment((0.89, 0.2))], "holds"),
        ([by_segment((0.9, 0.2))], "holds"),
        ([by_segment((0.2, 0.95), (0.1, 0.89))], "holds"),
        ([by_segment((0.2, 0.95), (0.1, 0.9))], "fails"),
        ([by_segment((0.95, 0.2), (0.91, 0.1))], "fails"),
        ([by_segment((0.95, 0.2), (0.91, 0.1), (ALIKE - 0.01, 1.0))], "holds"),
        ([by_segment((0.95, 0.2), (0.91, 0.1), (ALIKE, 1.0))], "fails"),
        ([routes({})], "holds"),
        # half or more, and more than all but 5 % of random sets
        ([routes({"necessity": 0.5, "sufficiency": 0.5})], "holds"),
        *(
            ([routes({name: value})], "holds in part")
            for name, value in (
                ("necessity", 0.49),
                ("sufficiency", 0.49),
                ("prediction_error", 0.5),
            )
        ),
        # what overturns the effect does not carry it
        *(([routes({name: 1.5})], "holds") for name in ("necessity", "sufficiency")),
        *(
            ([routes({name: value})], "holds in part")
            for name in ("necessity", "sufficiency")
            for value in (1.51, 2.55)
        ),
        ([routes({"necessity": 2.55, "sufficiency": 2.55})], "fails"),
        # random sets that come as near carry as much, whether they fall short or
        # overturn
        *(
            ([routes({}).pipe(with_random, name, 0.97)], "holds in part")
            for name in ("necessity", "sufficiency")
        ),
        (
            [routes({"sufficiency": 1.0}).pipe(with_random, "sufficiency", 1.03)],
            "holds in part",
        ),
        (
            [routes({"sufficiency": 1.0}).pipe(with_random, "sufficiency", 1 - BEYOND)],
            "holds",
        ),
        (
            [routes({"sufficiency": 1.0}).pipe(with_random, "sufficiency", 1 + BEYOND)],
            "holds",
        ),
        (
            [
                routes({"sufficiency": 1.0}).pipe(
                    with_random, "sufficiency", 1.01 - BEYOND
                )
            ],
            "holds in part",
        ),
        *(
            ([routes({f"{name}_p": 0.08})], "holds in part")
            for name in ("necessity", "sufficiency")
        ),
        ([routes(NONE)], "fails"),
        # random sets, too, may predict
        ([routes({**NONE, "prediction_error": 0.1})], "fails"),
        *(
            ([routes({**NONE, name: 0.9})], "holds in part")
            for name in ("necessity", "sufficiency")
        ),
        # what matters most decides
        ([routes({}, NONE)], "holds in part"),
        ([routes(NONE, {})], "fails"),
        ([curves(), routes({})], "holds"),
        ([curves(r2=0.1), routes({})], "fails"),
        ([curves(), routes({}, NONE)], "holds in part"),
    ],
)
def test_rules(proofs: list[xr.Dataset], word: str) -> None:
    assert verdict(*proofs)[0] == word


def test_pages_say_that_only_routes_were_tested() -> None:
    """Without masking, neither the sentence nor the card judges the inputs."""
    page = {"verdict": "holds in part", "reason": "Weak point: part 1.", "masked": 0}
    found = routes({}, NONE).assign_attrs(page).expand_dims(series=["a"])
    assert "tests of routes alone" in read_tests(found.isel(series=0))[0]
    results = {"route_faithfulness": found}
    (card,) = make_cards(results, dict.fromkeys(results, "s1"))
    assert card["cards"]["a"]["big"].startswith("only routes were tested")
    # with masking, the card is that of the masking test
    assert not make_cards(
        {"route_faithfulness": found.assign_attrs(masked=1)}, {"route_faithfulness": ""}
    )
