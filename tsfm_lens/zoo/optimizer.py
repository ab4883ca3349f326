"""The optimiser of a reference checkpoint: AdamW, and in later legs Muon for the matrices of its layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

BETAS = (0.9, 0.98)
MOMENTUM = 0.95


def layer_matrices(model: nn.Module) -> list[torch.Tensor]:
    """Weights of the linear layers that are trained, without those that an embedding shares."""
    tables = {id(table.weight) for table in model.modules() if isinstance(table, nn.Embedding)}
    linears = (module for module in model.modules() if isinstance(module, nn.Linear))
    weights = {id(linear.weight): linear.weight for linear in linears}
    return [weight for key, weight in weights.items() if key not in tables and weight.requires_grad]


class MuonAdamW(torch.optim.Optimizer):
    """AdamW for all weights; once :meth:`turn`-ed, Muon for the matrices of the layers and AdamW for the rest.

    Muon (Jordan 2024, "Muon: an optimizer for hidden layers in neural networks") moves a matrix along the nearest
    orthogonal one to its momentum, however small its gradient is in most directions. Its steps are scaled to the size
    of AdamW's (Liu et al. 2025, "Muon is scalable for LLM training"), so that one learning rate fits both.

    Args:
        model: whose trained weights are moved.
        lr: learning rate; a training run sets its own times the "share" of a group.
        weight_decay: of both.
    """

    def __init__(self, model: nn.Module, *, lr: float, weight_decay: float) -> None:
        # the two optimisers hold all state, so the base class, which is here for its type, is left uninitialised
        matrices = layer_matrices(model)
        held = {id(weight) for weight in matrices}
        rest = [weight for weight in model.parameters() if weight.requires_grad and id(weight) not in held]
        groups: list[dict[str, Any]] = [{"params": rest}, {"params": matrices}]
        self.adamw = torch.optim.AdamW(groups, lr=lr, weight_decay=weight_decay, betas=BETAS)
        self.muon = torch.optim.Muon(
            matrices, lr=lr, weight_decay=weight_decay, momentum=MOMENTUM, adjust_lr_fn="match_rms_adamw"
        )
        self.turn(to_muon=False)

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """Those of both: the rest under AdamW, the matrices under AdamW, the matrices under Muon."""
        return [*self.adamw.param_groups, *self.muon.param_groups]

    def turn(self, *, to_muon: bool) -> None:
        """Let the matrices be moved by Muon, or by AdamW, from the next step on."""
        self.adamw.param_groups[1]["share"] = float(not to_muon)
        self.muon.param_groups[0]["share"] = float(to_muon)

    def step(self, closure: Callable[[], torch.Tensor]) -> torch.Tensor:  # type: ignore[override]
        """Take the gradients of the closure and move the weights; returns its loss."""
        with torch.enable_grad():
            loss = closure()
        self.adamw.step()
        if self.muon.param_groups[0]["share"]:
            self.muon.step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients."""
        self.adamw.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """States of both."""
        return {"adamw": self.adamw.state_dict(), "muon": self.muon.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take what :meth:`state_dict` gave."""
        self.adamw.load_state_dict(state_dict["adamw"])
        self.muon.load_state_dict(state_dict["muon"])
