"""Verdict on an explanation, by stated rules: it holds, holds in part, or fails.

:data:`RULES` states the rules in words, and the constants above them have their bounds;
:func:`verdict` applies them to results of faithfulness tests. How the bounds were
chosen is in ``docs/howto/verdict.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
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

_CONTROL = "R² with "
_OTHER_SIGN = "the other sign for "
INPUTS = "inputs"
"""Subject of the checks on all effects together."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that an explanation is asked for, and what it has.

    Attributes:
        subject: the segment whose route is tested, or :data:`INPUTS`.
        name: of the test, such as "cut".
        low, high: bounds between which a value passes.
        asked: the bounds in words.
        random: value of random components, NaN where there are none.
        fault: why the value does not pass, a sentence without its stop; "" if it does.
    """

    subject: str
    name: str
    value: float
    low: float = -np.inf
    high: float = np.inf
    asked: str
    random: float = np.nan
    fault: str = ""

    @property
    def passed(self) -> bool:
        """Test if nothing is at fault."""
        return not self.fault


def list_checks(test: xr.Dataset) -> list[Check]:
    """List all that a faithfulness test asks for, in the order of the result."""
    if test.attrs["kind"] == "deletion_curves":
        return _check_inputs(test)
    segments = range(test.sizes["segment"])
    return [check for at in segments for check in _check_routes(test, at)]


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


def _check_inputs(curves: xr.Dataset) -> list[Check]:
    """Check the effects of the inputs by a test of kind "deletion_curves"."""
    # the first explanation is under test, the others are its rivals
    first = curves.isel(explanation=0)
    r2, slope, signed_share = (
        float(first[name]) for name in ("r2", "slope", "sign_agreement")
    )
    faults = ["", "", ""]
    # scores rank the segments and state no effects, so that their R² is NaN
    if not np.isfinite(r2):
        faults[0] = "Scores without signs and sizes predict no effect"
    elif r2 < EXPLAINED:
        faults[0] = f"R² is {_floored(r2):.2f}, and {EXPLAINED:g} is needed"
    checks = [
        Check(
            subject=INPUTS,
            name="R² of predicted effects",
            value=r2,
            low=EXPLAINED,
            asked=f"{EXPLAINED:g} or more",
            fault=faults[0],
        )
    ]
    if not np.isfinite(r2):
        return checks
    slopes = f"{SLOPES[0]:.2g} to {SLOPES[1]:.2g}"
    if not SLOPES[0] <= slope <= SLOPES[1]:
        faults[1] = f"The slope is {slope:.2f}, and {slopes} is needed"
    if signed_share < SIGNED:
        faults[2] = (
            f"The sign is right for {100 * _floored(signed_share):.0f} % of the change,"
            f" and {100 * SIGNED:.0f} % is needed"
        )
    checks += [
        Check(
            subject=INPUTS,
            name="slope of measured on predicted",
            value=slope,
            low=SLOPES[0],
            high=SLOPES[1],
            asked=slopes,
            fault=faults[1],
        ),
        Check(
            subject=INPUTS,
            name="share with the right sign",
            value=signed_share,
            low=SIGNED,
            asked=f"{SIGNED:g} or more",
            fault=faults[2],
        ),
    ]
    controls = zip(first["control"].values, first["control_r2"].values, strict=True)
    # NaN is a control that was not tried
    tried = {str(name): float(value) for name, value in controls if value == value}
    bounds = {name: r2 + (MARGIN if name == EXCHANGED else 0.0) for name in tried}
    _, flippable = _judge_segments(first)
    for name in flippable:
        flipped = first["segment_control_r2"].sel(
            segment=name, segment_control=SEGMENT_CONTROLS[1]
        )
        tried[f"{_OTHER_SIGN}{name}"] = float(flipped)
        bounds[f"{_OTHER_SIGN}{name}"] = r2
    for name, value in tried.items():
        fault = ""
        if value >= bounds[name]:
            fault = f"They predict as well or better with {name}"
        checks.append(
            Check(
                subject=INPUTS,
                name=f"{_CONTROL}{name}",
                value=value,
                high=bounds[name],
                asked=f"below {bounds[name]:.3f}",
                fault=fault,
            )
        )
    return checks


def _judge_curves(curves: xr.Dataset) -> tuple[list[Word], list[str]]:
    """Judge the inputs by a test of kind "deletion_curves"."""
    checks = _check_inputs(curves)
    if any(check.fault for check in checks):
        sentences = ["Weak point: the effects of the inputs"]
        sentences += [check.fault for check in checks[:3] if check.fault]
        # what predicts as well in place of the effects
        rivals = [check.name for check in checks[3:] if check.fault]
        if rivals:
            words = _few([name.removeprefix(_CONTROL) for name in rivals])
            sentences.append(f"They predict as well or better with {words}")
        word: Word = "fails"
    else:
        r2, slope, signed_share, *controls = checks
        # the text names the best of the controls, except for the one that has a margin
        best = max(
            (check for check in controls if EXCHANGED not in check.name),
            key=lambda check: check.value,
        )
        sentences = [
            "Effects of the inputs predict masking of one and two segments with R²"
            f" {_floored(r2.value):.2f} ({best.value:.2f} with"
            f" {best.name.removeprefix(_CONTROL)}), slope {slope.value:.2f} and the"
            f" right sign for {100 * _floored(signed_share.value):.0f} % of the change;"
            " all tests pass"
        ]
        word = "holds"
    if undecided := list_undecided(curves):
        noun = "effects" if len(undecided) > 1 else "effect"
        sentences.append(
            f"The test cannot tell from zero the {noun} of {_few(undecided, 6)}"
        )
    return [word], [f"{'. '.join(sentences)}."]


def list_undecided(test: xr.Dataset) -> list[str]:
    """List the segments whose effect a test of the inputs cannot tell from zero."""
    return _judge_segments(test.isel(explanation=0))[0]


def list_standing(test: xr.Dataset) -> list[str]:
    """List the segments whose effects pass a test of the inputs.

    Args:
        test: result of kind "deletion_curves".

    Returns:
        The segments whose effect can be told from zero and predicts worse with its sign
        flipped; none where all effects together fail.
    """
    checks = _check_inputs(test)
    if any(check.fault and _OTHER_SIGN not in check.name for check in checks):
        return []
    undecided, flippable = _judge_segments(test.isel(explanation=0))
    names = test["segment"].values.astype(str).tolist()
    return [name for name in names if name not in {*undecided, *flippable}]


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
    return names[undecided].tolist(), names[flippable].tolist()


def _floored(value: float) -> float:
    """Round down to two digits, so that no value below a bound reads as the bound."""
    return float(np.floor(100 * value + 1e-9) / 100)


def _check_routes(test: xr.Dataset, index: int) -> list[Check]:
    """Check the routes of one segment by a test of kind "route_faithfulness"."""
    # p-value of routes that come nearer than every draw; they count as one set, too
    smallest_p = 1 / (1 + test.sizes["draw"])
    routes = test.isel(segment=index)
    subject = str(test["segment"].values[index])
    bounds = {"low": 1 - HALF, "high": 1 + HALF}
    checks = []
    for variable, name, doing in (
        ("necessity", "cut", "Cutting its route removes"),
        ("sufficiency", "restored", "Restoring its route recovers"),
    ):
        value = float(routes[variable])
        draws = routes[f"random_{variable}"].values
        chance = float(np.median(draws))
        p = float(routes[f"{variable}_p"])
        fault = ""
        if not _is_carried(value, draws, p, smallest_p):
            fault = f"{doing} {round(100 * value)} % of the effect"
            if value > bounds["high"]:
                fault = f"{fault}, far more than all"
            elif value >= bounds["low"]:
                fault = (
                    f"{fault}, and random components come as near"
                    f" ({round(100 * chance)} %)"
                )
            else:
                fault = f"{fault} (half is needed)"
        checks.append(
            Check(
                subject=subject,
                name=name,
                value=value,
                **bounds,
                asked="50 to 150 %, and nearer to all of it than random components",
                random=chance,
                fault=fault,
            )
        )
    error = float(routes["prediction_error"])
    fault = ""
    # written so that a NaN is reported, too
    if not error < HALF:
        fault = (
            "The forecast without it is predicted with an error of"
            f" {100 * error:.0f} % (less than {100 * HALF:.0f} % is needed)"
        )
    checks.append(
        Check(
            subject=subject,
            name="error of prediction",
            value=error,
            high=HALF,
            asked=f"below {100 * HALF:.0f} %",
            fault=fault,
        )
    )
    return checks


def _judge_routes(test: xr.Dataset) -> tuple[list[Word], list[str]]:
    """Judge the routes of each segment by a test of kind "route_faithfulness"."""
    verdicts: list[Word] = []
    reasons: list[str] = []
    for index in range(test.sizes["segment"]):
        checks = _check_routes(test, index)
        cut, restored, _ = checks
        word: Word = "fails"
        if all(check.passed for check in checks):
            word = "holds"
        elif cut.passed or restored.passed:
            word = "holds in part"
        verdicts.append(word)
        # the last entry is all components together; "" fills the rows of segments that
        # have fewer components than others
        cut_names = test["cut_name"].isel(segment=index).values[:-1]
        names = [str(name) for name in cut_names if name]
        if faults := [check.fault for check in checks if check.fault]:
            reasons.append(f"{'. '.join([f'Weak point: {cut.subject}', *faults])}.")
        else:
            reasons.append(
                f"Route of {cut.subject} through {_few(names)}: cutting it removes"
                f" {round(100 * cut.value)} % of the effect (random components"
                f" {round(100 * cut.random)} %), restoring it recovers"
                f" {round(100 * restored.value)} % ({round(100 * restored.random)} %);"
                " all tests pass."
            )
    return verdicts, reasons


def _is_carried(share: float, random: np.ndarray, p: float, smallest_p: float) -> bool:
    """Test whether routes carry a segment's effect.

    The share of it that they account for must be near 1, nearer by ``BEYOND`` than that
    of the median random set, and nearer than that of nearly all sets.

    Returns:
        True if they do.
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
