"""Verdict on a proof, by stated rules: an explanation holds, holds in part, or fails."""

from __future__ import annotations

from typing import Literal

import numpy as np
import xarray as xr

from tsfm_lens.errors import InputError
from tsfm_lens.stats import CONFIDENCE

__all__ = ["RULES", "verdict"]

HALF = 0.5
"""Of a segment's effect: routes must take away, or bring back, so much of it."""
RULES = (
    "An order of segments holds if the area between its deletion and insertion curve is above 0 and above that of all "
    "but 5 % of random orders; it holds in part if a rival's area is larger.",
    "Routes are necessary if the segment's effect loses half or more of its size when they are cut together, and more "
    "than with all but 5 % of random sets of the same kinds; they are sufficient if restoring them brings half or more "
    "back, and more than with all but 5 % of such sets.",
    "Routes hold if they are necessary and sufficient and predict the forecast without the segment: what cutting them "
    "does differs from the segment's effect by less than half of it. They hold in part if any of this is true, and "
    "fail otherwise.",
    "An explanation fails if its order or the routes of the segment that matters most fail; it holds if all hold.",
)
"""The rules, as a report states them."""

_RULES_OF = {"deletion_curves": RULES[:1], "route_faithfulness": RULES[1:3]}

Word = Literal["holds", "holds in part", "fails"]

# what routes do with a share of the segment's effect, and with one below 0: then they work against it
_SHARES = {
    "necessity": ("takes {} of its effect away", "takes nothing of its effect away but adds {} to it"),
    "sufficiency": ("brings {} of it back", "brings nothing of it back but takes {} more away"),
}


def rules_of(proof: xr.Dataset) -> tuple[str, ...]:
    """Return the rules that judge a proof of this kind."""
    return _RULES_OF[proof.attrs["kind"]]


def verdict(*proofs: xr.Dataset) -> tuple[Word, list[str]]:
    """Judge several proofs together.

    Args:
        proofs: of kind "deletion_curves" or "route_faithfulness".

    Returns:
        The verdict in a word, and a sentence for each thing that was tried, by :data:`RULES`.

    Raises:
        InputError: no proof, or a result of another kind.

    Example:
        >>> curves = explain.deletion_curves(run, {"newest first": [0, 1, 2]}, parts=3, reference="mean", orders=4)
        >>> explain.verdict(curves)[0] in ("holds", "fails")
        True
    """
    if not proofs:
        raise InputError("there is no proof to judge: give results of deletion_curves and route_faithfulness")
    words: list[Word] = []
    decisive: list[Word] = []
    sentences: list[str] = []
    for proof in proofs:
        kind = proof.attrs.get("kind")
        if kind not in _JUDGES:
            raise InputError(f"a result of kind {kind!r} proves nothing; give one of {', '.join(_JUDGES)}")
        verdicts, reasons = _JUDGES[str(kind)](proof)
        words += verdicts
        # segments stand in the order of their effects
        decisive.append(verdicts[0])
        sentences += reasons
    word: Word = "fails" if "fails" in decisive else "holds" if set(words) == {"holds"} else "holds in part"
    return word, sentences


def _of_curves(curves: xr.Dataset) -> tuple[list[Word], list[str]]:
    names = [str(name) for name in curves["explanation"].values]
    area, p = curves["area"].values, curves["p"].values
    # what few orders at random can show at best
    smallest = 1 / (1 + curves.sizes["draw"])
    beats = bool(area[0] > 0 and p[0] <= max(1 - CONFIDENCE, smallest))
    share = 100 * (curves["random_area"].values < area[0]).mean()
    reasons = [
        f"Masked in the order of {names[0]}, the forecast moves sooner than in {share:.0f} % of "
        f"{curves.sizes['draw']} random orders (area between the curves {area[0]:.2f}): the order "
        f"{'holds' if beats else 'does not hold'}."
    ]
    better = [name for name, other in zip(names[1:], area[1:], strict=True) if other > area[0]]
    if better and beats:
        reasons.append(f"{' and '.join(better)} order{'s' * (len(better) == 1)} the segments better.")
    return ["fails" if not beats else "holds in part" if better else "holds"], reasons


def _of_routes(proof: xr.Dataset) -> tuple[list[Word], list[str]]:
    words: list[Word] = []
    reasons = []
    smallest = 1 / (1 + proof.sizes["draw"])
    for place, segment in enumerate(proof["segment"].values):
        one = proof.isel(segment=place)
        names = [str(name) for name in one["cut_name"].values[:-1] if name]
        criteria = {}
        parts = []
        for name, ways in _SHARES.items():
            value, p = float(one[name]), float(one[f"{name}_p"])
            criteria[name] = value >= HALF and p <= max(1 - CONFIDENCE, smallest)
            chance = float(np.median(one[f"random_{name}"].values))
            phrase = ways[value < 0].format(f"{100 * abs(value):.0f} %")
            parts.append(f"{phrase} (random components {100 * chance:.0f} %)")
        error = float(one["prediction_error"])
        criteria["prediction"] = error < HALF
        words.append("holds" if all(criteria.values()) else "holds in part" if any(criteria.values()) else "fails")
        what = [name for name, good in zip(("necessary", "sufficient"), criteria.values(), strict=False) if good]
        end = f"the routes are {' and '.join(what)}" if what else "the routes are neither necessary nor sufficient"
        reasons.append(
            f"Of {segment}, cutting {_few(names)} {parts[0]}, restoring {'them' if len(names) > 1 else 'it'} "
            f"{parts[1]}: {end}."
        )
        if not criteria["prediction"]:
            reasons[-1] += f" The forecast without the segment is predicted with an error of {100 * error:.0f} %."
    return words, reasons


def _few(names: list[str]) -> str:
    first = names[:3]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return (", ".join(first) if more or len(first) < 2 else f"{', '.join(first[:-1])} and {first[-1]}") + more


_JUDGES = {"deletion_curves": _of_curves, "route_faithfulness": _of_routes}
