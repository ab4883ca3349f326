"""Drawing of any variable of a labelled result by its dimensions alone.

Read :func:`draw_variable` first: it makes a map, lines, or dots with intervals, and
draws results of kinds that have no figure. :func:`generic_figure` registers such a
drawing as a figure of a kind, with a table and sentences.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.axes import layer_name, short_ids
from tsfm_lens.core.errors import InputError, UnknownNameError, unknown_name
from tsfm_lens.core.registry import (
    FigurePanel,
    default_figure,
    figure,
    find,
    frame,
)
from tsfm_lens.viz.findings import EffectEstimate, find_estimate
from tsfm_lens.viz.grid import LOG_AXIS
from tsfm_lens.viz.maps import colour_scale
from tsfm_lens.viz.panels import name_segments
from tsfm_lens.viz.select import (
    array,
    median_position,
    names,
    position,
    series_position,
)
from tsfm_lens.viz.sheet import blank, text_width
from tsfm_lens.viz.theme import (
    CATEGORICAL,
    GREY,
    LABEL_TYPE,
    VERMILION,
    mixed,
    percent,
    plain,
    significant,
)
from tsfm_lens.viz.words import after_number, capital, num

# Dimensions by how they are drawn: places along the depth of the model; numbers of
# singular values, counted from 1; and values that have a logarithmic axis.
_DEPTH = ("layer", "stream")
_SPECTRAL = ("mode", "weight_mode")
_LOGARITHMIC = ("epsilon", "decade", "trial_period")
# Dimensions whose labels are numbers, and no axis: nothing lies between two heads.
_MEMBERS = ("head", "seed", "draw", "sample", "quantile")
_MAX_LINES = 8  # in a figure; more members make a map
_MAX_GROUPS = 5  # dots in one row
_MAX_ROWS = 30  # unless a caller asks for more
_LOWEST = 1e-9  # smallest singular value that is drawn, as a share of the largest
# Most cells and most columns of a map that have room for numbers.
_PRINTED = 200
_MAX_NUMBERED = 12
_MAX_DIGITS = 6  # columns whose numbers have room for three digits
_ROW = 22  # pixels of a member
_ROUNDING = 1e-6  # share of a map's largest value, of which rounding can be the cause
_MAP_WIDTH = 480  # pixels that the columns of a map share
_SPREAD = 0.5  # share of a row's height over which its dots are spread
# Suffixes of the variables that core.estimates.add_estimates() adds to a tested one.
# Tables have those of ``_TEST_PARTS`` alone.
_TEST_PARTS = ("size", "low", "high", "acts", "significant", "leads", "lead_share")
_PARTS = (*_TEST_PARTS, "learned", "p", "floor")
_DOCUMENTATION = """\
Draw ``{variable}`` by its dimensions: a map, lines, or dots with intervals.

Args:
    selection: a label, or a place counted from 0, by dimension: ``layer=3``.

Returns:
    One panel over one or two dimensions of the variable, in its unit."""


@dataclass(frozen=True)
class _Drawn:
    """Values over one or two dimensions, and what a figure says of them.

    Attributes:
        dims, values: the dimensions in the order drawn, and the values over them.
        effect: the test or the interval of the values, if the result has any.
        label: name of the variable in words.
        remarks: parts of the subtitle.
    """

    ds: xr.Dataset
    dims: tuple[str, ...]
    values: np.ndarray
    effect: EffectEstimate | None
    label: str
    unit: str
    title: str
    remarks: tuple[str, ...]

    @property
    def value_title(self) -> str:
        """Title of the axis or the colours of the values."""
        if self.unit:
            return f"{self.label} ({self.unit})"
        return self.label

    def hover(self, letter: str) -> str:
        """Write the template of a hover box for the value on axis "x", "y" or "z"."""
        if self.unit:
            unit = f" {plain(after_number(self.unit))}"
        else:
            unit = ""
        return f"{plain(self.label)} %{{{letter}:.4g}}{unit}"


def draw_variable(
    result: Any,
    variable: str = "",
    *,
    title: str = "",
    about: str = "",
    remarks: Sequence[str] = (),
    outlined: str = "",
    top: int = _MAX_ROWS,
    **selection: str | int,
) -> go.Figure:
    """Draw one variable of a result by its dimensions.

    Layer × head becomes a map. Steps, lags and other numbers become the axis of lines.
    Each named member becomes a row of dots, with intervals where the result has them.
    Where the result has a test of a variable over series, the median over series is
    drawn, and the axis says so.

    Args:
        result: labelled result with the attribute "kind", or without.
        variable: name; the first of the result unless given.
        title: of the figure; from the measurement and the model unless given.
        about: what the values are, a sentence that is the title unless one is given.
        remarks: parts of the subtitle.
        outlined: variable of flags, whose cells of a map have a frame, and a tint where
            they have no value.
        top: number of members, the largest, that are drawn as rows of dots.
        selection: a label, or an index counted from 0, by dimension: ``layer=3,
            series="co2"``.

    Returns:
        One panel: a map, lines or rows of dots, in the unit of the variable.

    Raises:
        InputError: the variable holds text, or more than two dimensions are left.
        UnknownNameError: the result has no such variable, dimension or label.
    """
    name = variable or first_variable(result)
    if name not in result.data_vars:
        raise unknown_name("variable", name, map(str, result.data_vars))
    drawn = _select(result, name, title, about, selection)
    drawn = replace(drawn, remarks=(*remarks, *drawn.remarks))
    if not drawn.values.size:
        return _draw_nothing(drawn)
    *across, last = drawn.dims
    n_axes = len(_axes(drawn.ds, drawn.dims))
    if n_axes == 1 and all(drawn.ds.sizes[dim] <= _MAX_LINES for dim in across):
        return _draw_lines(drawn, last, *across)
    # Rows of dots show whiskers, which a map cannot. They are readable while a row has
    # few dots.
    few = drawn.effect is not None and drawn.ds.sizes[last] <= _MAX_GROUPS
    if drawn.dims != ("layer", "head") and not n_axes and (few or not across):
        return _draw_rows(drawn, top)
    return _draw_heat_map(drawn, outlined)


def _draw_nothing(drawn: _Drawn) -> go.Figure:
    """Say that there is no member to draw."""
    canvas = blank(120)
    canvas.panel().note("none", 0.5, 0.5, xref="domain", yref="domain")
    canvas.x(visible=False)
    canvas.y(visible=False)
    return canvas.finalize(drawn.title, *drawn.remarks)


def generic_figure(
    kind: str,
    variable: str,
    title: str,
    *,
    prepare: Callable[[Any], xr.Dataset] | None = None,
    **facts: Any,
) -> Callable[..., go.Figure]:
    """Register the drawing of a variable as a figure of a kind, and return it.

    The name of the figure is ``KIND_VARIABLE``.

    Args:
        kind: of the measurement.
        variable: that is drawn.
        title: content of the figure, as a sentence.
        prepare: makes the Dataset to draw from a result; the result itself is drawn
            unless given.
        facts: ``variables``, ``table``, ``sentences``, ``options`` …; see
            :func:`tsfm_lens.core.registry.figure`.

    Returns:
        The function that draws it.
    """

    def draw(result: Any, **selection: Any) -> go.Figure:
        if prepare is None:
            data = result
        else:
            data = prepare(result)
        return draw_variable(data, variable, **{"about": title, **selection})

    # the registry names a figure by its function, and takes its text for references
    draw.__name__ = f"{kind}_{variable}"
    # the caller's module, under which references list the figure
    draw.__module__ = str(sys._getframe(1).f_globals["__name__"])
    draw.__doc__ = _DOCUMENTATION.format(variable=variable)
    return figure(kind, title, variable=variable, **facts)(draw)


def with_range(ds: xr.Dataset, values: xr.DataArray) -> xr.Dataset:
    """Return the median of a variable over series, with its range.

    :func:`draw_variable` draws the result.
    """
    name = str(values.name)
    parts = {
        name: values.median("series", keep_attrs=True),
        f"{name}_low": values.min("series"),
        f"{name}_high": values.max("series"),
    }
    return xr.Dataset(parts, attrs=ds.attrs)


def first_variable(ds: xr.Dataset) -> str:
    """Return the first variable of numbers that is no part of a test of another.

    ``size_low`` is such a part where there is a variable ``size``.
    """
    for name in map(str, ds.data_vars):
        stem, _, part = name.rpartition("_")
        is_part = part in _PARTS and stem in ds
        if ds[name].dtype.kind in "biuf" and ds[name].ndim and not is_part:
            return name
    raise InputError("the result has no variable of numbers with a dimension to draw")


def table_of_first(ds: xr.Dataset) -> pd.DataFrame:
    """Return a table of the first variable of a result, and the tests of it.

    Tests whose dimensions differ from those of the variable are left out.
    """
    name = first_variable(ds)
    tested = [f"{name}_{part}" for part in _TEST_PARTS if f"{name}_{part}" in ds]
    same = [part for part in tested if ds[part].dims == ds[name].dims]
    return frame(ds, name, *same)


def panel_of_first(ds: xr.Dataset) -> Iterator[FigurePanel]:
    """Draw the first variable of a result for a page, where nobody selects labels."""
    name = first_variable(ds)
    try:
        drawn = draw_variable(ds, name)
    except InputError:
        # More than two dimensions are left. The first label is taken of all but the
        # last two, of the series before any other.
        dims = [str(dim) for dim in ds[name].dims if ds.sizes[dim] > 1]
        dims.sort(key=lambda dim: dim != "series")
        selection: dict[str, Any] = dict.fromkeys(dims[:-2], 0)
        drawn = draw_variable(ds, name, **selection)
    yield FigurePanel(drawn, table_of_first(ds))


default_figure(draw_variable, table_of_first, panel_of_first)


def _select(
    ds: xr.Dataset, name: str, title: str, about: str, selection: Mapping[str, Any]
) -> _Drawn:
    """Return the values to draw, medians over series where there is a test.

    ``selection`` holds labels or positions by dimension.
    """
    values = ds[name]
    if values.dtype.kind not in "biuf":
        raise InputError(f"{name!r} holds text, not numbers; expected a number a label")
    # the position along each dimension that is not drawn
    at = _find_indices(ds, name, selection)
    ds = _drop_unused_labels(ds, name, at)
    left = [str(dim) for dim in values.dims if dim not in at]
    if len(left) > 2 and "quantile" in left:
        at["quantile"] = median_position(ds["quantile"].values)
        left.remove("quantile")
    members = _in_order(ds, [dim for dim in left if dim != "series"])
    effect = None
    # a test is over all series, so there is none where one series is selected
    if members and "series" not in selection:
        effect = _read_effect(ds, name, members, at)
    dims = members
    if effect is None:
        dims = _in_order(ds, left)
    if not dims:
        number = num(float(array(ds, name, **at)))
        raise InputError(f"{name!r} is one number here, {number}; nothing to draw")
    if len(dims) > 2:
        options = ", ".join(f"{dim}=" for dim in left)
        raise InputError(
            f"{name!r} has {len(dims)} dimensions, and two can be drawn; decide with "
            f"{options}"
        )
    remarks = []
    remarks += [_find_label(ds, dim, index) for dim, index in at.items()]
    if effect is None:
        drawn_values = array(ds, name, *dims, **at)
    else:
        drawn_values = effect.size
    if effect is not None and "series" in left:
        bounds = ""
        if effect.spread:
            bounds = " and range"
        remarks.append(f"median{bounds} over {effect.over}")
    if effect is not None:
        remarks.append(str(ds.attrs.get("power", "")))
    label = str(values.attrs.get("long_name", name.replace("_", " ")))
    unit = str(values.attrs.get("units", ""))
    value_label = label
    if effect is not None and "series" in left:
        # a size may be a share, where the values of each series have a unit
        value_label = f"median {label}"
        unit = str(ds[f"{name}_size"].attrs.get("units", unit))
    heading = title or _write_title(ds, label)
    if about and not title:
        heading = ": ".join(filter(None, (about.removesuffix("."), _model(ds))))
        if "metric" in ds.attrs:
            heading += f", in {ds.attrs['metric']}"
    return _Drawn(
        ds,
        tuple(dims),
        drawn_values,
        effect,
        value_label,
        unit,
        heading,
        tuple(remarks),
    )


def _find_indices(
    ds: xr.Dataset, name: str, selection: Mapping[str, Any]
) -> dict[str, int]:
    """Return the position along each selected dimension, and 0 along those of one item.

    Where every dimension has one item, the first dimension is kept, since a figure
    needs one to draw along.
    """
    dims = [str(dim) for dim in ds[name].dims]
    at: dict[str, int] = {}
    for dim, value in selection.items():
        if dim not in dims:
            raise unknown_name(f"dimension of {name!r}", dim, dims)
        at[dim] = _find_index(ds, dim, value)
    single = [dim for dim in dims if dim not in at and ds.sizes[dim] == 1]
    if len(at) + len(single) == len(dims):
        single = single[1:]
    return at | dict.fromkeys(single, 0)


def _drop_unused_labels(ds: xr.Dataset, name: str, at: Mapping[str, int]) -> xr.Dataset:
    """Return a result without labels that have a value outside the selection alone.

    Where one of two models is selected, these are the layers that only the deeper one
    has.
    """
    # a label without any value in the whole result stays, and is drawn as a gap
    known = ds[name].notnull()
    chosen = known.isel(at)
    keep: dict[str, Any] = {}
    for dim in chosen.dims:
        in_selection = chosen.any([other for other in chosen.dims if other != dim])
        in_result = known.any([other for other in known.dims if other != dim])
        if in_selection.any():
            keep[str(dim)] = np.flatnonzero(in_selection | ~in_result)
    return ds.isel(keep)


def _find_index(ds: xr.Dataset, dim: str, value: str | int) -> int:
    """Return the position of a label; an integer that is no label is a position."""
    if dim == "series":
        return series_position(ds, value)
    # a label comes before an index: layer=3 is layer "3", wherever it stands
    is_index = isinstance(value, int) and 0 <= value < ds.sizes[dim]
    if is_index and str(value) not in names(ds, dim):
        return int(value)
    return position(ds, dim, value)


def _read_effect(
    ds: xr.Dataset, name: str, dims: Sequence[str], at: dict[str, Any]
) -> EffectEstimate | None:
    """Return a test over series, or the interval or significance of each value.

    The second is for variables without a dimension of series.
    """
    tested = find_estimate(ds, name, *dims, **at)
    if "series" in set(ds[name].dims) - set(at):
        return tested
    values = array(ds, name, *dims, **at)
    if tested is not None:
        # the values are a mean, or of one series, and not the medians that were tested
        return replace(tested, size=values, low=values, high=values)
    parts: dict[str, np.ndarray] = {}
    for part in ("low", "high", "significant"):
        variable = f"{name}_{part}"
        if variable in ds and set(ds[variable].dims) == set(ds[name].dims):
            parts[part] = array(ds, variable, *dims, **at)
    if not parts:
        return None
    # no floor is known, so every member counts as above it
    above_floor = np.ones(values.shape)
    return EffectEstimate(
        values,
        parts.get("low", values),
        parts.get("high", values),
        above_floor,
        parts.get("significant", above_floor) > 0,
        # without any significant member, too, or all would look significant
        pales="significant" in parts,
    )


def _find_title(ds: xr.Dataset) -> str:
    """Return the title of the measurement; "" for a result of no kind."""
    heading = str(ds.attrs.get("title", ""))
    if kind := str(ds.attrs.get("kind", "")):
        # a user's own result may be of a kind that no measurement declares
        try:
            heading = find(kind).title
        except UnknownNameError:
            heading = heading or kind.replace("_", " ")
    return heading


def _model(ds: xr.Dataset) -> str:
    return str(ds.attrs.get("model", ""))


def _write_title(ds: xr.Dataset, label: str) -> str:
    """Write the measurement's title, the model and the variable."""
    heading = _find_title(ds)
    model = _model(ds)
    if heading and model:
        subject = f"{heading} of {model}"
    else:
        subject = heading or model
    if not subject:
        return capital(label)
    if label == heading.lower():
        return subject
    return f"{capital(subject)}: {label}"


def _find_label(ds: xr.Dataset, dim: str, index: int) -> str:
    """Name the member that is drawn, as a subtitle does."""
    label = names(ds, dim)[index]
    if dim in _DEPTH:
        return layer_name(label)
    if dim == "series":
        return short_ids(names(ds, dim))[index]
    return f"{dim.replace('_', ' ')} {label}"


def _labels(ds: xr.Dataset, dim: str) -> list[str]:
    """Name the members along a dimension as figures do."""
    if dim.removeprefix("other_") in _DEPTH:
        return [layer_name(label) for label in names(ds, dim)]
    if dim == "segment" and "start" in ds:
        return name_segments(ds)
    return names(ds, dim)


def _legend_names(ds: xr.Dataset, dim: str) -> list[str]:
    """Return names of the members along a dimension for a legend, as "head 3".

    A legend has no axis title that says what a bare "3" counts.
    """
    labels = _labels(ds, dim)
    if dim in _MEMBERS:
        return [f"{dim} {label}" for label in labels]
    return labels


def _axis_title(ds: xr.Dataset, dim: str) -> str:
    """Write what a dimension counts, with its unit."""
    if dim in ds.coords:
        attrs = ds[dim].attrs
    else:
        attrs = {}
    text = str(attrs.get("long_name", dim.replace("_", " ")))
    if attrs.get("units"):
        return f"{text} ({attrs['units']})"
    return text


def _in_order(ds: xr.Dataset, dims: Sequence[str]) -> list[str]:
    """Return dimensions in the order in which they are drawn.

    The axis of a curve comes last, and heads come after their layers.
    """
    if set(dims) == {"layer", "head"}:
        last = ["head"]
    else:
        last = _axes(ds, dims)
    return sorted(dims, key=lambda dim: dim in last)


def _axes(ds: xr.Dataset, dims: Sequence[str]) -> list[str]:
    """Return the dimensions that are axes of curves.

    These are the dimensions of numbers. Where there is none, it is the depth, unless
    the values are drawn as a map: over pairs of members, or over series or heads.
    """
    along = [dim for dim in dims if _is_axis(ds, dim)]
    # a second dimension of the same members, such as layer and other_layer
    of_pairs = any(dim.startswith("other_") for dim in dims)
    if along or of_pairs or {"series", "head"} & set(dims):
        return along
    return [dim for dim in dims if dim in _DEPTH]


def _is_axis(ds: xr.Dataset, dim: str) -> bool:
    """Test if a dimension is counted or measured, and its members have no names."""
    # The letters are numpy's kinds: integers, floats and dates are places on an axis,
    # and all other labels are names. A dimension without labels is counted.
    has_names = dim in ds.coords and ds[dim].dtype.kind not in "iufM"
    is_depth = dim.removeprefix("other_") in _DEPTH
    return not has_names and not is_depth and dim not in _MEMBERS


def _colours(drawn: _Drawn) -> dict[str, Any]:
    """Return colours that go both ways from 0 where a value is negative.

    Otherwise they start at 0, or somewhat below the lowest value.
    """
    known = drawn.values[np.isfinite(drawn.values)]
    sizes = np.abs(known)
    largest = sizes.max(initial=0.0)
    # a few large values would leave all others white, so colours then go by the root of
    # the size
    is_skewed = bool(known.size) and np.quantile(sizes, 0.9) < 0.5 * largest
    low = 0.0
    # differences by rounding alone would be stretched over all colours
    if known.size and np.ptp(known) >= _ROUNDING * largest:
        # white stands for no value or 0, so a tenth of the range is left below the
        # lowest value, which is tinted then
        low = max(0.0, float(known.min() - 0.1 * np.ptp(known)))
    return colour_scale(
        drawn.value_title,
        known,
        low=low,
        diverging=bool((known < 0).any()),
        root=bool(is_skewed),
    )


def _draw_heat_map(drawn: _Drawn, outlined: str) -> go.Figure:
    """Draw a map with the first dimension as rows and the second as columns."""
    rows, columns = (
        [plain(label) for label in _labels(drawn.ds, dim)] for dim in drawn.dims
    )
    # plotly turns labels that do not fit, and the turned ones need room below the map
    longest = max(text_width(label, LABEL_TYPE) for label in columns)
    are_turned = longest * len(columns) > _MAP_WIDTH
    numbered = len(columns) <= _MAX_NUMBERED
    # hover boxes have more digits than narrow cells have room for
    digits = 3 if len(columns) <= _MAX_DIGITS else 2
    of_pairs = drawn.dims[1] == f"other_{drawn.dims[0]}"
    if of_pairs:
        row = int(np.clip(400 / len(rows), 4, 80))
    else:
        row = int(np.clip(480 / len(rows), 4, 26))
    canvas = blank(
        max(row * len(rows), 130),
        min_width=max(420, 170 + 24 * min(len(columns), 30)),
        below=round(52 + longest) if are_turned else 52,
    )
    panel = canvas.panel()
    column = "%{x}"
    if _axis_title(drawn.ds, drawn.dims[1]) in _MEMBERS:
        column = f"{drawn.dims[1]} %{{x}}"
    tests = _describe_cells(drawn)
    more = "%{customdata}" if tests else ""
    panel.cells(
        drawn.values,
        columns,
        rows,
        f"%{{y}}, {column}<br>{drawn.hover('z')}{more}",
        write=partial(significant, digits=digits) if numbered else None,
        printed=_PRINTED,
        noise=drawn.effect,
        xgap=1 if len(columns) <= 60 else 0,
        ygap=1 if len(rows) <= 60 else 0,
        **tests,
    )
    empty = np.isnan(drawn.values)
    if outlined:
        marked = array(drawn.ds, outlined, *drawn.dims) > 0
        panel.frames(marked, VERMILION)
        if (marked & empty).any():
            tint = mixed(VERMILION, 0.4)
            panel.cover(marked & empty, tint, x=columns, y=rows, name="outlined")
        empty &= ~marked
    colours = _colours(drawn)
    if of_pairs and numbered:
        # the numbers say what a bar far from the map would
        canvas.fig.update_layout(coloraxis={**colours, "showscale": False})
    else:
        canvas.colours(colours)
    # as categories: plotly would read labels such as "1" as numbers, and place them by
    # value
    style = {"type": "category", "ticks": ""}
    panel.x(
        _axis_title(drawn.ds, drawn.dims[1]),
        nticks=min(len(columns), 40),
        autotickangles=[0, -90],
        **style,
    )
    panel.y(
        _axis_title(drawn.ds, drawn.dims[0]),
        autorange="reversed",
        nticks=min(len(rows), 40),
        **style,
    )
    if of_pairs:
        # the cells of pairs are square
        panel.x(constrain="domain", constraintoward="left")
        panel.y(scaleanchor="x", constrain="domain", constraintoward="top")
    gaps = "empty: no value" if empty.any() else ""
    return canvas.finalize(drawn.title, *drawn.remarks, gaps)


def _describe_cells(drawn: _Drawn) -> dict[str, Any]:
    """Return what a test says of each cell of a map, as plotly's ``customdata``."""
    # intervals without a test say nothing of series
    if drawn.effect is None or not drawn.effect.facts:
        return {}
    texts = np.empty(drawn.values.shape, dtype=object)
    for cell in np.ndindex(*texts.shape):
        texts[cell] = f"<br>{drawn.effect.hover(cell)}"
    return {"customdata": texts.tolist()}


def _draw_lines(drawn: _Drawn, along: str, across: str = "") -> go.Figure:
    """Draw a line for each member of ``across``.

    Lines of up to 40 points, and lines with a test or an interval, have dots.

    Returns:
        The figure.
    """
    ds = drawn.ds
    effect = drawn.effect
    lines = np.atleast_2d(drawn.values)
    if across:
        labels = _legend_names(ds, across)
    else:
        labels = [""]
    canvas = blank(280)
    panel = canvas.panel()
    x = _axis_values(ds, along)
    settings: dict[str, Any] = {}
    if along in _SPECTRAL:
        # What is smaller is rounding. NaN is replaced by 0, since nanmax() would warn
        # of a line without values.
        smallest = _LOWEST * np.nan_to_num(lines).max(axis=1, keepdims=True)
        lines = np.where(lines > smallest, lines, np.nan)
        settings = LOG_AXIS
    if along in _DEPTH:
        point = "%{x}"
    else:
        point = f"{plain(along.replace('_', ' '))} %{{x}}"
    for index, (label, line) in enumerate(zip(labels, lines, strict=True)):
        member = ""
        if label:
            member = f"{plain(label)}, "
        noise = effect
        if effect is not None and across:
            noise = effect.at(index)
        panel.dots(
            x,
            line,
            label,
            f"{member}{point}<br>{drawn.hover('y')}",
            colour=CATEGORICAL[index % len(CATEGORICAL)],
            mode="lines+markers" if len(x) <= 40 or noise is not None else "lines",
            size=6,
            noise=noise,
        )
    panel.x(_axis_title(ds, along), **_category(along, len(x)))
    # 0 stands for values of which none is known
    known = np.append(lines[np.isfinite(lines)], 0.0)
    is_count = (known == known.round()).all() and known.max() <= _MAX_LINES
    if is_count and known.min() >= 0 and not settings:
        # a count has no halves
        settings = {"dtick": 1}
    panel.y(drawn.value_title, **settings)
    return canvas.finalize(drawn.title, *drawn.remarks, _name_whiskers(drawn))


def _name_whiskers(drawn: _Drawn) -> str:
    """Name the intervals of a result that says their level."""
    level = drawn.ds.attrs.get("confidence")
    if level is None or drawn.effect is None or not drawn.effect.spread:
        return ""
    return f"whiskers: {percent(float(level))} intervals"


def _axis_values(ds: xr.Dataset, dim: str) -> Any:
    """Return where the points of a curve stand along a dimension."""
    if dim in _DEPTH:
        return _labels(ds, dim)
    if dim not in ds.coords:
        first = 0
        # singular values are counted from 1
        if dim in _SPECTRAL:
            first = 1
        return first + np.arange(ds.sizes[dim])
    values = ds[dim].values
    # dates stay dates; numbers read from a file may be of any type, and become floats
    if values.dtype.kind == "M":
        return values
    return values.astype(float)


def _category(dim: str, count: int) -> dict[str, Any]:
    """Return the settings of the horizontal axis of curves along a dimension.

    ``count`` is the number of its members, between which no tick should stand.
    """
    if dim in _DEPTH:
        return {"type": "category", "nticks": 16}
    if dim in _LOGARITHMIC:
        return {"type": "log"}
    return {"nticks": min(10, max(count, 2))}


def _draw_rows(drawn: _Drawn, top: int) -> go.Figure:
    """Draw a row of dots for each member of the first dimension.

    The dots of a row are the members of the second one; without it there is one dot.

    Returns:
        The figure.
    """
    if top < 1:
        raise InputError(f"top is {top}, expected 1 or more")
    ds = drawn.ds
    if len(drawn.dims) == 2:
        values = drawn.values
    else:
        values = drawn.values[:, None]
    effect = drawn.effect
    if effect is not None and len(drawn.dims) == 1:
        effect = effect.at(np.s_[:, None])
    labels = _labels(ds, drawn.dims[0])
    if len(drawn.dims) == 2:
        groups = _legend_names(ds, drawn.dims[1])
    else:
        groups = [""]
    order, remark = _largest(values, top, len(labels))
    canvas = blank(max(130, _ROW * len(order)), 420, below=60)
    panel = canvas.panel()
    # dots of one row are stacked around its middle, so that whiskers do not overlap
    for index, group in enumerate(groups):
        offset = _SPREAD * (index - (len(groups) - 1) / 2) / len(groups)
        if effect is None:
            noise = None
        else:
            noise = effect.at((order, index))
        panel.dots(
            values[order, index],
            np.arange(len(order)) + offset,
            group,
            f"%{{text}}<br>{drawn.hover('x')}",
            colour=CATEGORICAL[index % len(CATEGORICAL)],
            text=[plain(f"{labels[row]} {group}".strip()) for row in order],
            noise=noise,
            across=True,
        )
    # an effect is compared with 0 even where all sizes lie on one side
    if effect is not None or (values < 0).any():
        panel.vline(0.0)
    panel.x(drawn.value_title)
    panel.y(
        _axis_title(ds, drawn.dims[0]),
        tickvals=list(range(len(order))),
        ticktext=[plain(labels[row]) for row in order],
        range=[len(order) - 0.5, -0.5],
        gridcolor=mixed(GREY, 0.2),
    )
    return canvas.finalize(drawn.title, *drawn.remarks, _name_whiskers(drawn), remark)


def _largest(values: np.ndarray, top: int, count: int) -> tuple[np.ndarray, str]:
    """Return the positions of the members of largest size, and a remark on the others.

    ``values`` are (member, group); members stay in the order of the result.
    """
    known = np.flatnonzero(np.isfinite(values).any(axis=1))
    if not len(known):
        return np.arange(min(count, top)), ""
    if len(known) <= top:
        missing = count - len(known)
        return known, f"{missing} without a value are left out" if missing else ""
    sizes = np.nan_to_num(np.abs(values)).max(axis=1)
    # sorted again: the largest are drawn in the order of the result
    order = np.sort(np.argsort(-sizes, kind="stable")[:top])
    return order, f"the {top} largest of {count}"
