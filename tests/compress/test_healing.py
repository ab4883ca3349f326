"""Healing: what is compressed is trained and nothing else, and the loss falls."""

from __future__ import annotations

import signal
from collections.abc import Callable

import numpy as np
import pytest
import torch

from tsfm_lens import compress
from tsfm_lens.compress import Compressed
from tsfm_lens.errors import InputError
from tsfm_lens.models import Lens, Run, load


def seasons(count: int = 8) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [np.sin(np.arange(120) * 2 * np.pi / (6 + i)) + 0.1 * rng.standard_normal(120) for i in range(count)]


def errors(lens: Lens, run: Run) -> float:
    return float(np.abs(lens.forecast(run.batch, run.horizon).median - run.truth).mean())


def test_healing_trains_what_is_compressed_and_nothing_else() -> None:
    # random weights forecast nothing, which no few steps mend
    lens = load("bolt-nano", check=False)
    run = lens.run(seasons(), 12, holdout=True)
    smaller, _ = compress.compressed(run, 0.1, method="svd")
    before = {name: weight.clone() for name, weight in smaller.adapter.model.state_dict().items()}
    healed = compress.healed(smaller, run, steps=25, rows=8, learning_rate=3e-3)
    assert errors(healed, run) < 0.9 * errors(smaller, run)
    state = healed.adapter.model.state_dict()
    held = [path for path, layer in healed.adapter.model.named_modules() if isinstance(layer, Compressed)]
    for name, weight in state.items():
        changed = not torch.equal(weight, before[name])
        assert not changed or name.rpartition(".")[0] in held, name
    assert all(not torch.equal(state[f"{path}.up"], before[f"{path}.up"]) for path in held if "decoder" not in path)
    after = smaller.adapter.model.state_dict()
    assert all(torch.equal(weight, after[name]) for name, weight in before.items())
    assert all(part.requires_grad and part.grad is None for part in healed.parameters())


def test_a_token_model_is_healed_by_its_own_loss(opened: Callable) -> None:
    lens = opened("chronos")
    run = lens.run(seasons(), 8, holdout=True)
    smaller = compress.prune(lens, ["decoder.1.mlp", "encoder.0.self_attn.1"])
    perplexity = [
        compress.quality(lens.run(run.batch, 8, truth=run.truth, num_samples=1), each)["log_perplexity"].values[1]
        for each in (smaller, compress.healed(smaller, run, steps=20, rows=8, learning_rate=1e-2))
    ]
    assert perplexity[1] < perplexity[0]


def test_what_cannot_be_healed_is_refused(opened: Callable) -> None:
    lens = opened("chronos-bolt")
    run = lens.run(seasons(2), 8)
    smaller = compress.factorised(lens, {"encoder_blocks.0.self_attn.q": 2})
    with pytest.raises(InputError, match="nothing to heal"):
        compress.healed(lens, run)
    with pytest.raises(InputError, match="steps=0"):
        compress.healed(smaller, run, steps=0)
    other = opened("chronos-2")
    with pytest.raises(InputError, match="no loss to heal 'chronos-2'"):
        compress.healed(other, run)


def test_ctrl_c_ends_healing_and_leaves_the_models_alone(opened: Callable, calibration: Callable) -> None:
    lens = opened("chronos-bolt")
    run = calibration(lens)
    smaller, _ = compress.compressed(run, 0.25, method="svd")
    before = {name: part.clone() for name, part in smaller.adapter.model.state_dict().items()}

    def stop(done: int, _: int) -> None:
        if done == 2:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        compress.healed(smaller, run, steps=9, rows=2, progress=stop)
    assert all(torch.equal(part, before[name]) for name, part in smaller.adapter.model.state_dict().items())
