"""Chronos, Chronos-Bolt, Chronos-2, and the T5 that they descend from, called by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tsfm_lens.models import Lens
from tsfm_lens.testing import assert_close

Opened = Callable[[str], Lens]
LEVELS = [0.1, 0.45, 0.5, 0.9]


def tensors(series: list[np.ndarray]) -> list[torch.Tensor]:
    return [torch.tensor(each) for each in series]


@pytest.mark.parametrize("horizon", [5, 19], ids=["one-pass", "rollout"])
@pytest.mark.parametrize("name", ["chronos", "chronos-bolt"])
def test_the_forecast_is_the_pipelines(
    opened: Opened, seeded_call: Callable, univariate: list[np.ndarray], name: str, horizon: int
) -> None:
    lens = opened(name)
    predict = lens.native.predict_quantiles
    quantiles, mean = seeded_call(
        lambda: predict(tensors(univariate), prediction_length=horizon, quantile_levels=LEVELS), 11
    )
    ours = lens.forecast(univariate, horizon, quantiles=LEVELS, seed=11)
    np.testing.assert_array_equal(ours.quantiles, quantiles.transpose(1, 2))
    np.testing.assert_array_equal(ours.mean, mean)
    if ours.samples is not None:
        assert not np.array_equal(lens.forecast(univariate, horizon, seed=12).samples, ours.samples)


@pytest.mark.parametrize("horizon", [5, 16, 19], ids=["part", "one-pass", "rollout"])
@pytest.mark.parametrize("kind", ["univariate", "multivariate", "mixed"])
def test_the_forecast_is_chronos_2s(
    opened: Opened, univariate: list, multivariate: list, kind: str, horizon: int
) -> None:
    lens = opened("chronos-2")
    series = {"univariate": univariate, "multivariate": multivariate, "mixed": [*univariate, *multivariate]}[kind]
    quantiles, mean = lens.native.predict_quantiles(
        tensors(series), prediction_length=horizon, quantile_levels=[0.1, 0.5, 0.9]
    )
    ours = lens.forecast(series, horizon, quantiles=[0.1, 0.5, 0.9])
    np.testing.assert_array_equal(ours.quantiles, torch.cat(quantiles).transpose(1, 2))
    np.testing.assert_array_equal(ours.mean, torch.cat(mean))
    if horizon <= 16:
        whole = torch.cat(lens.native.predict(tensors(series), prediction_length=horizon))
        forward = lens.forward(series, horizon=horizon).detach()
        assert_close(forward[..., :horizon], whole, depth=100)


def test_a_forward_is_the_models(opened: Opened, univariate: list[np.ndarray]) -> None:
    bolt, chronos = opened("chronos-bolt"), opened("chronos")
    context = torch.full((3, 50), torch.nan)
    for row, series in zip(context, univariate, strict=True):
        row[50 - len(series) :] = torch.tensor(series)
    with torch.no_grad():
        expected = bolt.native.model(context=context).quantile_preds
        assert torch.equal(bolt.forward(univariate), expected)

    ids, mask, scale = chronos.native.tokenizer.context_input_transform(context)
    future = torch.tensor([[1.0, 2.0, -1.0], [0.5, 0.0, 3.0], [2.0, 2.5, 1.0]])
    # two special tokens stand before the bins
    labels = torch.bucketize(future / scale[:, None], chronos.native.tokenizer.boundaries, right=True) + 2
    start = torch.zeros(3, 1, dtype=torch.long)
    with torch.no_grad():
        logits = chronos.adapter.model(
            input_ids=ids, attention_mask=mask, decoder_input_ids=torch.cat([start, labels[:, :-1]], dim=1)
        ).logits
    assert_close(chronos.forward(univariate, future=future).detach(), logits, depth=100)


def test_the_continuations_are_t5s(opened: Opened, seeded_call: Callable) -> None:
    lens = opened("t5")
    texts = [[7, 3, 9, 20, 1], [11, 5, 1]]
    shown: dict[str, Any] = {
        "input_ids": torch.tensor([texts[0], [0, 0, *texts[1]]]),
        "attention_mask": torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]]),
    }
    drawn = {"do_sample": True, "min_new_tokens": 6, "max_new_tokens": 6, "num_return_sequences": 4}
    generated = seeded_call(lambda: lens.native.generate(**shown, **drawn), 5)
    ours = lens.forecast([np.array(text) for text in texts], 6, num_samples=4, seed=5)
    np.testing.assert_array_equal(ours.samples, generated[:, 1:].reshape(2, 4, 6))

    tokens = torch.tensor([[4, 8, 15], [16, 23, 42]])
    # the decoder's first input is its start token, 0
    decoder = torch.tensor([[0, 4, 8], [0, 16, 23]])
    with torch.no_grad():
        logits = lens.native(**shown, decoder_input_ids=decoder).logits
    assert_close(lens.forward([np.array(text) for text in texts], tokens=tokens).detach(), logits, depth=100)
