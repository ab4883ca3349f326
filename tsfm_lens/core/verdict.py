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
"""How far from all of a segment's effect may be what routes remove, or bring back.

It is a share of the effect.
"""
BEYOND = 0.25
"""How much nearer to all of the effect named routes must come than random sets.

It is a share of the segment's effect, and compared with the median of the sets.
"""
EXPLAINED = 0.7
SIGNED = 0.8
SLOPES = (2 / 3, 1.5)
MARGIN = 0.05
ALIKE = 0.3
"""In this order: least R² of predicted effects, least share of effect with the right
sign, bounds of the slope, how much better an exchange of two segments' effects may
predict, and least agreement of sets on what a segment does. Chosen on drawn cases, see
``docs/howto/verdict.md``."""
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
EXCHANGED = "two segments exchanged"
"""Name of the control that may do better by a margin.

Two segments with equal effects can change places without any loss.
"""

Word = Literal["holds", "holds in part", "fails"]

# by test: the adjective of routes that pass it, and what is said of the share of the
# segment's effect that they remove or bring back: as a rule, if it is below 0, and if
# it is far above 1
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
        The verdict in a word, and a sentence for each test, by :data:`RULES`; that
        which decides is the first.

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
    decisive: list[Word] = []
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
        # segments stand in the order of their effects
        decisive.append(test_verdicts[0])
        sentences += reasons
    word: Word = "holds in part"
    if "fails" in decisive:
        word = "fails"
    elif set(verdicts) == {"holds"}:
        word = "holds"
    # the sort is stable: what fails first, then what holds in part
    order = sorted(
        range(len(verdicts)),
        key=lambda i: ("fails", "holds in part", "holds").index(verdicts[i]),
    )
    return word, [sentences[i] for i in order]


def _of_curves(curves: xr.Dataset) -> tuple[list[Word], list[str]]:
    first = curves.isel(explanation=0)
    explained, slope, signed = (
        float(first[name]) for name in ("r2", "slope", "sign_agreement")
    )
    if not np.isfinite(explained):
        return ["fails"], [
            "Scores without signs and sizes predict no effect: the inputs fail."
        ]
    names = first["control"].values
    values = first["control_r2"].values
    controls = {
        str(name): float(value)
        for name, value in zip(names, values, strict=True)
        # NaN is a control that was not tried
        if value == value
    }
    better = [
        name
        for name, value in controls.items()
        if value >= explained + (MARGIN if name == EXCHANGED else 0.0)
    ]
    undecided, failing = _by_segment(first)
    verb = "predicts" if len(better) == 1 else "predict"
    faults = {
        f"R² is below {EXPLAINED:g}": explained < EXPLAINED,
        f"the slope is not between {SLOPES[0]:.2g} and {SLOPES[1]:.2g}": (
            not SLOPES[0] <= slope <= SLOPES[1]
        ),
        f"less than {100 * SIGNED:.0f} % of the change has the right sign": (
            signed < SIGNED
        ),
        f"{_few(better)} {verb} as well or better": bool(better),
        f"with the other sign for {_few(failing)}, it predicts as well or better": bool(
            failing
        ),
    }
    reasons = [fault for fault, is_found in faults.items() if is_found]
    # the text names the strongest of those that must be worse without a margin
    best = max(
        (name for name in controls if name != EXCHANGED),
        key=lambda name: controls[name],
    )
    conclusion = "the inputs hold"
    if reasons:
        conclusion = f"the inputs fail, since {_few(reasons, 4)}"
    sentence = (
        f"Effects by {first['explanation'].item()} predict masking of one and two"
        f" segments with R² {_floored(explained):.2f}"
        f" ({controls[best]:.2f} with {best}), slope {slope:.2f} and the right sign"
        f" for {100 * _floored(signed):.0f} % of the change: {conclusion}."
    )
    if undecided:
        noun = "effects" if len(undecided) > 1 else "effect"
        sentence += (
            f" The test cannot tell from zero the {noun} of {_few(undecided, 6)}."
        )
    return ["fails" if reasons else "holds"], [sentence]


def _by_segment(test: xr.Dataset) -> tuple[list[str], list[str]]:
    """Return two lists of segments, by their controls.

    The effects of the first cannot be told from zero; with flipped sign, those of the
    second predict as well or better.
    """
    if "segment_control_r2" not in test:
        return [], []
    agreed = test["segment_agreement"] >= ALIKE
    as_good = test["segment_control_r2"] >= test["r2"]
    zero, flipped = (as_good.sel(segment_control=name) for name in SEGMENT_CONTROLS)
    failing = agreed & flipped
    undecided = ~agreed | (zero & ~flipped)
    names = test["segment"].values.astype(str)
    return list(names[undecided]), list(names[failing])


def _floored(value: float) -> float:
    """Round down, so that what is below a bound of two digits reads so."""
    return float(np.floor(100 * value + 1e-9) / 100)


def _of_routes(test: xr.Dataset) -> tuple[list[Word], list[str]]:
    verdicts: list[Word] = []
    reasons: list[str] = []
    # the p-value if no draw comes as near, as the routes themselves count as one
    smallest = 1 / (1 + test.sizes["draw"])
    for index, segment in enumerate(test["segment"].values):
        routes = test.isel(segment=index)
        # the last entry is all components together, and shorter rows end in ""
        names = [str(name) for name in routes["cut_name"].values[:-1] if name]
        properties = []
        parts = []
        for name, (adjective, *phrases) in _SHARES.items():
            value = float(routes[name])
            random = routes[f"random_{name}"].values
            if _is_carried(value, random, float(routes[f"{name}_p"]), smallest):
                properties.append(adjective)
            phrase = phrases[0]
            if value < 0:
                phrase = phrases[1]
            elif value > 1 + HALF:
                phrase = phrases[2]
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
        # so written, a NaN is said as well
        if not error < HALF:
            reasons[-1] += (
                " The forecast without the segment is predicted with an error of"
                f" {100 * error:.0f} %."
            )
    return verdicts, reasons


def _is_carried(share: float, random: np.ndarray, p: float, smallest: float) -> bool:
    """Test whether routes carry a segment's effect.

    They must account for about all of it, and come clearly nearer to all than random
    sets.
    """
    distance = abs(1 - share)
    random_distance = float(np.median(np.abs(1 - random)))
    # with few draws, the smallest p-value that there is must be enough
    return (
        distance <= HALF
        and random_distance - distance >= BEYOND
        and p <= max(1 - CONFIDENCE, smallest)
    )


def _few(names: list[str], max_names: int = 3) -> str:
    first = names[:max_names]
    if len(names) > max_names:
        return f"{', '.join(first)} and {len(names) - max_names} more"
    if len(first) < 2:
        return ", ".join(first)
    return f"{', '.join(first[:-1])} and {first[-1]}"


_JUDGES = {
    "deletion_curves": (_of_curves, RULES[:2]),
    "route_faithfulness": (_of_routes, RULES[2:4]),
}
