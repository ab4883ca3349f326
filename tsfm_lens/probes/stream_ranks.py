"""Ranks of embedded series, of the stream before each layer, and of each layer's W_Q.

:func:`embedding_ranks` is of tokens before the first layer, :func:`flow_of_ranks` of
the stream at every depth. Both factorise their matrices group by group with
:class:`StreamedSpectrum`, so memory does not grow with the number of series. Ranks of
weights alone are in ``weights``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from tsfm_lens.core.axes import depth_coords
from tsfm_lens.core.errors import InputError
from tsfm_lens.core.estimates import add_estimates
from tsfm_lens.core.ranks import angles, epsilon_rank, flow_bound, measured_bound
from tsfm_lens.core.registry import probe
from tsfm_lens.core.stats import mean_interval
from tsfm_lens.data import SeriesBatch, as_series
from tsfm_lens.hooks.activations import Activations
from tsfm_lens.hooks.wiring import Stack
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.noise import flat_contexts
from tsfm_lens.models.run import Run
from tsfm_lens.probes.attention import token_steps
from tsfm_lens.probes.similarity import item_groups
from tsfm_lens.probes.sites import first_stack
from tsfm_lens.probes.weights import (
    EPSILON,
    checked_levels,
    compute_ranks,
    core_singular_values,
    padded,
    random_angle,
    rounding_floor,
    weight_matrices,
)

__all__ = ["embedding_ranks", "flow_of_ranks", "signal_families"]

OWN = "own series"
VOCABULARY = "vocabulary"
_FEWEST = 8
_MOST = 64
_FIRST_ROWS = 4096


@probe(
    title="Ranks of embedded series",
    theme="Activations",
    summary=(
        "how many directions embedded series use: signal families, own series, "
        "vocabulary; angles of tokens"
    ),
    description=(
        "Tokens have many dimensions, and smooth series use few of them. Sinusoids, "
        "exponentials, white noise and zeros are shown for comparison."
    ),
    source="Flow of ranks, sections 2 and 3 (S0-F2, S0-F3, S0-F13)",
    paper=(
        "S0-F2",
        "S0-F3",
        "S0-F13",
    ),
    cost="weights",
)
def embedding_ranks(
    run: Run,
    *,
    signals: Mapping[str, Any] | None = None,
    epsilon: float | Iterable[float] = EPSILON,
    tokens: int = 48,
    batch_size: int = 8,
    seed: int = 0,
) -> xr.Dataset:
    """Compute spectra, ranks and angles of embedded tokens, before the first layer.

    Only tokens of the series count, not special tokens or those of the future and of
    padding.

    Args:
        run: gives the model, and its series are the family "own series".
        signals: series by name of the family, such as lists of arrays, frames or
            batches; sinusoids, exponentials, white noise and zeros if None.
        epsilon: one or several; a singular value counts if it is above ε times the
            largest.
        tokens: number of tokens with angles per family, evenly over its first 4096.
        batch_size: series in a group.
        seed: of the families.

    Returns:
        Dataset of kind "embedding_ranks" over ``family``: "own series", the families,
        and "vocabulary", all rows of the embedding, where tokens are looked up.

        - ``singular_value`` (family, mode): descending, NaN beyond the last.
        - ``epsilon_rank`` (epsilon, family), and ``told``, whether it is certain in
          spite of rounding.
        - ``stable_rank``, ``effective_rank``, ``participation_ratio`` (family).
        - ``full`` (family): largest possible rank.
        - ``tokens`` (family): their number.
        - ``signal_rank`` (epsilon, family, signal): NaN beyond the last.
        - ``signal_rank_estimate``, ``_low``, ``_high`` (epsilon, family): mean and 95 %
          interval over signals.
        - ``angle`` (family, token, other_token): between tokens as lines, 0 to 90
          degrees.
        - ``mean_angle`` (family): in degrees.

        ``attrs["random_angle"]`` is the angle of random lines.

    Source:
        Flow of ranks, sections 2 and 3, figures 2, 3 and 13 (S0-F2, S0-F3, S0-F13,
        S0-ANG).

    Raises:
        InputError: an ε outside (0, 1), fewer than 2 tokens, batch_size below 1, or a
            family of a reserved name.

    Example:
        >>> ranks = probes.embedding_ranks(run)["epsilon_rank"]
        >>> int(ranks.sel(epsilon=0.01, family="zero"))
        1
    """
    levels = checked_levels(epsilon)
    if tokens < 2 or batch_size < 1:
        raise InputError(
            f"tokens {tokens} and batch_size {batch_size}, expected at least 2 and 1"
        )
    lens = run.lens
    if signals is None:
        families = signal_families(run, seed=seed)
    else:
        families = {name: as_series(signal) for name, signal in signals.items()}
    if clash := {OWN, VOCABULARY} & set(families):
        raise InputError(
            f"a family is called {min(clash)!r}, which has a meaning here; give it"
            " another name"
        )
    batches = {OWN: run.batch, **families}
    embeddings = {
        name: _embed_series(lens, batch, batch_size) for name, batch in batches.items()
    }
    table = get_vocabulary(lens)
    if table is not None:
        embeddings[VOCABULARY] = _Tokens(table.shape[1])
        # in blocks, so that no copy of the full vocabulary is made
        for rows in table.detach().cpu().split(_FIRST_ROWS):
            embeddings[VOCABULARY].add(rows)
    spectra = [embedding.spectrum for embedding in embeddings.values()]
    data = ranks_of_rows(spectra, levels, "family", [0] * len(spectra)).drop_vars(
        "rank_share"
    )
    data = data.assign(
        full=("family", [min(spectrum.rows, spectrum.width) for spectrum in spectra]),
        tokens=("family", [spectrum.rows for spectrum in spectra]),
        **_signal_ranks(embeddings, levels),
        **_token_angles(embeddings, tokens),
    ).assign_coords(family=list(embeddings))
    stack = lens.wiring.stacks[0]
    return data.assign_attrs(
        stack=stack.name,
        random_angle=random_angle(stack.d_model),
        d_model=stack.d_model,
        signal_seed=seed,
    )


def signal_families(run: Run, *, seed: int = 0) -> dict[str, SeriesBatch]:
    """Return sinusoids, exponentials, white noise and zeros as series.

    They are as long as the longest series of a run. Each family but the last has 8 to
    64 series, so that there are about two tokens per dimension of the stream. For a
    language model, the only family is sequences of random ids.

    Args:
        run: gives the model and the length of series.
        seed: of phases and noise.

    Returns:
        Series by name of the family.

    Example:
        >>> list(probes.signal_families(run))
        ['sinusoids', 'exponentials', 'white noise', 'zero']
    """
    lens = run.lens
    length = max(run.batch.lengths)
    rng = np.random.default_rng(seed)
    stack = lens.wiring.stacks[0]
    tokens = int(_context_mask(lens, lens.encode(run.batch)).sum(1).max())

    count = int(np.clip(-(-2 * stack.d_model // max(tokens, 1)), _FEWEST, _MOST))
    if lens.takes_ids:
        return {
            "random ids": as_series(
                rng.choice(lens.example_ids, (count, length)).astype(float)
            )
        }
    steps = np.arange(length)
    periods = np.geomspace(4, max(length, 5), count)[:, None]
    # over the full length by factors of e^0.5 to e^5, up or down
    signs = np.where(np.arange(count) % 2, 1, -1)[:, None]
    rates = np.geomspace(0.5, 5, count)[:, None] * signs / max(length - 1, 1)
    return {
        "sinusoids": as_series(
            np.sin(2 * np.pi * (steps / periods + rng.random((count, 1))))
        ),
        "exponentials": as_series(np.exp(rates * steps)),
        "white noise": as_series(rng.standard_normal((count, length))),
        "zero": as_series(np.zeros((1, length))),
    }


class _Tokens:
    """Embedded tokens of a family.

    It holds their spectrum, the singular values of each signal, and the first tokens
    (token, width).
    """

    def __init__(self, width: int) -> None:
        self.spectrum = StreamedSpectrum(width)
        self.signals: list[np.ndarray] = []
        self.first = np.zeros((0, width))

    def add(self, rows: Tensor) -> None:
        """Add tokens, (n, width)."""
        self.spectrum.add(rows)
        if len(self.first) < _FIRST_ROWS:
            self.first = np.concatenate([self.first, rows.double().numpy()])[
                :_FIRST_ROWS
            ]


def _embed_series(lens: Lens, batch: SeriesBatch, size: int) -> _Tokens:
    """Embed series, in groups of items; variates of an item stay together."""
    stack = lens.wiring.stacks[0]
    items = batch.group_index
    tokens = _Tokens(stack.d_model)
    point = f"{stack.name}.hook_embed".lstrip(".")
    for start in range(0, int(items.max()) + 1, size):
        rows = np.flatnonzero((items >= start) & (items < start + size)).tolist()
        encoded = lens.encode(batch.select(rows))
        with torch.no_grad():
            _, activations = lens.run_with_cache(encoded, names_filter=[point])
        for signal, visible in zip(
            activations[point].cpu(), _context_mask(lens, encoded), strict=True
        ):
            if len(shown := signal[visible]):
                tokens.add(shown)
                tokens.signals.append(torch.linalg.svdvals(shown.double()).numpy())
    if not tokens.spectrum.rows:
        raise InputError(
            f"none of the tokens of {', '.join(batch.ids[:3])} shows a series; give"
            " longer ones"
        )
    return tokens


def _context_mask(lens: Lens, encoded: Any) -> Tensor:
    """Mark tokens of the first stack that show the context of their row, (row, pos)."""
    name = lens.wiring.stacks[0].name
    start, _, ordinary = token_steps(encoded.spans[name])
    result: Tensor = encoded.shown(name) & torch.tensor(ordinary & (start < 0))
    return result


def get_vocabulary(lens: Lens) -> Tensor | None:
    """Return the embedding (token, d_model) where tokens are looked up."""
    module = lens.model.get_submodule(lens.wiring.embed)
    if isinstance(module, torch.nn.Embedding):
        return lens.weights.W_E
    return None


def _signal_ranks(
    embeddings: Mapping[str, _Tokens], levels: list[float]
) -> dict[str, Any]:
    """Compute ranks of single signals, and their mean over signals with an interval."""
    n_signals = max(len(embedding.signals) for embedding in embeddings.values())
    ranks = np.full((len(levels), len(embeddings), n_signals), np.nan)
    for family, embedding in enumerate(embeddings.values()):
        for signal, values in enumerate(embedding.signals):
            ranks[:, family, signal] = epsilon_rank(values, levels)
    bounds = zip(("estimate", "low", "high"), mean_interval(ranks), strict=True)
    summary = {
        f"signal_rank_{name}": (("epsilon", "family"), values)
        for name, values in bounds
    }
    return {"signal_rank": (("epsilon", "family", "signal"), ranks), **summary}


def _token_angles(embeddings: Mapping[str, _Tokens], tokens: int) -> dict[str, Any]:
    """Return angles of a few tokens in degrees, and their means.

    Means are over pairs of different tokens.
    """
    angle = np.full((len(embeddings), tokens, tokens), np.nan)
    means = np.full(len(embeddings), np.nan)
    for family, embedding in enumerate(embeddings.values()):
        # evenly spaced, as neighbours in time and in a vocabulary are similar
        spaced = np.linspace(0, len(embedding.first) - 1, tokens)
        rows = embedding.first[np.unique(spaced.round().astype(int))]
        degrees = np.degrees(angles(rows.T))
        angle[family, : len(degrees), : len(degrees)] = degrees
        pairs = degrees[np.triu_indices(len(degrees), 1)]
        finite = pairs[np.isfinite(pairs)]
        means[family] = finite.mean() if len(finite) else np.nan
    return {
        "angle": (("family", "token", "other_token"), angle, {"units": "degrees"}),
        "mean_angle": ("family", means, {"units": "degrees"}),
    }


_E2 = float(np.exp(2.0))
_AGREES = 1e-3
"""Largest relative deviation by rounding of a head's output from pattern × values."""


@probe(
    title="Flow of ranks",
    theme="Activations",
    summary=(
        "how many directions the stream uses before each layer, and each W_Q, with "
        "the bound of theorem 4"
    ),
    description=(
        "Layers are not linear, so the rank of the residual stream may grow with "
        "depth. The next layer can then use a higher rank."
    ),
    source="Flow of ranks, section 4 and theorem 4 (S0-FOR, S0-TH4)",
    paper=(
        "S0-F5",
        "S0-F6",
    ),
    needs="heads",
    cost="weights",
)
def flow_of_ranks(
    run: Run,
    *,
    epsilon: float | Iterable[float] = EPSILON,
    stack: str | None = None,
    batch_size: int = 8,
    apart: int = 16,
) -> xr.Dataset:
    """Compute ranks of the stream before each layer and after the last, and of W_Q.

    Spectra come with them. The matrix of a stream has a row per token of every series.
    It is factorised group by group in float64, so memory does not grow with the number
    of series.

    Args:
        run: the forecast to explain.
        epsilon: one or several; a singular value counts if it is above ε times the
            largest.
        stack: the stack of the stream; if None, the first one, which reads the series.
        batch_size: series in a group, or items where they have several variates.
        apart: largest number of series with a rank of their own.

    Returns:
        Dataset of kind "flow_of_ranks". Over ``stream`` (-1 is the embedding, then
        after each layer):

        - ``singular_value`` (stream, mode): descending.
        - ``epsilon_rank`` (epsilon, stream), ``rank_share``, the same over the largest
          possible, and ``told``, whether it is certain in spite of rounding.
        - ``stable_rank``, ``effective_rank``, ``participation_ratio`` (stream).
        - ``series_rank`` (epsilon, stream, series): of ``apart`` series, evenly over
          the batch, NaN elsewhere.
        - ``rank_rise`` (epsilon, stream, series): the same less that of the embedding,
          with what :func:`.estimates.add_estimates` adds.

        Over ``layer``, of the first attention:

        - ``weight_singular_value`` (layer, weight_mode): of W_Q.
        - ``weight_rank`` (epsilon, layer): of W_Q.
        - ``query_key_norm`` (layer): largest spectral norm over heads of W_Q W_Kᵀ over
          √d_head.
        - ``value_norm`` (layer): largest spectral norm over heads of W_V W_O.
        - ``bound`` (layer, mode): of the relative singular values by theorem 4, NaN
          where a norm is above 1 or there are fewer than ``attrs["least_depth"]``
          layers.
        - ``attention_value`` (layer, mode): relative singular values of the stream
          after it.
        - ``attention_bound`` (layer, mode): their bound by the inequality behind the
          theorem, with measured values for its constants. Both are NaN where an
          attention does more than weigh values, or regroups rows.

    Source:
        Flow of ranks, section 4 and figure 5 (S0-FOR), theorem 4 (S0-TH4), without
        norms and MLPs; Demmel et al. 2012.

    Raises:
        InputError: an ε outside (0, 1), batch_size below 1, no attention, or a horizon
            longer than one pass.
        UnknownNameError: no such stack.

    Example:
        >>> probes.flow_of_ranks(run)["stream"].values.tolist()
        [-1, 0, 1, 2]
    """
    levels = checked_levels(epsilon)
    if batch_size < 1:
        raise InputError(f"batch_size is {batch_size}, expected 1 or more")
    lens = run.lens
    column = first_stack(lens, stack)
    for layer in range(column.n_layers):
        if not any(column.attentions(layer)):
            raise InputError(
                f"{column.prefix}.{layer} has no attention; the flow of ranks needs one"
                " in every layer"
            )
    points = [
        f"{column.prefix}.{layer}.hook_resid_pre" for layer in range(column.n_layers)
    ]
    points.append(f"{column.prefix}.{column.n_layers - 1}.hook_resid_post")
    count = len(run.batch)
    chosen = np.linspace(0, count - 1, min(apart, count)).round().astype(int)
    # rows are series, or items whose variates share a sequence
    single = {
        names[index] for names in (run.batch.ids, run.batch.groups) for index in chosen
    }
    spectra = [StreamedSpectrum(column.d_model) for _ in points]
    growths = [
        _AttentionGrowth(lens, column, layer) for layer in range(column.n_layers)
    ]
    around = [point for growth in growths for point in growth.points]
    series: list[str] = []
    # one array for all: small arrays between the groups' large ones would keep the heap
    # from reusing these
    ranks = np.full((len(levels), len(points), len(run.batch)), np.nan)
    for group in item_groups(run.in_one_pass(), batch_size):
        visible = group.encoded.shown(column.name)
        # the run itself stores the streams for other probes, a part of it does not
        is_full_run = len(group.batch) == len(run.batch)
        with torch.no_grad():
            activations = lens.run_with_cache(
                group.encoded,
                names_filter=around if is_full_run else [*points, *around],
            )[1]
        stream_activations = activations
        if is_full_run:
            stream_activations = group.record(points)
        streams = [stream_activations[point].cpu() for point in points]
        for spectrum, stream in zip(spectra, streams, strict=True):
            spectrum.add(stream[visible])
        for growth in growths:
            growth.add(activations, visible)
        for row, name in enumerate(group.encoded.rows):
            if name in single:
                row_spectra = [
                    torch.linalg.svdvals(stream[row][visible[row]].double()).numpy()
                    for stream in streams
                ]
                ranks[..., len(series)] = np.stack(
                    [epsilon_rank(values, levels) for values in row_spectra], axis=-1
                )
            series.append(name)
    ranks = ranks[..., : len(series)]
    axes = ("epsilon", "stream", "series")
    data = ranks_of_rows(spectra, levels, "stream", range(len(spectra)))
    data = data.assign(
        series_rank=(axes, ranks), rank_rise=(axes, ranks - ranks[:, :1])
    )
    data = data.assign_coords(**depth_coords("stream", column.n_layers), series=series)
    flat = dict(zip(run.batch.ids, flat_contexts(lens, run.batch), strict=True))
    data = data.assign_coords(
        flat=("series", [bool(flat.get(name, False)) for name in series])
    )
    stream_spectra = data["singular_value"].values
    data = data.assign(_weight_spectra(lens, column, levels, stream_spectra))
    around_attention = np.stack([growth.spectra() for growth in growths])
    around_attention = around_attention[..., : data.sizes["mode"]]
    for index, name in enumerate(("attention_value", "attention_bound")):
        data[name] = (("layer", "mode"), around_attention[:, index])
    # a row of a packed sequence is of several series
    rows_are_series = set(series) <= set(run.batch.ids)
    data = add_estimates(
        data,
        "rank_rise",
        floor=0.0,
        signed=True,
        smallest=0.0,
        groups="epsilon",
        contexts=run.dataset().sel(series=series) if rows_are_series else None,
    )
    least = int(np.ceil((2 * _E2 * column.n_heads) ** 2))
    return data.assign_attrs(
        stack=column.name,
        tokens=spectra[0].rows,
        heads=column.n_heads,
        least_depth=least,
    )


def _weight_spectra(
    lens: Lens, column: Stack, levels: list[float], streams: np.ndarray
) -> dict[str, object]:
    """Return spectra of W_Q, the norms of theorem 4, and its bound.

    The bound follows from the singular values of the streams (stream, mode).
    """
    first = {
        layer: next(column.attentions(layer)).kind for layer in range(column.n_layers)
    }
    queries = [
        torch.linalg.svdvals(matrix.weight.cpu().double()).numpy()
        for matrix in weight_matrices(lens, stack=column.name, parts=["W_Q"])
        if matrix.kind == first[matrix.layer]
    ]
    norms = np.array(
        [_norms(lens, column, layer, kind) for layer, kind in first.items()]
    )
    bound = np.stack(
        [
            _bound(values, column, norm)
            for values, norm in zip(streams[:-1], norms, strict=True)
        ]
    )
    return {
        "weight_singular_value": (("layer", "weight_mode"), padded(queries)),
        "weight_rank": (
            ("epsilon", "layer"),
            np.stack([epsilon_rank(values, levels) for values in queries], axis=1),
        ),
        "query_key_norm": ("layer", norms[:, 0]),
        "value_norm": ("layer", norms[:, 1]),
        "bound": (("layer", "mode"), bound),
        "layer": list(first),
    }


def _norms(lens: Lens, column: Stack, layer: int, kind: str) -> tuple[float, float]:
    """Return the largest spectral norms over the heads of a layer.

    They are of W_Q W_Kᵀ over √d_head, and of W_V W_O.
    """
    heads = lens.weights.heads(layer, kind, column.name)
    key = core_singular_values(heads.W_Q, heads.W_K.mT)
    value = core_singular_values(heads.W_V, heads.W_O)
    return float(key[:, 0].max()) / column.d_head**0.5, float(value[:, 0].max())


def _bound(values: np.ndarray, column: Stack, norms: np.ndarray) -> np.ndarray:
    """Return theorem 4's bound from the singular values before a layer.

    The bound is NaN where the theorem does not apply.
    """
    deep = np.sqrt(column.n_layers) >= 2 * _E2 * column.n_heads
    if not deep or norms.max() > 1 or not values.min() > 0:
        return np.full(len(values), np.nan)
    return flow_bound(values, column.n_heads, column.n_layers)


class _AttentionGrowth:
    """Spectra around the first attention of a layer, and the rank that it can add.

    The bound on the rank is the inequality behind theorem 4.
    """

    def __init__(self, lens: Lens, column: Stack, layer: int) -> None:
        self.column = column
        self.layer = layer
        self.kind = next(column.attentions(layer)).kind
        self.weights = lens.weights.heads(layer, self.kind, column.name)
        self.before = StreamedSpectrum(column.d_model)
        self.after = StreamedSpectrum(column.d_model)
        self.values = [
            StreamedSpectrum(self.weights.W_V.shape[-1]) for _ in range(column.n_heads)
        ]
        self.norms = np.zeros(column.n_heads)
        self.agrees = True
        self.compared = False

    @property
    def points(self) -> list[str]:
        """Hook points that :meth:`add` reads."""
        block = f"{self.column.prefix}.{self.layer}"
        return [
            f"{block}.hook_resid_mid",
            *(f"{block}.{self.kind}.hook_{name}" for name in ("v", "z", "pattern")),
        ]

    def add(self, activations: Activations, visible: Tensor) -> None:
        """Add the activations of a group.

        The mask (row, pos) has the tokens that belong to a series.
        """
        after, values, z, pattern = (
            activations[point].detach().cpu().double() for point in self.points
        )
        heads = pattern.shape[1]
        values = values.repeat_interleave(heads // values.shape[2], dim=2)
        if values.shape[0] != pattern.shape[0] or pattern.shape[-2:] != (
            visible.shape[1],
            values.shape[1],
        ):
            # an attention that regroups rows, such as one over variates
            self.agrees = False
            return
        visible = visible.cpu()
        outputs = z[visible]
        if len(outputs) and not self.compared:
            # what an attention does is the same in every group
            self.compared = True
            mixture = torch.einsum("bhqk,bkhd->bqhd", pattern, values)[visible]
            self.agrees = bool(
                (outputs - mixture).abs().max() <= _AGREES * outputs.abs().max()
            )
        if not self.agrees:
            return
        writes = (
            torch.einsum("nhd,hdm->nm", outputs, self.weights.W_O.cpu().double())
            * self.weights.scale
        )
        self.after.add(after[visible])
        self.before.add(after[visible] - writes)
        masked = pattern * visible[:, None, :, None]
        attended = masked.sum((1, 2)) > 0
        # the squared spectral norm is at most the product of the largest column and row
        # sum, and at most the squared Frobenius norm
        sums = masked.sum(2).amax(-1) * masked.sum(3).amax(-1)
        norms = torch.minimum(sums, masked.square().sum((-2, -1))).sqrt()
        self.norms = np.maximum(self.norms, norms.amax(0).numpy())
        for head, spectrum in enumerate(self.values):
            spectrum.add(values[:, :, head][attended])

    def spectra(self) -> tuple[np.ndarray, np.ndarray]:
        """Return relative singular values after the attention, and their bound.

        Both are (mode,), and NaN if unknown.
        """
        width = self.column.d_model
        if not (self.agrees and self.after.rows):
            return np.full(width, np.nan), np.full(width, np.nan)
        out = self.weights.W_O.cpu().double()
        scale = abs(self.weights.scale)
        writes = [
            norm * scale * spectrum.singular_values(out[head])
            for head, (norm, spectrum) in enumerate(
                zip(self.norms, self.values, strict=True)
            )
        ]
        longest = max(map(len, writes))
        padded = np.stack(
            [np.pad(write, (0, longest - len(write))) for write in writes]
        )
        values = self.after.singular_values()
        start = self.before.singular_values()
        # rows fewer than the width have no more singular values
        bound = measured_bound(np.pad(start, (0, width - len(start))), padded)
        largest = max(values[0], np.finfo(float).tiny)
        return np.pad(values, (0, width - len(values))) / largest, bound / largest


class StreamedSpectrum:
    """Singular values of a tall matrix whose rows come in parts.

    Only the triangular factor of its QR factorisation is stored (Demmel et al. 2012).
    """

    def __init__(self, width: int) -> None:
        self.width = width
        self._factor = torch.zeros(0, width, dtype=torch.float64)
        self._longest = 0.0
        self._eps = torch.finfo(torch.float64).eps
        self.rows = 0

    def add(self, rows: Tensor) -> None:
        """Add a part of the rows, (n, width), of any precision."""
        if not len(rows):
            return
        if not torch.isfinite(rows).all():
            raise InputError(
                "the model holds values that are not finite, so its tokens have no"
                " singular values"
            )
        self._eps = max(self._eps, torch.finfo(rows.dtype).eps)
        # float64, so that the factorisation adds nothing to the model's rounding
        part = rows.cpu().double()
        self.rows += len(part)
        self._longest = max(self._longest, float(part.norm(dim=1).max()))
        self._factor = torch.linalg.qr(torch.cat([self._factor, part]), mode="r").R

    def singular_values(self, map_of_rows: Tensor | None = None) -> np.ndarray:
        """Return all singular values, descending.

        They are as many as the shorter side of the matrix is long, or of its product
        with ``map_of_rows``.
        """
        factor = self._factor
        if map_of_rows is not None:
            factor = factor @ map_of_rows
        result: np.ndarray = torch.linalg.svdvals(factor).numpy()
        return result

    def rounding_floor(self, values: np.ndarray, blocks: int) -> float:
        """Return how far rounding moves singular values, relative to the largest.

        The rounding is that of a forward pass of so many blocks.
        """
        longest = self._longest + float(self._factor.norm(dim=0).max())
        error = self._eps / 2 / math.sqrt(3) * math.sqrt(1 + 100 * blocks)
        return rounding_floor(
            values, longest, error, max(self.rows, self._factor.shape[1])
        )


def ranks_of_rows(
    spectra: Sequence[StreamedSpectrum],
    levels: Sequence[float],
    dim: str,
    blocks: Sequence[int],
) -> xr.Dataset:
    """Return the ranks of matrices that came in parts.

    Each comes from a stream after as many ``blocks``.
    """
    values = [spectrum.singular_values() for spectrum in spectra]
    floors = [
        spectrum.rounding_floor(descending, count)
        for spectrum, descending, count in zip(spectra, values, blocks, strict=True)
    ]
    return compute_ranks(values, floors, levels, dim)
