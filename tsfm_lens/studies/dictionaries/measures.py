"""Dictionaries of a model's activations beside what they have to beat.

:func:`measure_dictionaries` fits one dictionary for each seed, and sets beside it
principal components with as many numbers a token, and random directions.
:func:`measure_removals` takes features out of a model and sets random directions
beside them, by which the stream changes as much at each token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations, starmap
from pathlib import Path

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from tsfm_lens import sweep
from tsfm_lens.ablation import Variant, point_forecasts
from tsfm_lens.core.errors import InputError
from tsfm_lens.data import SeriesBatch
from tsfm_lens.hooks.interventions import Change, Rows
from tsfm_lens.hooks.names import Point
from tsfm_lens.hooks.scopes import RunState
from tsfm_lens.models import Lens, Run
from tsfm_lens.models.embedding import embedding_point, embedding_stack
from tsfm_lens.probes.zero_ablation import seasonal_scales
from tsfm_lens.studies.dictionaries.dictionary import (
    Dictionary,
    covariance_directions,
    explained_variance,
    fit_dictionary,
    isotropic_directions,
    mean_max_cosine,
    principal_variance,
)

__all__ = [
    "Tokens",
    "WithoutFeature",
    "measure_dictionaries",
    "measure_removals",
    "mlp_tokens",
    "removal_summary",
    "stream_tokens",
]

HELD_OUT = 5
"""Every so many series is kept from fitting."""
SEEDS = (0, 1, 2)
DRAWS = 6
"""Random directions of each kind beside a feature."""


@dataclass(frozen=True, eq=False)
class Tokens:
    """What a dictionary reads and what it has to give, of the same tokens.

    Attributes:
        inputs, targets: (token, d); the same of a stream.
        is_held_out: (token,), tokens of series that no dictionary is fitted to.
    """

    inputs: Tensor
    targets: Tensor
    is_held_out: Tensor

    @property
    def fitted(self) -> tuple[Tensor, Tensor]:
        """Inputs and targets that a dictionary is fitted to."""
        return self.inputs[~self.is_held_out], self.targets[~self.is_held_out]

    @property
    def held_out(self) -> tuple[Tensor, Tensor]:
        """Inputs and targets that it is judged by."""
        return self.inputs[self.is_held_out], self.targets[self.is_held_out]


def stream_tokens(
    lens: Lens, series: SeriesBatch, layer: int, folder: str | Path
) -> Tokens:
    """Embed series into a folder, and read the stream after a layer.

    Args:
        lens: the model.
        series: five or more, of which every fifth is held out.
        layer: of the stack that reads the series.
        folder: of :func:`tsfm_lens.sweep.write_embeddings`, which goes on with what is
            there.

    Returns:
        Tokens without special ones, whose targets are the inputs.

    Raises:
        InputError: there are fewer than five series.
    """
    held_out = _held_out_ids(series)
    sweep.write_embeddings(lens, series, folder, layer)
    frame = sweep.read_embeddings(folder)
    of_series = frame[frame["special"] == ""]
    vectors = torch.as_tensor(np.stack(of_series["vector"].to_list()))
    is_held_out = torch.as_tensor(of_series["id"].isin(held_out).to_numpy())
    return Tokens(vectors, vectors, is_held_out)


def mlp_tokens(lens: Lens, series: SeriesBatch, layer: int) -> Tokens:
    """Record the stream before the MLP of a layer, and what the MLP writes.

    Args:
        lens: the model.
        series: five or more of equal length, of which every fifth is held out.
        layer: of the stack that reads the series.

    Returns:
        Tokens, special ones included, for transcoders.

    Raises:
        InputError: there are fewer than five series.
    """
    held_out = _held_out_ids(series)
    prefix = f"{embedding_stack(lens.wiring).prefix}.{layer}"
    names = [f"{prefix}.hook_resid_mid", f"{prefix}.mlp.hook_out"]
    _, record = lens.run_with_cache(series, names_filter=names)
    inputs, targets = (record[name].float() for name in names)
    is_held_out = torch.as_tensor(np.isin(series.ids, held_out))
    each_token = is_held_out[:, None].expand(inputs.shape[:2])
    return Tokens(inputs.flatten(0, 1), targets.flatten(0, 1), each_token.flatten())


def measure_dictionaries(
    tokens: Tokens,
    *,
    features: int,
    active: int,
    steps: int = 2000,
    seeds: Sequence[int] = SEEDS,
) -> tuple[list[Dictionary], xr.Dataset]:
    """Fit a dictionary for each seed, and compare it with what needs no dictionary.

    Args:
        tokens: what is read and has to be given.
        features: of each dictionary.
        active: most features that are active in one token.
        steps: of training.
        seeds: of the dictionaries, two or more.

    Returns:
        The dictionaries, and their measures: ``explained`` (seed), the share of the
        variance of held-out tokens that they explain, and ``principal``, that as many
        principal components explain as features are active; ``alive`` (seed), the share
        of features that are active in any held-out token; ``agreement``, the mean
        largest cosine of a direction of one seed with those of another, and
        ``agreement_drawn``, with as many draws of the activations' covariance.
    """
    inputs, targets = tokens.fitted
    new_inputs, new_targets = tokens.held_out
    dictionaries = [
        fit_dictionary(
            inputs, targets, features=features, active=active, steps=steps, seed=seed
        )
        for seed in seeds
    ]
    activities = [dictionary.activities(new_inputs) for dictionary in dictionaries]
    explained = [
        explained_variance(new_targets, dictionary.outputs(of_tokens))
        for dictionary, of_tokens in zip(dictionaries, activities, strict=True)
    ]
    alive = [float((of_tokens > 0).any(0).float().mean()) for of_tokens in activities]
    directions = [dictionary.directions for dictionary in dictionaries]
    draws = [covariance_directions(targets, features, seed) for seed in seeds]
    data = xr.Dataset(
        {
            "explained": ("seed", explained),
            "principal": principal_variance(targets, new_targets, active),
            "alive": ("seed", alive),
            "agreement": np.mean(
                list(starmap(mean_max_cosine, permutations(directions, 2)))
            ),
            "agreement_drawn": np.mean(list(map(mean_max_cosine, directions, draws))),
        },
        {"seed": list(seeds)},
        {"features": features, "active": active, "steps": steps},
    )
    return dictionaries, data


@dataclass(frozen=True, eq=False)
class WithoutFeature:
    """Intervention that takes one feature's activity off a stream.

    What the dictionary does not explain stays as it is.

    Attributes:
        target: hook point of the stream.
        dictionary: that reads the stream.
        feature: its number.
        direction: (d_model,), of length 1: the feature's own, or one that is taken off
            in its place, by as much at each token.
    """

    target: str
    dictionary: Dictionary
    feature: int
    direction: Tensor
    rows: Rows = None
    positions: Rows = None

    def change(self, point: Point) -> Change:
        """Return a function that takes the direction off an activation."""

        def remove(value: Tensor, _state: RunState) -> Tensor:
            activities = self.dictionary.activities(value.flatten(0, -2))
            activity = activities[:, self.feature].reshape(*value.shape[:-1], 1)
            return value - activity * self.direction

        return remove


def measure_removals(
    run: Run,
    tokens: Tokens,
    dictionary: Dictionary,
    *,
    layer: int,
    count: int = 32,
    draws: int = DRAWS,
    seed: int = 0,
) -> xr.Dataset:
    """Take features out of a model, and random directions in their place.

    Args:
        run: with the truth.
        tokens: of the stream after the layer, whose covariance directions are drawn
            with.
        dictionary: of that stream.
        layer: of the stack that reads the series.
        count: number of features, those that are active in most tokens.
        draws: directions of each kind.
        seed: of the draws.

    Returns:
        Variables ``size``, the mean absolute change of the forecast, and ``worse``, the
        mean rise of its error, (direction, feature), both in seasonal scales of the
        series (those of MASE) and over series. ``direction`` is "own", "isotropic 0",
        …, "covariance 0", ….

    Raises:
        InputError: the run knows no truth.
    """
    if run.truth is None:
        raise InputError(
            "the run knows no truth, by which errors are measured; make it with"
            " holdout=True"
        )
    generator = torch.Generator().manual_seed(seed)
    width = dictionary.directions.shape[1]
    drawn = {
        "isotropic": isotropic_directions(width, draws, generator),
        "covariance": covariance_directions(tokens.inputs, draws, seed),
    }
    often = (dictionary.activities(tokens.inputs) > 0).float().mean(0)
    features = often.topk(count).indices.tolist()
    point = embedding_point(embedding_stack(run.lens.wiring), layer)
    names = ["own", *(f"{kind} {n}" for kind in drawn for n in range(draws))]
    variants = []
    for feature in features:
        own = dictionary.directions[feature]
        for direction in (own, *drawn["isotropic"], *drawn["covariance"]):
            removed = WithoutFeature(point, dictionary, feature, direction)
            variants.append(Variant(f"without {feature}", (removed,)))
    # (feature, direction, series, step)
    forecasts = point_forecasts(run, variants).reshape(
        count, len(names), len(run.batch), run.horizon
    )
    per_series = seasonal_scales(run)[:, None]
    change = np.abs(forecasts - run.point) / per_series
    error = np.abs(forecasts - run.truth) / per_series
    error_before = np.abs(run.point - run.truth) / per_series
    dims = ("feature", "direction")
    data = xr.Dataset(
        {
            "size": (dims, np.nanmean(change, axis=(2, 3))),
            "worse": (dims, np.nanmean(error - error_before, axis=(2, 3))),
        },
        {"feature": features, "direction": names},
    )
    return data.transpose("direction", "feature")


def removal_summary(removals: xr.Dataset) -> dict[str, float]:
    """Summarise removals by shares of features.

    Returns:
        ``worse``: the share of features without which the forecast is worse, then the
        same of both kinds of random directions; ``size_isotropic`` and
        ``size_covariance``: the median ratio of a feature's effect to the median of its
        draws; ``beyond``: the share of features with an effect above all draws of the
        covariance, and ``chance``: what it would be if features were such draws.
    """
    own = removals.sel(direction="own")
    summary = {"worse": float((own["worse"] > 0).mean())}
    names = removals["direction"]
    for kind in ("isotropic", "covariance"):
        null = removals.sel(direction=names.str.startswith(kind))
        ratio = own["size"] / null["size"].median("direction")
        summary[f"worse_{kind}"] = float((null["worse"] > 0).mean())
        summary[f"size_{kind}"] = float(ratio.median())
    # the last kind is the covariance
    is_beyond = own["size"] > null["size"].max("direction")
    summary["beyond"] = float(is_beyond.mean())
    summary["chance"] = 1 / (1 + null.sizes["direction"])
    return summary


def _held_out_ids(series: SeriesBatch) -> tuple[str, ...]:
    """Return the ids of every fifth series."""
    if len(series) < HELD_OUT:
        raise InputError(
            f"{len(series)} series; expected at least {HELD_OUT}, one of them held out"
        )
    return series.ids[HELD_OUT - 1 :: HELD_OUT]
