"""Ranks of embedded series: families of signals, a user's own series, and the vocabulary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from tsfm_lens.data import SeriesBatch, as_series
from tsfm_lens.errors import InputError
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.run import Run
from tsfm_lens.probes.attention import token_steps
from tsfm_lens.probes.row_angles import random_angle
from tsfm_lens.probes.weight_ranks import EPSILON, StreamedSpectrum, checked_levels, ranks_of_rows
from tsfm_lens.ranks import angles, epsilon_rank
from tsfm_lens.registry import probe
from tsfm_lens.stats import mean_interval

__all__ = ["embedding_ranks", "signal_families"]

OWN, VOCABULARY = "own series", "vocabulary"
_FEWEST, _MOST = 8, 64
_FIRST_ROWS = 4096


@probe("embedding_ranks")
def embedding_ranks(
    run: Run,
    *,
    signals: Mapping[str, Any] | None = None,
    epsilon: float | Iterable[float] = EPSILON,
    tokens: int = 48,
    batch_size: int = 8,
    seed: int = 0,
) -> xr.Dataset:
    """Compute spectra, ranks and angles of the tokens that series are embedded as, before the first layer.

    Only tokens that show the series count: no special ones, and none of the future or of padding.

    Args:
        run: its model, and its series as the family "own series".
        signals: series by name of the family, as of :func:`tsfm_lens.data.as_series`; :func:`signal_families` if None.
        epsilon: one or several; a singular value counts if it is above ε times the largest.
        tokens: number of each family's tokens that have angles, evenly over its first 4096.
        batch_size: series in a group.
        seed: of the families.

    Returns:
        Dataset of kind "embedding_ranks" over ``family``: "own series", the families, and "vocabulary", all rows of the
        embedding, where tokens are looked up. Spectra and ranks (epsilon, family) as of
        :func:`tsfm_lens.probes.weight_ranks`; ``tokens`` (family); ``full``, the largest possible rank; ``signal_rank``
        (epsilon, family, signal), NaN beyond the last, with ``signal_rank_estimate``, ``_low`` and ``_high`` (epsilon,
        family), mean and 95 % interval over signals; ``angle`` (family, token, other_token) between tokens as lines, 0
        to 90 degrees, and ``mean_angle`` (family). ``attrs["random_angle"]`` is that of random lines.

    Source:
        Flow of ranks, sections 2 and 3, figures 2, 3 and 13 (S0-F2, S0-F3, S0-F13, S0-ANG).

    Raises:
        InputError: an ε outside (0, 1), fewer than 2 tokens, batch_size below 1, or a family of a reserved name.

    Example:
        >>> int(probes.embedding_ranks(run)["epsilon_rank"].sel(epsilon=0.01, family="zero"))
        1
    """
    levels = checked_levels(epsilon)
    if tokens < 2 or batch_size < 1:
        raise InputError(f"tokens {tokens} and batch_size {batch_size}, expected at least 2 and 1")
    lens = run.lens
    families = {name: as_series(each) for name, each in (signals or {}).items()}
    families = signal_families(run, seed=seed) if signals is None else families
    if clash := {OWN, VOCABULARY} & set(families):
        raise InputError(f"a family is called {min(clash)!r}, which has a meaning here; give it another name")
    batches = {OWN: run.batch, **families}
    embeddings = {name: _tokens_of(lens, batch, batch_size) for name, batch in batches.items()}
    table = vocabulary_of(lens)
    if table is not None:
        embeddings[VOCABULARY] = _Tokens(table.shape[1])
        # in blocks, so that no copy of a whole vocabulary is made
        for rows in table.detach().cpu().split(_FIRST_ROWS):
            embeddings[VOCABULARY].add(rows)
    spectra = [each.spectrum for each in embeddings.values()]
    data = ranks_of_rows(spectra, levels, "family", [0] * len(spectra)).drop_vars("rank_share")
    data = data.assign(
        full=("family", [min(each.rows, each.width) for each in spectra]),
        tokens=("family", [each.rows for each in spectra]),
        **_of_signals(embeddings, levels),
        **_angles(embeddings, tokens),
    ).assign_coords(family=list(embeddings))
    d_model = lens.wiring.stacks[0].d_model
    facts = {"stack": lens.wiring.stacks[0].name, "random_angle": random_angle(d_model), "d_model": d_model}
    title, source = "Ranks of embedded series", "Flow of ranks, sections 2 and 3 (S0-F2, S0-F3, S0-F13)"
    data.attrs = run.describe("embedding_ranks", title, source, signal_seed=seed, **facts)
    return data


def signal_families(run: Run, *, seed: int = 0) -> dict[str, SeriesBatch]:
    """Return sinusoids, exponentials, white noise and zeros, as long as the longest series of a run.

    Each family but the last has 8 to 64 series, so that there are about two tokens for each dimension of the stream. A
    language model takes sequences of random ids alone.

    Args:
        run: whose series are matched.
        seed: of phases and noise.

    Example:
        >>> list(probes.signal_families(run))
        ['sinusoids', 'exponentials', 'white noise', 'zero']
    """
    lens, length = run.lens, max(run.batch.lengths)
    rng = np.random.default_rng(seed)
    stack = lens.wiring.stacks[0]
    each = int(_context_mask(lens, lens.encode(run.batch)).sum(1).max())
    count = int(np.clip(-(-2 * stack.d_model // max(each, 1)), _FEWEST, _MOST))
    if lens.takes_ids:
        return {"random ids": as_series(rng.choice(lens.example_ids, (count, length)).astype(float))}
    steps = np.arange(length)
    periods = np.geomspace(4, max(length, 5), count)[:, None]
    # over the whole series by factors of e^0.5 to e^5, up or down
    rates = np.geomspace(0.5, 5, count)[:, None] * np.where(np.arange(count) % 2, 1, -1)[:, None] / max(length - 1, 1)
    return {
        "sinusoids": as_series(np.sin(2 * np.pi * (steps / periods + rng.random((count, 1))))),
        "exponentials": as_series(np.exp(rates * steps)),
        "white noise": as_series(rng.standard_normal((count, length))),
        "zero": as_series(np.zeros((1, length))),
    }


class _Tokens:
    """Embedded tokens of a family: their spectrum, singular values of each signal, and the first (token, d)."""

    def __init__(self, width: int) -> None:
        self.spectrum = StreamedSpectrum(width)
        self.signals: list[np.ndarray] = []
        self.first = np.zeros((0, width))

    def add(self, rows: Tensor) -> None:
        """Add tokens, (n, width)."""
        self.spectrum.add(rows)
        if len(self.first) < _FIRST_ROWS:
            self.first = np.concatenate([self.first, rows.double().numpy()])[:_FIRST_ROWS]


def _tokens_of(lens: Lens, batch: SeriesBatch, size: int) -> _Tokens:
    """Embed series, in groups of whole items."""
    stack, item = lens.wiring.stacks[0], batch.group_index
    tokens, point = _Tokens(stack.d_model), f"{stack.name}.hook_embed" if stack.name else "hook_embed"
    for start in range(0, int(item.max()) + 1, size):
        encoded = lens.encode(batch.select(np.flatnonzero((item >= start) & (item < start + size)).tolist()))
        with torch.no_grad():
            _, acts = lens.run_with_cache(encoded, names_filter=[point])
        for signal, visible in zip(acts[point].cpu(), _context_mask(lens, encoded), strict=True):
            if len(rows := signal[visible]):
                tokens.add(rows)
                tokens.signals.append(torch.linalg.svdvals(rows.double()).numpy())
    if not tokens.spectrum.rows:
        raise InputError(f"none of the tokens of {', '.join(batch.ids[:3])} shows a series; give longer ones")
    return tokens


def _context_mask(lens: Lens, encoded: Any) -> Tensor:
    """Mark tokens of the first stack that show the context of their row, (row, pos)."""
    name = lens.wiring.stacks[0].name
    start, _, ordinary = token_steps(encoded.spans[name])
    return encoded.shown(name) & torch.tensor(ordinary & (start < 0))


def vocabulary_of(lens: Lens) -> Tensor | None:
    """Return the embedding (token, d_model) where tokens are looked up."""
    module = lens.model.get_submodule(lens.wiring.embed)
    return lens.weights.W_E if isinstance(module, torch.nn.Embedding) else None


def _of_signals(embeddings: Mapping[str, _Tokens], levels: list[float]) -> dict[str, Any]:
    """Compute ranks of single signals, and their mean over signals with its interval."""
    most = max(len(each.signals) for each in embeddings.values())
    ranks = np.full((len(levels), len(embeddings), most), np.nan)
    for place, each in enumerate(embeddings.values()):
        for signal, values in enumerate(each.signals):
            ranks[:, place, signal] = epsilon_rank(values, levels)
    ends = zip(("estimate", "low", "high"), mean_interval(ranks), strict=True)
    summary = {f"signal_rank_{name}": (("epsilon", "family"), values) for name, values in ends}
    return {"signal_rank": (("epsilon", "family", "signal"), ranks), **summary}


def _angles(embeddings: Mapping[str, _Tokens], tokens: int) -> dict[str, Any]:
    """Compute angles of a few tokens in degrees, and their means over pairs of different ones."""
    angle = np.full((len(embeddings), tokens, tokens), np.nan)
    means = np.full(len(embeddings), np.nan)
    for place, each in enumerate(embeddings.values()):
        # neighbours in time and in a vocabulary are alike
        rows = each.first[np.unique(np.linspace(0, len(each.first) - 1, tokens).round().astype(int))]
        degrees = np.degrees(angles(rows.T))
        angle[place, : len(degrees), : len(degrees)] = degrees
        pairs = degrees[np.triu_indices(len(degrees), 1)]
        finite = pairs[np.isfinite(pairs)]
        means[place] = finite.mean() if len(finite) else np.nan
    return {
        "angle": (("family", "token", "other_token"), angle, {"units": "degrees"}),
        "mean_angle": ("family", means, {"units": "degrees"}),
    }
