"""From a lens and series to everything a report shows: the road that ``tsfm-lens report`` takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from tsfm_lens.errors import InputError

if TYPE_CHECKING:
    from tsfm_lens.data import SeriesBatch
    from tsfm_lens.models import Lens

Progress = Callable[[str, int, int], None]

# of the series with the attention maps: one is enough to see which head looks where
_ATTENTION_SERIES = 0


@dataclass(frozen=True)
class Task:
    """Series as a model is shown them.

    Attributes:
        context: at most the model's context length of each series.
        truth: (series, step) held out, or None.
        horizon: forecast steps.
    """

    context: SeriesBatch
    truth: np.ndarray | None
    horizon: int


def prepare(lens: Lens, batch: SeriesBatch, horizon: int | None = None, *, holdout: bool = True) -> Task:
    """Hold the end of every series out and crop what is left to the model's context.

    Args:
        lens: the model.
        batch: whole series.
        horizon: forecast steps; the model's own prediction length if None.
        holdout: keep the last ``horizon`` steps as the truth; False forecasts beyond the end.

    Raises:
        InputError: the horizon is below 1, or a series is too short to hold it out.
    """
    steps = lens.adapter.prediction_length if horizon is None else horizon
    if steps < 1:
        raise InputError(f"horizon {steps} is not a number of steps; expected an integer from 1 on")
    if not holdout:
        return Task(batch.tail(lens.adapter.context_length), None, steps)
    context, truth = batch.split(steps)
    return Task(context.tail(lens.adapter.context_length), truth, steps)


def analyse(
    lens: Lens,
    batch: SeriesBatch,
    horizon: int | None = None,
    *,
    holdout: bool = True,
    seed: int = 0,
    ablation_samples: int | None = 4,
    progress: Progress | None = None,
) -> dict[str, xr.Dataset]:
    """Forecast, logit lens, gain per layer, attribution, ablation of every component, and attention.

    Args:
        lens: the model.
        batch: whole series.
        horizon, holdout: see :func:`prepare`; at most the model's prediction length.
        seed: of every sampling step.
        ablation_samples: sample paths a variant of a sampling model; quantile models draw none.
        progress: called as (name of the step, done, total) before, within and after each step.

    Returns:
        Labelled results by name, in the order of a report. Without a truth the gain is measured against
        the model's own forecast.

    Raises:
        InputError: series or horizon cannot be used.
    """
    from tsfm_lens import probes

    task = prepare(lens, batch, horizon, holdout=holdout)
    series, truth, steps = task.context, task.truth, task.horizon
    samples = ablation_samples if lens.adapter.readout == "token" else None
    results: dict[str, xr.Dataset] = {}

    def tell(done: int, total: int) -> None:
        if progress is not None:
            progress("ablation", done, total)

    work: dict[str, Callable[[], xr.Dataset]] = {
        "forecast": lambda: lens.forecast(series, steps, seed=seed).to_dataset(truth),
        "logit_lens": lambda: probes.logit_lens(lens, series, steps, truth=truth, seed=seed),
        "layer_gain": lambda: probes.layer_gain(
            results["logit_lens"], reference="model" if truth is None else "truth"
        ),
        "attribution": lambda: probes.attribute(lens, series, steps, truth=truth, seed=seed),
        "ablation": lambda: probes.ablation_effects(
            lens, series, steps, truth=truth, num_samples=samples, seed=seed, progress=tell
        ),
        **{f"attention_{kind}": _attention(lens, series, steps, stack, kind, seed) for stack, kind in _maps(lens)},
    }
    for name, run in work.items():
        if progress is not None:
            progress(name, 0, 1)
        results[name] = run()
        if progress is not None:
            progress(name, 1, 1)
    return results


def steps_of(lens: Lens) -> list[str]:
    """Names of the steps of :func:`analyse`, in order."""
    fixed = ["forecast", "logit_lens", "layer_gain", "attribution", "ablation"]
    return [*fixed, *(f"attention_{kind}" for _, kind in _maps(lens))]


def _maps(lens: Lens) -> list[tuple[str, str]]:
    """Stack and kind of the attention that is shown: all of the stack that is read out."""
    stack = lens.wiring.output_stack
    found = dict.fromkeys((stack.name, row.kind) for row in stack.attentions())
    # one decoder token attends to itself alone, which shows nothing
    single = stack.name == "decoder" and lens.adapter.readout == "quantile"
    return [(name, kind) for name, kind in found if not (single and kind == "self_attn")]


def _attention(
    lens: Lens, series: SeriesBatch, horizon: int, stack: str, kind: str, seed: int
) -> Callable[[], xr.Dataset]:
    from tsfm_lens import probes

    one = series.select(_ATTENTION_SERIES)
    return lambda: probes.attention_patterns(lens, one, horizon, kind=kind, stack=stack, seed=seed)
