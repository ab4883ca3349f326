"""Verdict on an explanation, by stated rules: it holds, holds in part, or fails.

:data:`RULES` states the rules in words, and the constants above them have their bounds;
:func:`verdict` applies them to results of faithfulness tests. How the bounds were
chosen is in ``docs/howto/verdict.md``.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import xarray as xr

from tsfm_lens.core.errors import InputError
from tsfm_lens.core.stats import CONFIDENCE, CONFIDENCE_TEXT

__all__ = ["RULES", "verdict"]

HALF = 0.5
"""Bound on the distance from 1 of the share of an effect that routes account for.

That is the share that cutting them removes, or that restoring them brings back. The
error of the predicted forecast has the same bound.
"""
BEYOND = 0.25
"""How much nearer to 1 that share must be for routes than for the median random set."""
EXPLAINED = 0.7
"""Least R² of predicted effects."""
SIGNED = 0.8
"""Least share of the change that has the predicted sign."""
SLOPES = (2 / 3, 1.5)
"""Bounds of the slope of measured on predicted effects."""
MARGIN = 0.05
"""By how much R² may rise when two segments exchange their effects."""
ALIKE = 0.3
"""Least agreement of the sets that mask a segment on what it does."""
RULES = (
    (
        "Inputs: one or two segments at a time are masked, and also revealed with all"
        " others masked, in a copy of the series with 5 % noise that the explanation"
        " has not seen. The mean of both changes counts. The inputs hold if the sums"
        f" of their effects predict these changes with R² ≥ {EXPLAINED:g}, a slope"
        f" between {SLOPES[0]:.2g} and {SLOPES[1]:.2g} and the right sign for at least"
        f" {100 * SIGNED:.0f} % of the change. Every control must predict worse: this"
        " explanation with flipped signs, with equal sizes or with two segments"
        f" exchanged (which may be better by {MARGIN:g}), and those of shuffled values"
        " and of the untrained twin. The inputs fail otherwise."
    ),
    (
        "Each segment has two more controls. One is this explanation with the"
        " segment's sign flipped: if it predicts as well or better, the inputs fail."
        " The other has the segment's effect at 0: if only this one does, the effect"
        " cannot be told from zero, and the verdict says so. Nor can it if the sets"
        " that mask the segment do not agree on what it does; its controls then do not"
        f" count. Sets agree if the intraclass correlation is at least {ALIKE:g} of"
        " what the other effects leave for the segment, or of what its own misses of"
        " that. The mean of these over the sets must be more than 1 % of what all"
        " segments do."
    ),
    (
        "Routes state a segment's effect and the components that carry it. They are"
        f" necessary if cutting these together removes {100 * (1 - HALF):.0f} to"
        f" {100 * (1 + HALF):.0f} % of that effect. They are sufficient if restoring"
        " them brings back as much. Both must come nearer to all of the effect than"
        f" {CONFIDENCE_TEXT} of random sets of the same kinds, and nearer than the"
        " median of these sets"
        f" by {100 * BEYOND:.0f} % of the effect."
    ),
    (
        "Routes hold if they are necessary and sufficient and predict the forecast"
        " without the segment: the effect they state differs from that of cutting them"
        " by less than half of the latter. They hold in part if they are necessary or"
        " sufficient, and fail otherwise."
    ),
    (
        "An explanation fails if its inputs fail, or the routes of its most important"
        " segment. It holds if all hold."
    ),
)
"""The rules, as a report states them."""

SEGMENT_CONTROLS = ("effect 0", "sign flipped")
"""What is done to the effect of one segment; the other effects stay."""
EXCHANGED = "two segments exchanged"
"""Name of the control that may do better by a margin.

Two segments with equal effects can change places without any loss.
"""

Word = Literal["holds", "holds in part", "fails"]

# by test: the adjective of routes that pass it, and three phrases for the share of the
# segment's effect that they remove or bring back: the usual one, one for a share below
# 0, and one for a share far above 1
_SHARES = {
    "necessity": (
        "necessary",
        "removes {} of its effect",
        "removes none of its effect but adds {} to it",
        "removes {} of its effect, far more than all of it",
    ),
    "sufficiency": (
        "sufficient",
        "brings {} of it back",
        "brings none of it back but removes {} more",
        "brings back {} of it, far more than all",
    ),
}


def find_rules(test: xr.Dataset) -> tuple[str, ...]:
    """Return the rules that judge a faithfulness test of this kind."""
    return _JUDGES[test.attrs["kind"]][1]


def verdict(*tests: xr.Dataset) -> tuple[Word, list[str]]:
    """Judge the results of several faithfulness tests together.

    Args:
        tests: results of kind "deletion_curves" or "route_faithfulness".

    Returns:
        The verdict in a word by :data:`RULES`, and a sentence for the inputs and for
        each segment with routes, the worst first.

    Raises:
        InputError: no test, or a result of another kind.

    Example:
        >>> scores = {"newest first": [0, 1, 2]}
        >>> options = {"parts": 3, "reference": "mean", "orders": 4}
        >>> curves = explain.deletion_curves(run, scores, **options)
        >>> explain.verdict(curves)[0]
        'fails'
    """
    if not tests:
        raise InputError(
            "no faithfulness test to judge: give results of deletion_curves and"
            " route_faithfulness"
        )
    verdicts: list[Word] = []
    first_verdicts: list[Word] = []
    sentences: list[str] = []
    for test in tests:
        kind = test.attrs.get("kind")
        if kind not in _JUDGES:
            raise InputError(
                f"a result of kind {kind!r} is not a faithfulness test; give one of"
                f" {', '.join(_JUDGES)}"
            )
        test_verdicts, reasons = _JUDGES[str(kind)][0](test)
        verdicts += test_verdicts
        # the first is that of the inputs, or of the segment with the largest effect
        first_verdicts.append(test_verdicts[0])
        sentences += reasons
    word: Word = "holds in part"
    if "fails" in first_verdicts:
        word = "fails"
    elif set(verdicts) == {"holds"}:
        word = "holds"
    # first what fails, then what holds in part; otherwise the order is kept
    order = sorted(
        range(len(verdicts)),
        key=lambda i: ("fails", "holds in part", "holds").index(verdicts[i]),
    )
    return word, [sentences[i] for i in order]


def _judge_curves(curves: xr.Dataset) -> tuple[list[Word], list[str]]:
    """Judge the inputs by a test of kind "deletion_curves"."""
    # the first explanation is under test, the others are its rivals
    first = curves.isel(explanation=0)
    r2, slope, signed_share = (
        float(first[name]) for name in ("r2", "slope", "sign_agreement")
    )
    # scores rank the segments and state no effects, so that their R² is NaN
    if not np.isfinite(r2):
        return ["fails"], [
            "Scores without signs and sizes predict no effect: the inputs fail."
        ]
    names = first["control"].values
    values = first["control_r2"].values
    controls = {
        str(name): float(value)
        for name, value in zip(names, values, strict=True)
        # NaN is a control that was not tried
        if not np.isnan(value)
    }
    better_controls = [
        name
        for name, value in controls.items()
        if value >= r2 + (MARGIN if name == EXCHANGED else 0.0)
    ]
    undecided, flippable = _judge_segments(first)
    verb = "predicts" if len(better_controls) == 1 else "predict"
    faults = {
        f"R² is below {EXPLAINED:g}": r2 < EXPLAINED,
        f"the slope is not between {SLOPES[0]:.2g} and {SLOPES[1]:.2g}": (
            not SLOPES[0] <= slope <= SLOPES[1]
        ),
        f"less than {100 * SIGNED:.0f} % of the change has the right sign": (
            signed_share < SIGNED
        ),
        f"{_few(better_controls)} {verb} as well or better": bool(better_controls),
        f"with the other sign for {_few(flippable)}, it predicts as well or better": (
            bool(flippable)
        ),
    }
    reasons = [fault for fault, is_found in faults.items() if is_found]
    # the text names the best of the controls, except for the one that has a margin
    best = max(
        (name for name in controls if name != EXCHANGED),
        key=lambda name: controls[name],
    )
    conclusion = "the inputs hold"
    if reasons:
        conclusion = f"the inputs fail, since {_few(reasons, 4)}"
    sentence = (
        f"Effects by {first['explanation'].item()} predict masking of one and two"
        f" segments with R² {_floored(r2):.2f}"
        f" ({controls[best]:.2f} with {best}), slope {slope:.2f} and the right sign"
        f" for {100 * _floored(signed_share):.0f} % of the change: {conclusion}."
    )
    if undecided:
        noun = "effects" if len(undecided) > 1 else "effect"
        sentence += (
            f" The test cannot tell from zero the {noun} of {_few(undecided, 6)}."
        )
    return ["fails" if reasons else "holds"], [sentence]


def _judge_segments(test: xr.Dataset) -> tuple[list[str], list[str]]:
    """Return the segments that are undecided, and those with a doubtful sign.

    The effect of an undecided one cannot be told from zero. The sign is doubtful if the
    explanation predicts as well or better with the segment's effect flipped.
    """
    if "segment_control_r2" not in test:
        return [], []
    agreed = test["segment_agreement"] >= ALIKE
    as_good = test["segment_control_r2"] >= test["r2"]
    zero, flipped = (as_good.sel(segment_control=name) for name in SEGMENT_CONTROLS)
    flippable = agreed & flipped
    undecided = ~agreed | (zero & ~flipped)
    names = test["segment"].values.astype(str)
    return list(names[undecided]), list(names[flippable])


def _floored(value: float) -> float:
    """Round down to two digits, so that no value below a bound reads as the bound."""
    return float(np.floor(100 * value + 1e-9) / 100)


def _judge_routes(test: xr.Dataset) -> tuple[list[Word], list[str]]:
    """Judge the routes of each segment by a test of kind "route_faithfulness"."""
    verdicts: list[Word] = []
    reasons: list[str] = []
    # p-value of routes that come nearer than every draw; they count as one set, too
    smallest_p = 1 / (1 + test.sizes["draw"])
    for index, segment in enumerate(test["segment"].values):
        routes = test.isel(segment=index)
        # the last entry is all components together; "" fills the rows of segments that
        # have fewer components than others
        names = [str(name) for name in routes["cut_name"].values[:-1] if name]
        properties = []
        parts = []
        for name, (adjective, usual, negative, excessive) in _SHARES.items():
            value = float(routes[name])
            random = routes[f"random_{name}"].values
            if _is_carried(value, random, float(routes[f"{name}_p"]), smallest_p):
                properties.append(adjective)
            phrase = usual
            if value < 0:
                phrase = negative
            elif value > 1 + HALF:
                phrase = excessive
            chance = 100 * float(np.median(random))
            parts.append(
                f"{phrase.format(f'{100 * abs(value):.0f} %')} (random components"
                f" {chance:.0f} %)"
            )
        error = float(routes["prediction_error"])
        word: Word = "fails"
        if len(properties) == 2 and error < HALF:
            word = "holds"
        elif properties:
            word = "holds in part"
        verdicts.append(word)
        summary = " and ".join(properties) or "neither necessary nor sufficient"
        pronoun = "them" if len(names) > 1 else "it"
        reasons.append(
            f"For {segment}, cutting {_few(names)} {parts[0]}. Restoring"
            f" {pronoun} {parts[1]}. So the routes are {summary}."
        )
        # written so that a NaN is reported, too
        if not error < HALF:
            reasons[-1] += (
                " The forecast without the segment is predicted with an error of"
                f" {100 * error:.0f} %."
            )
    return verdicts, reasons


def _is_carried(share: float, random: np.ndarray, p: float, smallest_p: float) -> bool:
    """Test whether routes carry a segment's effect.

    The share of it that they account for must be near 1, nearer by ``BEYOND`` than that
    of the median random set, and nearer than that of nearly all sets.
    """
    distance = abs(1 - share)
    random_distance = float(np.median(np.abs(1 - random)))
    # few draws give no p-value below ``smallest_p``, which must then be enough
    return (
        distance <= HALF
        and random_distance - distance >= BEYOND
        and p <= max(1 - CONFIDENCE, smallest_p)
    )


def _few(names: list[str], max_names: int = 3) -> str:
    first = names[:max_names]
    if len(names) > max_names:
        return f"{', '.join(first)} and {len(names) - max_names} more"
    if len(first) < 2:
        return ", ".join(first)
    return f"{', '.join(first[:-1])} and {first[-1]}"


_JUDGES = {
    "deletion_curves": (_judge_curves, RULES[:2]),
    "route_faithfulness": (_judge_routes, RULES[2:4]),
}
