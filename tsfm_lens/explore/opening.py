"""Opening the linked view: what it needs, computed once."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from tsfm_lens.data import as_series
from tsfm_lens.errors import MissingExtraError
from tsfm_lens.models.lens import Lens
from tsfm_lens.probes.head_states import head_states

if TYPE_CHECKING:
    from tsfm_lens.explore.widget import Explorer

# of a token model, whose every path is a rollout: few enough that the small embedded one answers within 0.3 s
LIVE_SAMPLES = 8
_NEEDED = ("ipywidgets", "anywidget", "IPython")


def explore(
    lens: Lens,
    series: Any,
    horizon: int | None = None,
    *,
    truth: Any = None,
    kind: str | None = None,
    num_samples: int | None = None,
    seed: int = 0,
) -> Explorer:
    """One linked view of a model's heads in a notebook: click a head, see what it does, ablate it.

    A map of all heads; of the one clicked, what it looks at, what it writes to the forecast, and its spectra; and the
    forecast with and without any set of heads, which the model makes anew at each change.

    Args:
        lens: the model.
        series: exactly one series, the context.
        horizon: steps, at most what one pass yields; the model's prediction length if None.
        truth: (step,) or (1, step) what came after the context.
        kind: kind of attention of the stack that is read out; its last kind over time if None.
        num_samples: sample paths of every forecast, with and without heads, which the view states. If None, 8 of a
            token model, so that it answers fast, and the configured number of other sampling models.
        seed: of every forecast.

    Returns:
        A widget, shown when it is the last line of a cell.

    Raises:
        MissingExtraError: the notebook libraries are not installed.
        InputError, UnknownNameError: see :func:`tsfm_lens.probes.head_states`.
    """
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise MissingExtraError(
            f"lens.explore needs {' and '.join(missing)}, not installed: "
            'pip install "tsfm-lens-toolbox[notebook]". Without a notebook, viz.explore_figure draws the same view of '
            "probes.head_states."
        )
    from tsfm_lens.explore.widget import Explorer, progress_bar

    batch = as_series(series)
    if num_samples is None and lens.adapter.readout == "token":
        num_samples = LIVE_SAMPLES
    known = None if truth is None else np.atleast_2d(np.asarray(truth, dtype=float))
    with progress_bar() as tell:
        states = head_states(
            lens, batch, horizon, truth=known, kind=kind, num_samples=num_samples, seed=seed, progress=tell
        )
    return Explorer(lens, batch, states, num_samples=num_samples)
