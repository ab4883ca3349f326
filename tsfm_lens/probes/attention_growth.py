"""Rank that an attention can add to the stream: the inequality behind theorem 4, with measured constants."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from tsfm_lens.hooks.activations import Activations
from tsfm_lens.hooks.wiring import Stack
from tsfm_lens.models.lens import Lens
from tsfm_lens.probes.streaming import StreamedSpectrum
from tsfm_lens.ranks import measured_bound

__all__: list[str] = []

AGREES = 1e-3
"""Largest deviation of a head's output from pattern times values, a share of its own size, by rounding alone."""


@dataclass
class AttentionGrowth:
    """Spectra around the first attention of a layer, gathered from groups of series.

    Args:
        lens: the model.
        column: a stack of the model.
        layer: the layer whose first attention is measured.
    """

    lens: Lens
    column: Stack
    layer: int
    before: StreamedSpectrum = field(init=False)
    after: StreamedSpectrum = field(init=False)
    values: list[StreamedSpectrum] = field(init=False)
    norms: np.ndarray = field(init=False)
    agrees: bool = True
    compared: bool = False

    def __post_init__(self) -> None:
        self.kind = next(self.column.attentions(self.layer)).kind
        self.weights = self.lens.weights.heads(self.layer, self.kind, self.column.name)
        width, heads, d_head = self.column.d_model, self.column.n_heads, self.weights.W_V.shape[-1]
        self.before, self.after = StreamedSpectrum(width), StreamedSpectrum(width)
        self.values = [StreamedSpectrum(d_head) for _ in range(heads)]
        self.norms = np.zeros(heads)

    @property
    def points(self) -> list[str]:
        """Hook points that :meth:`add` reads."""
        dot = f"{self.column.prefix}.{self.layer}."
        return [f"{dot}hook_resid_mid", *(f"{dot}{self.kind}.hook_{part}" for part in ("v", "z", "pattern"))]

    def add(self, acts: Activations, visible: Tensor) -> None:
        """Add a group: its activations, and a mask of the tokens that belong to a series, (row, pos)."""
        after, values, z, pattern = (acts[point].detach().cpu().double() for point in self.points)
        heads = pattern.shape[1]
        values = values.repeat_interleave(heads // values.shape[2], dim=2)
        if values.shape[0] != pattern.shape[0] or pattern.shape[-2:] != (visible.shape[1], values.shape[1]):
            # an attention that regroups rows, such as one over variates
            self.agrees = False
            return
        visible = visible.cpu()
        outputs = z[visible]
        if len(outputs) and not self.compared:
            # what an attention does is the same in every group
            self.compared = True
            mixture = torch.einsum("bhqk,bkhd->bqhd", pattern, values)[visible]
            self.agrees = bool((outputs - mixture).abs().max() <= AGREES * outputs.abs().max())
        if not self.agrees:
            return
        writes = torch.einsum("nhd,hdm->nm", outputs, self.weights.W_O.detach().cpu().double()) * self.weights.scale
        self.after.add(after[visible])
        self.before.add(after[visible] - writes)
        masked = pattern * visible[:, None, :, None]
        attended = masked.sum((1, 2)) > 0
        # the product of the largest column and row sum is above the squared spectral norm, and so is Frobenius'
        sums = masked.sum(2).amax(-1) * masked.sum(3).amax(-1)
        norms = torch.minimum(sums, masked.square().sum((-2, -1))).sqrt()
        self.norms = np.maximum(self.norms, norms.amax(0).numpy())
        for head, spectrum in enumerate(self.values):
            spectrum.add(values[:, :, head][attended])

    def spectra(self) -> tuple[np.ndarray, np.ndarray]:
        """Return relative singular values after the attention and their bound, (mode,) each; NaN if unknown."""
        width = self.column.d_model
        if not (self.agrees and self.after.rows):
            return np.full(width, np.nan), np.full(width, np.nan)
        out, scale = self.weights.W_O.cpu().double(), abs(self.weights.scale)
        writes = [
            norm * scale * spectrum.singular_values_through(out[head])
            for head, (norm, spectrum) in enumerate(zip(self.norms, self.values, strict=True))
        ]
        most = max(map(len, writes))
        padded = np.stack([np.pad(each, (0, most - len(each))) for each in writes])
        values, start = self.after.singular_values(), self.before.singular_values()
        # rows fewer than the width have no more singular values
        bound = measured_bound(np.pad(start, (0, width - len(start))), padded)
        largest = max(values[0], np.finfo(float).tiny)
        return np.pad(values, (0, width - len(values))) / largest, bound / largest


def as_variables(growths: list[AttentionGrowth], modes: int) -> dict[str, xr.Variable]:
    """Return ``attention_value`` and ``attention_bound``, (layer, mode), of the first so many modes."""
    spectra = np.stack([each.spectra() for each in growths])[..., :modes]
    names = ("attention_value", "attention_bound")
    return {name: xr.Variable(("layer", "mode"), spectra[:, place]) for place, name in enumerate(names)}
