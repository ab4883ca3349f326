"""In-context linear regression: prompts, the least-squares oracle, and the training task."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from tsfm_lens.errors import InputError
from tsfm_lens.studies.samformer.streams import stream
from tsfm_lens.studies.structured.encoder import Encoder, InContextRegressor
from tsfm_lens.studies.structured.making import form_of_name
from tsfm_lens.studies.structured.sizes import whole

__all__ = [
    "InContextTask",
    "Prompts",
    "errors_by_pairs",
    "least_squares_in_context",
    "make_regressor",
    "oracle_errors",
]

TRAINING, HELD_OUT = 0, 1
FIRST_DIMENSIONS = 4


@dataclass(frozen=True)
class Prompts:
    """Prompts x_1, f(x_1), …, x_N of linear functions f(x) = wᵀx, w ~ N(0, I) and x ~ N(0, I / d), without noise.

    Attributes:
        inputs: d.
        points: N; 2 · d if None.
        curriculum: steps over which dimensions rise from 4 to d, the others being zero, and points from 8 to N, as in
            the published code, which the paper does not mention; 0 for none.

    Source:
        Structured attention, section 4 (S2-ICL).

    Example:
        >>> x, y = structured.Prompts(inputs=4).draw(3, seed=0)
        >>> x.shape, y.shape
        (torch.Size([3, 8, 4]), torch.Size([3, 8]))
    """

    inputs: int = 16
    points: int | None = None
    curriculum: int = 0

    def __post_init__(self) -> None:
        """Refuse invalid sizes."""
        whole(self.inputs, "inputs")
        if self.points is not None:
            whole(self.points, "points")
        if self.curriculum < 0:
            raise InputError(f"a curriculum of {self.curriculum} steps; 0 is for none")

    @property
    def count(self) -> int:
        """N."""
        return 2 * self.inputs if self.points is None else self.points

    def sizes(self, step: int) -> tuple[int, int]:
        """Return the number of non-zero dimensions, and of points, at a step."""
        if step >= self.curriculum:
            return self.inputs, self.count
        share, first = step / self.curriculum, min(FIRST_DIMENSIONS, self.inputs)
        points = min(2 * first, self.count)
        return first + int(share * (self.inputs - first)), points + int(share * (self.count - points))

    def draw(self, prompts: int, seed: int, *parts: int, step: int | None = None) -> tuple[Tensor, Tensor]:
        """Draw x (prompt, point, d) and y (prompt, point); the same for the same seed, parts and step.

        Args:
            prompts: how many.
            seed, parts: of the stream that they are drawn from.
            step: of the curriculum; whole prompts if None.
        """
        generator = stream(seed, *parts)
        dimensions, points = self.sizes(self.curriculum if step is None else step)
        x = torch.randn(whole(prompts, "prompts"), points, self.inputs, generator=generator) * self.inputs**-0.5
        x[..., dimensions:] = 0
        w = torch.randn(prompts, self.inputs, 1, generator=generator)
        return x, (x @ w)[..., 0]


def least_squares_in_context(x: Tensor, y: Tensor) -> Tensor:
    """Predict by least squares of minimum norm, each from the pairs before it; the first prediction is 0.

    Args:
        x: (prompt, point, d).
        y: (prompt, point).

    Returns:
        (prompt, point), in float64.

    Example:
        >>> x, y = structured.Prompts(inputs=2).draw(5, seed=0)
        >>> error = (structured.least_squares_in_context(x, y) - y)[:, 2:]
        >>> bool(error.abs().max() < 1e-3)
        True
    """
    x, y = x.double(), y.double()
    out = torch.zeros_like(y)
    for pairs in range(1, x.shape[1]):
        weight = torch.linalg.pinv(x[:, :pairs]) @ y[:, :pairs, None]
        out[:, pairs] = (x[:, pairs, None] @ weight)[:, 0, 0]
    return out


def oracle_errors(inputs: int, points: int) -> Tensor:
    """Compute the oracle's expected squared error after 0, 1, … pairs, 1 - i / d, and 0 from d pairs on, (point,).

    The pairs span a random space of i dimensions; the part of w outside of it is unknown.

    Example:
        >>> structured.oracle_errors(4, 6).tolist()
        [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    """
    pairs = torch.arange(whole(points, "points"), dtype=torch.float64)
    return (1 - pairs / whole(inputs, "inputs")).clamp(min=0)


def make_regressor(
    name: str,
    prompts: Prompts,
    *,
    width: int = 64,
    layers: int = 6,
    heads: int = 8,
    d_mlp: int | None = None,
    positions: str = "learned",
    tokens: str = "single",
    seed: int = 0,
    **form: Any,
) -> InContextRegressor:
    """Make a regressor with drawn weights.

    Args:
        name: of ``REGRESSORS``.
        prompts: that it is made for.
        width, layers, heads, d_mlp: of its encoder.
        positions: "learned" or "none".
        tokens: "single" or "pairs", as in :class:`InContextRegressor`.
        seed: of the weights.
        form: arguments of the scoring function, such as ``ranks``.

    Raises:
        UnknownNameError: an unknown name.
        InputError: sizes do not go together.

    Example:
        >>> made = structured.make_regressor("bilinear-btt", structured.Prompts(4), width=16, layers=1)
        >>> made(torch.ones(1, 8, 4), torch.ones(1, 8)).shape
        torch.Size([1, 8])
    """
    scoring = form_of_name(name, form)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoder = Encoder(width, layers, heads, scoring, d_mlp=d_mlp)
        sizes = (prompts.inputs, prompts.count, encoder, width)
        return InContextRegressor(*sizes, positions, tokens)  # type: ignore[arg-type]


def errors_by_pairs(model: torch.nn.Module, x: Tensor, y: Tensor, *, at_once: int = 512) -> Tensor:
    """Compute the mean squared error after 0, 1, … pairs, (point,), in evaluation mode.

    Args:
        model: x (prompt, point, d) and y (prompt, point) to predictions (prompt, point).
        x, y: prompts.
        at_once: prompts in a forward.

    Example:
        >>> prompts = structured.Prompts(4)
        >>> model = structured.make_regressor("attention", prompts, width=16, layers=1)
        >>> structured.errors_by_pairs(model, *prompts.draw(3, seed=0)).shape
        torch.Size([8])
    """
    training, device = model.training, next(model.parameters()).device
    model.eval()
    total = torch.zeros(y.shape[1], dtype=torch.float64)
    try:
        with torch.no_grad():
            for inputs, targets in zip(x.split(at_once), y.split(at_once), strict=True):
                error = model(inputs.to(device), targets.to(device)).cpu() - targets
                total += error.double().square().sum(0)
    finally:
        model.train(training)
    return total / len(y)


class InContextTask:
    """Task of a regressor that learns from prompts, each seen once.

    Args:
        model: from :func:`make_regressor`.
        prompts: that it is trained on.
        batch: prompts of a step.
        epoch: steps between two evaluations.
        held_out: prompts that it is measured on, the same for every seed.
        seed: of the prompts.
        settings: further settings that the weights depend on, for ``identity``.

    Attributes:
        identity: JSON of all settings.
        batches_per_epoch: ``epoch``.

    Raises:
        InputError: a number is below 1, or the model was made for other prompts.

    Example:
        >>> prompts = structured.Prompts(4)
        >>> model = structured.make_regressor("attention", prompts, width=16, layers=1)
        >>> task = structured.InContextTask(model, prompts, held_out=64)
        >>> 0.5 < task.evaluate()["mse"] < 2
        True
    """

    def __init__(
        self,
        model: InContextRegressor,
        prompts: Prompts,
        *,
        batch: int = 64,
        epoch: int = 500,
        held_out: int = 2048,
        seed: int = 0,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        if (model.d_input, model.points) != (prompts.inputs, prompts.count):
            raise InputError(
                f"the model takes {model.points} points of {model.d_input} inputs, the prompts have "
                f"{prompts.count} of {prompts.inputs}; make the model of that size"
            )
        self.name = "regression in context"
        self.model: torch.nn.Module = model
        self.prompts, self.seed = prompts, seed
        self.batch, self.batches_per_epoch = whole(batch, "batch"), whole(epoch, "epoch")
        self.x, self.y = prompts.draw(whole(held_out, "held_out"), 0, HELD_OUT)
        forms = [repr(form) for form in model.encoder.forms]
        sizes = {name: list(part.shape) for name, part in model.named_parameters()}
        own = {"batch": batch, "seed": seed, "epoch": epoch, "held_out": held_out, **asdict(prompts)}
        of_model = {"model.forms": forms, "model.heads": model.encoder.blocks[0].attn.n_heads, "model.sizes": sizes}  # type: ignore[union-attr]
        self.identity = json.dumps({"task": self.name, **own, **of_model, **dict(settings or {})}, sort_keys=True)

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return next(self.model.parameters()).device

    def loss(self, step: int) -> Tensor:
        """Compute the mean squared error over the points of the prompts of a step."""
        x, y = self.prompts.draw(self.batch, self.seed, TRAINING, step, step=step)
        x, y = x.to(self.device), y.to(self.device)
        error: Tensor = self.model(x, y) - y
        return error.square().mean()

    def by_pairs(self) -> list[float]:
        """Compute the mean squared error on the held-out prompts after 0, 1, … pairs."""
        errors: list[float] = errors_by_pairs(self.model, self.x, self.y).tolist()
        return errors

    def evaluate(self) -> dict[str, float]:
        """Compute mean squared errors on the held-out prompts: over all points, "mse", and of the last one, "last"."""
        errors = self.by_pairs()
        return {"mse": sum(errors) / len(errors), "last": errors[-1]}
