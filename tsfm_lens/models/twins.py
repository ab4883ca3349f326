"""Untrained twins: copies of a model with shuffled or newly drawn weights.

Read :func:`untrained_twin` first. An effect that the twins have, too, is not learned.
The comparison itself is in :mod:`tsfm_lens.core.estimates`.
"""

from __future__ import annotations

import copy

import torch

from tsfm_lens.models.lens import Lens

QUICK = -1
"""Number of twins that stands for as many as a claim takes.

They are made only where each takes little work.
"""
_NEW = 5  # every fifth twin has new weights


def untrained_twin(lens: Lens, seed: int = 0) -> Lens:
    """Copy a model with the entries of each matrix and bias in random order.

    Only sizes and the gains of norms remain.

    Returns:
        The twin, on the same device; its ``model_id`` names the order.

    Source:
        Adebayo et al. 2018, arXiv:1810.03292, model parameter randomisation.

    Example:
        >>> explain.untrained_twin(lens).model_id
        'chronos-nano (weights in random order, seed 0)'
    """
    control = copy.deepcopy(lens)
    control.model_id = f"{lens.model_id} (weights in random order, seed {seed})"
    # on the CPU, so that the order is the same on every device
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        # a tied weight comes once, so that it stays tied
        for name, weight in control.adapter.model.named_parameters():
            # gains of norms set the size of streams, and hold no direction in them
            if weight.ndim > 1 or "bias" in name:
                order = torch.randperm(weight.numel(), generator=generator).to(
                    weight.device
                )
                weight.copy_(weight.reshape(-1)[order].reshape(weight.shape))
    return control


def reinitialised_twin(lens: Lens, seed: int = 0) -> Lens:
    """Copy a model with new weights, drawn by its own code.

    Matrices that no code of the model draws become normal, of the standard deviation
    that they have. The twin is on the same device.

    Returns:
        The twin as a lens.
    """
    control = copy.deepcopy(lens)
    control.model_id = f"{lens.model_id} (new weights, seed {seed})"
    model = control.adapter.model
    before = {
        name: weight.detach().clone() for name, weight in model.named_parameters()
    }
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        # torch's own initialisation first: a library's, below, has the last word
        for module in model.modules():
            if callable(reset := getattr(module, "reset_parameters", None)):
                reset()
        for module in model.modules():
            if callable(draw := getattr(module, "_init_weights", None)):
                module.apply(draw)
        for name, weight in model.named_parameters():
            # a matrix may be a bare parameter, which neither function draws
            if weight.ndim > 1 and torch.equal(weight, before[name]):
                weight.normal_(
                    0.0, float(weight.float().std()) if weight.numel() > 1 else 0.0
                )
    return control


def make_twin(lens: Lens, number: int) -> Lens:
    """Make the twin of a number.

    Every fifth has new weights, the others the model's own in random order.

    Returns:
        The twin as a lens.
    """
    if number % _NEW == _NEW - 1:
        return reinitialised_twin(lens, number)
    return untrained_twin(lens, number)
