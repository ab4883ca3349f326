"""Methods of runs, lenses and results that need the upper packages.

They are attached to their classes by name, so that no lower package imports an upper
one. Each method forwards to one function, which its docstring names; nothing is
computed here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tsfm_lens.core.extensions import add_method

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from tsfm_lens.core.estimates import Result
    from tsfm_lens.data.batch import Item
    from tsfm_lens.hooks import Component
    from tsfm_lens.models import Forecast, Lens, Run
    from tsfm_lens.models.checkpoint import Checkpoint
    from tsfm_lens.report.explanation import Explanation
    from tsfm_lens.testing import OracleResult


# imports are inside the methods: this module is imported with the package, which must
# load neither torch nor plotly


@add_method("Run", "Forecast", "Result", "Explanation")
def plot(thing: Any, *others: Any, **options: Any) -> go.Figure:
    """Draw this object, or compare it with others in one figure.

    It is :func:`tsfm_lens.viz.plot` as a method.

    Args:
        thing: what is drawn.
        others: a second thing, and the name of a figure where the first that fits is
            not wanted, or of a variable of the result.
        options: of the figure's function; of a variable a label or an index by
            dimension, such as ``layer=3``.

    Returns:
        The figure of plotly.

    Raises:
        InputError: more than two things, or two that share no figure.

    Example:
        >>> run.plot().layout.meta["title"]
        'Forecast of co2 by chronos-nano'
    """
    from tsfm_lens import viz

    return viz.plot(thing, *others, **options)


@add_method("Result")
def table(result: Result, *variables: str, **options: Any) -> pd.DataFrame:
    """Tabulate this result, a row for each member or combination of labels.

    It is :func:`tsfm_lens.core.tables.tabulate` as a method.

    Args:
        result: the result.
        variables: names of effects, or of variables that share their dimensions; all
            tested effects, or else the first variable, if there is none.
        options: ``by_series=True`` for a row for each member and series, ``full=True``
            for all columns of several effects.

    Returns:
        A frame with the labels of the dimensions first, then the values.

    Example:
        >>> results["ablation_effects"].table("mean_shift")["component"].nunique() > 1
        True
    """
    from tsfm_lens.core.tables import tabulate

    return tabulate(result, *variables, **options)


@add_method("Run")
def without(run: Run, *components: str | Component, **options: Any) -> Result:
    """Forecast with and without components.

    It is :func:`tsfm_lens.probes.ablation_recipes` for one recipe.

    Args:
        run: the forecast to compare with.
        components: names or globs, or a list of them, all ablated together.
        options: of the probe: ``how`` ("zero", "mean" or "resample"), ``reference``,
            ``quantiles``, ``progress``.

    Returns:
        Dataset of kind "ablation_recipes" over ``recipe``, the forecast as it was and
        without the components, and ``series``, in data units.

    Raises:
        UnknownNameError: a component does not exist.

    Example:
        >>> run.without("decoder.*.mlp").sizes["recipe"]
        2
    """
    from tsfm_lens.hooks.component import flat_names
    from tsfm_lens.probes import ablation_recipes

    targets = flat_names(components)
    name = f"without {', '.join(map(str, targets))}"
    result = ablation_recipes(run, {name: targets}, **options)
    title = f"Forecast {name}"
    if len(run.batch) == 1:
        # recipe 0 is the original forecast, recipe 1 the one without the components
        shift = float(result["mean_shift"][1, 0])
        # the unit may be empty
        unit = result["units"].values[0]
        title = f"{title}: moves by {shift:.3g} {unit}".rstrip()
    return result.assign_attrs(title=title)


@add_method("Run")
def attribute(run: Run, **options: Any) -> Result:
    """Split the forecast among the components that wrote it.

    It is :func:`tsfm_lens.probes.attribution` as a method.

    Args:
        run: the forecast to explain.
        options: ``decompositions``, by default one that suits the model, and
            ``tolerance``.

    Returns:
        Dataset of kind "attribution", with ``attribution`` over ``component``,
        ``series``, ``quantile`` and ``step``.

    Example:
        >>> run.attribute()["attribution"].dims
        ('component', 'series', 'quantile', 'step')
    """
    from tsfm_lens import probes

    return probes.attribution(run, **options)


@add_method("Run")
def measure(run: Run, kind: str, /, *, item: Item = None, **options: Any) -> Result:
    """Compute any measurement by its kind, such as "logit_lens".

    :func:`tsfm_lens.core.registry.measurements` returns all of them.

    Args:
        run: the forecast to look at.
        kind: of the result; ``tsfm-lens measurements`` lists them.
        item: by position or name, the one item that is measured; all if None.
        options: of its probe.

    Returns:
        The labelled result.

    Raises:
        InputError: the measurement is of one item, the run has several, and none is
            chosen.

    Example:
        >>> run.measure("logit_lens").attrs["kind"]
        'logit_lens'
    """
    from tsfm_lens.core.results import Results

    if item is None:
        measured = run
    else:
        measured = run.item(item)
    # no default item: of a run of several, a measurement of one item is refused
    return Results(measured, item=None).compute(kind, **options)


@add_method("Run")
def report(run: Run, out: str | Path, **options: Any) -> Path:
    """Write one HTML report of this run.

    It is :func:`tsfm_lens.report.pipeline.report` as a method.

    Args:
        run: what every section looks at.
        out: folder for index.html.
        options: ``sections`` (kinds of measurements), ``options`` of their probes by
            kind, ``title``, ``progress``.

    Returns:
        The path of the page.

    Example:
        >>> run.report(folder, sections=("forecast",)).name
        'index.html'
    """
    from tsfm_lens.report import pipeline

    return pipeline.report(run, out, **options)


@add_method("Run")
def explain(run: Run, out: str | Path | None = None, **options: Any) -> Explanation:
    """Explain this forecast by its inputs and their routes, and test both.

    It is :func:`tsfm_lens.report.explanation.explain` as a method.

    Args:
        run: the forecast to explain. Beyond one pass of the model, faithfulness by
            masking is left out, and each forecast with masked inputs takes several
            passes.
        out: folder for the page and its files; nothing is written if None.
        options: such as ``item``, ``method``, ``parts``, ``sections`` and ``since``.

    Returns:
        Labelled results by name of the section.

    Example:
        >>> list(driven.explain(sections=("forecast", "covariate_use")))
        ['forecast', 'covariate_use']
    """
    from tsfm_lens.report import explanation

    return explanation.explain(run, out, **options)


@add_method("Run")
def what_if(
    run: Run, changes: Mapping[str, Any] | None = None, **options: Any
) -> Result:
    """Forecast with another input, such as ``run.what_if(temperature="+5")``.

    It is :func:`tsfm_lens.explain.what_if` as a method.

    Args:
        run: the forecast to compare with.
        changes: new values by series or variate of the item.
        options: further changes as keywords, and ``item``, ``target``, ``start``,
            ``stop``, ``routes`` and ``progress``.

    Returns:
        Dataset of kind "what_if", in data units: both forecasts, and the effect of each
        change.

    Example:
        >>> driven.what_if(cause="+1", routes=False)["effect"].dims
        ('change', 'step', 'quantile')
    """
    from tsfm_lens import explain

    return explain.what_if(run, changes, **options)


@add_method("Run")
def explore(run: Run, **options: Any) -> Any:
    """Open a view in a notebook in which heads can be clicked and ablated.

    It is :func:`tsfm_lens.report.explore.explore` as a method.

    Args:
        run: of one series and maybe its covariates, over at most one pass.
        options: ``kind`` of attention, such as "self_attn"; the last kind of the output
            stack if left out.

    Returns:
        A widget, shown when it is the last line of a cell.

    Example:
        >>> run.explore()  # doctest: +SKIP
    """
    from tsfm_lens.report import explore

    return explore.explore(run, **options)


@add_method("Run", "Forecast")
def _repr_html_(result: Run | Forecast) -> str:
    """Draw the forecast in a notebook, under one line of metadata."""
    from tsfm_lens.viz.forecast import as_html

    return as_html(result)


@add_method("Lens")
def run(lens: Lens, *series: Any, **options: Any) -> Run:
    """Make a run: a forecast that is computed once and shared by all probes.

    It is :func:`tsfm_lens.models.run.run` as a method; importing that module, which the
    first call does, puts the function itself in this place.

    Args:
        lens: the model.
        series: the series, and possibly the horizon.
        options: further arguments of the function.

    Returns:
        The run; nothing is computed before it is asked for.

    Example:
        >>> lens.run(tsfm_lens.bundled("co2"), 12).horizon
        12
    """
    from tsfm_lens.models.run import run

    return run(lens, *series, **options)


@add_method("Lens")
def quick_check(lens: Lens) -> list[OracleResult]:
    """Run the cheap exactness checks on one short series.

    It is :func:`tsfm_lens.testing.quick_check` as a method.

    Args:
        lens: the model to check.

    Returns:
        The result of each check.

    Example:
        >>> all(result.passed for result in lens.quick_check())
        True
    """
    from tsfm_lens.testing import quick_check

    return quick_check(lens)


@add_method("Checkpoint")
def folded(files: Checkpoint) -> Checkpoint:
    """Read a compressed checkpoint, with the record of its compression.

    Args:
        files: the checkpoint.

    Returns:
        The checkpoint, of the class that builds compressed layers.
    """
    from tsfm_lens.compress.checkpoint import folded

    return folded(files)
