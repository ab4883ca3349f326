"""Tables of labelled results: a frame of pandas with a row a member.

:func:`tabulate` is ``result.table()``. Tables that stand under figures are made with
the figures.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import xarray as xr

from tsfm_lens.core.errors import InputError, unknown_name
from tsfm_lens.core.estimates import estimated_effects, restore_selected

PARTS = (
    *("size", "low", "high", "acts", "p", "significant", "leads", "lead_share"),
    *("twin_rank", "learned"),
)
"""Statements on an effect, in the order of their columns."""
BRIEF = ("size", "significant", "learned")
"""Those that are shown of each of several effects."""
# what a result has of its run, so that figures of a saved one need no model
_OF_RUN = ("context", "corrupted_context", "truth", "known_future")
_FORECAST_DIMS = {"series", "time", "step", "quantile", "draw"}


def tabulate(
    result: xr.Dataset,
    *variables: str,
    by_series: bool = False,
    full: bool = False,
) -> pd.DataFrame:
    """Tabulate a result, with labels as the first columns.

    Without a variable, it is of all tested effects, where there are any: a row a
    member, with the size of each effect over series. Else it is of the first variable
    and of those with the same dimensions: a row for each combination of their labels.

    Args:
        result: labelled result.
        variables: names of effects, or of variables that share their dimensions.
        by_series: of effects, a row for each member and series, with its value there.
        full: of several effects, all columns that a single effect has.

    Returns:
        Labels of the dimensions, with what is known of each, such as "layer" and "head"
        of a component; then the variables. Of one effect "size", "low" and "high" (the
        median over series, and the range), "acts" (on how many series), "p",
        "significant", "leads", "lead_share" and, beside twins, "twin_rank" and
        "learned"; of several effects "size", "significant" and "learned" alone, with
        the name of the effect before them.

    Raises:
        InputError: the variables have different dimensions, or ``by_series`` has no
            meaning for them.
        UnknownNameError: the result has no such variable.

    Example:
        >>> table = results["ablation_effects"].table("mean_shift")
        >>> table.nlargest(1, "size")["component"].item() in set(table["component"])
        True
    """
    data = restore_selected(result)
    for name in variables:
        if name not in data.data_vars:
            raise unknown_name("variable", name, map(str, data.data_vars))
    effects = estimated_effects(data)
    chosen = [name for name in variables or effects if name in effects]
    if variables and len(chosen) < len(variables):
        chosen = []
    if by_series and not chosen:
        raise InputError(
            f"by_series=True is for effects with a test; this is of"
            f" {', '.join(variables) or 'a result without any'}, whose rows are its"
            " dimensions already"
        )
    if not chosen:
        return _frame(data, variables or _first_variables(data))
    shown: Sequence[str] = BRIEF
    if full or len(chosen) == 1:
        shown = PARTS
    parts = {
        f"{name}_{part}": part if len(chosen) == 1 else f"{name}_{part}"
        for name in chosen
        for part in shown
        if f"{name}_{part}" in data
    }
    members = _frame(data, list(parts)).rename(columns=parts)
    if not by_series:
        return members
    values = _frame(data, chosen)
    keys = [column for column in members if column in values]
    if not keys:
        return values.merge(members, how="cross")
    return values.merge(members, on=keys, how="left", validate="many_to_one")


def _first_variables(data: xr.Dataset) -> list[str]:
    """Return the first variable with members, and those that share its dimensions.

    Where no variable has members, the first is that of the forecast.
    """
    names = [str(name) for name in data.data_vars if name not in _OF_RUN]
    names = names or list(map(str, data.data_vars))
    if not names:
        raise InputError("the result has no variables, of which there could be a table")
    with_members = [name for name in names if set(data[name].dims) - _FORECAST_DIMS]
    dims = set(data[[*with_members, *names][0]].dims)
    return [name for name in names if set(data[name].dims) == dims]


def _frame(data: xr.Dataset, names: Sequence[str]) -> pd.DataFrame:
    """Tabulate variables of the same dimensions, with all coordinates along these."""
    dims = list(map(str, data[names[0]].dims))
    for name in names[1:]:
        if set(data[name].dims) != set(dims):
            raise InputError(
                f"{name!r} is over {', '.join(map(str, data[name].dims))}, and"
                f" {names[0]!r} over {', '.join(dims)}; a table is of variables that"
                f" share their dimensions: make one of each, table({name!r})"
            )
    # the series is the sample, the other dimensions say what is measured
    dims.sort(key=lambda dim: dim != "series")
    labels = [
        str(name)
        for name, coordinate in data.coords.items()
        if coordinate.ndim and set(coordinate.dims) <= set(dims) and name not in dims
    ]
    chosen = data[[*names]].reset_coords(drop=True)
    if not dims:
        return pd.DataFrame({name: [chosen[name].item()] for name in names})
    frame = chosen.assign({name: data[name].variable for name in labels})
    table = frame.to_dataframe(dim_order=dims).reset_index()
    return table[[*dims, *labels, *names]]
