"""The figure of anything: a forecast, a result, or two of them together.

:func:`plot` chooses among the registered figures by the kind of a result, the name that
is given and the options. It draws nothing by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from inspect import Parameter, signature
from typing import Any

import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.errors import InputError, LensError, unknown_name
from tsfm_lens.core.estimates import name_lost_dimensions
from tsfm_lens.core.registry import Figure, as_dataset, find, find_figures
from tsfm_lens.viz.facets import compare
from tsfm_lens.viz.generic import draw_variable
from tsfm_lens.viz.recipes import overlay
from tsfm_lens.viz.select import names

__all__ = ["plot"]


def plot(thing: Any, *others: Any, **options: Any) -> go.Figure:
    """Draw a run, a forecast, a result or an explanation; of two, both in one figure.

    Two forecasts of the same series share a panel. Two results of one kind stand side
    by side. A kind without a figure of its own, any variable by its name and an array
    of your own are drawn by their dimensions: layer × head is a map, steps make lines,
    named members dots.

    Args:
        thing: what to draw.
        others: the second thing, and the name of a figure where the first that fits is
            not wanted; its last words are enough: ``plot(result, "heatmap")`` draws
            ``attribution_heatmap``. Or the name of a variable of the result.
        options: of the figure's function; of a variable a label or an index by
            dimension, such as ``layer=3``; ``names=["one", "two"]`` of two things.

    Returns:
        The figure; of two things, both in it. Panels and units are those of the
        figure's own function.

    Raises:
        InputError: more than two things, two that share no figure, or a variable of
            more dimensions than two.
        UnknownNameError: the result has no such figure, variable or label.

    Example:
        >>> viz.plot(run).layout.meta["title"]
        'Forecast of co2 by chronos-nano'
    """
    # an array of the user's own has no kind, by which all others are looked up
    if isinstance(thing, xr.DataArray):
        name = str(thing.name or "value")
        data = thing.rename(name).to_dataset()
        return draw_variable(data, name, **{"title": name, **options})
    figure_names = [other for other in others if isinstance(other, str)]
    things = [
        _sections(other) for other in (thing, *others) if not isinstance(other, str)
    ]
    if len(figure_names) > 1 or len(things) > 2:
        raise InputError(
            f"{len(things)} things and {len(figure_names)} names of figures; plot takes"
            " two things and one name"
        )
    word = ""
    if figure_names:
        word = figure_names[0]
    if len(things) == 1:
        return _draw(things[0], word, options)
    pair = [next(iter(item.values())) for item in things]
    labels = options.pop("names", None) or _labels(*pair)
    if len(labels) != 2:
        raise InputError(f"names={labels!r}, expected one for each of two things")
    are_forecasts = {str(item.attrs["kind"]) for item in pair} <= {"forecast", "run"}
    if (
        not word
        and are_forecasts
        and all(
            names(pair[0], dim) == names(pair[1], dim) for dim in ("series", "step")
        )
    ):
        return overlay(dict(zip(labels, pair, strict=True)), **options)
    return compare([_draw(item, word, options) for item in things], labels)


def _sections(thing: Any) -> dict[str, Any]:
    """Return the results in a thing by kind, the one that speaks for it first."""
    if isinstance(thing, Mapping) and not hasattr(thing, "data_vars"):
        # What moved a forecast comes before the forecast itself. sorted() is stable, so
        # the others stay in their order.
        results = sorted(
            thing.values(), key=lambda result: result.attrs.get("kind") == "forecast"
        )
    else:
        results = [as_dataset(thing)]
    if not results or not all(
        getattr(result, "attrs", {}).get("kind") for result in results
    ):
        raise InputError(
            f"{type(thing).__name__} cannot be drawn; expected a run, a forecast, a"
            " result of a probe or an array. docs/howto/own-probe.md gives a dataset"
            " of your own a kind and a figure"
        )
    return {str(result.attrs["kind"]): result for result in results}


def _draw(
    results: Mapping[str, Any], requested: str, options: Mapping[str, Any]
) -> go.Figure:
    """Return the figure of this name.

    Without a name it is the first figure that takes the options; without options, the
    first that does not refuse the result.
    """
    figures = [
        (figure, result)
        for kind, result in results.items()
        for figure in _figures(kind)
    ]
    if requested:
        named = {figure.name: (figure, result) for figure, result in figures}
        matches = [name for name in named if name == requested]
        holders = [result for result in results.values() if _holds(result, requested)]
        if not matches and holders:
            of_variable = [
                name
                for name, (figure, _) in named.items()
                if figure.variable == requested
            ]
            if not of_variable:
                return draw_variable(holders[0], requested, **options)
            matches = of_variable[:1]
        # the whole name, a variable, and only then the last words of a name
        matches = matches or [name for name in named if name.endswith(f"_{requested}")]
        if not matches:
            variables = [str(name) for result in results.values() for name in result]
            raise unknown_name("figure", requested, [*named, *variables])
        if len(matches) > 1:
            raise InputError(
                f"{requested!r} means {' or '.join(matches)}; give the whole name"
            )
        figures = [named[matches[0]]]
    # an option decides which figure is meant; without one, the first that the result
    # has everything for
    fitting = [item for item in figures if _takes(item[0], options)]
    if not fitting:
        drawings = ", ".join(figure.name for figure, _ in figures)
        raise InputError(
            f"no figure of {' and '.join(results)} takes {', '.join(options)}; there"
            f" are {drawings}"
        )
    # Where an option names a figure, the refusal of that figure is the answer. Without
    # one a figure may refuse because it needs a variable that this result lacks.
    refusals: list[LensError] = []
    for figure, result in fitting[: 1 if options else None]:
        rest = [results[kind] for kind in figure.beside if kind in results]
        try:
            with name_lost_dimensions(result):
                return figure.function(result, *rest, **{**figure.options, **options})
        except InputError as error:
            refusals.append(error)
    raise refusals[0]


def _holds(result: Any, variable: str) -> bool:
    """Test if a result is a Dataset with this variable."""
    return variable in getattr(result, "data_vars", ())


def _takes(figure: Figure, options: Mapping[str, Any]) -> bool:
    """Test if a figure has parameters of these names, or takes any dimension."""
    parameters = signature(figure.function).parameters
    takes_any = any(
        parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters.values()
    )
    return takes_any or options.keys() <= parameters.keys()


def _figures(kind: str) -> list[Figure]:
    figures = find_figures("forecast" if kind == "run" else kind)
    if not figures:
        # an unknown kind is refused with the nearest
        find(kind)
    return figures


def _labels(one: Any, other: Any) -> list[str]:
    models = [str(item.attrs.get("model", "")) for item in (one, other)]
    if models[0] != models[1]:
        return models
    return ["first", "second"]
