"""Optimiser of later legs of a reference checkpoint: Muon for the matrices of its layers, AdamW for the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

BETAS = (0.9, 0.98)
MOMENTUM = 0.95


def layer_matrices(model: nn.Module) -> list[torch.Tensor]:
    """Return weights of the linear layers that are trained, without those that an embedding shares."""
    tables = {id(table.weight) for table in model.modules() if isinstance(table, nn.Embedding)}
    linears = (module for module in model.modules() if isinstance(module, nn.Linear))
    weights = {id(linear.weight): linear.weight for linear in linears}
    return [weight for key, weight in weights.items() if key not in tables and weight.requires_grad]


class MuonAdamW(torch.optim.Optimizer):
    """Muon for the matrices of the layers, AdamW for all other weights.

    Muon (Jordan 2024, "Muon: an optimizer for hidden layers in neural networks") moves a matrix along the nearest
    orthogonal one to its momentum, however small its gradient is in most directions. Its steps are scaled to the size
    of AdamW's (Liu et al. 2025, "Muon is scalable for LLM training"), so that one learning rate fits both.

    Args:
        model: whose trained weights are moved.
        lr: learning rate; a training run sets its own.
        weight_decay: of both.
    """

    def __init__(self, model: nn.Module, *, lr: float, weight_decay: float) -> None:
        # the two optimisers hold all state, so the base class, which is here for its type, is left uninitialised
        matrices = layer_matrices(model)
        matrix_ids = {id(weight) for weight in matrices}
        rest = [weight for weight in model.parameters() if weight.requires_grad and id(weight) not in matrix_ids]
        self.adamw = torch.optim.AdamW(rest, lr=lr, weight_decay=weight_decay, betas=BETAS)
        self.muon = torch.optim.Muon(
            matrices, lr=lr, weight_decay=weight_decay, momentum=MOMENTUM, adjust_lr_fn="match_rms_adamw"
        )

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """Parameter groups of AdamW, then those of Muon."""
        return [*self.adamw.param_groups, *self.muon.param_groups]

    def step(self, closure: Callable[[], torch.Tensor]) -> torch.Tensor:  # type: ignore[override]
        """Take the gradients of the closure and move the weights; returns its loss."""
        with torch.enable_grad():
            loss = closure()
        self.adamw.step()
        self.muon.step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset all gradients."""
        self.adamw.zero_grad(set_to_none)
        self.muon.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Return the states of both."""
        return {"adamw": self.adamw.state_dict(), "muon": self.muon.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the states of :meth:`state_dict`."""
        self.adamw.load_state_dict(state_dict["adamw"])
        self.muon.load_state_dict(state_dict["muon"])
