"""Motif matching: hand-built heads that match by content, by lag or not at all, and targets checked value by value."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr

from contrasted import few_draws, forecast_instead
from tiny_lenses import fresh
from tsfm_lens.errors import InputError, LensError
from tsfm_lens.hooks import EditPattern
from tsfm_lens.models import Lens, architectures, load
from tsfm_lens.probes import repeated_motif
from tsfm_lens.probes.attention import pick_attention
from tsfm_lens.probes.induction import _draw, _Plan, _targets
from tsfm_lens.testing import assert_close

NAMES = sorted(architectures())


@cache
def lens_of(name: str) -> Lens:
    return load(name if name.endswith("nano") else architectures()[name].tiny(), check=False)


def even(pattern: torch.Tensor) -> torch.Tensor:
    """The same weight on every key that has any."""
    seen = (pattern > 0).to(pattern)
    return seen / seen.sum(-1, keepdim=True).clamp(min=1)


@pytest.mark.parametrize("name", NAMES)
def test_an_even_head_has_chance_everywhere(name: str) -> None:
    lens = lens_of(name)
    row, kind, layers = pick_attention(lens, None, None)
    dot = f"{row.name}." if row.name else ""
    with lens.edit(*(EditPattern(f"{dot}{layer}.{kind}", even) for layer in layers)):
        found = repeated_motif(lens, n_series=3, **few_draws(lens))
    assert found["layer"].values.tolist() == list(map(str, layers))
    expected = np.broadcast_to(found["chance"].values[:, None, None], found["prefix_matching"].shape)
    assert_close(found["prefix_matching"], expected, depth=100, dtype=np.float32)
    assert_close(found["advantage"], 0, depth=100, magnitude=1.0, dtype=np.float32)
    assert (found["chance"] > 0).all()
    assert (found["chance"] < 1).all()
    if not getattr(lens.adapter, "integers", False):
        assert np.isfinite(found["relative_copy_error"]).all()


@pytest.mark.parametrize("queries", ["forecast", "context"])
@pytest.mark.parametrize("name", NAMES)
def test_targets_show_what_comes_next(name: str, queries: str) -> None:
    """Value by value: the key after the last match holds what follows the query, and no later key does."""
    lens = lens_of(name)
    row, kind, layers = pick_attention(lens, None, None)
    keys_from = row.attention(kind, layers[0]).keys_from or row.name
    patch = repeated_motif(lens, n_series=3, **few_draws(lens)).attrs["patch"]
    plan = _Plan(2, 4, patch, 3, 4, 0.0, min(lens.adapter.prediction_length, 4 * patch))
    context, future, lengths = _draw(lens, plan, seed=1)
    encoded = lens.run(context, plan.steps, forced_path=future, rollout=False).encoded
    asking, shown = encoded.spans[row.name], encoded.spans[keys_from]
    forecasting = any(0 <= start < plan.steps for start in asking.start)
    if (queries == "forecast" and not forecasting) or (queries == "context" and keys_from != row.name):
        with pytest.raises(InputError, match=f"is a {queries} query"):
            _targets(encoded, row, keys_from, lengths, plan, queries)
        return
    places = _targets(encoded, row, keys_from, lengths, plan, queries)
    assert places[0].any(axis=(1, 2)).all()
    for series, length in enumerate(lengths):
        whole = np.concatenate([context[series], np.tile(future[series], 4)])
        zero = context.shape[1]
        held = {
            key: whole[zero + shown.start[key] : zero + shown.stop[key]]
            for key in range(len(shown))
            if not shown.special[key] and shown.stop[key] <= 0
        }
        for query in np.flatnonzero(places[0, series].any(axis=-1)):
            begin = asking.start[query] if queries == "forecast" else asking.stop[query]
            end = begin + patch if queries == "context" else min(asking.stop[query], begin + length)
            wanted = [drawn_after(context[series], int(length), start, patch) for start in range(begin, end, patch)]
            alike = [[key for key, values in held.items() if np.array_equal(values, want)] for want in wanted]
            earlier = [[key for key in keys if shown.start[key] < begin] for keys in alike]
            assert np.flatnonzero(places[2, series, query]).tolist() == sorted(
                {key for keys in earlier for key in keys}
            )
            assert np.flatnonzero(places[0, series, query]).tolist() == sorted({keys[-1] for keys in earlier})
            match = np.flatnonzero(places[1, series, query])
            assert match.tolist() == [earlier[0][-1] - 1]
            np.testing.assert_array_equal(
                held[match[0]], drawn_after(context[series], int(length), begin - patch, patch)
            )


def drawn_after(context: np.ndarray, length: int, start: int, patch: int) -> np.ndarray:
    """Values from a step on, by the motif alone: its first value stands at the forecast start."""
    return context[-length:][np.arange(start, start + patch) % length]


def matching(lens: Lens, at: str) -> list[tuple[str, object]]:
    """An induction head made of content alone: it looks for its own token in the context and attends to the next."""
    seen: dict[str, torch.Tensor] = {}

    def keep(name: str) -> object:
        def hook(value: torch.Tensor, hook: object) -> None:
            seen[name] = value.detach()

        return hook

    def attend(pattern: torch.Tensor, hook: object) -> torch.Tensor:
        context, queries = seen["encoder"][:, :-1], seen["decoder"]
        same = (queries[:, :, None] == context[:, None, :-1]).all(-1)
        places = torch.where(same, torch.arange(same.shape[-1]), -1).amax(-1)
        pattern = torch.zeros_like(pattern)
        found = places >= 0
        weight = found.to(pattern)[:, None, :, None].expand(*pattern.shape[:2], -1, 1)
        return pattern.scatter(-1, (places.clamp(min=0) + 1)[:, None, :, None].expand_as(weight), weight)

    return [
        ("encoder.hook_embed", keep("encoder")),
        ("decoder.hook_embed", keep("decoder")),
        (f"{at}.hook_pattern", attend),
    ]


def test_a_head_that_matches_by_content_has_the_advantage() -> None:
    lens = lens_of("chronos-nano")
    with lens.hooks(matching(lens, "decoder_blocks.1.cross_attn")):  # type: ignore[arg-type]
        found = repeated_motif(lens, n_series=24, num_samples=1).sel(layer="1", head=0)
    # the start token matches nothing, and two values of a motif may share a bin
    steps = found.sizes["step"]
    best = (steps - 1) / steps
    assert best - 0.1 < float(found["prefix_matching"].sel(target="after_last")) <= best
    assert float(found["advantage"].sel(target="after_last")) > 0.7
    assert float(found["prefix_matching"].sel(target="last")) < 0.1


@pytest.mark.parametrize("lag", [4, 7])
def test_a_head_that_reads_at_a_lag_has_none(lag: int) -> None:
    lens = lens_of("chronos")

    def moved(pattern: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(pattern)
        keys = out.shape[-1] - 1
        for query in range(out.shape[-2]):
            out[:, :, query, keys + query % lag - lag] = 1.0
        return out

    with lens.edit(EditPattern("decoder.0.cross_attn", moved)):
        found = repeated_motif(lens, n_series=10, num_samples=1).sel(layer="0")
    assert sorted(set(found["motif_length"].values)) == [4, 5, 6, 7, 8]
    np.testing.assert_allclose(found["advantage"], 0)
    # its lag is the motif's length in one series of five
    own = _share(found, lag)
    np.testing.assert_allclose(found["prefix_matching"].sel(target="after_last"), own)


def _share(found: xr.Dataset, lag: int) -> float:
    """How often a read at the lag meets the step after the last match, counted one by one."""
    hits = [
        query % lag - lag == query % length - length
        for length in found["motif_length"].values
        for query in range(found.sizes["step"])
    ]
    return float(np.mean(hits))


def test_a_forecast_that_goes_on_with_the_motif_has_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    lens = fresh("chronos-bolt")
    context, wanted, _ = _draw(lens, _Plan(2, 4, 4, 4, 6, 0.3, 16), seed=3)
    forecast_instead(monkeypatch, lens, wanted[:, None])
    found = repeated_motif(lens, n_series=6, noise=0.3, seed=3)
    np.testing.assert_array_equal(found["relative_copy_error"], 0)
    # shown with noise, but goes on without
    np.testing.assert_array_equal(found["truth"], wanted)
    forecast_instead(monkeypatch, lens, np.broadcast_to(context.mean(axis=1)[:, None, None], (6, 1, 16)))
    np.testing.assert_allclose(repeated_motif(lens, n_series=6, noise=0.3, seed=3)["relative_copy_error"], 1)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("chronos-bolt", {"motif": 5}, "room for 4 tokens a motif"),
        ("chronos-bolt", {"motif": (1, 3)}, "motifs of 1 to 3"),
        ("chronos-bolt", {"motif": 3, "repeats": 1}, "repeats 1"),
        ("chronos-bolt", {"n_series": 0}, "n_series 0"),
        ("chronos-bolt", {"queries": "all"}, "queries='all'"),
        ("chronos-bolt", {"kind": "attn"}, "cross_attn"),
        ("t5", {"noise": 0.1}, "no noise can be added"),
    ],
)
def test_what_does_not_fit_is_named(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(LensError, match=words):
        repeated_motif(lens_of(name), **options)
