"""Sharpness-aware minimisation.

Weights move by the gradient at the nearby point of highest loss; :class:`SAM` wraps any
optimiser that needs one gradient a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import LBFGS, Optimizer

from tsfm_lens.core.errors import InputError

__all__ = ["SAM"]

Closure = Callable[[], Any]


class SAM(Optimizer):
    """Optimiser whose every step uses the gradient at a nearby point, applied at ω.

    The point is ω + ε̂, with ε̂ = ρ ∇L(ω) / ‖∇L(ω)‖₂.

    ``step(closure)`` calls the closure twice, at ω and at ω + ε̂ (once with ρ = 0, as
    the base optimiser does). The closure must clear the gradients, compute the loss of
    one batch, go backward, and return the loss. The norm is over all weights of all
    groups. Groups and state are those of the base optimiser. Weights are put back if
    anything fails.

    Args:
        base: any optimiser of torch that needs one gradient a step, such as Adam, AdamW
            and SGD.
        rho: ρ, radius of the neighbourhood, 0 or more.
        eps: added to the norm.

    Source:
        SAMformer, equations 12 to 14 (S1-SAM, E1-4); Foret et al., 2021.

    Raises:
        InputError: ρ or eps is below 0 or not finite, or the base optimiser calls
            closures itself.

    Example:
        >>> weight = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
        >>> optimizer = SAM(torch.optim.SGD([weight], lr=0.1), rho=0.5)
    """

    def __init__(self, base: Optimizer, rho: float, *, eps: float = 1e-12) -> None:
        for name, value in (("rho", rho), ("eps", eps)):
            if not 0 <= value < float("inf"):
                raise InputError(
                    f"{name}={value}, expected a finite number of at least 0"
                )
        if isinstance(base, (LBFGS, SAM)):
            raise InputError(
                f"{type(base).__name__} calls closures itself; give an optimiser of one"
                " gradient a step"
            )
        super().__init__(base.param_groups, base.defaults)
        self.base = base
        self.rho = float(rho)
        self.eps = float(eps)
        self._share()

    # schedulers write learning rates into the groups of this optimiser, which must be
    # those that the base optimiser reads
    def _share(self) -> None:
        self.param_groups = self.base.param_groups
        self.state = self.base.state
        self.defaults = self.base.defaults

    def step(self, closure: Closure | None = None) -> Any:
        """Move the weights once.

        Args:
            closure: function that computes the loss, and its gradient, of one batch.

        Returns:
            The loss at the weights before the step.

        Raises:
            InputError: there is no closure, or a gradient is not finite; then the
                weights stay as before the step.
        """
        if closure is None:
            raise InputError(
                "a step takes two gradients of one batch: call step(closure), as for"
                " torch.optim.LBFGS"
            )
        if self.rho == 0:
            return self.base.step(closure)
        with torch.enable_grad():
            loss = closure()
        weights = [
            weight
            for group in self.param_groups
            for weight in group["params"]
            if weight.grad is not None
        ]
        norm = self._norm(weights, "at the weights themselves")
        with self._perturb(weights, self.rho / (norm + self.eps)), torch.enable_grad():
            closure()
        # for its check alone: no step by a gradient that is not finite
        self._norm(
            [weight for weight in weights if weight.grad is not None],
            f"at a distance of {self.rho}",
        )
        self.base.step()
        return loss

    @torch.no_grad()
    def _norm(self, weights: list[Tensor], where: str) -> float:
        """Compute the norm of the gradient over all weights.

        Returns:
            The norm.

        Raises:
            InputError: it is not finite.
        """
        norms = [
            # weights may lie on several devices, and norms add up on one
            torch.linalg.vector_norm(weight.grad).to(weights[0])
            for weight in weights
        ]
        norm = 0.0
        if norms:
            norm = float(torch.linalg.vector_norm(torch.stack(norms)))
        # NaN compares false, and is refused as well
        if not norm < float("inf"):
            raise InputError(
                f"the gradient {where} has the norm {norm}; the weights are those from"
                " before this step. Take a lower learning rate or rho (now"
                f" {self.rho}), or look for missing values in the batch"
            )
        return norm

    @contextmanager
    def _perturb(self, weights: list[Tensor], factor: float) -> Iterator[None]:
        """Move the weights up the gradient while the block runs.

        Afterwards they are put back to the last bit.
        """
        originals = [weight.detach().clone() for weight in weights]
        try:
            with torch.no_grad():
                for weight in weights:
                    assert weight.grad is not None
                    weight.add_(weight.grad, alpha=factor)
            yield
        finally:
            with torch.no_grad():
                # subtracting what was added would leave rounding
                for weight, before in zip(weights, originals, strict=True):
                    weight.copy_(before)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add further weights, with the base optimiser's defaults.

        Args:
            param_group: mapping with "params" and perhaps settings of the base
                optimiser.
        """
        if hasattr(self, "base"):
            self.base.add_param_group(param_group)
        else:
            # the groups of the base optimiser, while this one is made: they are shared
            # and stay as they are
            self.param_groups.append(param_group)

    def state_dict(self) -> dict[str, Any]:
        """Return the base optimiser's state, with "rho" and "eps"."""
        return {**self.base.state_dict(), "rho": self.rho, "eps": self.eps}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state with its ρ and eps.

        Args:
            state_dict: what ``state_dict()`` of such an optimiser returned.

        Raises:
            InputError: the state is of an optimiser without them.
        """
        missing = {"rho", "eps"} - set(state_dict)
        if missing:
            raise InputError(
                f"the state has no {' and no '.join(sorted(missing))}: it is of another"
                " optimiser than SAM"
            )
        rest = dict(state_dict)
        self.rho = float(rest.pop("rho"))
        self.eps = float(rest.pop("eps"))
        self.base.load_state_dict(rest)
        # the base has replaced its groups and state by those that it loaded
        self._share()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for copies and pickles, which keep the groups shared."""
        return {
            **super().__getstate__(),
            "base": self.base,
            "rho": self.rho,
            "eps": self.eps,
        }
