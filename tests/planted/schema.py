"""How a planted result differs in form from a computed one of its kind."""

from __future__ import annotations

import re

import pandas as pd
import xarray as xr

JUDGED = re.compile(r"_(acts|size|low|high|p|floor|significant|leads|lead_share)$")


def differences(made: xr.Dataset, real: xr.Dataset) -> list[str]:
    """What ``made`` has that ``real`` has not, or otherwise, and which judgements it
    lacks, [] if it is of its form.
    """
    found = []
    if made.attrs["kind"] != real.attrs["kind"]:
        found.append(
            f"kind: planted {made.attrs['kind']!r}, computed {real.attrs['kind']!r}"
        )
    for name in made.variables:
        if name not in real.variables:
            found.append(f"{name}: planted, but not computed")
        elif _form(made, name) != _form(real, name):
            found.append(
                f"{name}: planted {_form(made, name)}, computed {_form(real, name)}"
            )
    # what a judgement says of noise depends on the values, not on the kind
    attributes = set(made.attrs) - set(real.attrs) - {"below_noise"}
    found += [
        f"attribute {name}: planted, but not computed" for name in sorted(attributes)
    ]
    missing = {str(name) for name in real.variables if JUDGED.search(str(name))} - set(
        map(str, made.variables)
    )
    return found + [f"{name}: computed, but not planted" for name in sorted(missing)]


def _form(ds: xr.Dataset, name: object) -> str:
    """Whether a coordinate, along what, and of what kind of values."""
    variable = ds.variables[name]
    if variable.dtype.kind == "O":
        kind = "U"
    else:
        kind = variable.dtype.kind
    role = "coordinate " if name in ds.coords else ""
    return f"{role}{sorted(map(str, variable.dims))} {kind}"


def table_differences(made: pd.DataFrame, real: pd.DataFrame) -> list[str]:
    """The same of tables: columns, their kinds of values, and attributes."""
    found = []
    if made.attrs["kind"] != real.attrs["kind"]:
        found.append(
            f"kind: planted {made.attrs['kind']!r}, computed {real.attrs['kind']!r}"
        )
    kinds = [{name: _values(table[name]) for name in table} for table in (made, real)]
    for name in dict.fromkeys([*made, *real]):
        planted, computed = (kind.get(name, "nothing") for kind in kinds)
        if planted != computed:
            found.append(f"{name}: planted {planted}, computed {computed}")
    return found + [
        f"attribute {name}: planted, but not computed"
        for name in set(made.attrs) - set(real.attrs)
    ]


def _values(column: pd.Series) -> str:
    """Kind of a column's values; words are words however they are stored."""
    if column.dtype.kind not in "biufM":
        return "words"
    return str(column.dtype.kind)
