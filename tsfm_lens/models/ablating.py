"""Interventions that ablate components by replacing their values.

Read :func:`knock_outs` first; it is what ``lens.ablate`` applies. The interventions
themselves are in :mod:`tsfm_lens.hooks.interventions`, and forecasts of many ablated
variants at once in :mod:`tsfm_lens.ablation`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import torch

from tsfm_lens.core.choices import ABLATIONS, WITH_REFERENCE, checked_how
from tsfm_lens.core.errors import InputError
from tsfm_lens.data import as_series
from tsfm_lens.hooks.activations import Activations
from tsfm_lens.hooks.component import Component, select_components
from tsfm_lens.hooks.interventions import Intervention, Mean, Noise, Resample, Zero
from tsfm_lens.models.architecture import Encoded
from tsfm_lens.models.base import LensBase, check_unknown
from tsfm_lens.models.recording import Capture, select_names

KINDS = dict(zip(ABLATIONS, (Zero, Mean, Resample, Noise), strict=True))
DRAWING = ("resample", "noise")


def knock_outs(
    lens: LensBase,
    components: Sequence[str | Component],
    how: str = "zero",
    reference: Any = None,
    horizon: int | None = None,
    **options: Any,
) -> list[Intervention]:
    """Make one intervention per component.

    Returns:
        One intervention for each component that a pattern matches.
    """
    needs_reference = checked_how(how)
    allowed = [
        field.name
        for field in fields(KINDS[how])
        if field.name not in ("target", "reference")
    ]
    check_unknown(options, f"{how} ablation", [*allowed, "how", "reference", "horizon"])
    targets = select_components(lens.wiring, *components)
    if needs_reference:
        options["reference"] = reference_activations(lens, how, reference, horizon)
    return [KINDS[how](target, **options) for target in targets]


def ablated_variants(
    lens: LensBase,
    components: Sequence[Component],
    how: str,
    reference: Any = None,
    *,
    horizon: int | None = None,
    seed: int = 0,
) -> list[tuple[Intervention, ...]]:
    """Make one variant per component, in which that component alone is ablated.

    A reference is recorded once and shared by all variants.

    Returns:
        The interventions of each variant, one in each.
    """
    activations = None
    if how in WITH_REFERENCE:
        activations = reference_activations(lens, how, reference, horizon)
    return [
        tuple(
            knock_outs(lens, [component], how, activations, **draw_options(how, seed))
        )
        for component in components
    ]


def draw_options(how: str, seed: int) -> dict[str, Any]:
    """Return the options of an ablation that say what it draws.

    Kinds that draw nothing have none.
    """
    if how in DRAWING:
        return {"seed": seed}
    return {}


def reference_activations(
    lens: LensBase, how: str, reference: Any, horizon: int | None = None
) -> Activations:
    """Return the activations from which an ablation takes its values.

    Activations are returned as they are, and an encoded batch is run in one forward.
    Series are recorded along their own forecasts, so that every position has a mean.
    """
    if reference is None:
        raise InputError(
            f"how={how!r} needs reference=…: activations, or series to record them on"
        )
    if isinstance(reference, Activations):
        return reference
    # heads are ablated at z, other components at what they add to the stream
    names = select_names(lens, ["**.hook_z", "**.hook_out"], None)
    with torch.no_grad():
        if isinstance(reference, Encoded):
            return Capture(lens, reference.batch, names).forward(reference)[1]
        capture = Capture(lens, as_series(reference), names, rollout=True)
        return capture.forecast_recorded(
            **({} if horizon is None else {"horizon": horizon})
        )[1]
