"""Running a lens once and keeping activations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tsfm_lens.data import as_series
from tsfm_lens.errors import InputError
from tsfm_lens.hooks.activations import Activations
from tsfm_lens.hooks.recorder import NamesFilter, Reducer, record, resolve_filter
from tsfm_lens.hooks.wiring import Wiring
from tsfm_lens.models.architecture import Encoded, rows_of
from tsfm_lens.models.time_axis import rollout_spans

if TYPE_CHECKING:
    from tsfm_lens.models.lens import Lens


def recorded_run(
    lens: Lens,
    series: Any,
    names_filter: NamesFilter,
    rollout: bool,
    device: torch.device | str | None,
    reduce: Reducer | Mapping[str, Reducer] | None,
    loss: Callable[[Tensor], Tensor] | None,
    run: dict[str, Any],
) -> tuple[Any, Activations]:
    """What :meth:`Lens.run_with_cache` does; ``loss`` is None where no gradients are wanted."""
    points = lens.registry.points
    names = resolve_filter(points, names_filter)
    if names_filter is None:
        names = [name for name in names if not name.endswith("hook_result")]
    batch = series.batch if isinstance(series, Encoded) else as_series(series)
    rows = rows_of(batch, lens.adapter.packed)
    acts = Activations(points, rollout, rows, sample_major=lens.wiring.sample_major, attrs=lens.provenance())
    with record(lens.registry, names, acts, device=device, reduce=reduce, gradients=loss is not None):
        if rollout:
            forecast = lens.forecast(batch, **run)
            acts.spans_at = rollout_spans(lens.adapter, batch, forecast.horizon)
            return forecast, acts
        encoded = series if isinstance(series, Encoded) else lens.encode(batch, **run)
        acts.spans = encoded.spans
        if loss is None:
            return lens.forward(encoded), acts
        # gradients were asked for, whatever the caller's setting
        with torch.enable_grad():
            output = lens.forward(encoded)
            loss(output).backward()
    return output, acts


def refuse_gradients(wiring: Wiring) -> None:
    """Refuse gradients that are not derivatives.

    Raises:
        InputError: the library rescales its backward pass.
    """
    if not wiring.true_gradients:
        raise InputError(
            f"{wiring.architecture} rescales its backward pass (unit scaling), so its gradients are not the "
            "derivatives; use finite differences, or attribution by lens difference"
        )


def refuse_run(lens: Lens, rollout: bool, gradients: bool, loss: Callable[[Tensor], Tensor] | None) -> None:
    """Refuse to record what cannot be recorded; errors as in :meth:`Lens.run_with_cache`."""
    if gradients and (rollout or loss is None):
        raise InputError(
            "gradients need a single forward and a scalar: run_with_cache(..., incl_bwd=True, loss=fn) "
            "with rollout=False"
        )
    if gradients:
        refuse_gradients(lens.wiring)
        if torch.is_inference_mode_enabled():
            raise InputError("there are no gradients under torch.inference_mode(); leave it, or drop incl_bwd=True")
    if rollout and getattr(lens.adapter, "passes", 1) > 1:
        raise InputError(
            "this model was compiled with force_flip_invariance=True, under which every forecast runs on x and on -x; "
            "compile it with force_flip_invariance=False to record one run"
        )
