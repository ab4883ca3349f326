"""The embedded token model holds the mechanisms that the probes are there to show."""

from __future__ import annotations

import numpy as np
import pytest

from tsfm_lens.errors import LensError
from tsfm_lens.hooks import Component
from tsfm_lens.models import load
from tsfm_lens.studies.recipes import mechanisms
from tsfm_lens.studies.recipes.mechanisms import measure, motifs


def test_motifs_go_on_as_they_began() -> None:
    batch, future = motifs(3, length=7, repeats=3, horizon=10, seed=1)
    for series, after in zip(batch.values, future, strict=True):
        np.testing.assert_array_equal(series[:7], series[7:14])
        np.testing.assert_array_equal(np.concatenate([series, after])[21:28], series[:7])
        np.testing.assert_array_equal(after[7:], series[:3])


def test_chronos_nano_copies_with_induction_heads() -> None:
    found = measure(load("chronos-nano"), count=4)
    both = [head for head in found.induction if head in found.sharp]
    assert both
    assert all(isinstance(head, Component) and head.kind == "cross_attn" for head in both)
    assert float(found.test.copy_accuracy) > 0.5
    assert found.copy_error["plain"] < 0.05
    assert found.copy_error["both"] > 0.3


def test_a_model_without_tokens_is_refused() -> None:
    with pytest.raises(LensError, match="bolt-nano is no encoder-decoder model over value tokens"):
        mechanisms.main("bolt-nano")
