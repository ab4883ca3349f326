"""Making a run: what :meth:`Lens.run` does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tsfm_lens.data import as_series
from tsfm_lens.data.ends import held_out
from tsfm_lens.data.floats import to_floats
from tsfm_lens.errors import InputError
from tsfm_lens.models.adapter import default_horizon
from tsfm_lens.models.forecast import checked_request, is_count
from tsfm_lens.models.run import Run, hooks_in_force

if TYPE_CHECKING:
    from tsfm_lens.models.lens import Lens


def make_run(
    lens: Lens,
    series: Any,
    horizon: int | None = None,
    *,
    truth: Any = None,
    holdout: bool = False,
    along: Any = None,
    rollout: bool | None = None,
    num_samples: int | None = None,
    seed: int = 0,
) -> Run:
    """Forecast a batch once, for everything that is asked of that forecast.

    Nothing runs before it is asked for.

    Args:
        lens: the model.
        series: the context, anything that :func:`tsfm_lens.data.as_series` takes.
        horizon: forecast steps; the model's own prediction length if None, less where the end of a short series is held
            out.
        truth: (series, step) what came after the context, NaN where unknown; NaN throughout is no truth.
        holdout: take the last ``horizon`` steps of every series as the truth. Of what is left, as of series without a
            truth, at most the model's context length is the context.
        along: (series, step) values that a token model's decoder is forced along in single forwards; the median path
            if None.
        rollout: True looks at the library's own rollout, all of its passes. False looks at one forward over the whole
            horizon, in which a token model is read out as the expected value. None takes one forward wherever that
            covers the horizon.
        num_samples: sample paths of a sampling model; its configured number if None.
        seed: of every draw.

    Raises:
        InputError: a wrong argument, a series too short to hold its end out, or ends without any value.
    """
    batch = as_series(series)
    adapter = lens.adapter
    own = adapter.prediction_length if holdout else default_horizon(adapter, batch)
    steps = own if horizon is None else horizon
    if not is_count(steps):
        raise InputError(f"horizon {horizon!r} is not a number of steps; expected an integer of 1 or more")
    steps, _ = checked_request(steps, (0.5,), num_samples, seed)
    if rollout not in (None, True, False):
        raise InputError(f"rollout is {rollout!r}, expected True, False or None")
    whole = batch if holdout else None
    if holdout:
        if truth is not None:
            raise InputError("give either truth=… or holdout=True, which takes the truth from the series' ends")
        if horizon is None:
            # as much context as truth at least
            shortest = min(batch.lengths)
            steps = max(1, min(steps, max(shortest - adapter.context_length, shortest // 2)))
        batch, truth = held_out(batch, steps)
    batch = batch.tail(adapter.context_length)
    known = None if truth is None else to_floats(truth, "the truth")
    if known is not None and known.shape != (len(batch), steps):
        raise InputError(f"truth has shape {known.shape}, expected (series, step) = {(len(batch), steps)}")
    if known is not None and not np.isfinite(known[batch.is_target]).any():
        known = None
    rolls = steps > adapter.longest_pass if rollout is None else rollout
    settings = (num_samples, seed, rolls, None, whole, horizon is not None, hooks_in_force(lens))
    run = Run(lens, batch, steps, known, *settings)
    return run if along is None else run.following(along)
