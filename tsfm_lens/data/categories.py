"""Covariates as numbers or categories.

Text, truth values and what is declared so are categories, everything else is numbers. A
category keeps its level as a code from 0, in the order of a pandas category, else
sorted. Whether text is a quantity cannot be seen from its form: a file of text has no
types, so that numbers in it are read as numbers, while a typed table or entry has
declared what it holds. Read :func:`read_covariate` first.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from tsfm_lens.core.errors import InputError, unknown_name
from tsfm_lens.data.text import NUMBER
from tsfm_lens.data.values import id_texts, is_missing, plain_array, to_floats

Coded = tuple[np.ndarray, tuple[str, ...] | None]
"""Numbers (step,), and the levels whose indices they are.

A covariate of numbers has None in place of levels.
"""
TRUTHS = ("False", "True")
"""Levels of truth values, which are numbers, too: 0 and 1."""
_MAX_LEVELS = 8  # that a note lists
# a currency before the number, and a unit or a percent sign after it
_BEFORE = r"(?:[A-Z]{3}\s+|[A-Z]{0,3}[^\w\s(),.'-]{1,2}\s*)"  # EUR, US$
_UNIT = r"(?:[^\w\s(),.'-]{0,2}\s*[^\W\d_]{0,12}(?:/\s*[^\W\d_]{1,8}[²³23]?)?\.?)"
_QUANTITY = re.compile(
    rf"\(?\s*[-+−]?\s*{_BEFORE}?[-+−]?\s*\d[\d.,'’\s]*{_UNIT}\s*\)?-?"
)


def read_covariate(column: pd.Series, name: str, declared: bool = False) -> Coded:
    """Read a covariate (step,) of a frame.

    Args:
        column: of any type.
        name: for messages.
        declared: whether the values are categories, whatever they look like.

    Returns:
        Values (step,), and the names of the categories, None for numbers.

    Raises:
        InputError: text beside numbers, or quantities with a sign or unit that are not
            declared.
    """
    kind = column.dtype
    if isinstance(kind, pd.CategoricalDtype):
        # all categories of the type, also those without a cell, since their order was
        # given by the user
        return _coded(column.cat.codes.to_numpy(), kind.categories, name)
    # before numbers, among which pandas counts truth values
    if pd.api.types.is_bool_dtype(kind):
        return to_floats(column.to_numpy(), f"column {name!r}"), TRUTHS
    if pd.api.types.is_numeric_dtype(kind):
        if declared:
            return _coded(*pd.factorize(column, sort=True), name)
        return to_floats(column.to_numpy(), f"column {name!r}"), None
    return read_cells(plain_array(column, f"covariate {name!r}"), name, declared)


def read_cells(cells: np.ndarray, name: str, declared: bool = False) -> Coded:
    """Read a covariate (step,) whose cells are of any type.

    Returns:
        Values (step,), and the names of the categories, None for numbers.
    """
    if cells.dtype.kind in "OUS":
        cell_list = cells.tolist()
    else:
        cell_list = []
    # one kind of missing cell, which ``factorize`` leaves out with the code -1
    objects = [None if is_missing(cell) else cell for cell in cell_list]
    present = [cell for cell in objects if cell is not None]
    texts = [cell for cell in present if isinstance(cell, str)]
    if not texts:
        is_truth = cells.dtype.kind == "b" or (
            present and all(isinstance(cell, bool | np.bool_) for cell in present)
        )
        numbers = to_floats(cells, f"covariate {name!r}")
        if declared and not is_truth:
            return _coded(*pd.factorize(pd.Series(numbers), sort=True), name)
        return numbers, TRUTHS if is_truth else None
    other = next((cell for cell in present if not isinstance(cell, str)), None)
    if other is not None:
        raise InputError(
            f"covariate {name!r} holds text ({texts[0]!r}) beside {other!r}; make"
            " numbers of all values, or text of all, which is categories"
        )
    # sorted, so that the codes do not depend on which level comes first in the rows
    codes, levels = pd.factorize(pd.Series(objects, dtype=object), sort=True)
    folded = [level.strip().lower() for level in levels]
    # a file of text has no truth values, only their words
    if {*folded} <= {"false", "true"}:
        # a missing value has the code -1, which takes the last entry
        truths = np.array([*(level == "true" for level in folded), np.nan])
        return truths[codes], TRUTHS
    if not declared:
        check_quantities(levels, name)
    return _coded(codes, levels, name)


def _coded(codes: np.ndarray, levels: pd.Index, name: str) -> Coded:
    """Return codes (step,) as numbers, and the names of their levels.

    A code of -1, which is a missing value, becomes NaN.
    """
    numbers = np.where(codes < 0, np.nan, codes.astype(np.float64))
    return numbers, tuple(map(str, id_texts(levels.to_series(), name)))


def check_quantities(levels: Collection[str], name: str) -> None:
    """Refuse text of which most are numbers with a sign, a unit or a percent.

    As categories, they would lose their order.
    """
    plain = {level for level in levels if re.fullmatch(NUMBER, level.strip())}
    quantities = [
        level
        for level in levels
        if level not in plain and _QUANTITY.fullmatch(level.strip())
    ]
    # labels such as "3 rooms" among words are categories; where most levels are
    # amounts, so is the column
    if quantities and 2 * (len(quantities) + len(plain)) > len(levels):
        raise InputError(
            f"covariate {name!r} holds {quantities[0]!r}, a number with a sign or a"
            f" unit; write the numbers alone, or give categories={[name]!r} to read its"
            f" {len(levels)} texts as categories"
        )


def category_notes(
    covariates: Mapping[str, Coded], declared: Collection[str]
) -> list[str]:
    """List notes on the covariates that are read as categories.

    A note has the first levels. Truth values need no note.

    Returns:
        The notes, one for each covariate.
    """
    notes = []
    for name, (_, levels) in covariates.items():
        if levels is None or levels == TRUTHS:
            continue
        listing = ", ".join(map(repr, levels[:_MAX_LEVELS]))
        more = ""
        if len(levels) > _MAX_LEVELS:
            more = f", … ({len(levels)} levels)"
        doubtful = name not in declared and all(
            re.fullmatch(NUMBER, level.strip()) for level in levels
        )
        cure = ""
        if doubtful:
            cure = "; make them numbers if they are quantities"
        notes.append(f"covariate {name!r} is read as categories: {listing}{more}{cure}")
    return notes


def alike(past: pd.DataFrame, ahead: pd.DataFrame) -> list[pd.DataFrame]:
    """Give columns of a future the categories of their past.

    Joining the two frames would lose them otherwise. Levels that only the future has
    come last.

    Returns:
        The past and the future.
    """
    kinds: dict[Any, pd.CategoricalDtype] = {}
    for name in past.columns.intersection(ahead.columns):
        kind = past[name].dtype
        if isinstance(kind, pd.CategoricalDtype):
            levels = kind.categories.tolist()
            known = set(levels)
            # the future may have categories of its own, or plain text: only its values
            # count
            present = ahead[name].dropna().unique().tolist()
            added = [level for level in present if level not in known]
            kinds[name] = pd.CategoricalDtype([*levels, *added])
    return [past.astype(kinds), ahead.astype(kinds)]


def declared_names(categories: Sequence[str], covariates: Collection[str]) -> set[str]:
    """Return the covariates that are declared as categories.

    Raises:
        InputError: a declared name is no covariate.
    """
    for name in categories:
        if name not in covariates:
            listing = ""
            if covariates:
                listing = f"; covariates are {', '.join(map(repr, covariates))}"
            raise InputError(
                f"categories names {name!r}, which is no covariate; name it in"
                f" known=[…] or past=[…], too{listing}"
            )
    return {*categories}


def category_code(word: str, levels: Sequence[str], name: str) -> float:
    """Return the code of a level that is named in words.

    Truth values may also be given as 0 and 1.
    """
    if levels == TRUTHS:
        word = {"0": "False", "1": "True"}.get(word, word.capitalize())
    if word not in levels:
        raise unknown_name(f"category of {name!r}", word, levels)
    return float(list(levels).index(word))
