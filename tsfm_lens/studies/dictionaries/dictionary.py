"""Sparse autoencoders and transcoders with a fixed number of active features.

:func:`fit_dictionary` learns one: an autoencoder if inputs and targets are the same
activations, a transcoder if the targets are what an MLP makes of the inputs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from tsfm_lens.core.errors import InputError
from tsfm_lens.core.nulls import draw_directions
from tsfm_lens.models.arguments import is_count

__all__ = [
    "Dictionary",
    "covariance_directions",
    "explained_variance",
    "fit_dictionary",
    "isotropic_directions",
    "mean_max_cosine",
    "principal_variance",
]

BATCH = 512
LEARNING_RATE = 3e-3
SILENT_STEPS = 20
"""Steps without being active after which a feature is pulled towards what is missed."""
SILENT_WEIGHT = 1 / 32
"""Weight of the loss of silent features (Gao et al. 2024, arXiv:2406.04093, A.2)."""


@dataclass(frozen=True, eq=False)
class Dictionary:
    """Features of activations, of which a fixed number may be active in each token.

    Attributes:
        readers: (feature, d_in), what the activity of each feature is read along.
        bias: (feature,), added to what is read.
        directions: (feature, d_out), what each feature writes; of length 1.
        input_mean: (d_in,), taken off before reading.
        output_mean: (d_out,), added to what is written.
        active: most features that are active in one token.
    """

    readers: Tensor
    bias: Tensor
    directions: Tensor
    input_mean: Tensor
    output_mean: Tensor
    active: int

    def activities(self, inputs: Tensor) -> Tensor:
        """Return the activity of each feature: (token, feature), none negative."""
        return _largest(torch.relu(self.read(inputs)), self.active)

    def read(self, inputs: Tensor) -> Tensor:
        """Return what is read along each feature: (token, feature)."""
        return (inputs - self.input_mean) @ self.readers.T + self.bias

    def outputs(self, activities: Tensor) -> Tensor:
        """Return what active features write together: (token, d_out)."""
        return activities @ self.directions + self.output_mean


def fit_dictionary(
    inputs: Tensor,
    targets: Tensor | None = None,
    *,
    features: int,
    active: int,
    steps: int = 2000,
    seed: int = 0,
) -> Dictionary:
    """Learn a dictionary by Adam, with a rate that falls by a half cosine.

    Args:
        inputs: (token, d_in) activations.
        targets: (token, d_out) activations that the dictionary has to give; the inputs
            if None.
        features: number of directions.
        active: most features that are active in one token.
        steps: of training, each on 512 tokens drawn at random.
        seed: of the first directions and of the tokens drawn.

    Returns:
        The dictionary after the last step.

    Raises:
        InputError: ``active`` is not between 1 and ``features``, ``steps`` is no number
            of steps, or inputs and targets are not of the same tokens, not finite, or
            all the same.

    Source:
        Gao et al. 2024, arXiv:2406.04093, section 2.3 (TopK) and A.2 (silent features);
        Dunefsky et al. 2024, arXiv:2406.11944 (transcoders).
    """
    if not 1 <= active <= features:
        raise InputError(
            f"active={active} of {features} features; expected 1 to {features}"
        )
    if not is_count(steps):
        raise InputError(f"steps is {steps!r}, expected a number of steps of 1 or more")
    if targets is None:
        targets = inputs
    is_autoencoder = targets is inputs
    inputs = _check_tokens(inputs, "inputs")
    targets = _check_tokens(targets, "targets")
    if len(targets) != len(inputs):
        raise InputError(
            f"{len(inputs)} inputs and {len(targets)} targets; expected the same tokens"
        )
    generator = torch.Generator().manual_seed(seed)
    directions = isotropic_directions(targets.shape[1], features, generator)
    readers = directions.clone()
    if not is_autoencoder:
        readers = isotropic_directions(inputs.shape[1], features, generator)
    means = inputs.mean(0), targets.mean(0)
    learned = Dictionary(readers, torch.zeros(features), directions, *means, active)
    weights = [readers, learned.bias, directions, learned.output_mean]
    for weight in weights:
        weight.requires_grad_()
    optimizer = torch.optim.Adam(weights, lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    variance = (targets - targets.mean(0)).square().sum(1).mean()
    silent = torch.zeros(features)
    for _ in range(steps):
        drawn = torch.randint(len(inputs), (BATCH,), generator=generator)
        activities = learned.activities(inputs[drawn])
        missed = targets[drawn] - learned.outputs(activities)
        loss = missed.square().sum(1).mean()
        silent += 1
        silent[(activities > 0).any(0)] = 0
        is_silent = silent > SILENT_STEPS
        if is_silent.any():
            written = _written_by_silent(learned, inputs[drawn], is_silent)
            rest = (missed.detach() - written).square().sum(1).mean()
            loss = loss + SILENT_WEIGHT * rest
        optimizer.zero_grad()
        (loss / variance).backward()
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            directions.copy_(normalize(directions))
    for weight in weights:
        weight.requires_grad_(False)
    return learned


def _check_tokens(values: Tensor, what: str) -> Tensor:
    """Return activations (token, width) in single precision; refuse those of no use."""
    tokens = torch.as_tensor(values, dtype=torch.float32)
    if tokens.ndim != 2 or not tokens.isfinite().all():
        raise InputError(
            f"{what} have shape {tuple(tokens.shape)}, expected finite numbers"
            " (token, width)"
        )
    if len(tokens) < 2 or (tokens == tokens[0]).all():
        raise InputError(
            f"{what} are {len(tokens)} tokens that are all the same, so there is"
            " nothing to learn; give more"
        )
    return tokens


def explained_variance(targets: Tensor, outputs: Tensor) -> float:
    """Return the share of the variance of targets (token, d) that outputs explain."""
    total = (targets - targets.mean(0)).square().sum()
    return float(1 - (targets - outputs).square().sum() / total)


def principal_variance(fitted: Tensor, held_out: Tensor, count: int) -> float:
    """Return the share of the variance that the first principal components explain.

    Args:
        fitted: (token, d), whose components are taken.
        held_out: (token, d), whose variance is explained.
        count: number of components: as many numbers a token as a dictionary has active
            features.

    Returns:
        A share, of the variance of ``held_out``.
    """
    mean = fitted.mean(0)
    covariance = torch.cov(fitted.T)
    # eigenvalues rise
    components = torch.linalg.eigh(covariance).eigenvectors[:, -count:]
    outputs = (held_out - mean) @ components @ components.T + mean
    return explained_variance(held_out, outputs)


def mean_max_cosine(first: Tensor, second: Tensor) -> float:
    """Return the mean over directions of the largest cosine with another set.

    Args:
        first: (direction, d), over which the mean is taken.
        second: (direction, d), in which the nearest is looked for.

    Returns:
        At most 1, which says that each direction of the first set is in the second.

    Source:
        Sharkey, Braun and Millidge 2022, "Taking features out of superposition with
        sparse autoencoders" (MMCS).
    """
    cosines = normalize(first) @ normalize(second).T
    return float(cosines.max(dim=1).values.mean())


def covariance_directions(activations: Tensor, count: int, seed: int) -> Tensor:
    """Draw directions (count, d) of length 1 as the activations vary.

    See :func:`tsfm_lens.core.nulls.draw_directions`.
    """
    centred = (activations - activations.mean(0)).double().numpy()
    drawn = draw_directions(centred, count, seed=seed)
    return torch.as_tensor(drawn[:, 0]).to(activations)


def isotropic_directions(width: int, count: int, generator: torch.Generator) -> Tensor:
    """Draw directions (count, width) that are uniform on the sphere."""
    return normalize(torch.randn(count, width, generator=generator))


def _largest(values: Tensor, count: int) -> Tensor:
    """Keep the largest values of each row, and set the others to 0."""
    kept = values.topk(count, dim=1)
    return torch.zeros_like(values).scatter(1, kept.indices, kept.values)


def _written_by_silent(
    dictionary: Dictionary, inputs: Tensor, is_silent: Tensor
) -> Tensor:
    """Return what the silent features would write if they alone were active."""
    read = dictionary.read(inputs).masked_fill(~is_silent, -torch.inf)
    count = min(2 * dictionary.active, int(is_silent.sum()))
    return _largest(torch.relu(read), count) @ dictionary.directions
