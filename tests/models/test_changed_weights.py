"""A run is of the model as it was: after a change of its weights it refuses to go on,
and our own edits are none.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tsfm_lens
from tsfm_lens import probes
from tsfm_lens.core.errors import InputError
from tsfm_lens.explain import input_attribution
from tsfm_lens.models import Lens, Run

MODELS = ("bolt-nano", "chronos-nano")
SERIES = [np.sin(np.arange(60) / 3.0) + 0.1 * np.arange(60)]


def new_run(name: str = "bolt-nano") -> Run:
    run = tsfm_lens.load(name).run(SERIES, 4)
    # all that is made once and shared
    run.attribute()
    return run


def stepped(
    make: Callable[..., torch.optim.Optimizer], **options: Any
) -> Callable[[Lens], None]:
    def step(lens: Lens) -> None:
        optimiser = make(lens.parameters(), lr=1e-3, **options)
        for weight in lens.parameters():
            weight.grad = torch.ones_like(weight)
        optimiser.step()

    return step


def assigned(lens: Lens) -> None:
    lens.load_state_dict(
        {name: 1.01 * value for name, value in lens.state_dict().items()}, assign=True
    )


@torch.no_grad()
def scaled(lens: Lens) -> None:
    next(lens.parameters()).mul_(1.01)


def replaced(lens: Lens) -> None:
    if hasattr(lens.model.encoder, "block"):
        part = lens.model.encoder.block[0]
    else:
        part = lens.model.encoder.layers[0]
    part.load_state_dict(
        {name: value.clone() for name, value in part.state_dict().items()}, assign=True
    )


def by_data(lens: Lens) -> None:
    for weight in lens.parameters():
        weight.data.mul_(1.01)


@torch.no_grad()
def undone(lens: Lens) -> None:
    weight = next(lens.parameters())
    before = weight.clone()
    weight.zero_()
    weight.copy_(before)


def exchanged(lens: Lens) -> None:
    module = lens.model.get_submodule(lens.wiring.unembed.module)
    for name, weight in list(module.named_parameters()):
        owner, _, last = name.rpartition(".")
        setattr(module.get_submodule(owner), last, nn.Parameter(weight.detach() * 1.01))


CHANGES: dict[str, Callable[[Lens], Any]] = {
    "SGD": stepped(torch.optim.SGD),
    "fused AdamW": stepped(torch.optim.AdamW, fused=True),
    "load_state_dict, assigned": assigned,
    "in place": scaled,
    "one block": replaced,
    "data in place": by_data,
    "undone": undone,
    "exchanged parameters": exchanged,
    "half precision": lambda lens: lens.to(torch.bfloat16),
    "training mode": Lens.train,
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_noticed(change: str) -> None:
    run = new_run()
    lens = run.lens
    forecast = run.forecast
    CHANGES[change](lens)
    uses: list[Callable[[], Any]] = [
        run.attribute,
        lambda: run.record(["encoder_blocks.0.mlp.hook_pre"]),
        lambda: run.select([0]).redraw().attribute(),
        lambda: probes.logit_lens(run),
        lambda: input_attribution(run),
    ]
    for use in uses:
        with pytest.raises(
            InputError,
            match=r"mix two models. Make a new one: lens.run\(series, horizon\)",
        ):
            use()
    # what is there stays readable, and the advice works
    assert run.forecast is forecast
    assert np.isfinite(lens.eval().run(SERIES, 4).attribute()["attribution"]).all()


@pytest.mark.parametrize("name", MODELS)
def test_forecasts_by_changed_weights_are_refused(name: str) -> None:
    """Weights changed before a run made its forecast: the forecast is refused."""
    run = tsfm_lens.load(name).run(SERIES, 4)
    scaled(run.lens)
    for use in (lambda: run.forecast, lambda: run.point, run.dataset):
        with pytest.raises(InputError, match=r"weights of .* have changed"):
            use()


@pytest.mark.parametrize("name", MODELS)
def test_our_own_edits_change_no_weight(name: str) -> None:
    run = new_run(name)
    lens = run.lens
    with (
        lens.ablate("**.mlp"),
        lens.hooks([("**.hook_z", lambda value, hook: 0.5 * value)]),
    ):
        lens.forecast(SERIES, 4)
        lens(run.encoded).sum().backward()
    probes.causal_effects(run, components=["**.mlp"])
    run.without("**.mlp")
    tuned = copy.deepcopy(lens)
    with torch.no_grad():
        tuned.model.get_submodule(tuned.wiring.unembed.module).register_buffer(
            "unused", torch.zeros(1), persistent=False
        )
        next(tuned.parameters()).mul_(1.01)
    tuned_run = tuned.run(SERIES, 4)
    tuned_run.attribute()
    # weights of the tuned model are set to the base's and back
    probes.weight_effects(lens, tuned, tuned_run)
    assert run.twin(0).point.shape == run.point.shape
    torch.optim.AdamW(lens.parameters()).zero_grad()
    lens.requires_grad_(False).requires_grad_(True)
    lens.eval().to("cpu")
    run.attribute()
    tuned_run.attribute()


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda run: pickle.loads(pickle.dumps(run))]
)
def test_copied_runs_use_the_copied_model(copied: Callable[[Run], Run]) -> None:
    run = new_run()
    other = copied(run)
    np.testing.assert_array_equal(
        other.attribute()["attribution"], run.attribute()["attribution"]
    )
    scaled(other.lens)
    with pytest.raises(InputError, match="have changed"):
        other.attribute()
    if other.lens is not run.lens:
        run.attribute()


def test_weights_made_in_inference_mode() -> None:
    with torch.inference_mode():
        lens = tsfm_lens.load("bolt-nano")
        run = lens.run(SERIES, 4)
        run.attribute()
        by_data(lens)
        with pytest.raises(InputError, match="have changed"):
            run.attribute()


def test_autocast_is_another_precision() -> None:
    lens = tsfm_lens.load("bolt-nano")
    plain = lens.run(SERIES, 4)
    with torch.autocast("cpu", torch.bfloat16):
        coarse = lens.run(SERIES, 4)
        coarse.attribute()
        with pytest.raises(InputError, match=r"full precision.*now.*bfloat16"):
            plain.attribute()
    with pytest.raises(InputError, match=r"bfloat16.*now.*full precision"):
        coarse.attribute()
    plain.attribute()
