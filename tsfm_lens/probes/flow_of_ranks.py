"""Flow of ranks: ranks of the stream before each layer, over all tokens of all series, beside those of each W_Q."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from tsfm_lens.errors import InputError
from tsfm_lens.hooks.activations import Activations
from tsfm_lens.hooks.wiring import Stack
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.run import Run
from tsfm_lens.probes.entropic_rank import item_groups
from tsfm_lens.probes.findings import judge
from tsfm_lens.probes.places import stack_named
from tsfm_lens.probes.spectra import core_singular_values
from tsfm_lens.probes.weight_ranks import EPSILON, StreamedSpectrum, checked_levels, ranks_of_rows, weight_matrices
from tsfm_lens.ranks import epsilon_rank, flow_bound, measured_bound
from tsfm_lens.registry import probe

__all__ = ["flow_of_ranks"]

_E2 = float(np.exp(2.0))
_AGREES = 1e-3
"""Largest deviation of a head's output from pattern times values, a share of its own size, by rounding alone."""


@probe("flow_of_ranks")
def flow_of_ranks(
    run: Run,
    *,
    epsilon: float | Iterable[float] = EPSILON,
    stack: str | None = None,
    batch_size: int = 8,
    apart: int = 16,
) -> xr.Dataset:
    """Compute spectra and ranks of the stream before each layer and after the last, and of each layer's W_Q.

    The matrix of a stream has a row per token of every series. It is factorised group by group in float64, so that many
    series need no more memory than few.

    Args:
        run: the forecast to explain.
        epsilon: one or several; a singular value counts if it is above ε times the largest.
        stack: the stack of the stream; the first one, which reads the series, if None.
        batch_size: series in a group, or items where they have several variates.
        apart: the most series that have ranks of their own, evenly over the batch.

    Returns:
        Dataset of kind "flow_of_ranks". Over ``stream`` ("embed", then "0", … after each layer) spectra and ranks
        (epsilon, stream) as of :func:`tsfm_lens.probes.weight_ranks`; ``series_rank`` (epsilon, stream, series), NaN
        where there is none, and ``rank_rise``, the same less that of the embedding, with what
        :func:`tsfm_lens.probes.findings.judge` adds. Over ``layer`` ``weight_singular_value`` (layer, mode) and
        ``weight_rank`` (epsilon, layer) of the first attention's W_Q; ``query_key_norm`` and ``value_norm``, the
        largest spectral norms over heads of W_Q W_Kᵀ over √d_head and of W_V W_O; ``bound`` (layer, mode) of the
        relative singular values by theorem 4, NaN where a norm is above 1 or there are fewer than
        ``attrs["least_depth"]`` layers; ``attention_value`` and ``attention_bound`` (layer, mode): those of the stream
        after the first attention, and their bound by the inequality behind the theorem, with measured values for its
        constants; NaN where an attention does more than weigh values, or regroups rows.

    Source:
        Flow of ranks, section 4 and figure 5 (S0-FOR), theorem 4 (S0-TH4), without norms and MLPs; Demmel et al. 2012.

    Raises:
        InputError: an ε outside (0, 1), batch_size below 1, apart below 0, no attention, or a horizon longer than one
            pass.
        UnknownNameError: no such stack.

    Example:
        >>> probes.flow_of_ranks(run)["stream"].values.tolist()
        ['embed', '0', '1', '2']
    """
    levels = checked_levels(epsilon)
    if batch_size < 1 or apart < 0:
        raise InputError(f"batch_size {batch_size} and apart {apart}, expected 1 or more and 0 or more")
    lens = run.lens
    column = stack_named(lens.wiring, stack, lens.wiring.stacks[0])
    for layer in range(column.n_layers):
        if not any(column.attentions(layer)):
            raise InputError(f"{column.prefix}.{layer} has no attention; the flow of ranks needs one in every layer")
    points = [f"{column.prefix}.{layer}.hook_resid_pre" for layer in range(column.n_layers)]
    points.append(f"{column.prefix}.{column.n_layers - 1}.hook_resid_post")
    places = np.linspace(0, len(run.batch) - 1, min(apart, len(run.batch))).round().astype(int)
    # rows are series, or items whose variates share a sequence
    single = {name for place in places for name in (run.batch.ids[place], run.batch.groups[place])}
    spectra = [StreamedSpectrum(column.d_model) for _ in points]
    growths = [_AttentionGrowth(lens, column, layer) for layer in range(column.n_layers)]
    around = [point for growth in growths for point in growth.points]
    series: list[str] = []
    # one array for all: small arrays between the groups' large ones would keep the heap from reusing these
    ranks = np.full((len(levels), len(points), len(run.batch)), np.nan)
    for group in item_groups(run.in_one_pass(), batch_size):
        visible = group.encoded.shown(column.name)
        # the run itself stores the streams for other probes, a part of it does not
        is_whole = len(group.batch) == len(run.batch)
        with torch.no_grad():
            group_acts = lens.run_with_cache(group.encoded, names_filter=around if is_whole else [*points, *around])[1]
        acts = group.record(points) if is_whole else group_acts
        streams = [acts[point].cpu() for point in points]
        for spectrum, stream in zip(spectra, streams, strict=True):
            spectrum.add(stream[visible])
        for growth in growths:
            growth.add(group_acts, visible)
        for row, name in enumerate(group.encoded.rows):
            if name in single:
                own = [torch.linalg.svdvals(stream[row][visible[row]].double()).numpy() for stream in streams]
                ranks[..., len(series)] = np.stack([epsilon_rank(values, levels) for values in own], axis=-1)
            series.append(name)
    ranks, axes = ranks[..., : len(series)], ("epsilon", "stream", "series")
    data = ranks_of_rows(spectra, levels, "stream", range(len(spectra)))
    data = data.assign(series_rank=(axes, ranks), rank_rise=(axes, ranks - ranks[:, :1]))
    data = data.assign_coords(stream=["embed", *map(str, range(column.n_layers))], series=series)
    data = data.assign(_of_weights(lens, column, levels, data["singular_value"].values))
    around_attention = np.stack([each.spectra() for each in growths])[..., : data.sizes["mode"]]
    for place, name in enumerate(("attention_value", "attention_bound")):
        data[name] = (("layer", "mode"), around_attention[:, place])
    data = judge(data, "rank_rise", floor=0.0, signed=True, groups="epsilon")
    least = int(np.ceil((2 * _E2 * column.n_heads) ** 2))
    facts = {"stack": column.name, "tokens": spectra[0].rows, "heads": column.n_heads, "least_depth": least}
    title, source = "Flow of ranks", "Flow of ranks, section 4 and theorem 4 (S0-FOR, S0-TH4)"
    data.attrs |= run.describe("flow_of_ranks", title, source, **facts)
    return data


def _of_weights(lens: Lens, column: Stack, levels: list[float], streams: np.ndarray) -> dict[str, object]:
    """Compute spectra of W_Q, the norms of theorem 4, and its bound from singular values (stream, mode)."""
    first = {layer: next(column.attentions(layer)).kind for layer in range(column.n_layers)}
    queries = [
        torch.linalg.svdvals(one.weight.cpu().double()).numpy()
        for one in weight_matrices(lens, stack=column.name, parts=["W_Q"])
        if one.kind == first[one.layer]
    ]
    norms = np.array([_norms(lens, column, layer, kind) for layer, kind in first.items()])
    width = max(len(values) for values in queries)
    padded = np.stack([np.pad(values, (0, width - len(values)), constant_values=np.nan) for values in queries])
    bound = np.stack([_bound(values, column, norm) for values, norm in zip(streams[:-1], norms, strict=True)])
    return {
        "weight_singular_value": (("layer", "weight_mode"), padded),
        "weight_rank": (("epsilon", "layer"), np.stack([epsilon_rank(values, levels) for values in queries], axis=1)),
        "query_key_norm": ("layer", norms[:, 0]),
        "value_norm": ("layer", norms[:, 1]),
        "bound": (("layer", "mode"), bound),
        "layer": list(map(str, first)),
    }


def _norms(lens: Lens, column: Stack, layer: int, kind: str) -> tuple[float, float]:
    """Compute the largest spectral norms over heads of W_Q W_Kᵀ over √d_head, and of W_V W_O."""
    heads = lens.weights.heads(layer, kind, column.name)
    key, value = core_singular_values(heads.W_Q, heads.W_K.mT), core_singular_values(heads.W_V, heads.W_O)
    return float(key[:, 0].max()) / column.d_head**0.5, float(value[:, 0].max())


def _bound(values: np.ndarray, column: Stack, norms: np.ndarray) -> np.ndarray:
    """Apply theorem 4 to the singular values before a layer; NaN where it does not apply."""
    deep = np.sqrt(column.n_layers) >= 2 * _E2 * column.n_heads
    if not deep or norms.max() > 1 or not values.min() > 0:
        return np.full(len(values), np.nan)
    return flow_bound(values, column.n_heads, column.n_layers)


class _AttentionGrowth:
    """Spectra around the first attention of a layer, and the rank that it can add: the inequality behind theorem 4."""

    def __init__(self, lens: Lens, column: Stack, layer: int) -> None:
        self.column, self.layer, self.kind = column, layer, next(column.attentions(layer)).kind
        self.weights = lens.weights.heads(layer, self.kind, column.name)
        self.before, self.after = StreamedSpectrum(column.d_model), StreamedSpectrum(column.d_model)
        self.values = [StreamedSpectrum(self.weights.W_V.shape[-1]) for _ in range(column.n_heads)]
        self.norms = np.zeros(column.n_heads)
        self.agrees, self.compared = True, False

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
            self.agrees = bool((outputs - mixture).abs().max() <= _AGREES * outputs.abs().max())
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
