"""Interventions that knock components out, by the replacement of their values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tsfm_lens.errors import InputError
from tsfm_lens.hooks.activations import Activations
from tsfm_lens.hooks.component import Component, select_components
from tsfm_lens.hooks.interventions import Intervention, Mean, Noise, Resample, Rows, Zero
from tsfm_lens.models.architecture import Encoded
from tsfm_lens.models.base import LensBase

KINDS = {"zero": Zero, "mean": Mean, "resample": Resample, "noise": Noise}
_WITH_REFERENCE = ("mean", "resample")


def checked_how(how: str) -> bool:
    """Return whether a knock-out takes its values from other activations.

    Raises:
        InputError: there is no such ``how``.
    """
    if how not in KINDS:
        raise InputError(f"how={how!r} is not known, choose one of {', '.join(KINDS)}")
    return how in _WITH_REFERENCE


def knock_outs(
    lens: LensBase,
    components: Sequence[str | Component],
    how: str = "zero",
    reference: Any = None,
    rows: Rows = None,
    positions: Rows = None,
    horizon: int | None = None,
    **options: Any,
) -> list[Intervention]:
    """Make one intervention per component; arguments as :meth:`Lens.ablate` takes them.

    Raises:
        UnknownNameError: no such component.
        InputError: no such ``how``, or it needs a reference and none is given.
    """
    needs_reference = checked_how(how)
    targets = select_components(lens.wiring, *components)
    if needs_reference:
        options["reference"] = reference_activations(lens, how, reference, horizon)
    return [KINDS[how](target, rows=rows, positions=positions, **options) for target in targets]


def ablated_variants(
    lens: LensBase,
    components: Sequence[Component],
    how: str,
    reference: Any = None,
    *,
    horizon: int | None = None,
    seed: int = 0,
) -> list[tuple[Intervention, ...]]:
    """Make the interventions that knock out each component by itself, with one reference for all.

    Args:
        lens: the model.
        components: to knock out, one by one.
        how, reference: see :meth:`Lens.ablate`.
        horizon: of the forecasts along which reference series are recorded.
        seed: of resample and noise.

    Raises:
        InputError: no such ``how``, or it needs a reference and none is given.
    """
    activations = reference_activations(lens, how, reference, horizon) if how in _WITH_REFERENCE else None
    options = {"seed": seed} if how in ("resample", "noise") else {}
    return [tuple(knock_outs(lens, [component], how, activations, **options)) for component in components]


def reference_activations(lens: LensBase, how: str, reference: Any, horizon: int | None = None) -> Activations:
    """Return activations; of series, those along their forecasts, so that every position has a mean.

    Raises:
        InputError: there is no reference.
    """
    if reference is None:
        raise InputError(f"how={how!r} needs reference=…: activations, or series to record them on")
    if isinstance(reference, Activations):
        return reference
    along = not isinstance(reference, Encoded)
    with torch.no_grad():
        run: dict[str, Any] = {"horizon": horizon} if along and horizon is not None else {}
        _, acts = lens.run_with_cache(reference, names_filter=["**.hook_z", "**.hook_out"], rollout=along, **run)
    return acts
