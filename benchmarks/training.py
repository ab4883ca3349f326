"""``python -m benchmarks.training``: what it costs to watch a training, side by side with one gradient.

``sharpness``: λ_max by 20 Lanczos steps over one gradient of the same loss; 20 products through a graph that is kept
are 40 gradients' work. ``idle``: a training with a watch that is never due over the same without.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from tsfm_lens.models.timing import ratios
from tsfm_lens.training import Watch, sharpness
from tsfm_lens.zoo.objectives import patch_loss, token_loss
from tsfm_lens.zoo.recipes import RECIPES, TrainingRecipe
from tsfm_lens.zoo.train import build_model

STEPS = 20
Loss = Callable[[], Tensor]


class Channels(nn.Module):
    """Attention between channels and one linear readout, of the sizes of SAMformer on ETTh1."""

    def __init__(self, channels: int = 7, length: int = 512, width: int = 16, horizon: int = 96) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(length, width), nn.Linear(length, width), nn.Linear(length, length)
        self.out = nn.Linear(length, horizon)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channel, length) to (batch, channel, horizon)."""
        return self.out(x + F.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x)))


def channels(rows: int) -> tuple[nn.Module, Loss]:
    """A small model whose time goes into calls."""
    model, x, y = Channels(), torch.randn(rows, 7, 512), torch.randn(rows, 7, 96)
    return model, lambda: F.mse_loss(model(x), y)


def nano(recipe: TrainingRecipe, rows: int) -> tuple[nn.Module, Loss]:
    """A reference model and a batch of its own training."""
    model = build_model(recipe).eval()
    stage = recipe.stages[-1]
    steps = np.arange(stage.context + stage.horizon)
    waves = torch.tensor(np.sin(steps / np.linspace(3, 30, rows)[:, None]), dtype=torch.float32)
    past, future = waves[:, : stage.context], waves[:, stage.context :]
    if recipe.kind == "token":
        return model, lambda: token_loss(model, past, future, stage, seed=0)
    return model, lambda: patch_loss(model, past, future, stage)


def sharpness_row(name: str, model: nn.Module, loss: Loss, rounds: int) -> list[str]:
    """λ_max against a gradient, and what of it are the products alone."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]

    def gradient() -> None:
        torch.autograd.grad(loss(), weights, allow_unused=True)

    def plain() -> None:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            gradient()

    # many gradients a round, so that both sides take alike long
    def several(work: Callable[[], None]) -> None:
        for _ in range(2 * STEPS):
            work()

    ours = partial(sharpness, loss, weights, steps=STEPS, tolerance=0)
    (median, low, high), (kernel, *_) = ratios(
        [ours, partial(several, plain)], partial(several, gradient), rounds=rounds
    )
    count = sum(weight.numel() for weight in weights)
    scaled = [f"{value * 2 * STEPS:.1f}" for value in (median, low, high)]
    return [name, f"{count:,}", scaled[0], f"{scaled[1]} to {scaled[2]}", f"{median:.2f}", f"{median / kernel:.2f}"]


def idle_row(model: nn.Module, loss: Loss, rounds: int) -> list[str]:
    """Steps of a training with a watch that is never due over steps without."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    watch, at = Watch(model, every=10**9, loss=loss), iter(range(1, 10**9))

    def train(*, watched: bool) -> None:
        for _ in range(50):
            optimizer.zero_grad()
            value = loss()
            value.backward()
            optimizer.step()
            if watched:
                watch(next(at), loss=value)

    ((median, low, high),) = ratios([partial(train, watched=True)], partial(train, watched=False), rounds=rounds)
    return ["a watch that is not due", "", f"{median:.3f}", f"{low:.3f} to {high:.3f}", "", ""]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rows", type=int, default=32, help="rows of a batch")
    parser.add_argument("--models", default="channels,chronos-nano,bolt-nano")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    torch.manual_seed(0)
    table = Table("model", "weights", "λ_max / gradient", "range", "over 2 × 20 gradients", "the same, plain kernels")
    for name in chosen.models.split(","):
        model, loss = channels(chosen.rows) if name == "channels" else nano(_recipe(name), chosen.rows)
        table.add_row(*sharpness_row(name, model, loss, chosen.rounds))
    table.add_row(*idle_row(*channels(chosen.rows), chosen.rounds))
    Console().print(table)


def _recipe(name: str) -> TrainingRecipe:
    return next(
        recipe for recipe in (RECIPES.values() if isinstance(RECIPES, dict) else RECIPES) if recipe.name == name
    )


if __name__ == "__main__":
    main()
