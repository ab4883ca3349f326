"""Verdict on an explanation, by stated rules: it holds, holds in part, or fails."""

from __future__ import annotations

from typing import Literal

import numpy as np
import xarray as xr

from tsfm_lens.errors import InputError
from tsfm_lens.stats import CONFIDENCE

__all__ = ["RULES", "verdict"]

HALF = 0.5
"""Least share of a segment's effect that routes must remove, or bring back."""
EXPLAINED, SIGNED, SLOPES, MARGIN = 0.7, 0.8, (2 / 3, 1.5), 0.05
"""Least R² of predicted effects and share of effect with the right sign, bounds of the slope, and how much better an
exchange of two segments' effects may predict. Chosen on drawn cases, see ``docs/howto/verdict.md``."""
RULES = (
    "Inputs: one or two segments at a time are masked, and also revealed with all others masked, in a copy of the "
    "series with 5 % noise that the explanation has not seen. The mean of both changes counts. The inputs hold if the "
    f"sums of their effects predict these changes with R² ≥ {EXPLAINED:g}, a slope between {SLOPES[0]:.2g} and "
    f"{SLOPES[1]:.2g} and the right sign for at least {100 * SIGNED:.0f} % of the change. Every control must predict "
    "worse: this explanation with flipped signs, with equal sizes or with two segments exchanged (which may be better "
    f"by {MARGIN:g}), and those of shuffled values and of the untrained twin. The inputs fail otherwise.",
    "Routes state a segment's effect and the components that carry it. They are necessary if cutting these together "
    "removes at least half of that effect, and more than 95 % of random sets of the same kinds. They are sufficient if "
    "restoring them brings back at least half of it, and more than 95 % of such sets.",
    "Routes hold if they are necessary and sufficient and predict the forecast without the segment: the effect they "
    "state differs from that of cutting them by less than half of the latter. They hold in part if they are necessary "
    "or sufficient, and fail otherwise.",
    "An explanation fails if its inputs fail, or the routes of its most important segment. It holds if all hold.",
)
"""The rules, as a report states them."""

EXCHANGED = "two segments exchanged"
"""Name of the control that may do better by a margin: two equal segments can change places."""

Word = Literal["holds", "holds in part", "fails"]

# what routes do with a share of the segment's effect, and with one below 0: then they work against it
_SHARES = {
    "necessity": ("necessary", "removes {} of its effect", "removes none of its effect but adds {} to it"),
    "sufficiency": ("sufficient", "brings {} of it back", "brings none of it back but removes {} more"),
}


def rules_of(test: xr.Dataset) -> tuple[str, ...]:
    """Return the rules that judge a faithfulness test of this kind."""
    return _JUDGES[test.attrs["kind"]][1]


def verdict(*tests: xr.Dataset) -> tuple[Word, list[str]]:
    """Judge the results of several faithfulness tests together.

    Args:
        tests: results of kind "deletion_curves" or "route_faithfulness".

    Returns:
        The verdict in a word, and a sentence for each test, by :data:`RULES`; that which decides is the first.

    Raises:
        InputError: no test, or a result of another kind.

    Example:
        >>> curves = explain.deletion_curves(run, {"newest first": [0, 1, 2]}, parts=3, reference="mean", orders=4)
        >>> explain.verdict(curves)[0]
        'fails'
    """
    if not tests:
        raise InputError("no faithfulness test to judge: give results of deletion_curves and route_faithfulness")
    words: list[Word] = []
    decisive: list[Word] = []
    sentences: list[str] = []
    for test in tests:
        kind = test.attrs.get("kind")
        if kind not in _JUDGES:
            raise InputError(f"a result of kind {kind!r} is not a faithfulness test; give one of {', '.join(_JUDGES)}")
        verdicts, reasons = _JUDGES[str(kind)][0](test)
        words += verdicts
        # segments stand in the order of their effects
        decisive.append(verdicts[0])
        sentences += reasons
    word: Word = "fails" if "fails" in decisive else "holds" if set(words) == {"holds"} else "holds in part"
    # the sort is stable: what fails first, then what holds in part
    order = sorted(range(len(words)), key=lambda i: ("fails", "holds in part", "holds").index(words[i]))
    return word, [sentences[i] for i in order]


def _of_curves(curves: xr.Dataset) -> tuple[list[Word], list[str]]:
    first = curves.isel(explanation=0)
    explained, slope, signed = (float(first[name]) for name in ("r2", "slope", "sign_agreement"))
    if not np.isfinite(explained):
        return ["fails"], ["Scores without signs and sizes predict no effect: the inputs fail."]
    tried = {
        str(n): float(v) for n, v in zip(first["control"].values, first["control_r2"].values, strict=True) if v == v
    }
    better = [name for name, value in tried.items() if value >= explained + MARGIN * (name == EXCHANGED)]
    short = {
        f"R² is below {EXPLAINED:g}": explained < EXPLAINED,
        f"the slope is not between {SLOPES[0]:.2g} and {SLOPES[1]:.2g}": not SLOPES[0] <= slope <= SLOPES[1],
        f"less than {100 * SIGNED:.0f} % of the change has the right sign": signed < SIGNED,
        f"{_few(better)} predict{'s' * (len(better) == 1)} as well or better": bool(better),
    }
    reasons = [reason for reason, true in short.items() if true]
    best = max((name for name in tried if name != EXCHANGED), key=lambda name: tried[name])
    end = f"the inputs fail, since {_few(reasons, 4)}" if reasons else "the inputs hold"
    sentence = (
        f"Effects by {first['explanation'].item()} predict masking of one and two segments with R² "
        f"{_floored(explained):.2f} ({tried[best]:.2f} with {best}), slope {slope:.2f} and the right sign for "
        f"{100 * _floored(signed):.0f} % of the "
        f"change: {end}."
    )
    return ["fails" if reasons else "holds"], [sentence]


def _floored(value: float) -> float:
    """Round down, so that what is below a bound of two digits reads so."""
    return float(np.floor(100 * value + 1e-9) / 100)


def _of_routes(test: xr.Dataset) -> tuple[list[Word], list[str]]:
    words: list[Word] = []
    reasons: list[str] = []
    smallest = 1 / (1 + test.sizes["draw"])
    for place, segment in enumerate(test["segment"].values):
        one = test.isel(segment=place)
        names = [str(name) for name in one["cut_name"].values[:-1] if name]
        good, parts = [], []
        for name, (word, *ways) in _SHARES.items():
            value, chance = float(one[name]), 100 * float(np.median(one[f"random_{name}"].values))
            good += [word] * (value >= HALF and float(one[f"{name}_p"]) <= max(1 - CONFIDENCE, smallest))
            parts.append(f"{ways[value < 0].format(f'{100 * abs(value):.0f} %')} (random components {chance:.0f} %)")
        error = float(one["prediction_error"])
        words.append("holds" if len(good) == 2 and error < HALF else "holds in part" if good else "fails")
        end = f"the routes are {' and '.join(good) or 'neither necessary nor sufficient'}"
        reasons.append(
            f"For {segment}, cutting {_few(names)} {parts[0]}. Restoring {'them' if len(names) > 1 else 'it'} "
            f"{parts[1]}. So {end}."
        )
        if not error < HALF:
            reasons[-1] += f" The forecast without the segment is predicted with an error of {100 * error:.0f} %."
    return words, reasons


def _few(names: list[str], most: int = 3) -> str:
    first = names[:most]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return (", ".join(first) if more or len(first) < 2 else f"{', '.join(first[:-1])} and {first[-1]}") + more


_JUDGES = {"deletion_curves": (_of_curves, RULES[:1]), "route_faithfulness": (_of_routes, RULES[1:3])}
