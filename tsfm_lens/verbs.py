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

    See :func:`tsfm_lens.viz.plot`.
    """
    from tsfm_lens import viz

    return viz.plot(thing, *others, **options)


@add_method("Result")
def table(result: Result, *variables: str, **options: Any) -> pd.DataFrame:
    """Tabulate this result, a row a member, in a frame of pandas.

    See :func:`tsfm_lens.core.tables.tabulate`.
    """
    from tsfm_lens.core.tables import tabulate

    return tabulate(result, *variables, **options)


@add_method("Run")
def without(run: Run, *components: str | Component, **options: Any) -> Result:
    """Forecast with and without components.

    See :func:`tsfm_lens.probes.ablation_recipes`.

    Args:
        components: names or globs, or a list of them, all ablated together.
        options: of the probe: ``how`` ("zero", "mean" or "resample"), ``reference``,
            ``quantiles``, ``progress``.
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

    See :func:`tsfm_lens.probes.attribution`.
    """
    from tsfm_lens import probes

    return probes.attribution(run, **options)


@add_method("Run")
def measure(run: Run, kind: str, /, *, item: Item = None, **options: Any) -> Result:
    """Compute any measurement by its kind, such as "logit_lens".

    :func:`tsfm_lens.core.registry.measurements` returns all of them.

    Args:
        kind: of the result; ``tsfm-lens measurements`` lists them.
        item: by position or name, the one item that is measured; all if None.
        options: of its probe.

    Raises:
        InputError: the measurement is of one item, the run has several, and none is
            chosen.
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

    See :func:`tsfm_lens.report.pipeline.report`.

    Args:
        out: folder for index.html.
        options: ``sections`` (kinds of measurements), ``options`` of their probes by
            kind, ``title``, ``progress``.
    """
    from tsfm_lens.report import pipeline

    return pipeline.report(run, out, **options)


@add_method("Run")
def explain(run: Run, out: str | Path | None = None, **options: Any) -> Explanation:
    """Explain this forecast by its inputs and their routes, and test both.

    See :func:`tsfm_lens.report.explanation.explain`.
    """
    from tsfm_lens.report import explanation

    return explanation.explain(run, out, **options)


@add_method("Run")
def what_if(
    run: Run, changes: Mapping[str, Any] | None = None, **options: Any
) -> Result:
    """Forecast with another input, such as ``run.what_if(temperature="+5")``.

    See :func:`tsfm_lens.explain.what_if`.
    """
    from tsfm_lens import explain

    return explain.what_if(run, changes, **options)


@add_method("Run")
def explore(run: Run, **options: Any) -> Any:
    """Open a view in a notebook in which heads can be clicked and ablated.

    See :func:`tsfm_lens.report.explore.explore`.

    Args:
        options: ``kind`` of attention, such as "self_attn"; the last kind of the output
            stack if left out.
    """
    from tsfm_lens.report import explore

    return explore.explore(run, **options)


@add_method("Run", "Forecast")
def _repr_html_(result: Run | Forecast) -> str:
    """Draw the forecast in a notebook, under one line of metadata."""
    from tsfm_lens.viz.forecast import as_html

    return as_html(result)


@add_method("Lens")
def quick_check(lens: Lens) -> list[OracleResult]:
    """Run the cheap exactness checks on one short series.

    See :func:`tsfm_lens.testing.quick_check`.
    """
    from tsfm_lens.testing import quick_check

    return quick_check(lens)


@add_method("Checkpoint")
def folded(files: Checkpoint) -> Checkpoint:
    """Read a compressed checkpoint, with the record of its compression.

    See :func:`tsfm_lens.compress.checkpoint.folded`.
    """
    from tsfm_lens.compress.checkpoint import folded

    return folded(files)
