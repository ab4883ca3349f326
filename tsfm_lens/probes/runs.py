"""Runs of one batch under interventions, read out as point forecasts in data units."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tsfm_lens.ablation.engine import Variant, run_variants
from tsfm_lens.data import SeriesBatch, as_series
from tsfm_lens.errors import InputError
from tsfm_lens.hooks.activations import Activations
from tsfm_lens.hooks.interventions import Intervention
from tsfm_lens.models.architecture import Encoded
from tsfm_lens.models.lens import Lens
from tsfm_lens.probes.trajectory import checked_horizon, trajectory

Progress = Callable[[int, int], None]

# tokens that run side by side, and variants between two calls of a progress function
_TOKENS, _AT_ONCE = 2**15, 256
# every library scales series in float32 or better
_OUTER = torch.finfo(torch.float32).eps


@dataclass(frozen=True)
class Runs:
    """One batch, and the way in which it is run.

    Attributes:
        lens: the model.
        batch: the series.
        horizon: forecast steps.
        encoded: input of one forward over the whole horizon.
        rollout: whether forecasts are the library's own rollouts; otherwise single forwards.
        values: (series, step) along which a token model's decoder is forced in single forwards, else None.
        num_samples, seed: of rollouts.
    """

    lens: Lens
    batch: SeriesBatch
    horizon: int
    encoded: Encoded
    rollout: bool
    values: np.ndarray | None = None
    num_samples: int | None = None
    seed: int = 0

    @property
    def statistic(self) -> str:
        """What the point forecast is: "median", "mean" or "expected value"."""
        if self.rollout:
            return "median"
        return {"token": "expected value", "distribution": "mean"}.get(self.lens.adapter.readout, "median")

    def read(self, output: Tensor, part: Encoded | None = None) -> Tensor:
        """Output of a forward of the batch or a part of it (…, series, …) to point forecasts (…, series, step)."""
        return point_forecast(self.lens, output, self.encoded if part is None else part, self.horizon)

    def forecasts(self, variants: Sequence[Variant], progress: Progress | None = None) -> np.ndarray:
        """Point forecast of every variant, (variant, series, step): side by side where one forward is enough."""
        forecasts = np.empty((len(variants), len(self.batch), self.horizon))
        if not self.rollout:
            longest = max(len(spans) for spans in self.encoded.spans.values())
            rows = max(1, _TOKENS // longest)
            for first in range(0, len(variants), _AT_ONCE):
                part = variants[first : first + _AT_ONCE]
                found = run_variants(self.lens, self.encoded, part, max_rows=rows, read=self.read)
                forecasts[first : first + len(part)] = found.cpu().double().numpy()
                if progress is not None:
                    progress(first + len(part), len(variants))
            return forecasts
        for index, variant in enumerate(variants):
            with self.lens.edit(*variant.interventions):
                forecasts[index] = self._rolled()
            if progress is not None:
                progress(index + 1, len(variants))
        return forecasts

    def rounding(self, plain: np.ndarray) -> np.ndarray:
        """What rounding may do to the forecasts ``plain`` (series, step), in data units, (series,).

        4 roundings in float32 of the largest value of context and forecast, for scaling in and out again, and, for
        what happens between, the square root of 100 roundings a block, in the precision of the weights, of the range
        of both.

        Source:
            Higham and Mary 2019, A new approach to probabilistic rounding error analysis: n independent roundings
            add up to about the square root of n, not to n.
        """
        blocks = sum(stack.n_layers for stack in self.lens.wiring.stacks)
        kinds = {each.dtype for each in self.lens.adapter.model.parameters() if each.is_floating_point()}
        inner = math.sqrt(100 * blocks) * max((torch.finfo(kind).eps for kind in kinds), default=_OUTER)
        found = np.empty(len(self.batch))
        for row, context in enumerate(self.batch.values):
            known = np.concatenate([np.ravel(context), plain[row]]).astype(float)
            known = known[np.isfinite(known)]
            found[row] = 4 * _OUTER * np.abs(known).max(initial=0.0) + inner * (np.ptp(known) if known.size else 0.0)
        return found

    def told_apart(self, forecasts: np.ndarray, plain: np.ndarray) -> np.ndarray:
        """Forecasts (…, series, step), with those of ``plain`` (series, step) where only rounding is between them."""
        same = np.abs(forecasts - plain).max(-1) <= self.rounding(plain)
        return np.where(same[..., None], plain, forecasts)

    def record(self, names: Sequence[str], *interventions: Intervention) -> tuple[np.ndarray, Activations]:
        """Point forecast (series, step) and activations of one run."""
        own: dict[str, Any] = {"rollout": True, "horizon": self.horizon, "num_samples": self.num_samples}
        with torch.no_grad(), self.lens.edit(*interventions):
            if self.rollout:
                forecast, acts = self.lens.run_with_cache(self.batch, names_filter=names, seed=self.seed, **own)
                return forecast.median, acts
            output, acts = self.lens.run_with_cache(self.encoded, names_filter=names)
        return self.read(output).cpu().double().numpy(), acts

    def _rolled(self) -> np.ndarray:
        return self.lens.forecast(self.batch, self.horizon, num_samples=self.num_samples, seed=self.seed).median


def runs_of(
    lens: Lens,
    series: Any,
    horizon: int | None = None,
    *,
    rollout: bool | None = None,
    along: Any = None,
    num_samples: int | None = None,
    seed: int = 0,
) -> Runs:
    """Prepare runs of a batch.

    Args:
        lens: the model.
        series: anything that ``as_series`` takes.
        horizon: forecast steps; the model's prediction length if None.
        rollout: True for the library's own rollouts. False for single forwards, in which a token model's decoder is
            forced along ``along`` and read out as the expected value. None takes single forwards where one pass
            covers the horizon.
        along: (series, step) values; the median forecast if None.
        num_samples, seed: of sampling models.

    Raises:
        InputError: single forwards are asked for, and one pass does not cover the horizon; a horizon that is no
            number of steps.
    """
    batch = as_series(series)
    steps = checked_horizon(lens, horizon)
    if rollout not in (None, True, False):
        raise InputError(f"rollout is {rollout!r}, expected True, False or None")
    beyond = steps > lens.adapter.longest_pass
    if rollout or (rollout is None and beyond):
        # the tokens of the first pass, which is all that is known of them before the rollout
        first = min(steps, lens.adapter.longest_pass)
        known = np.zeros((len(batch), first)) if lens.adapter.readout == "token" else None
        encoded = lens.encode(batch, future=known) if known is not None else lens.encode(batch, horizon=first)
        return Runs(lens, batch, steps, encoded, True, None, num_samples, seed)
    run = trajectory(lens, batch, steps, along=along, num_samples=num_samples, seed=seed)
    values = run.values if run.tokens is not None else None
    return Runs(lens, batch, steps, run.encoded, False, values, num_samples, seed)


def point_forecast(lens: Lens, output: Tensor, encoded: Encoded, horizon: int) -> Tensor:
    """Output of a forward as one value a step, in data units; differentiable.

    Args:
        lens: the model.
        output: (…, series, step, vocabulary) logits, or (…, series, quantile, step).
        encoded: the batch that it belongs to.
        horizon: forecast steps.

    Returns:
        (…, series, step): the expected value over the value tokens, the quantile nearest to 0.5, or the mean of a
        distribution head.
    """
    if lens.adapter.readout == "token":
        # a sum over thousands of values keeps nothing in half precision
        output = output.to(torch.promote_types(output.dtype, torch.float32))
        first: int = lens.adapter.first_value_token  # type: ignore[attr-defined]
        values = lens.adapter.values(encoded)[:, None, first:].to(output)
        mass = torch.softmax(output, dim=-1)[..., first:]
        return ((mass * values).sum(-1) / mass.sum(-1))[..., :horizon]
    levels = np.array(lens.adapter.levels)  # type: ignore[attr-defined]
    return output[..., int(np.argmin(np.abs(levels - 0.5))), :horizon]
