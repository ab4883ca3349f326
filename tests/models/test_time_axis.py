"""Every token knows its time steps, in a forward and along a rollout."""

from __future__ import annotations

import copy
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
import torch

from tiny_lenses import ATTENDING, NAMES, archetypes, lens_of
from tsfm_lens.data import as_series, bundled
from tsfm_lens.models import Lens, load


def context(lens: Lens, length: int = 48) -> object:
    example = getattr(lens.adapter, "example", None)
    if example:
        return example(0, length)
    return bundled("co2").tail(length)


@pytest.mark.parametrize("name", archetypes(NAMES))
def test_tokens_cover_the_context_without_gaps(name: str) -> None:
    """Tokens of a forward cover the context without gaps."""
    lens = lens_of(name)
    _, activations = lens.run_with_cache(context(lens), names_filter="**.hook_embed")
    for stack in lens.wiring.stacks:
        dot = ""
        if stack.name:
            dot = f"{stack.name}."
        spans = activations.token_spans(f"{dot}hook_embed")
        assert spans is not None
        assert len(spans) == activations[f"{dot}hook_embed"].shape[1]
        steps = [
            (a, b)
            for a, b, special in zip(
                spans.start, spans.stop, spans.special, strict=True
            )
            if not special
        ]
        assert all(left[1] == right[0] for left, right in pairwise(steps))
        if name not in ATTENDING:
            # always as long as the model's own
            assert (steps[0][0], steps[-1][1]) == (-lens.adapter.context_length, 0)
        else:
            assert steps[0][0] == (0 if stack.name == "decoder" else -48)


@pytest.mark.parametrize("name", archetypes(NAMES))
def test_tokens_move_on_with_the_rollout(name: str) -> None:
    lens = lens_of(name)
    adapter = lens.adapter
    length = adapter.prediction_length
    if adapter.rollout in ("cache", "refeed"):
        beyond = length + 1
    else:
        beyond = min(5, length)
    if adapter.readout != "quantile":
        draws = {"num_samples": 2}
    else:
        draws = {}
    point = f"{lens.wiring.output_stack.prefix}.0.hook_resid_post"
    _, activations = lens.run_with_cache(
        context(lens), names_filter=point, rollout=True, horizon=beyond, **draws
    )
    spans = [
        activations.token_spans(point, index)
        for index in range(len(activations.calls(point)))
    ]
    assert None not in spans
    starts, bounds = (
        [getattr(span, name)[edge] for span in spans]
        for name, edge in (("start", 0), ("stop", -1))
    )
    if adapter.rollout == "tokens":
        assert starts == list(range(beyond))
    if adapter.rollout == "cache":
        # what a pass takes in begins where the one before ended
        assert starts[1:] == bounds[:-1]
    assert bounds == sorted(bounds)


def test_a_token_table_has_timestamps() -> None:
    batch = as_series(
        pd.DataFrame(
            {"value": np.arange(20.0)},
            index=pd.date_range("2024-01-01", periods=20, freq="D"),
        )
    )
    table = lens_of("chronos-bolt").encode(batch).token_table(stack="encoder")
    patches = table[table["special"] == ""]
    assert patches["start_time"].iloc[0] == pd.Timestamp("2024-01-01")
    assert patches["stop_time"].iloc[-1] == pd.Timestamp("2024-01-21")
    assert (table[table["special"] == "REG"]["start"] == 0).all()


@pytest.mark.parametrize("zone", ["Europe/Berlin", "UTC", None])
def test_times_of_tokens_are_on_the_clock_of_the_series(zone: str | None) -> None:
    """A table of tokens has the offset of a zone, before and after clocks change."""
    hours = pd.date_range("2025-03-29 12:00", periods=36, freq="h", tz=zone)
    batch = as_series(pd.DataFrame({"value": np.arange(36.0)}, index=hours))
    table = lens_of("chronos-bolt").encode(batch).token_table(stack="encoder")
    patches = table[(table["special"] == "") & (table["start"] >= -36)]
    expected = hours[36 + patches["start"].to_numpy()]
    assert [*patches["start_time"]] == [*expected]


def test_packed_tokens_name_their_variate() -> None:
    """Tokens of a packed sequence name their variate."""
    lens = lens_of("moirai-1.1")
    two = as_series(np.stack([np.arange(32.0), np.arange(32.0) ** 0.5])[None])
    table = lens.encode(two, horizon=16).token_table()
    assert set(table["variate"]) == {0, 1}
    assert table.groupby("variate")["start"].min().tolist() == [-32, -32]


@pytest.mark.parametrize("name", ["chronos-2", "chronos-bolt"])
def test_overlapping_tokens_cover_what_moves_them(name: str) -> None:
    tiny = lens_of(name).model
    config = copy.deepcopy(tiny.config)
    width = config.chronos_config["input_patch_size"]
    config.chronos_config |= {"input_patch_stride": width // 2}
    torch.manual_seed(0)
    lens = load(type(tiny)(config), check=False)
    values = np.random.default_rng(0).standard_normal(48)
    swapped = values.copy()
    # the mean and the spread stay, so that only tokens that show one of the two steps
    # change
    swapped[[5, 30]] = values[[30, 5]]
    point = "hook_embed"
    if name == "chronos-bolt":
        point = "encoder.hook_embed"
    (_, before), (_, after) = (
        lens.run_with_cache(series, names_filter=point) for series in (values, swapped)
    )
    spans = before.token_spans(point)
    assert spans is not None
    assert len(spans) == before[point].shape[1]
    moved = (before[point] != after[point]).any(-1)[0]
    shows = [
        start <= 5 - 48 < stop or start <= 30 - 48 < stop
        for start, stop in zip(spans.start, spans.stop, strict=True)
    ]
    assert moved[: len(shows)].tolist() == shows
