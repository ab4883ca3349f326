"""Captures in parts: the activations of the whole batch, and words before a capture
that cannot fit.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from library_forecasts import count_draws
from split_runs import DEPTH, make_series, plan_items
from tiny_lenses import archetypes, lens_of
from tsfm_lens.core.errors import InputError
from tsfm_lens.data import as_series
from tsfm_lens.hooks import Activations, by_row, last_query
from tsfm_lens.models import Encoded, Lens, architectures, batching
from tsfm_lens.testing import assert_close

# a row for every series of the batch at once
ACROSS = {"chronos-2": ("group_attn",), "timestral": ("variate_attn",)}


def list_names(lens: Lens, name: str) -> list[str]:
    """All points but those of attention over the whole batch, and but queries and keys,
    whose rows may hold tokens.
    """
    across = ACROSS.get(name, ())
    points = [
        point
        for point in lens.registry.points
        if not any(word in point for word in across)
    ]
    # queries and keys at padding have seen the whole batch
    return [
        point
        for point in points
        if not across or lens.registry.points[point].axes[1] == "pos"
    ]


def assert_same(actual: Activations, expected: Activations, lens: Lens) -> None:
    assert list(actual) == list(expected)
    assert actual.ids == expected.ids
    for name in expected:
        for call, expected_call in zip(
            actual.calls(name), expected.calls(name), strict=True
        ):
            assert (call.step, call.offset) == (
                expected_call.step,
                expected_call.offset,
            )
            a = call.value.double()
            b = expected_call.value.double()
            if name.endswith("hook_attn_scores"):
                a, b = (torch.where(x > -1e30, x, 0.0) for x in (a, b))
            assert_close(a, b, depth=DEPTH, dtype=torch.float32, what=name)


def without_padding(
    activations: Activations, encoded: Encoded, lens: Lens
) -> Activations:
    """Without what stands at the padding of short series: attention under a full mask
    looks at the whole batch.
    """
    for name, calls in activations.recorded.items():
        point = activations.points[name]
        value = calls[0].value
        if point.stack not in encoded.spans:
            stack = next(iter(encoded.spans))
        else:
            stack = point.stack
        if point.axes[1] != "pos" or value.shape[1] != len(encoded.spans[stack]):
            continue
        mask = encoded.shown(stack).reshape(*value.shape[:2], *[1] * (value.ndim - 2))
        activations.recorded[name] = [
            replace(calls[0], value=torch.where(mask, value, 0.0))
        ]
    return activations


CASES = [(name, False) for name in sorted(architectures())]
CASES += [
    (name, True)
    for name, architecture in architectures().items()
    if architecture.adapter.multivariate
]


@pytest.mark.parametrize(("name", "items"), archetypes(CASES))
def test_forwards_in_parts_record_the_same(
    name: str,
    items: bool,
    multivariate: list[np.ndarray],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A forward in parts keeps what the whole keeps."""
    lens = lens_of(name)
    series = as_series(
        [*multivariate, multivariate[0][:, ::-1].copy()] if items else make_series(name)
    )
    names = list_names(lens, name)
    with torch.no_grad():
        full_output, full = lens.run_with_cache(series, names_filter=names)
        plan_items(monkeypatch, 1 if items else 2)
        output, activations = lens.run_with_cache(series, names_filter=names)
    assert_close(output, full_output, depth=DEPTH)
    encoded = lens.encode(series)
    assert_same(
        without_padding(activations, encoded, lens),
        without_padding(full, encoded, lens),
        lens,
    )
    labelled, before = (item.to_xarray(names[0]) for item in (activations, full))
    assert labelled["series"].equals(before["series"])


@pytest.mark.parametrize(
    "name",
    archetypes(
        [
            "chronos",
            "chronos-bolt",
            "t5",
            "timesfm-2.5",
            "timestral",
            "moirai-2",
            "toto-2",
        ]
    ),
)
def test_rollouts_in_parts_record_the_same(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rollout in parts keeps what the whole keeps."""
    lens = lens_of(name)
    series = make_series(name)
    names = [
        point
        for point in list_names(lens, name)
        if point.endswith(("hook_z", "hook_pattern", "resid_post"))
    ]
    if name in ("t5", "toto-2"):
        steps = 4
    else:
        steps = lens.adapter.longest_pass + 2
    run: dict[str, Any] = {
        "names_filter": names,
        "rollout": True,
        "horizon": steps,
        **count_draws(lens),
    }
    full_forecast, full = lens.run_with_cache(series, **run)
    plan_items(monkeypatch, 2)
    forecast, activations = lens.run_with_cache(series, **run)
    assert_close(
        forecast.quantiles, full_forecast.quantiles, depth=DEPTH, dtype=torch.float32
    )
    assert_same(activations, full, lens)
    spans = [
        item.token_spans(names[0], 0, "query" if "pattern" in names[0] else "pos")
        for item in (activations, full)
    ]
    assert spans[0] == spans[1]


def test_outer_sample_paths_are_put_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Toto 1 repeats the whole batch for every path."""
    lens = lens_of("toto-1")
    series = make_series("toto-1")
    run: dict[str, Any] = {"rollout": True, "horizon": 4, "num_samples": 3}
    monkeypatch.setattr(batching, "DRAWN", 2)
    equal = [np.resize(one, 40) for one in series]
    _, full = lens.run_with_cache(equal[:4], **run)
    blocks = [
        lens.run_with_cache(equal[i : i + 2], **run)[1]["blocks.0.attn.hook_out"]
        for i in (0, 2)
    ]
    joined = full["blocks.0.attn.hook_out"]
    assert joined.shape[1] == 12
    # draws of the second block are others than those of a batch of its own, the context
    # is the same
    first = joined.unflatten(1, (3, 4))[0]
    for index in (0, 2):
        assert_close(
            first[:, index : index + 2],
            blocks[index // 2].unflatten(1, (3, 2))[0],
            depth=DEPTH,
        )
    labelled = full.to_xarray("blocks.0.attn.hook_out").transpose(
        "step", "sample", "series", ...
    )
    assert labelled["series"].values.tolist() == list(full.ids)
    np.testing.assert_array_equal(labelled, joined.unflatten(1, (3, 4)).cpu())


def test_only_reducers_by_row_allow_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Reducers by row are put together; any others keep the batch whole."""
    lens = lens_of("chronos")
    series = [np.sin(np.arange(40) / k) for k in (2, 3, 4, 5)]
    name = "encoder_blocks.0.self_attn.hook_pattern"
    rows: list[int] = []

    def pooled(value: Tensor) -> Tensor:
        rows.append(len(value))
        return value.mean(dim=0)

    with torch.no_grad():
        _, full = lens.run_with_cache(series, names_filter=name)
        plan_items(monkeypatch, 2)
        _, activations = lens.run_with_cache(
            series, names_filter=name, reduce=last_query
        )
        assert_close(activations[name], last_query(full[name]), depth=DEPTH)
        # a small piece holds no more than itself
        assert activations[name].untyped_storage().nbytes() == activations[name].nbytes
        _, means = lens.run_with_cache(series, names_filter=name, reduce=pooled)
    assert rows == [4]
    assert_close(means[name], full[name].mean(dim=0), depth=DEPTH)
    assert by_row(pooled) is pooled


def test_captures_beyond_memory_fail_early(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A recording that cannot fit into memory says so before it runs."""
    lens = lens_of("chronos")
    series = [np.sin(np.arange(40) / k) for k in range(2, 12)]
    with torch.no_grad():
        _, activations = lens.run_with_cache(series)
        retained = sum(
            call.value.nbytes
            for name in activations
            for call in activations.calls(name)
        )
        monkeypatch.setattr("tsfm_lens.models.recording.LITTLE", 0)
        free = "tsfm_lens.models.batching.free_bytes"
        monkeypatch.setattr(free, lambda _device: retained)
        text = "hook points of 10 series take about .* is free.*names_filter=.*reduce="
        with monkeypatch.context() as patch:
            ran = lambda *_args, **_kwargs: pytest.fail("a forward ran")  # noqa: E731
            patch.setattr(Lens, "forward", ran)
            with pytest.raises(InputError, match=text) as refusal:
                lens.run_with_cache(series)
            with pytest.raises(InputError, match="take about"):
                lens.run_with_cache(series, rollout=True, horizon=4, num_samples=2)
        # as many as it says do fit
        count = int(str(refusal.value).split("run at most ")[1].split()[0])
        lens.run_with_cache(series[:count])


def test_gradients_and_graphs_are_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    lens = lens_of("chronos-bolt")
    series = [np.sin(np.arange(40) / k) for k in range(2, 12)]
    run: dict[str, Any] = {
        "names_filter": "**.hook_z",
        "incl_bwd": True,
        "loss": lambda output: output.sum(),
    }
    plan_items(monkeypatch, 2)
    _, activations = lens.run_with_cache(series, **run)
    assert len(activations["decoder_blocks.0.self_attn.hook_z_grad"]) == 10
    monkeypatch.setattr(
        lens.adapter, "run", lambda _inputs: (_ for _ in ()).throw(MemoryError())
    )
    with pytest.raises(InputError, match=r"run out of memory.*torch\.no_grad"):
        lens.run_with_cache(series, names_filter="**.hook_z")
    for weight in lens.parameters():
        weight.grad = None
