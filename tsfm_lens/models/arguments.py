"""Checks of the arguments of a forecast that need no model; torch is not imported."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import numpy as np

from tsfm_lens.core.errors import InputError
from tsfm_lens.data import SeriesBatch
from tsfm_lens.data.categories import TRUTHS

# largest number of steps, sample paths, windows or series that a request may name
MOST = 100_000
# divided, not added up, so that each is the number that its decimal is written as
DECILES = tuple(level / 10 for level in range(1, 10))


def is_count(value: Any) -> bool:
    """Return whether a value is an integer from 1 to ``MOST``."""
    # True is an int in Python
    return (
        isinstance(value, int | np.integer)
        and not isinstance(value, bool)
        and bool(1 <= value <= MOST)
    )


def checked_request(
    horizon: Any, quantiles: Iterable[float], num_samples: Any, seed: Any
) -> tuple[int, tuple[float, ...]]:
    """Check horizon, sample count and seed, and the levels, which keep their order."""
    if not is_count(horizon):
        raise InputError(
            f"horizon {horizon!r} is not a number of steps; expected an integer from 1"
            f" to {MOST}"
        )
    try:
        levels = tuple(float(level) for level in quantiles)
    except (TypeError, ValueError):
        levels = ()
    # NaN fails every comparison, and so it is refused here, too
    if not levels or not all(0 < level < 1 for level in levels):
        raise InputError(
            f"quantiles {quantiles!r} are not levels between 0 and 1 (exclusive)"
        )
    if num_samples is not None and not is_count(num_samples):
        raise InputError(
            f"num_samples {num_samples!r} is not a number of sample paths; expected 1"
            f" to {MOST}"
        )
    if not isinstance(seed, int | np.integer) or not 0 <= seed < 2**63:
        raise InputError(f"seed {seed!r} is not an integer from 0 to 2**63 - 1")
    return int(horizon), levels


def check_covariates(
    architecture: str, taken: Collection[str], batch: SeriesBatch
) -> None:
    """Refuse covariates of other kinds than those that an architecture takes."""
    labels = {
        "past": "past covariates",
        "known": "known covariates",
        "categories": "covariates of text",
    }
    for name, role, categories in zip(
        batch.ids, batch.roles, batch.categories, strict=True
    ):
        kinds = [role]
        # truth values are categories that models read as the numbers 0 and 1
        if categories not in (None, TRUTHS):
            kinds.append("categories")
        for kind in kinds:
            if kind != "target" and kind not in taken:
                raise InputError(
                    f"{architecture} takes no {labels[kind]}, such as {name!r};"
                    " batch.targets() leaves them out, and `tsfm-lens models` says"
                    " which models take them"
                )
