"""Training rows by step number: the same (seed, step) gives the same batch, so a run can stop and go on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tsfm_lens.errors import unknown_name
from tsfm_lens.zoo.chaos import chaotic
from tsfm_lens.zoo.kernelsynth import kernelsynth
from tsfm_lens.zoo.mixture import FAMILIES, Generator, disturb, unit
from tsfm_lens.zoo.tsmixup import MAX_SERIES, tsmixup

Array = NDArray[np.float64]

CORPORA: Mapping[str, Generator] = {"kernelsynth": kernelsynth, "chaotic": chaotic}
"""Families too slow to draw at every step: drawn once, cached, and cropped at random."""

SHARE_SHORT = 0.2
"""Share of rows whose context is cut short, so that a model also meets new series."""


def known_families() -> tuple[str, ...]:
    """Every name a mixture may hold."""
    return (*FAMILIES, *CORPORA, "tsmixup")


def load_corpus(name: str, *, count: int, length: int, seed: int, cache: Path) -> NDArray[np.float32]:
    """Draw the corpus `name` or read it from `cache`: array (count, length) in float32."""
    path = cache / f"{name}-{count}x{length}-seed{seed}.npz"
    if path.exists():
        with np.load(path) as stored:
            return stored["series"]
    series = unit(CORPORA[name](np.random.default_rng([seed, len(name)]), count, length)).astype(np.float32)
    cache.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, series=series)
    return series


class SeriesSource:
    """Draws batches of raw series from a weighted mixture of families.

    Args:
        seed: First half of the seed of every batch; the second half is the step.
        cache: Folder for the corpora that are drawn once.
        corpus_size: Series per cached corpus.
        corpus_length: Steps per cached series; at least the rows asked for.
    """

    def __init__(self, *, seed: int, cache: Path, corpus_size: int, corpus_length: int) -> None:
        self.seed = seed
        self.corpora = {
            name: load_corpus(name, count=corpus_size, length=corpus_length, seed=seed, cache=cache) for name in CORPORA
        }

    def _crop(self, name: str, rng: np.random.Generator, count: int, length: int) -> Array:
        corpus = self.corpora[name]
        row = rng.integers(len(corpus), size=count)
        start = rng.integers(corpus.shape[1] - length + 1, size=count)
        return corpus[row[:, None], start[:, None] + np.arange(length)[None]].astype(np.float64)

    def family(self, name: str, rng: np.random.Generator, count: int, length: int) -> Array:
        """Draw `count` rows of one family: (count, length)."""
        if name in FAMILIES:
            return FAMILIES[name](rng, count, length)
        if name in CORPORA:
            return self._crop(name, rng, count, length)
        raise unknown_name("series family", name, known_families())

    def draw(self, mix: Mapping[str, float], rng: np.random.Generator, count: int, length: int) -> Array:
        """Draw `count` rows from the mixture `mix` (name: weight): (count, length), shuffled."""
        names = sorted(mix)
        weights = np.array([mix[name] for name in names])
        numbers = rng.multinomial(count, weights / weights.sum())
        parts = []
        for name, number in zip(names, numbers, strict=True):
            if number == 0:
                continue
            if name == "tsmixup":
                base = {other: weight for other, weight in mix.items() if other != "tsmixup"}
                slices = self.draw(base, rng, number * MAX_SERIES, length)
                parts.append(tsmixup(rng, slices.reshape(number, MAX_SERIES, length)))
            else:
                parts.append(disturb(rng, self.family(name, rng, number, length)))
        return rng.permutation(np.concatenate(parts))

    def batch(
        self, step: int, *, mix: Mapping[str, float], rows: int, context: int, horizon: int
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Context (rows, context) and future (rows, horizon) of training step `step`; NaN = not there."""
        rng = np.random.default_rng([self.seed, step])
        series = self.draw(mix, rng, rows, context + horizon)
        past, future = series[:, :context], series[:, context:]
        keep = np.where(rng.random(rows) < SHARE_SHORT, rng.integers(context // 8, context, rows), context)
        past = np.where(np.arange(context)[None] >= context - keep[:, None], past, np.nan)
        return past.astype(np.float32), future.astype(np.float32)
