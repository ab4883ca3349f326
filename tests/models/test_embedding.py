"""Embeddings are the model's own activations, each with the steps that it covers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import tsfm_lens
from refusals import expect_error
from tiny_lenses import NAMES, archetypes, lens_of
from tsfm_lens.data import SeriesBatch, as_series
from tsfm_lens.models import Lens
from tsfm_lens.models.embedding import FORECAST, embedding_stack
from tsfm_lens.testing import assert_close

EACH = pytest.mark.parametrize("name", archetypes(NAMES))
LENGTHS = (50, 33)


def wave(length: int, shift: float) -> np.ndarray:
    steps = np.arange(length)
    return 10 + shift + 3 * np.sin(steps / 3 + shift) + 0.1 * np.cos(steps**2)


def examples(lens: Lens) -> SeriesBatch:
    """Two items of unequal length, of two variates where the model takes several."""
    if lens.takes_ids:
        batch: SeriesBatch = lens.adapter.example(2, 40)  # type: ignore[attr-defined]
        return batch
    if not lens.adapter.multivariate:
        return as_series([wave(length, length) for length in LENGTHS])
    count = lens.adapter.n_variates or 2
    names = [(item, variate) for item in "xy" for variate in range(count)]
    values = [wave(LENGTHS["xy".index(item)], shift) for item, shift in names]
    return SeriesBatch(
        tuple(values),
        tuple(f"{item}{variate}" for item, variate in names),
        groups=tuple(item for item, _ in names),
        variates=tuple(str(variate) for _, variate in names),
    )


def recorded(lens: Lens, batch: SeriesBatch, point: str) -> np.ndarray:
    """All vectors of a hook point, (row, token, d_model)."""
    with torch.no_grad():
        encoded = lens.encode(batch, horizon=1)
        _, activations = lens.run_with_cache(encoded, names_filter=point)
    values: np.ndarray = activations[point].float().numpy()
    return values


def rows_of(
    lens: Lens, batch: SeriesBatch, stack: str, name: str, vectors: np.ndarray
) -> np.ndarray:
    """Vectors of one series, padding included, (token, d_model)."""
    index = batch.ids.index(name)
    if not lens.packed:
        return vectors[index]
    # the variates of an item are marked in its sequence
    spans = lens.encode(batch, horizon=1).spans[stack]
    variate = batch.variates[index]
    is_own = np.array(spans.variate) == int(variate)
    items = list(dict.fromkeys(batch.groups))
    return vectors[items.index(batch.groups[index])][is_own]


@EACH
def test_vectors_are_recorded_activations(name: str) -> None:
    """Every layer of every stack has the numbers of ``run_with_cache``."""
    lens = lens_of(name)
    batch = examples(lens)
    for stack in lens.wiring.stacks:
        last = stack.n_layers - 1
        end = f"{stack.prefix}.{last}.hook_resid_post"
        if stack.ln_final:
            end = ".".join(filter(None, (stack.name, "ln_final.hook_normalized")))
        points = {
            -1: ".".join(filter(None, (stack.name, "hook_embed"))),
            0: f"{stack.prefix}.0.hook_resid_post",
            last: f"{stack.prefix}.{last}.hook_resid_post",
            None: end,
        }
        for layer, point in points.items():
            frame = lens.embed(batch, layer, stack=stack.name)
            expected = recorded(lens, batch, point)
            assert set(frame["id"]) == set(batch.ids)
            for series, tokens in frame.groupby("id"):
                assert tokens["token"].tolist() == list(range(len(tokens)))
                rows = rows_of(lens, batch, stack.name, str(series), expected)
                # padding stands before a series
                np.testing.assert_array_equal(
                    np.stack(tokens["vector"].tolist()), rows[-len(tokens) :]
                )


@EACH
def test_tokens_tile_every_series(name: str) -> None:
    """Tokens cover each step that a model reads, and padding has none."""
    lens = lens_of(name)
    batch = examples(lens)
    frame = lens.embed(batch)
    for series, length in zip(batch.ids, batch.lengths, strict=True):
        tokens = frame[(frame["id"] == series) & (frame["special"] == "")]
        covered = np.concatenate(
            [np.arange(*bounds) for bounds in tokens[["start", "end"]].to_numpy()]
        )
        first = max(0, length - lens.context_length)
        np.testing.assert_array_equal(covered, np.arange(first, length))
    forecast = frame[frame["special"] == FORECAST]
    lengths = dict(zip(batch.ids, batch.lengths, strict=True))
    assert (forecast["start"] >= forecast["id"].map(lengths)).all()


@EACH
def test_each_variate_has_its_own_tokens(name: str) -> None:
    """Before the first layer, a change of one series changes its own tokens alone."""
    lens = lens_of(name)
    batch = examples(lens)
    plain = lens.embed(batch, -1, pool="last")
    for index, series in enumerate(batch.ids):
        values = list(batch.values)
        values[index] = values[index][::-1].copy()
        if not lens.takes_ids:
            values[index][-5:] *= -1
        other = lens.embed(replace(batch, values=tuple(values)), -1, pool="last")
        differ = [
            one
            for one, mine, theirs in zip(
                plain["id"], plain["vector"], other["vector"], strict=True
            )
            if np.abs(mine - theirs).max() > 1e-3 * np.abs(mine).max()
        ]
        assert differ == [series]
    labels = set(plain) - {"id", "start", "end", "vector"}
    assert labels == ({"group", "variate"} if batch.multivariate else set())


@EACH
def test_pools_leave_special_tokens_out(name: str) -> None:
    lens = lens_of(name)
    batch = examples(lens)
    tokens = lens.embed(batch, 0)
    tokens = tokens[tokens["special"] == ""]
    pools = {pool: lens.embed(batch, 0, pool=pool) for pool in _BY_HAND}
    for pool, by_hand in _BY_HAND.items():
        frame = pools[pool]
        assert frame["id"].tolist() == list(batch.ids)
        assert "token" not in frame
        for row in frame.itertuples():
            members = tokens[tokens["id"] == row.id]
            matrix = np.stack(members["vector"].tolist())
            assert_close(row.vector, by_hand(matrix), depth=2, dtype=np.float32)
            ends = members[["start", "end"]].to_numpy()
            if pool in ("first", "last"):
                ends = ends[[0 if pool == "first" else -1]]
            assert (row.start, row.end) == (ends[0, 0], ends[-1, 1])


_BY_HAND = {
    "mean": lambda matrix: matrix.astype(float).mean(0),
    "max": lambda matrix: matrix.max(0),
    "first": lambda matrix: matrix[0],
    "last": lambda matrix: matrix[-1],
}


@pytest.mark.parametrize("name", ["chronos-nano", "bolt-nano", "chronos2-nano"])
def test_vectors_are_those_of_the_library(name: str) -> None:
    """Without a layer, the numbers are those of the pipeline's own ``embed``."""
    lens = tsfm_lens.load(name)
    lengths = (60, 41)
    series = [torch.as_tensor(wave(length, length)) for length in lengths]
    native = lens.native.embed(series)[0]
    frame = lens.embed(series)
    for index, length in enumerate(lengths):
        tokens = frame[frame["id"] == f"series-{index}"]
        expected = native[index].reshape(-1, lens.d_model).numpy()
        matrix = np.stack(tokens["vector"].tolist())
        # the library gives the padding, too
        np.testing.assert_array_equal(matrix, expected[-len(matrix) :])
        assert tokens["end"].max() >= length


def test_variates_are_those_of_the_library() -> None:
    lens = tsfm_lens.load("chronos2-nano")
    item = np.stack([wave(48, 0.0), wave(48, 2.0), wave(48, 5.0)])
    native = lens.native.embed([torch.as_tensor(item)])[0][0].numpy()
    batch = SeriesBatch(tuple(item), groups=("a",) * 3, variates=("u", "v", "w"))
    frame = lens.embed(batch)
    assert list(frame.columns)[:3] == ["id", "group", "variate"]
    for variate, expected in zip("uvw", native, strict=True):
        vectors = frame.loc[frame["variate"] == variate, "vector"].tolist()
        np.testing.assert_array_equal(np.stack(vectors), expected)


@pytest.mark.parametrize("freq", ["D", "MS", "h"])
def test_frames_with_dates_give_times(freq: str) -> None:
    """A token's times are those of the rows that it covers."""
    lens = lens_of("chronos-bolt")
    parts = [
        pd.DataFrame(
            {
                "id": item,
                "timestamp": pd.date_range(begin, periods=length, freq=freq),
                "target": wave(length, length),
            }
        )
        for item, begin, length in (("b", "2020-01-01", 50), ("a", "2021-03-01", 33))
    ]
    frame = lens.embed(pd.concat(parts, ignore_index=True))
    in_steps = lens.embed([part["target"].to_numpy() for part in parts])
    for index, part in enumerate(parts):
        found = frame[frame["id"] == part["id"][0]]
        steps = in_steps[in_steps["id"] == f"series-{index}"]
        stamps = pd.date_range(part["timestamp"][0], periods=60, freq=freq)
        for column in ("start", "end"):
            expected = stamps[steps[column].to_numpy()]
            assert found[column].tolist() == expected.tolist()


def test_mixed_batches_count_steps_and_say_so() -> None:
    dated = tsfm_lens.bundled("nile")
    undated = as_series([wave(40, 0.0)], ids=["plain"])
    frame = lens_of("chronos-bolt").embed(SeriesBatch.concat([dated, undated]))
    assert frame["start"].dtype.kind == "i"
    assert any("'plain'" in note for note in frame.attrs["notes"])


def test_long_histories_are_noted() -> None:
    """What a model does not read is said, and steps count from the first value."""
    lens = lens_of("chronos-bolt")
    length = lens.context_length + 30
    frame = lens.embed([wave(length, 0.0)])
    assert frame["start"].min() == 30
    assert any("longer history" in note for note in frame.attrs["notes"])


def test_hooks_act_on_embeddings() -> None:
    lens = lens_of("chronos-bolt")
    batch = as_series([wave(40, 0.0)])
    plain = lens.embed(batch, 0)["vector"]
    with lens.ablate("encoder.0.*"):
        inside = lens.embed(batch, 0)["vector"]
    embedding = lens.embed(batch, -1)["vector"]
    np.testing.assert_array_equal(np.stack(inside), np.stack(embedding))
    assert not np.array_equal(np.stack(inside), np.stack(plain))
    np.testing.assert_array_equal(
        np.stack(lens.embed(batch, 0)["vector"]), np.stack(plain)
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layer": 9}, r"layer 9 of stack 'encoder'.*nearest is 2"),
        ({"layer": -2}, r"layer -2.*nearest is -1"),
        ({"layer": 1.5}, r"1\.5.*, expected an integer from -1"),
        ({"layer": True}, r"True.*, expected an integer"),
        ({"stack": "encodr"}, r"encodr.*encoder"),
        ({"pool": "men"}, r"pool 'men'.*mean"),
        ({"layers": 1}, r"takes no 'layers'.*layer"),
    ],
)
def test_wrong_requests_name_the_nearest(options: dict[str, Any], message: str) -> None:
    lens = tsfm_lens.load("bolt-nano")
    expect_error(message, lens.embed, [wave(40, 0.0)], **options)


def test_series_are_embedded_by_the_encoder() -> None:
    """By default the stack is the one that reads the series."""
    chosen = {
        name: embedding_stack(lens_of(name).wiring).name
        for name in ("chronos", "chronos-bolt", "chronos-2", "ttm")
    }
    assert chosen == {
        "chronos": "encoder",
        "chronos-bolt": "encoder",
        "chronos-2": "",
        "ttm": lens_of("ttm").wiring.stacks[-2].name,
    }
