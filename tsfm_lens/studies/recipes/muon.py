"""Muon for the matrices of a model's layers, AdamW for its other weights.

Read :class:`MuonAdamW` first, the optimiser that a phase of a recipe names; it splits
the weights between :class:`Muon` and torch's AdamW.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

BETAS = (0.9, 0.98)
MOMENTUM = 0.95
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ROUNDS = 5


def layer_matrices(model: nn.Module) -> list[torch.Tensor]:
    """Return weights of the linear layers that are trained.

    Those that an embedding shares are left out.
    """
    tables, weights = (
        # each once: tensors are told apart by what they are, not by their values
        dict.fromkeys(part.weight for part in model.modules() if isinstance(part, kind))
        for kind in (nn.Embedding, nn.Linear)
    )
    return [w for w in weights if w not in tables and w.requires_grad]


def orthogonalised(matrices: Tensor) -> Tensor:
    """Bring the singular values of matrices (matrix, row, column) near 1.

    It takes five rounds of Newton and Schulz.
    """
    is_tall = matrices.shape[1] > matrices.shape[2]
    wide = matrices.mT if is_tall else matrices
    wide = wide / wide.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    first, second, third = COEFFICIENTS
    for _ in range(ROUNDS):
        gram = wide @ wide.mT
        wide = first * wide + (second * gram + third * gram @ gram) @ wide
    return wide.mT if is_tall else wide


class Muon(torch.optim.Optimizer):
    """Muon (Jordan et al. 2024) with Nesterov's momentum.

    All matrices of one shape take their step at once, as large as AdamW's.

    Its products are in the precision of the weights. Those of torch's own are in
    bfloat16, which many CPUs emulate.
    """

    def __init__(
        self, matrices: Sequence[Tensor], *, lr: float, weight_decay: float
    ) -> None:
        super().__init__(matrices, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            # by the shape of the weights, which a step has, too
            updates: dict[torch.Size, dict[Tensor, Tensor]] = defaultdict(dict)
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                mean = self.state[weight].setdefault(
                    "momentum_buffer", torch.zeros_like(weight)
                )
                mean.lerp_(weight.grad, 1 - MOMENTUM)
                updates[weight.shape][weight] = weight.grad.lerp(mean, MOMENTUM)
            for shape, update in updates.items():
                # entries of an orthogonal step are 1/√max(shape) in the root mean
                # square, those of AdamW near 0.2 (Liu et al. 2025)
                size = 0.2 * max(shape) ** 0.5 * group["lr"]
                steps = orthogonalised(torch.stack(list(update.values())))
                for weight, step in zip(update, steps, strict=True):
                    weight.mul_(1 - group["lr"] * group["weight_decay"])
                    weight.sub_(step, alpha=size)


class MuonAdamW(torch.optim.Optimizer):
    """Muon for the matrices of the layers, AdamW for all other weights."""

    def __init__(self, model: nn.Module, *, lr: float, weight_decay: float) -> None:
        # the two optimisers hold all state, so the base class, which is here for its
        # type, is left uninitialised
        matrices = layer_matrices(model)
        of_muon = set(matrices)
        free = [weight for weight in model.parameters() if weight.requires_grad]
        rest = [weight for weight in free if weight not in of_muon]
        options: dict[str, Any] = {"lr": lr, "weight_decay": weight_decay}
        self.adamw = torch.optim.AdamW(rest, **options, betas=BETAS)
        self.muon = Muon(matrices, **options)

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """Parameter groups of AdamW, then those of Muon."""
        return [*self.adamw.param_groups, *self.muon.param_groups]

    def step(self, closure: Callable[[], torch.Tensor]) -> torch.Tensor:  # type: ignore[override]
        with torch.enable_grad():
            loss = closure()
        self.adamw.step()
        self.muon.step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.adamw.zero_grad(set_to_none)
        self.muon.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        return {"adamw": self.adamw.state_dict(), "muon": self.muon.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.adamw.load_state_dict(state_dict["adamw"])
        self.muon.load_state_dict(state_dict["muon"])
