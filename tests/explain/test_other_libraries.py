"""The same function explained by captum, where it is installed (pip install captum)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from closeness import close_in_float32
from tsfm_lens import explain
from tsfm_lens.models import Run

PARTS = 5
DEPTH = 1000


class Middle(nn.Module):
    """The model's median in data units, from its context."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.model = run.lens.model
        self.level = run.lens.levels.index(0.5)
        self.horizon = run.horizon

    def forward(self, context: Tensor) -> Tensor:
        return self.model(context=context).quantile_preds[:, self.level, : self.horizon]


def given(run: Run) -> tuple[tuple[explain.Segment, ...], Tensor, Tensor, Tensor]:
    """Segments, the input, the reference, and the number of each step's segment; (1,
    time) each.
    """
    parts = explain.segments(run, parts=PARTS, season=1)
    context = run.encoded.inputs["context"]
    away = torch.tensor(
        explain.reference_values(run.batch, "seasonal naive", run.horizon)[0][
            : context.shape[1]
        ]
    )
    number = torch.zeros(context.shape, dtype=torch.long)
    for index, part in enumerate(parts):
        number[:, part.start + context.shape[1] : part.stop + context.shape[1]] = index
    return parts, context, away[None].float(), number


def ours(
    run: Run, method: str, parts: tuple[explain.Segment, ...], **options: Any
) -> np.ndarray:
    found = explain.input_attribution(
        run, method=method, reference="seasonal naive", parts=parts, **options
    )
    return found["attribution"].sel(quantile=0.5).values


def test_captum_gives_the_same_values(bolt_run: Run) -> None:
    attr = pytest.importorskip("captum.attr")
    parts, context, away, number = given(bolt_run)
    model = Middle(bolt_run)
    steps = range(0, bolt_run.horizon, 5)

    def by_segment(values: Tensor) -> np.ndarray:
        """Captum repeats a group's value at each of its steps; take the first."""
        return np.array(
            [values[0][number[0] == index][0].item() for index in range(len(parts))]
        )

    cases = {
        "shapley": attr.ShapleyValues(model),
        "occlusion": attr.FeatureAblation(model),
    }
    for method, theirs in cases.items():
        mine = ours(bolt_run, method, parts)
        for step in steps:
            found = theirs.attribute(
                context, baselines=away, target=step, feature_mask=number
            )
            close_in_float32(
                mine[:, step],
                by_segment(found),
                depth=DEPTH,
                magnitude=12.0,
                what=method,
            )
    mine = ours(bolt_run, "integrated gradients", parts, steps=16)
    for step in steps:
        found = attr.IntegratedGradients(model).attribute(
            context, baselines=away, target=step, n_steps=16
        )
        summed = np.array(
            [found[number == index].sum().item() for index in range(len(parts))]
        )
        close_in_float32(
            mine[:, step], summed, depth=DEPTH, magnitude=12.0, what="integrated"
        )
