"""Spectra of matrices that come in parts, against those of the whole."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tsfm_lens.errors import InputError
from tsfm_lens.probes.streaming import StreamedSpectrum
from tsfm_lens.testing import assert_close


def planted(values: np.ndarray, rows: int, seed: int = 0) -> np.ndarray:
    """A matrix (rows, columns) of known singular values."""
    rng = np.random.default_rng(seed)
    left, right = (np.linalg.qr(rng.normal(size=(size, len(values))))[0] for size in (rows, len(values)))
    return (left * values) @ right.T


@pytest.mark.parametrize("parts", [[200], [1] * 200, [3, 0, 97, 100], [199, 1]])
def test_streamed_singular_values_are_those_of_the_whole(parts: list[int]) -> None:
    whole = planted(np.geomspace(1, 1e-12, 12), 200)
    spectrum = StreamedSpectrum(12)
    for part in np.split(whole, np.cumsum(parts)[:-1]):
        spectrum.add(torch.tensor(part))
    dense = np.linalg.svd(whole, compute_uv=False)
    assert spectrum.rows == 200
    assert_close(spectrum.singular_values(), dense, depth=200)
    # small ones survive, as they do not where outer products are summed
    assert_close(spectrum.singular_values()[-1], 1e-12, depth=200, magnitude=1.0)
    gram = np.sqrt(np.abs(np.linalg.eigvalsh(whole.T @ whole)))[::-1]
    assert abs(gram[-1] / dense[-1] - 1) > 10 > abs(spectrum.singular_values()[-1] / dense[-1] - 1)


def test_few_rows_have_few_singular_values() -> None:
    spectrum = StreamedSpectrum(8)
    assert len(spectrum.singular_values()) == 0
    spectrum.add(torch.tensor(planted(np.ones(8), 8)[:3]))
    assert_close(spectrum.singular_values(), np.ones(3), depth=8)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite_are_refused(value: float) -> None:
    with pytest.raises(InputError, match="not finite"):
        StreamedSpectrum(2).add(torch.tensor([[1.0, value]]))


def test_nothing_but_the_factor_is_kept() -> None:
    spectrum = StreamedSpectrum(6)
    for seed in range(20):
        spectrum.add(torch.tensor(planted(np.ones(6), 50, seed)))
    held = sum(value.numel() for value in vars(spectrum).values() if isinstance(value, torch.Tensor))
    assert held == 36


def test_the_floor_is_where_rounding_to_float32_puts_zeros() -> None:
    whole = planted(np.array([1.0, 0.5, 0.2] + [0.0] * 17), 300)
    spectrum = StreamedSpectrum(20)
    spectrum.add(torch.tensor(whole, dtype=torch.float32))
    values = spectrum.singular_values()
    floor = spectrum.rounding_floor(values, 0)
    assert 0.1 * floor < values[3] / values[0] < floor
    assert spectrum.rounding_floor(values, 3) > 10 * floor
