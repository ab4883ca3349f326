"""An intervention on one series of a rollout leaves the others as they are, however a model orders its rows."""

from __future__ import annotations

import numpy as np
import pytest

from tiny_lenses import lens_of
from tsfm_lens.hooks import Component, EditPattern, Zero
from tsfm_lens.models import Lens, architectures
from tsfm_lens.testing import assert_close

NAMES = sorted(architectures())


def three_series(lens: Lens) -> list[np.ndarray]:
    own = getattr(lens.adapter, "example", None)
    if own is not None:
        return list(own(2, 32).values)
    steps = np.arange(32)
    return [np.sin(steps / (2 + i)) * (i + 1) + 0.1 * steps for i in range(3)]


def beyond_one_pass(lens: Lens, count: int) -> tuple[int, dict[str, int]]:
    """A horizon past the first pass, where a rollout goes there, and as many sample paths where there are any."""
    adapter, rolls = lens.adapter, lens.adapter.rollout in ("cache", "refeed")
    horizon = adapter.prediction_length + 3 if rolls else min(6, adapter.prediction_length)
    return horizon, {"num_samples": count} if adapter.readout != "quantile" else {}


# samplers that reject draws use up random numbers according to every row, so other rows draw otherwise
@pytest.mark.parametrize("name", [name for name in NAMES if architectures()[name].readout != "distribution"])
def test_only_the_pattern_of_the_chosen_series_changes(name: str) -> None:
    lens = lens_of(name)
    stack, series = lens.wiring.output_stack, three_series(lens)
    horizon, draws = beyond_one_pass(lens, 3)
    at = Component(stack.name, stack.n_layers - 1, stack.attention_kinds()[0])
    plain = lens.forecast(series, horizon, seed=1, **draws).quantiles
    with lens.edit(EditPattern(at, lambda pattern: 0.1 * pattern.roll(1, -1), rows=[1])):
        edited = lens.forecast(series, horizon, seed=1, **draws).quantiles
    assert_close(edited[[0, 2]], plain[[0, 2]], depth=100, dtype=np.float32)
    assert not np.allclose(edited[1], plain[1])


@pytest.mark.parametrize("name", NAMES)
def test_the_rows_of_a_series_are_found_in_every_pass(name: str) -> None:
    lens = lens_of(name)
    horizon, draws = beyond_one_pass(lens, 5)
    point = f"{lens.wiring.output_stack.prefix}.0.mlp.hook_out"
    with lens.edit(Zero(point, rows=[1])):
        _, acts = lens.run_with_cache(three_series(lens), names_filter=point, rollout=True, horizon=horizon, **draws)
    assert len(acts.calls(point)) >= (2 if lens.adapter.rollout != "single" else 1)
    for call in acts.calls(point):
        rows = np.arange(len(call.value))
        # Toto's rows are sample paths of all series; the others' are series, each with its own paths
        series = rows % 3 if lens.wiring.sample_major else rows // (len(rows) // 3)
        zeroed = (call.value == 0).flatten(1).all(dim=1).numpy()
        np.testing.assert_array_equal(zeroed, series == 1)
