"""Point forecasts of a run under variants of its model.

Single forwards go through :mod:`tsfm_lens.ablation.engine`, the library's own rollouts
through :mod:`tsfm_lens.ablation.rollouts`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tsfm_lens.ablation.engine import Variant, run_variants
from tsfm_lens.ablation.rollouts import Progress, forecast_variants
from tsfm_lens.models.run import Run

_MAX_TOKENS = 2**15  # in the rows that run side by side
_AT_ONCE = 256  # variants between two calls of a progress function


def point_forecasts(
    run: Run, variants: Sequence[Variant], progress: Progress | None = None
) -> np.ndarray:
    """Compute a run's point forecast under each variant of its model.

    Args:
        run: in single forwards, decoders of all variants read its
            :attr:`~tsfm_lens.models.run.Run.path`; in rollouts, all variants draw the
            same random numbers.
        variants: interventions on the run's model.
        progress: called with the variants done and their number.

    Returns:
        (variant, series, step), data units; see
        :attr:`tsfm_lens.models.run.Run.statistic`.

    Raises:
        UnknownNameError: a target does not exist.
        InputError: a forecast is not finite, or one pass does not cover the horizon of
            a run in single forwards.

    Example:
        >>> heads = lens.components("decoder.0.cross_attn.*")
        >>> variants = [ablation.Variant.zero(head) for head in heads]
        >>> ablation.point_forecasts(run, variants).shape
        (4, 1, 12)
    """
    if run.rollout:
        rollouts = forecast_variants(
            run.lens,
            run.batch,
            run.horizon,
            variants,
            quantiles=(0.5,),
            num_samples=run.num_samples,
            seed=run.seed,
            progress=progress,
        )
        # (variant, series, quantile, step), of the median alone
        return rollouts.quantiles[:, :, 0]
    forecasts = np.empty((len(variants), len(run.batch), run.horizon))
    most_tokens = max(len(spans) for spans in run.encoded.spans.values())
    rows = max(1, _MAX_TOKENS // most_tokens)
    # the engine would take all variants in one call, but it reports no progress
    for first in range(0, len(variants), _AT_ONCE):
        part = variants[first : first + _AT_ONCE]
        outputs = run_variants(
            run.lens, run.encoded, part, max_rows=rows, read=run.read
        )
        forecasts[first : first + len(part)] = outputs.cpu().double().numpy()
        if progress is not None:
            progress(first + len(part), len(variants))
    return forecasts
