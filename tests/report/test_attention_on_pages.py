"""What heads attend to, as figures and pages say it, against the models' own patterns:
by token, and along the step.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from browsing import Page
from tiny_lenses import fresh
from tsfm_lens import as_series, testing
from tsfm_lens.hooks.interventions import EditPattern
from tsfm_lens.models import Lens, load
from tsfm_lens.models.run import Run
from tsfm_lens.testing import assert_close

PATCHES = (1, 8, 32)
LAG = 64
HORIZON = 48
CONTEXT = 160
COPYING, STAYING, RESTING, SPREAD = range(4)  # what the heads are made to do


def chronos_2(patch: int) -> Lens:
    """One layer of four heads over patches of so many steps, in and out."""
    library = pytest.importorskip("chronos.chronos2")
    config = testing.tiny("chronos-2").config.to_dict()
    size = {
        "input_patch_size": patch,
        "input_patch_stride": patch,
        "output_patch_size": patch,
    }
    config["chronos_config"] |= size | {
        "context_length": CONTEXT,
        "max_output_patches": HORIZON // patch + 1,
    }
    shape = {"num_layers": 1, "num_heads": 4, "d_model": 16, "d_kv": 4, "d_ff": 16}
    return load(
        library.Chronos2Model(
            library.config.Chronos2CoreConfig.from_dict(config | shape)
        ),
        check=False,
    )


def bolt(patch: int) -> Lens:
    """One layer of four heads over patches of so many steps; all steps are read from
    one decoder token.
    """
    library = pytest.importorskip("chronos.chronos_bolt")
    native = testing.tiny("chronos-bolt")
    config = native.config
    size = {"input_patch_size": patch, "input_patch_stride": patch}
    config.chronos_config |= size | {
        "context_length": CONTEXT,
        "prediction_length": HORIZON,
    }
    config.num_layers = config.num_decoder_layers = 1
    return load(library.ChronosBoltModelForForecasting(config), check=False)


def planted(lens: Lens) -> Callable[[Tensor], Tensor]:
    """Put 97 % of the attention of one layer's heads on a token 64 steps back, on the
    last, on REG, and nowhere.
    """
    stack = lens.wiring.output_stack
    kind = lens.wiring.output_stack.attention_kinds()[-1 if stack.name else 0]

    def edit(pattern: Tensor) -> Tensor:
        encoded = lens.encode(series(), horizon=HORIZON)
        queries = encoded.spans[stack.name]
        keys = encoded.spans[stack.attention(kind, 0).keys_from or stack.name]
        reg = keys.special.index("REG")
        last = keys.stop.index(0)
        for query in range(len(queries)):
            if queries.special[query] or queries.start[query] < 0:
                continue
            rows = torch.zeros_like(pattern[:, :, query])
            rows[..., reg] = 0.03
            rows[:, COPYING, keys.start.index(queries.start[query] - LAG)] = 0.97
            rows[:, STAYING, last] = 0.97
            rows[:, RESTING, reg] = 1
            rows[:, SPREAD] = 1 / rows.shape[-1]
            pattern[:, :, query] = rows
        return pattern

    return edit


def series() -> Any:
    steps = np.arange(CONTEXT)
    values = np.sin(2 * np.pi * steps / 24) + 0.1 * np.random.default_rng(0).normal(
        size=CONTEXT
    )
    return as_series(values, freq="h", start="2024-01-01")


def dates(start: int, stop: int) -> str:
    """Hours from a step before the forecast to another, without blanks."""
    hours = pd.date_range("2024-01-01", periods=CONTEXT, freq="h")[start:][
        : stop - start
    ]
    first, last = (f"{hours[at]:%Y-%m-%d %H:%M}" for at in (0, -1))
    if first == last:
        text = first
    elif hours[0].date() == hours[-1].date():
        text = f"{first} to {last[-5:]}"
    else:
        text = f"{first} to {last}"
    midnights = all(hour.hour == 0 for hour in hours[[0, -1]])
    return (text.replace(" 00:00", "") if midnights else text).replace(" ", "")


@contextmanager
def with_planted_heads(lens: Lens) -> Iterator[Run]:
    name = next(
        str(component)
        for component in lens.components("**")
        if component.level == "branch" and component.kind in ("time_attn", "cross_attn")
    )
    with lens.edit(EditPattern(name, planted(lens))):
        yield lens.run(series(), HORIZON)


def build_page(run: Run, folder: Path) -> SimpleNamespace:
    """The linked view's state and the texts of a report, without blanks."""
    page = Page(run.report(folder, sections=("head_states",)).read_text())
    state = json.loads(page.unpacked("linked-state"))
    return SimpleNamespace(state=state, text="".join(page.text.split()))


def reading(state: dict[str, Any], head: str) -> dict[str, Any]:
    return state["series"][0]["states"][state["names"].index(head)]["reading"]


@pytest.mark.parametrize("patch", PATCHES)
def test_copying_head_is_described_with_lag(patch: int, tmp_path: Path) -> None:
    """A head that copies is described with its lag and all of its attention."""
    lens = chronos_2(patch)
    with with_planted_heads(lens) as run:
        page = build_page(run, tmp_path)
        table = run.measure("head_states")
    copying, staying, resting, spread = (
        reading(page.state, f"0.time_attn.{head}") for head in range(4)
    )
    assert (copying["form"], copying["back"]) == ("lag", LAG)
    assert copying["share"] == pytest.approx(0.97)
    assert (staying["form"], staying["start"], staying["stop"]) == ("place", -patch, 0)
    assert staying["share"] == pytest.approx(0.97)
    assert resting["form"] == "nothing"
    assert resting["rest"] == pytest.approx(1)
    assert spread["form"] == "even"
    # the card, whose heads are all
    assert "head0:64stepsback97%" in page.text
    assert f"head1:{dates(-patch, 0)}97%" in page.text
    assert "head2:REG100%" in page.text
    assert "head3:evenly" in page.text
    # the strip has a row for each query, with all of its attention on the one token
    state = page.state["series"][0]
    rows = state["states"][page.state["names"].index("0.time_attn.0")]["rows"]
    assert len(rows) == -(-HORIZON // patch)
    assert [top for top, _ in rows] == pytest.approx([0.97] * len(rows))
    assert state["spans"][-1] == [CONTEXT - patch, CONTEXT]
    assert table["lag"].sel(layer=0, head=0).item() == LAG


@pytest.mark.parametrize("patch", PATCHES)
def test_one_query_for_all_steps_works(patch: int, tmp_path: Path) -> None:
    """One query that stands for all steps has a place."""
    lens = bolt(patch)
    with with_planted_heads(lens) as run:
        page = build_page(run, tmp_path)
    copying, staying = (
        reading(page.state, f"decoder.0.cross_attn.{head}") for head in range(2)
    )
    assert (copying["form"], copying["back"], copying["start"]) == ("place", LAG, -LAG)
    assert copying["share"] == pytest.approx(0.97)
    assert (staying["start"], staying["share"]) == (-patch, pytest.approx(0.97))
    assert f"head0:{dates(-LAG, patch - LAG)}97%" in page.text


@pytest.mark.parametrize(
    ("name", "length", "steps"),
    [("chronos", 40, 7), ("chronos-bolt", 41, 7), ("chronos-2", 43, 10)],
)
def test_lags_and_places_match_captured_attention(
    name: str, length: int, steps: int
) -> None:
    """By brute force over every step of the forecast and every token, special ones and
    parts of tokens among them.
    """
    lens = fresh(name)
    values = np.random.default_rng(1).normal(size=length).cumsum()
    run = lens.run(as_series(values), steps)
    found = run.measure("head_states").isel(series=0)
    stack = lens.wiring.output_stack
    kind = str(found.attrs["attention"])
    queries = run.encoded.spans[stack.name]
    for layer in found["layer"].values:
        point = f"{stack.prefix}.{layer}.{kind}.hook_pattern"
        with torch.no_grad():
            _, activations = lens.run_with_cache(run.encoded, names_filter=point)
        keys = run.encoded.spans[
            stack.attention(kind, int(layer)).keys_from or stack.name
        ]
        for head, pattern in enumerate(activations[point][0].double().numpy()):
            by_lag: dict[int, float] = {}
            by_position: dict[int, float] = {}
            for step in range(steps):
                query = max(
                    q
                    for q in range(len(queries))
                    if not queries.special[q] and 0 <= queries.start[q] <= step
                )
                for key, weight in enumerate(pattern[query]):
                    if (
                        keys.special[key]
                        or keys.start[key] >= 0
                        or keys.stop[key] <= -length
                    ):
                        continue
                    lag = queries.start[query] - keys.start[key]
                    by_lag[lag] = by_lag.get(lag, 0) + weight / steps
                    by_position[keys.start[key]] = (
                        by_position.get(keys.start[key], 0) + weight / steps
                    )
            one = found.sel(layer=layer, head=head)
            assert_close(
                float(one["lag_share"]),
                max(by_lag.values()),
                depth=1000,
                dtype=np.float32,
            )
            assert_close(
                by_lag[int(one["lag"])],
                max(by_lag.values()),
                depth=1000,
                dtype=np.float32,
            )
            assert_close(
                float(one["place_share"]),
                max(by_position.values()),
                depth=1000,
                dtype=np.float32,
            )
            start = int(one["key_start"].sel(key=one["place"]))
            assert_close(
                by_position[start],
                max(by_position.values()),
                depth=1000,
                dtype=np.float32,
            )
