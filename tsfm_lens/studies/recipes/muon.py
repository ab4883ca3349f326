"""Muon for the matrices of a model's layers, AdamW for its other weights.

:class:`MuonAdamW` is the optimiser that a phase of a recipe names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

BETAS = (0.9, 0.98)


def layer_matrices(model: nn.Module) -> list[torch.Tensor]:
    """Return weights of the linear layers but those that an embedding shares."""
    # tensors are told apart by what they are, not by their values
    tables, linear = (
        {part.weight for part in model.modules() if isinstance(part, kind)}
        for kind in (nn.Embedding, nn.Linear)
    )
    matrices = linear - tables
    return [weight for weight in model.parameters() if weight in matrices]


class MuonAdamW(torch.optim.Optimizer):
    """Muon for the matrices of the layers, AdamW for all other weights.

    Muon is that of torch, which has it from version 2.9 on, with steps as large as
    AdamW's. Its products are in bfloat16, which many CPUs emulate.

    Source:
        Muon: Jordan et al. 2024; size of its steps: Liu et al. 2025.
    """

    def __init__(self, model: nn.Module, *, lr: float, weight_decay: float) -> None:
        # the two optimisers hold all state, so the base class, which is here for its
        # type, is left uninitialised
        matrices = layer_matrices(model)
        of_muon = set(matrices)
        rest = [weight for weight in model.parameters() if weight not in of_muon]
        options: dict[str, Any] = {"lr": lr, "weight_decay": weight_decay}
        self.adamw = torch.optim.AdamW(rest, **options, betas=BETAS)
        self.muon = torch.optim.Muon(
            matrices, **options, adjust_lr_fn="match_rms_adamw"
        )

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
