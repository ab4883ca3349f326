"""The code of the first page reads like the question, and runs on every model."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
import torch
import xarray as xr

import tsfm_lens
from tiny_lenses import SUMMING, archetypes, lens_of
from tsfm_lens.core.errors import InputError, UnknownNameError
from tsfm_lens.data import bundled
from tsfm_lens.hooks.component import writers
from tsfm_lens.models import Lens
from tsfm_lens.testing import assert_close

ROOT = Path(__file__).parent.parent
EMBEDDED = ("bolt-nano", "chronos-nano", "chronos2-nano")


def last_layer(lens: Lens) -> str:
    """Glob of the heads of the last attention that writes to the forecast, or its last
    branch.
    """
    heads = [writer for writer in writers(lens.wiring) if writer.head is not None]
    if heads:
        return str(heads[-1]).rpartition(".")[0] + ".*"
    return str(writers(lens.wiring)[-1])


def drawn(lens: Lens) -> dict[str, int]:
    """A few sample paths, where a model draws any."""
    if lens.emits == "token":
        return {"num_samples": 4}
    return {}


@pytest.fixture(scope="module", params=EMBEDDED)
def lens(request: pytest.FixtureRequest) -> Lens:
    return tsfm_lens.load(request.param)


@pytest.mark.parametrize("name", archetypes(sorted(set(SUMMING) - {"t5"})))
def test_first_page_runs_on_every_model(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """README's code runs on every model. As it stands it runs in test_pictures.py, and
    that of the docs, which calls the same methods, in test_pages.py.
    """
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    code = "\n".join(
        item
        for item in re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        if re.search(r"\brun\b", item)
    )
    lens = lens_of(name)
    steps = min(6, lens.longest_pass)
    for old, short in (
        ('"decoder.2.cross_attn.*"', repr(last_layer(lens))),
        ("24", str(steps)),
        ('report("report/"', 'report("report/", sections=("forecast",)'),
    ):
        assert old in code
        code = code.replace(old, short)
    monkeypatch.setattr(tsfm_lens, "bundled", lambda series: bundled(series).tail(96))
    monkeypatch.setattr(tsfm_lens, "load", lambda _name: lens)
    monkeypatch.chdir(tmp_path)
    space: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), space)
    run = space["run"]
    assert isinstance(run, tsfm_lens.Run)
    assert run.horizon == steps
    assert (tmp_path / "report" / "index.html").is_file()


def frames() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Two days of load and temperature, and a day of temperature, indexed by date."""
    steps = np.arange(72) / 4
    hours = pd.date_range("2026-03-01", periods=72, freq="h")
    columns = {"temperature": 10 + 5 * np.sin(steps), "load": np.cos(steps)}
    table = pd.DataFrame(columns, hours)
    return table[:48], table[48:].drop(columns="load")


def test_refused_run_arguments_are_named() -> None:
    """Arguments of a run that cannot be used are refused by name."""
    lens, (past, ahead) = tsfm_lens.load("chronos2-nano"), frames()
    with pytest.raises(InputError, match="takes no 'hodlout'; did you mean holdout"):
        lens.run(past, 24, hodlout=True)
    with pytest.raises(InputError, match="'wind', whose past"):
        lens.run(past, 24, future=ahead.assign(wind=1.0))
    with pytest.raises(InputError, match="no known covariates"):
        tsfm_lens.load("bolt-nano").run(past, 24, future=ahead)
    assert lens.run(past, 24, targets=["load"]).batch.ids == ("load",)
    run = lens.run(past, 24, future=ahead)
    assert run.batch.roles == ("target", "known")


def test_without_compares_original_and_ablated_forecasts(lens: Lens) -> None:
    """The method without gives the forecasts with and without a component."""
    run = lens.run(tsfm_lens.bundled("elnino"), 12, **drawn(lens))
    target = last_layer(lens)
    result = run.without(target)
    with lens.ablate(target):
        ablated = lens.forecast(run.batch, 12, **drawn(lens))
    both = [run.forecast.quantiles, ablated.quantiles]
    assert_close(result["quantile_forecast"].values, both, depth=100)
    visible = compute_medians(result.plot())
    # the panel of the ablation is the last
    found = visible["median forecast"]
    assert_close(found, ablated.median[0], depth=100)
    found = visible["original forecast"]
    assert_close(found, run.forecast.median[0], depth=100)


def compute_medians(figure: go.Figure) -> dict[str, np.ndarray]:
    return {
        trace.name: trace.y
        for trace in figure.data
        if trace.mode == "lines" and len(trace.y) == 12
    }


@pytest.mark.parametrize(
    "lens",
    # a model of quantiles, as the first
    [*EMBEDDED[:2], pytest.param(EMBEDDED[2], marks=pytest.mark.exhaustive)],
    indirect=True,
    scope="module",
)
def test_plot_draws_what_it_is_given(lens: Lens) -> None:
    run = lens.run(tsfm_lens.bundled("co2"), 12, **drawn(lens))
    parts = run.attribute()
    # a result stays one through xarray's own methods, and a file of it is drawn as well
    copied = xr.Dataset(parts.data_vars, parts.coords, parts.attrs)
    for same in (parts, parts.isel(series=[0]), copied):
        assert tsfm_lens.plot(same) == tsfm_lens.plot(parts)
    assert tsfm_lens.plot(parts, "heatmap") == tsfm_lens.viz.attribution_heatmap(parts)
    assert run.plot() == tsfm_lens.plot(run.forecast) == tsfm_lens.viz.forecast_fan(run)
    other = tsfm_lens.load("bolt-nano").run(run.batch, 12)
    both = compute_medians(tsfm_lens.plot(run, other, names=["one", "two"]))
    assert_close(both["one"], run.forecast.median[0], depth=100)
    assert_close(both["two"], other.forecast.median[0], depth=100)
    pair = tsfm_lens.plot(parts, run.attribute())
    assert len(pair.data) == 2 * len(parts.plot().data)
    # an option leads to the figure that has it
    effects = run.measure("ablation_effects", components=["**.mlp"])
    visible = tsfm_lens.viz.ablation_forecasts(effects, context_steps=9)
    assert effects.plot(context_steps=9) == visible
    braced = run.without("**.mlp").assign_coords(recipe=["original", "without {x}"])
    assert "without {x}" in str(braced.plot().layout.annotations)


def test_what_cannot_be_drawn_is_refused() -> None:
    run = tsfm_lens.load("bolt-nano").run(tsfm_lens.bundled("co2"), 12)
    with pytest.raises(UnknownNameError, match="no figure 'heat'"):
        run.attribute().plot("heat")
    with pytest.raises(InputError, match="dict cannot be drawn"):
        tsfm_lens.plot({})
    with pytest.raises(InputError, match="ndarray cannot be drawn"):
        tsfm_lens.plot(np.ones(3))
    with pytest.raises(InputError, match="no figure of attribution takes size"):
        run.attribute().plot(size=3)
    with pytest.raises(InputError, match="expected one for each"):
        tsfm_lens.plot(run, run, names=["one"])
    with pytest.raises(InputError, match="3 things"):
        tsfm_lens.plot(run, run, run)


def test_a_place_has_two_names(lens: Lens) -> None:
    """Components are taken as hook points, and the hook point of a write as its
    component.
    """
    head = [writer for writer in writers(lens.wiring) if writer.head is not None][-1]
    stack = lens.wiring.stack(head.stack)
    at = f"{stack.prefix}.{head.layer}.{head.kind}"
    branch = str(head).rpartition(".")[0]
    layer = str(head).rsplit(".", 2)[0]
    series = tsfm_lens.bundled("co2")
    _, activations = lens.run_with_cache(
        series, names_filter=[str(head), branch, layer]
    )
    assert set(activations) == {
        f"{at}.hook_z",
        f"{at}.hook_out",
        f"{stack.prefix}.{head.layer}.hook_resid_post",
    }
    assert torch.equal(
        activations[str(head)], activations[f"{at}.hook_z"][..., head.head, :]
    )
    assert torch.equal(activations[branch], activations[f"{at}.hook_out"])
    assert lens.components(f"{at}.hook_z") == lens.components(f"{branch}.*")
    assert (
        lens.components(f"{at}.hook_out")
        == lens.components(at)
        == lens.components(branch)
    )
    with pytest.raises(UnknownNameError, match="no head '99'"):
        _ = activations[f"{branch}.99"]
    with (
        pytest.raises(UnknownNameError, match="is one head of"),
        lens.hooks([(str(head), lambda value, hook: None)]),
    ):
        pass
    zeros = []
    for target in (branch, f"{at}.hook_out"):
        with lens.hooks([(target, lambda value, hook: torch.zeros_like(value))]):
            zeros.append(lens.forecast(series, 6, **drawn(lens)).quantiles)
    with lens.ablate(f"{at}.hook_out"):
        zeros.append(lens.forecast(series, 6, **drawn(lens)).quantiles)
    assert_close(zeros[0], zeros[1], depth=100)
    assert_close(zeros[0], zeros[2], depth=100)


def test_cached_run_follows_token_forecast() -> None:
    """A run with a cache follows the forecast of a token model."""
    lens = tsfm_lens.load("chronos-nano")
    series = tsfm_lens.bundled("co2")
    _, alone = lens.run_with_cache(series)
    assert "give horizon=… to follow the forecast" in repr(alone)
    logits, activations = lens.run_with_cache(series, horizon=6)
    assert logits.shape[1] == activations["decoder.2.mlp"].shape[1] == 6
    assert "horizon" not in repr(activations)
    run = lens.run(series, 6)
    recorded = run.record(["decoder_blocks.2.mlp.hook_out"])["decoder.2.mlp"]
    assert_close(activations["decoder.2.mlp"], recorded, depth=100, dtype=torch.float32)
