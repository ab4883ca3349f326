"""``python -m benchmarks.training``: what it costs to watch a training, side by side
with one gradient.

``sharpness``: λ_max by 20 Lanczos steps over one gradient of the same loss; 20 products
through a graph that is kept are 40 gradients' work. ``idle``: a training with a watch
that is never due over the same without. ``loop``: steps of SAMformer at the sizes of
ETTh1 (batches of 32) by our loop over those of a plain loop of torch on the same
batches. ``levels``: forward and gradient of MLR attention as it runs over the same
with its scores level by level. Times are those of the processor, of one thread, in
turn.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from tsfm_lens.compress.timing import in_turn, ratios
from tsfm_lens.studies.recipes.models import build_model
from tsfm_lens.studies.recipes.recipe import RECIPES, TrainingRecipe
from tsfm_lens.studies.samformer import benchmark
from tsfm_lens.studies.samformer.models import make_model
from tsfm_lens.studies.samformer.tasks import BenchmarkTask
from tsfm_lens.studies.structured.forms import token_blocks
from tsfm_lens.studies.structured.scores import (
    Reach,
    reaching_attention,
    reaching_scores,
)
from tsfm_lens.training import SAM, Plan, Training, Watch, sharpness
from tsfm_lens.training.losses import patch_loss, token_loss

STEPS = 20
LOOP = 60  # steps of a training that is timed
ROWS = (17_420, 7)  # of ETTh1
Loss = Callable[[], Tensor]


class Channels(nn.Module):
    """Attention between channels and one linear readout, of the sizes of SAMformer on
    ETTh1.
    """

    def __init__(
        self, channels: int = 7, length: int = 512, width: int = 16, horizon: int = 96
    ) -> None:
        super().__init__()
        self.q = nn.Linear(length, width)
        self.k = nn.Linear(length, width)
        self.v = nn.Linear(length, length)
        self.out = nn.Linear(length, horizon)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channel, length) to (batch, channel, horizon)."""
        return self.out(
            x + F.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x))
        )


def channels(rows: int) -> tuple[nn.Module, Loss]:
    """A small model whose time goes into calls."""
    model = Channels()
    x = torch.randn(rows, 7, 512)
    y = torch.randn(rows, 7, 96)
    return model, lambda: F.mse_loss(model(x), y)


def samformer(rows: int) -> tuple[nn.Module, Loss]:
    """SAMformer itself, in the paper's factors."""
    model = make_model("samformer", 512, 96, 7)
    x = torch.randn(rows, 7, 512)
    y = torch.randn(rows, 7, 96)
    return model, lambda: F.mse_loss(model(x), y)


def nano(recipe: TrainingRecipe, rows: int) -> tuple[nn.Module, Loss]:
    """A reference model and a batch of its own training."""
    model = build_model(recipe).eval()
    stage = recipe.stages[-1]
    steps = np.arange(stage.context + stage.horizon)
    waves = torch.tensor(
        np.sin(steps / np.linspace(3, 30, rows)[:, None]), dtype=torch.float32
    )
    past = waves[:, : stage.context]
    future = waves[:, stage.context :]
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
        [ours, partial(several, plain)],
        partial(several, gradient),
        rounds=rounds,
        clock=time.process_time,
    )
    count = sum(weight.numel() for weight in weights)
    scaled = [f"{value * 2 * STEPS:.1f}" for value in (median, low, high)]
    return [
        name,
        f"{count:,}",
        scaled[0],
        f"{scaled[1]} to {scaled[2]}",
        f"{median:.2f}",
        f"{median / kernel:.2f}",
    ]


def idle_row(model: nn.Module, loss: Loss, rounds: int) -> list[str]:
    """Steps of a training with a watch that is never due over steps without."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    watch = Watch(model, every=10**9, loss=loss)
    at = iter(range(1, 10**9))

    def train(*, watched: bool) -> None:
        for _ in range(50):
            optimizer.zero_grad()
            value = loss()
            value.backward()
            optimizer.step()
            if watched:
                watch(next(at), loss=value)

    ((median, low, high),) = ratios(
        [partial(train, watched=True)],
        partial(train, watched=False),
        rounds=rounds,
        clock=time.process_time,
    )
    return [
        "a watch that is not due",
        "",
        f"{median:.3f}",
        f"{low:.3f} to {high:.3f}",
        "",
        "",
    ]


def loop_rows(rho: float, rounds: int, batch: int = 32) -> list[str]:
    """Steps of our loop over steps of a plain one: the same model, data, batches and
    optimiser.
    """
    steps = np.arange(ROWS[0])[None] / np.linspace(3, 30, ROWS[1])[:, None]
    data = benchmark(
        np.sin(steps) + np.random.default_rng(0).normal(size=steps.shape),
        split="ett-hourly",
    )
    model = make_model("samformer", 512, 96, ROWS[1])
    task = BenchmarkTask(model, data, batch=batch)
    base = torch.optim.Adam(model.parameters(), lr=1e-3)
    run = Training(
        task, SAM(base, rho) if rho else base, Plan(steps=10**6, save_every=10**6)
    )
    other = make_model("samformer", 512, 96, ROWS[1])
    optimizer = torch.optim.Adam(other.parameters(), lr=1e-3)
    weights = list(other.parameters())
    windows = data.training.values.unfold(1, 512 + 96, 1)
    order = torch.randperm(len(data.training)).split(batch)
    at = iter(range(10**9))

    def gradient(which: Tensor) -> None:
        both = windows[:, which].transpose(0, 1)
        optimizer.zero_grad()
        F.mse_loss(other(both[..., :512]), both[..., 512:]).backward()

    def plain() -> None:
        for _ in range(LOOP):
            which = order[next(at) % len(order)]
            gradient(which)
            if rho:
                retained = [weight.detach().clone() for weight in weights]
                with torch.no_grad():
                    norm = torch.stack(
                        [weight.grad.norm() for weight in weights]
                    ).norm()
                    for weight in weights:
                        weight.add_(weight.grad * (rho / (norm + 1e-12)))
                gradient(which)
                with torch.no_grad():
                    for weight, before in zip(weights, retained, strict=True):
                        weight.copy_(before)
            optimizer.step()

    def ours() -> None:
        run.run(until=run.step + LOOP, quiet=True)

    mine, theirs = (
        np.array(row)
        for row in in_turn([ours, plain], rounds=rounds, clock=time.process_time)
    )
    ratio = mine / theirs
    text = f"our loop / a plain one, {f'SAM, ρ = {rho:g}' if rho else 'Adam'}"
    speed = f"{LOOP / np.median(mine):.0f} steps a second"
    return [
        text,
        speed,
        f"{np.median(ratio):.3f}",
        f"{ratio.min():.3f} to {ratio.max():.3f}",
        "",
        "",
    ]


def levels_row(rounds: int, tokens: int = 336) -> list[str]:
    """Attention by levels in one fused call over that with its scores level by level,
    for 32 rows and 4 heads of 8 features.
    """
    ranks = (6, 2)
    reach = Reach(ranks, token_blocks(tokens, len(ranks)), causal=False)
    parts = [torch.randn(32, 4, tokens, 8, requires_grad=True) for _ in range(3)]

    def fused() -> None:
        torch.autograd.grad(reaching_attention(*parts, reach).sum(), parts)

    def by_level() -> None:
        query, key, value = parts
        out = torch.softmax(reaching_scores(query, key, reach), -1) @ value
        torch.autograd.grad(out.sum(), parts)

    ((median, low, high),) = ratios(
        [fused], by_level, rounds=rounds, clock=time.process_time
    )
    name = f"fused levels, {tokens} tokens"
    return [name, "", f"{median:.3f}", f"{low:.3f} to {high:.3f}", "", ""]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rows", type=int, default=32, help="rows of a batch")
    parser.add_argument("--models", default="samformer,channels,chronos-nano,bolt-nano")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    torch.manual_seed(0)
    table = Table(
        "model",
        "weights",
        "λ_max / gradient",
        "range",
        "over 2 × 20 gradients",
        "the same, plain kernels",
    )
    known = {"channels": channels, "samformer": samformer}
    for name in filter(None, chosen.models.split(",")):
        model, loss = (
            known[name](chosen.rows)
            if name in known
            else nano(_recipe(name), chosen.rows)
        )
        table.add_row(*sharpness_row(name, model, loss, chosen.rounds))
    table.add_row(*idle_row(*channels(chosen.rows), chosen.rounds))
    for rho in (0.0, 0.5):
        table.add_row(*loop_rows(rho, chosen.rounds, chosen.rows))
    table.add_row(*levels_row(chosen.rounds))
    Console().print(table)


def _recipe(name: str) -> TrainingRecipe:
    return next(
        recipe
        for recipe in (RECIPES.values() if isinstance(RECIPES, dict) else RECIPES)
        if recipe.name == name
    )


if __name__ == "__main__":
    main()
