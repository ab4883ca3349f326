"""In-context linear regression, and maximal update parametrisation (μP).

:class:`InContextTask` trains an :class:`InContextRegressor` on :class:`Prompts`; its
oracle is :func:`least_squares_in_context`. :func:`redraw` and :func:`parameter_groups`
are μP. The training loop is in :mod:`tsfm_lens.training`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tsfm_lens.studies.samformer.tasks import (
    AT_ONCE,
    SquaredErrorTask,
    prediction_errors,
    stream,
)
from tsfm_lens.studies.structured.forms import LevelFactor, TrainFactor, form_of_name
from tsfm_lens.studies.structured.models import (
    Encoder,
    InContextRegressor,
    TokenEmbedding,
)

__all__ = [
    "InContextTask",
    "Prompts",
    "first_deviation",
    "least_squares_in_context",
    "make_regressor",
    "oracle_errors",
    "parameter_groups",
    "redraw",
]

TRAINING = 0
HELD_OUT = 1
FIRST_DIMENSIONS = 4


@dataclass(frozen=True)
class Prompts:
    """Prompts x_1, f(x_1), …, x_N of linear functions, without noise (S2-ICL).

    f(x) = wᵀx with w ~ N(0, I) and x ~ N(0, I / d).

    Attributes:
        inputs, points: d, and N; 2 · d if None.
        curriculum: steps over which dimensions rise from 4 to d, others being zero, and
            points from 8 to N; 0 for none.
    """

    inputs: int = 16
    points: int | None = None
    curriculum: int = 0

    @property
    def count(self) -> int:
        """Number of points, N."""
        if self.points is None:
            return 2 * self.inputs
        return self.points

    def sizes(self, step: int) -> tuple[int, int]:
        """Return the number of non-zero dimensions, and of points, at a step."""
        if step >= self.curriculum:
            return self.inputs, self.count
        share = step / self.curriculum
        first = min(FIRST_DIMENSIONS, self.inputs)
        points = min(2 * first, self.count)
        dimensions = first + int(share * (self.inputs - first))
        return dimensions, points + int(share * (self.count - points))

    def draw(
        self, prompts: int, seed: int, *parts: int, step: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Draw x (prompt, point, d) and y (prompt, point), by seed and parts.

        They have the sizes of a step of the curriculum, and full ones without a step.
        """
        generator = stream(seed, *parts)
        dimensions, points = self.sizes(self.curriculum if step is None else step)
        x = (
            torch.randn(prompts, points, self.inputs, generator=generator)
            * self.inputs**-0.5
        )
        x[..., dimensions:] = 0
        w = torch.randn(prompts, self.inputs, 1, generator=generator)
        return x, (x @ w)[..., 0]


def least_squares_in_context(x: Tensor, y: Tensor) -> Tensor:
    """Predict y by minimum-norm least squares, each from the pairs before it.

    x is (prompt, point, d) and y (prompt, point). Predictions (prompt, point) are in
    float64; the first is 0.

    Example:
        >>> x, y = structured.Prompts(inputs=2).draw(5, seed=0)
        >>> error = (structured.least_squares_in_context(x, y) - y)[:, 2:]
        >>> bool(error.abs().max() < 1e-3)
        True
    """
    x = x.double()
    y = y.double()
    out = torch.zeros_like(y)
    for pairs in range(1, x.shape[1]):
        weight = torch.linalg.pinv(x[:, :pairs]) @ y[:, :pairs, None]
        out[:, pairs] = (x[:, pairs, None] @ weight)[:, 0, 0]
    return out


def oracle_errors(inputs: int, points: int) -> Tensor:
    """Compute the oracle's expected squared error after 0, 1, … pairs, (point,).

    It is 1 - i / d after i pairs, and 0 from d pairs on.

    Example:
        >>> structured.oracle_errors(4, 6).tolist()
        [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    """
    pairs = torch.arange(points, dtype=torch.float64)
    return (1 - pairs / inputs).clamp(min=0)


def make_regressor(
    name: str,
    prompts: Prompts,
    *,
    width: int = 64,
    layers: int = 6,
    heads: int = 8,
    d_mlp: int | None = None,
    tokens: str = "single",
    seed: int = 0,
    **form: Any,
) -> InContextRegressor:
    """Make a regressor with drawn weights, for prompts.

    ``name`` and ``form`` are of ``REGRESSORS``, and arguments of the scoring function,
    such as ``ranks``.

    Raises:
        UnknownNameError: an unknown name.
        InputError: sizes do not go together.

    Example:
        >>> prompts = structured.Prompts(4)
        >>> made = structured.make_regressor(
        ...     "bilinear-btt", prompts, width=16, layers=1
        ... )
        >>> made(torch.ones(1, 8, 4), torch.ones(1, 8)).shape
        torch.Size([1, 8])
    """
    scoring = form_of_name(name, form)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoder = Encoder(width, layers, heads, scoring, d_mlp=d_mlp)
        sizes = (prompts.inputs, prompts.count, encoder, width)
        return InContextRegressor(*sizes, tokens)  # type: ignore[arg-type]


def errors_by_pairs(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Compute the mean squared error after 0, 1, … pairs, (point,).

    x is (prompt, point, d) and y (prompt, point).
    """
    rows = torch.arange(len(y)).split(AT_ONCE)
    errors = prediction_errors(model, ((x[part], y[part], y[part]) for part in rows))
    return torch.stack([error.square().sum(0) for error in errors]).sum(0) / len(y)


class InContextTask(SquaredErrorTask):
    """Task of a regressor that learns from prompts, each seen once.

    Args:
        model, prompts: from :func:`make_regressor`, and those that it is trained on.
        batch, epoch, held_out: prompts of a step; steps between two evaluations;
            prompts that it is measured on.
        seed, settings: of the prompts; further settings that the weights depend on, for
            ``identity``, their JSON.
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
        self.name = "regression in context"
        self.model = model
        self.prompts = prompts
        self.seed = seed
        self.batch = batch
        self.batches_per_epoch = epoch
        self.x, self.y = prompts.draw(held_out, 0, HELD_OUT)
        own = {
            "batch": batch,
            "seed": seed,
            "epoch": epoch,
            "held_out": held_out,
            "model.forms": [repr(form) for form in model.encoder.forms],
            "model.heads": model.encoder.blocks[0].attn.n_heads,  # type: ignore[union-attr]
            "model.sizes": {
                name: list(part.shape) for name, part in model.named_parameters()
            },
        }
        self.identify(own, asdict(prompts), settings)

    def examples(self, step: int) -> tuple[Tensor, ...]:
        """Draw the prompts of a step, whose y are inputs and targets."""
        x, y = self.prompts.draw(self.batch, self.seed, TRAINING, step, step=step)
        return x, y, y

    def by_pairs(self) -> list[float]:
        """Compute the held-out mean squared error after 0, 1, … pairs."""
        return errors_by_pairs(self.model, self.x, self.y).tolist()

    def evaluate(self) -> dict[str, float]:
        """Compute mean squared errors on the held-out prompts.

        They are of all points, "mse", and of the last one, "last".
        """
        errors = self.by_pairs()
        return {"mse": sum(errors) / len(errors), "last": errors[-1]}


def first_deviation(d_out: int, d_in: int) -> float:
    """Compute the standard deviation of first weights in μP (S2-MUP).

    It is d_in^-1/2 · min(1, √(d_out / d_in)).

    Example:
        >>> structured.first_deviation(d_out=16, d_in=64)
        0.0625
    """
    return float(d_in**-0.5 * min(1.0, (d_out / d_in) ** 0.5))


def find_fans(model: nn.Module) -> dict[Tensor, int]:
    """Return the number of inputs that one output of a parameter sums.

    Parameters without such a sum are left out: biases, norms, read-in.
    """
    fans: dict[Tensor, int] = {}
    for module in model.modules():
        if isinstance(module, LevelFactor):
            fans |= {factor: factor.shape[1] for factor in module.factors}
        if isinstance(module, TrainFactor):
            fans[module.factor] = module.fan_in
        if isinstance(module, nn.Linear):
            fans[module.weight] = module.in_features
    for module in model.modules():
        if isinstance(module, TokenEmbedding):
            del fans[module.read_in.weight]
    return fans


def parameter_groups(
    model: nn.Module, rate: float, base_width: int
) -> list[dict[str, Any]]:
    """Group parameters by the learning rate of AdamW that μP gives each (S2-MUP).

    Groups are as torch's optimisers take them: each has "params", "lr", and the "names"
    of its parameters. ``rate`` is tuned at the width ``base_width``.

    Example:
        >>> encoder = structured.Encoder(32, 1, 2, structured.Standard())
        >>> groups = structured.parameter_groups(encoder, 1e-3, 16)
        >>> sorted(group["lr"] for group in groups)
        [0.000125, 0.0005, 0.001]
    """
    groups: dict[float, dict[str, Any]] = {}
    fans = find_fans(model)
    for path, parameter in model.named_parameters():
        group_rate = rate
        if parameter in fans:
            group_rate = rate * base_width / fans[parameter]
        group = groups.setdefault(
            group_rate, {"params": [], "lr": group_rate, "names": []}
        )
        group["params"].append(parameter)
        group["names"].append(path)
    return list(groups.values())


def redraw(model: nn.Module, seed: int) -> None:
    """Draw first weights by μP.

    Matrices are drawn by their sizes; the read-out is zero, read-in and positions have
    deviation 0.02, biases are zero.

    Example:
        >>> model = structured.Encoder(16, 1, 2, structured.Standard())
        >>> structured.redraw(model, seed=0)
        >>> model.norm.weight.sum().item()
        16.0
    """
    generator = torch.Generator().manual_seed(seed)
    read_outs = (getattr(module, "read_out", None) for module in model.modules())
    zero = {part.weight for part in read_outs if isinstance(part, nn.Linear)}
    fans = find_fans(model)
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            draw = torch.randn(parameter.shape, generator=generator).to(parameter)
            if parameter in zero:
                parameter.zero_()
            elif parameter in fans and parameter.ndim == 2:
                # a dense matrix may have fewer outputs than inputs
                parameter.copy_(first_deviation(*parameter.shape) * draw)
            elif parameter in fans:
                parameter.copy_(fans[parameter] ** -0.5 * draw)
            elif parameter.ndim > 1:
                parameter.copy_(0.02 * draw)
            else:
                parameter.fill_(1.0 if path.endswith("weight") else 0.0)
