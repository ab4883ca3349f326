"""Opening of the notebook views, with the results that they need.

Read :func:`explore` and :func:`brush` first. The widgets are in ``widget.py``, which is
imported once the notebook libraries are known to be there.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from tsfm_lens.core.errors import missing_extra
from tsfm_lens.models.run import Run
from tsfm_lens.probes.attention import check_single
from tsfm_lens.probes.head_states import head_states

if TYPE_CHECKING:
    from tsfm_lens.data.batch import Item
    from tsfm_lens.explain.masking import Reference
    from tsfm_lens.report.explore.widget import Brush, Explorer

_LIBRARIES = ("ipywidgets", "anywidget", "IPython")


def explore(run: Run, *, kind: str | None = None) -> Explorer:
    """Open the linked view of a model's heads in a notebook.

    Heads can be clicked and ablated, and a stretch of the past can be brushed.

    Args:
        run: of one series and maybe its covariates, over at most one pass; every
            forecast takes its seed and number of sample paths.
        kind: kind of attention of the last stack; its last kind over time if None.

    Returns:
        A widget, shown when it is the last line of a cell.

    Raises:
        MissingExtraError: the notebook libraries are not installed.
        InputError: several variates, a horizon longer than one pass, or attention
            between variates.
        UnknownNameError: the stack has no such kind of attention.

    Example:
        >>> run.explore()  # doctest: +SKIP
    """
    need(
        "explore",
        instead="viz.plot(probes.head_states(run)) draws the effects of all heads",
    )
    check_single(run, "heads are explored", covariates=True)
    from tsfm_lens.report.explore.widget import Explorer

    return Explorer(run, head_states(run, kind=kind))


def brush(run: Run, item: Item = None, *, reference: Reference = "mean") -> Brush:
    """Brush a stretch of the past in a notebook, and see the forecast without it.

    It is brushed over the figure, or by a slider.

    Args:
        run: the forecast; forecasts without a stretch take its seed.
        item: whose forecast, by position or name; the only one if None.
        reference: values of the steps that are left out: one of
            :data:`tsfm_lens.explain.REFERENCES`, a dict with one for each role
            ("target", "past", "known"), or (time + horizon,) for each series.

    Returns:
        A widget, shown when it is the last line of a cell.

    Raises:
        MissingExtraError: the notebook libraries are not installed.
        InputError: several items and none is chosen, the reference does not fit the
            item, or the model cannot forecast the visible rest.
        UnknownNameError: no such reference or item.

    Example:
        >>> explore.brush(run)  # doctest: +SKIP
    """
    need("brush", instead="explain.forecasts makes the same forecasts")
    from tsfm_lens.report.explore.widget import Brush

    return Brush(run, item, reference)


def need(what: str, *more: str, instead: str = "") -> None:
    """Raise MissingExtraError without the notebook libraries and ``more`` ones."""
    missing = [name for name in (*more, *_LIBRARIES) if find_spec(name) is None]
    if missing:
        hint = ""
        if instead:
            hint = f"Without a notebook, {instead}."
        raise missing_extra(what, "notebook", missing, hint=hint)
