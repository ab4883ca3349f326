"""Sharpness of a loss, and noise of its gradient.

:func:`sharpness` finds both ends of the spectrum of a loss's Hessian by Lanczos, from
products of the Hessian with vectors; :func:`gradient_noise` compares the gradients of
batches. Nothing here changes a weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from tsfm_lens.core.errors import InputError
from tsfm_lens.hooks.native import widest_float
from tsfm_lens.training.watch.guard import (
    Loss,
    Losses,
    finite,
    listed,
    preserved_generators,
    trainable,
)

__all__ = ["GradientNoise", "Sharpness", "gradient_noise", "sharpness"]

Product = Callable[[Tensor], Tensor]
# name of the graph node of a gradient that torch cannot differentiate again
_ONCE_DIFFERENTIABLE = "torch::autograd::Error"
# parts of torch's messages where an operation has no second derivative
_NO_SECOND_DERIVATIVE = ("not implemented", "not differentiable", "double backward")


@dataclass(frozen=True)
class Sharpness:
    """Both ends of the spectrum of a Hessian; Lanczos approaches them from inside.

    Attributes:
        largest, smallest: the most positive and the most negative eigenvalue, as
            Rayleigh quotients v·Hv.
        largest_residual, smallest_residual: ‖Hv − λv‖ of their unit vectors.
        products: Hessian-vector products that were made.
        tolerance: an end has converged if its residual is at most this share of the
            absolute value of :attr:`dominant`.
        trace, trace_error: trace of the Hessian, estimated from the first product
            alone, and its standard error.
        loss: value of the loss at these weights.
        direction: unit eigenvector of the largest eigenvalue, as one tensor for each
            parameter.
    """

    largest: float
    largest_residual: float
    smallest: float
    smallest_residual: float
    products: int
    tolerance: float
    trace: float
    trace_error: float
    loss: float
    direction: list[Tensor]

    @property
    def dominant(self) -> float:
        """The eigenvalue of the largest size, with its sign."""
        return max(self.largest, self.smallest, key=abs)

    @property
    def converged(self) -> bool:
        """Convergence of both ends, within the tolerance."""
        return max(
            self.largest_residual, self.smallest_residual
        ) <= self.tolerance * abs(self.dominant)


def sharpness(
    loss: Losses,
    parameters: nn.Module | Iterable[Tensor],
    *,
    steps: int = 20,
    tolerance: float = 1e-3,
    seed: int = 0,
) -> Sharpness:
    """Compute the extreme eigenvalues of the Hessian of a loss, by Lanczos.

    These are the most positive and the most negative one.

    Args:
        loss: function that returns the scalar loss of fixed data; its random numbers
            are the same in every product. A list of functions stands for their mean; it
            takes half as much time again, but the memory of only one.
        parameters: the weights, or a model, which means all its trainable weights.
        steps: largest number of Hessian-vector products.
        seed: seed of the random vector that Lanczos begins with.
        tolerance: stop if both residuals are at most this share of the larger absolute
            eigenvalue; 0 makes all steps.

    Returns:
        Both eigenvalues with their residuals, the trace, and the number of products.

    Raises:
        InputError: a number is out of range; the loss is not finite, depends on none of
            the parameters, or has no second derivative.

    Source:
        SAMformer, section 2.3 (S1-LMAX); its code takes |∇L·Hv| for λ_max, this is
        v·Hv. Lanczos 1950; Golub and Van Loan 2013, section 10.3. The trace after
        Hutchinson 1990.

    Example:
        >>> w = torch.ones(2, requires_grad=True)
        >>> found = training.sharpness(lambda: 2 * w[0] ** 2 - 3 * w[1] ** 2, [w])
        >>> round(found.largest, 4), round(found.smallest, 4), round(found.dominant, 4)
        (4.0, -6.0, -6.0)
    """
    if steps < 1 or not 0 <= tolerance < 1:
        raise InputError(
            f"steps={steps}, tolerance={tolerance}; expected steps of 1 or more and a"
            " tolerance in [0, 1)"
        )
    losses = listed(loss)
    weights = trainable(parameters)
    with preserved_generators() as rewind:
        hessian = Hessian(losses, weights, rewind)
        krylov = _lanczos(hessian, hessian.start(seed), steps, tolerance)
    # the eigenvectors of T mix the basis to the Ritz vectors of H
    values, mixtures = np.linalg.eigh(krylov.tridiagonal)
    largest, largest_residual, direction = _rayleigh(
        krylov, mixtures[:, int(values.argmax())]
    )
    smallest, smallest_residual, _ = _rayleigh(
        krylov, mixtures[:, int(values.argmin())]
    )
    # the first vector is uniform on the sphere, over which n·v·Hv has the trace as its
    # mean
    n = hessian.size
    trace = n * float(krylov.tridiagonal[0, 0])
    # its variance over the sphere is 2n / (n + 2) · (‖H‖_F² − tr² / n); ‖H‖_F² is
    # estimated by n‖Hv‖², whose mean it is
    squared_frobenius = n * krylov.squared_image
    variance = 2 * n / (n + 2) * max(squared_frobenius - trace**2 / n, 0.0)
    return Sharpness(
        largest=largest,
        largest_residual=largest_residual,
        smallest=smallest,
        smallest_residual=smallest_residual,
        products=len(krylov.basis),
        tolerance=tolerance,
        trace=trace,
        trace_error=variance**0.5,
        loss=hessian.value,
        direction=hessian.parted(direction),
    )


class Hessian:
    """Products of the Hessian of a mean of losses with flat vectors.

    A single loss is computed once, and all products share its graph; of several, the
    graphs are made anew for each product, so that only one is in memory.
    """

    def __init__(
        self, losses: list[Loss], weights: list[Tensor], rewind: Callable[[], None]
    ) -> None:
        # torch.enable_grad() records nothing there
        if torch.is_inference_mode_enabled():
            raise InputError(
                "there are no derivatives under torch.inference_mode(); leave it"
            )
        self.losses = losses
        self.weights = weights
        self._rewind = rewind
        self.size = sum(weight.numel() for weight in weights)
        self.dtype = max(
            (weight.dtype for weight in weights),
            key=lambda dtype: torch.finfo(dtype).bits,
        )
        self.value = 0.0
        self._is_twice_differentiable = False
        # the gradients of a single loss, which all products share
        self._shared = self._gradients(losses[0]) if len(losses) == 1 else None

    def _gradients(self, loss: Loss) -> list[tuple[int, Tensor]]:
        """Compute the gradient by each weight that the loss depends on.

        Each comes with the weight's index, and can be differentiated again.

        Returns:
            Index of the weight, and its gradient.
        """
        # the same dropout in every product, or the map would not be linear
        self._rewind()
        with _twice_differentiable():
            value = finite(loss())
            self.value += float(value.detach()) / len(self.losses)
            # a batch may not depend on the weights while others do
            if not value.requires_grad:
                return []
            all_gradients = torch.autograd.grad(
                value, self.weights, create_graph=True, allow_unused=True
            )
        gradients = [
            (index, gradient)
            for index, gradient in enumerate(all_gradients)
            if gradient is not None
        ]
        if not self._is_twice_differentiable:
            _check_twice_differentiable(gradient for _, gradient in gradients)
            self._is_twice_differentiable = True
        return gradients

    def start(self, seed: int) -> Tensor:
        """Draw a random direction, the same on every device."""
        # drawn on the CPU and in double precision
        numbers = torch.randn(
            self.size,
            generator=torch.Generator().manual_seed(seed),
            dtype=torch.float64,
        )
        return (numbers / numbers.norm()).to(self.weights[0].device, self.dtype)

    def parted(self, vector: Tensor) -> list[Tensor]:
        """Split a flat vector into tensors like the weights."""
        parts = vector.split([weight.numel() for weight in self.weights])
        return [
            part.view_as(weight).to(weight.dtype)
            for part, weight in zip(parts, self.weights, strict=True)
        ]

    def __call__(self, vector: Tensor) -> Tensor:
        """Multiply the Hessian by a flat vector."""
        parts = self.parted(vector)
        total = torch.zeros(self.size, dtype=self.dtype, device=self.weights[0].device)
        # each product computes the losses anew unless one is shared, and sums them up
        if self._shared is None:
            self.value = 0.0
        depends = False
        for loss in self.losses:
            gradients = self._shared
            if gradients is None:
                gradients = self._gradients(loss)
            total.add_(self._product(gradients, parts))
            depends = depends or bool(gradients)
            # frees the graph before the next loss builds its own
            del gradients
        if not depends:
            raise InputError(
                "the loss depends on none of the parameters; give those of the model"
                " that it runs"
            )
        return total.div_(len(self.losses))

    def _product(
        self, gradients: list[tuple[int, Tensor]], parts: list[Tensor]
    ) -> Tensor:
        # where the loss is linear in a weight, the gradient depends on no weight, and
        # the Hessian is 0
        nonlinear = [
            (index, gradient) for index, gradient in gradients if gradient.requires_grad
        ]
        if not nonlinear:
            return torch.zeros(
                self.size, dtype=self.dtype, device=self.weights[0].device
            )
        with _twice_differentiable():
            products = torch.autograd.grad(
                [gradient for _, gradient in nonlinear],
                self.weights,
                [parts[index] for index, _ in nonlinear],
                retain_graph=self._shared is not None,
                allow_unused=True,
                materialize_grads=True,
            )
        return torch.cat([part.reshape(-1).to(self.dtype) for part in products])


def _check_twice_differentiable(gradients: Iterable[Tensor]) -> None:
    """Refuse operations that torch marks as differentiable once.

    A Hessian-vector product would leave them out, and be wrong without an error.
    """
    visited = set()
    stack = [gradient.grad_fn for gradient in gradients]
    while stack:
        node = stack.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        if node.name() == _ONCE_DIFFERENTIABLE:
            raise InputError(
                "the loss cannot be differentiated twice: an operation of its own is"
                " marked @once_differentiable; use plain operations"
            )
        stack += [following for following, _ in node.next_functions]


@contextmanager
def _twice_differentiable() -> Iterator[None]:
    """Select kernels that have a second derivative, and explain where there is none."""
    try:
        # fused attention and cuDNN's recurrent layers have no second derivative
        with (
            torch.enable_grad(),
            sdpa_kernel(SDPBackend.MATH),
            torch.backends.cudnn.flags(enabled=False),
        ):
            yield
    except RuntimeError as error:
        if isinstance(error, InputError) or not any(
            text in str(error) for text in _NO_SECOND_DERIVATIVE
        ):
            raise
        first = str(error).splitlines()[0]
        raise InputError(
            f"the loss cannot be differentiated twice ({first}); use plain, uncompiled"
            " operations"
        ) from error


class _Krylov(NamedTuple):
    """Result of Lanczos, H V = V T + rest eᵀ, with e the last unit vector.

    ``basis`` is the orthonormal V as (step, n), ``tridiagonal`` is T, and
    ``squared_image`` is ‖H v‖² of the first vector v.
    """

    basis: Tensor
    tridiagonal: np.ndarray
    rest: Tensor
    squared_image: float


def _lanczos(product: Product, start: Tensor, steps: int, tolerance: float) -> _Krylov:
    """Iterate Lanczos from a unit vector.

    Every new vector is made orthogonal to all former ones.

    Returns:
        The basis and the tridiagonal matrix.
    """
    steps = min(steps, len(start))
    basis = torch.empty(steps, len(start), dtype=start.dtype, device=start.device)
    basis[0] = start
    diagonal: list[float] = []
    off_diagonal: list[float] = []
    squared_image = 0.0
    for step in range(steps):
        vector = basis[step]
        rest = product(basis[step])
        if not step:
            squared_image = _length(rest) ** 2
        diagonal.append(float(torch.dot(vector, rest)))
        rest.sub_(vector, alpha=diagonal[step])
        if step:
            # in exact arithmetic this makes rest orthogonal to all of the basis; with
            # rounding it does not, and without _orthogonalise() below Lanczos would
            # find a converged end again and again, and the other one never
            rest.sub_(basis[step - 1], alpha=off_diagonal[-1])
        length = _orthogonalise(rest, basis[: step + 1])
        values, mixtures = np.linalg.eigh(_tridiagonal(diagonal, off_diagonal))
        size = float(np.abs(values).max())
        # the residuals of the two ends, if the iteration stopped here
        extremes = [int(values.argmax()), int(values.argmin())]
        # ‖Hy − θy‖ = ‖rest‖ · |last entry of the eigenvector of T|; no product is
        # needed
        residual = length * np.abs(mixtures[-1, extremes]).max()
        # the basis spans an invariant subspace, and the next vector would be rounding
        exhausted = length <= torch.finfo(start.dtype).eps * len(start) ** 0.5 * size
        if step + 1 == steps or exhausted or residual <= 0.5 * tolerance * size:
            break
        off_diagonal.append(length)
        torch.div(rest, length, out=basis[step + 1])
    tridiagonal = _tridiagonal(diagonal, off_diagonal)
    return _Krylov(basis[: len(diagonal)], tridiagonal, rest, squared_image)


def _orthogonalise(rest: Tensor, basis: Tensor) -> float:
    """Subtract from a vector its components along a basis, in place.

    Returns:
        The length of the rest, 0 where nothing but rounding is left.
    """
    initial = float(rest.norm())
    former = initial
    # a second time only if the first took much away, and left rounding in its place;
    # twice is enough (Parlett 1998, section 6.9)
    for _ in range(2):
        rest.addmv_(basis.T, basis @ rest, alpha=-1)
        length = float(rest.norm())
        # about 1/√2: less than half of the squared length was taken away
        if length > 0.7 * former:
            return length
        former = length
    if length > torch.finfo(rest.dtype).eps * initial:
        return length
    return 0.0


def _tridiagonal(diagonal: list[float], off_diagonal: list[float]) -> np.ndarray:
    return np.diag(diagonal) + np.diag(off_diagonal, 1) + np.diag(off_diagonal, -1)


def _rayleigh(krylov: _Krylov, mixture: np.ndarray) -> tuple[float, float, Tensor]:
    """Return Rayleigh quotient, residual and unit vector of a mixture of the basis."""
    basis = krylov.basis
    vector, image = (
        torch.from_numpy(weights).to(basis.device, basis.dtype) @ basis
        for weights in (mixture, krylov.tridiagonal @ mixture)
    )
    # H V = V T + rest eᵀ gives H times the vector without another product
    image.add_(krylov.rest, alpha=float(mixture[-1]))
    # the basis is orthonormal up to rounding only
    length = _length(vector)
    vector = vector.div_(length)
    image = image.div_(length)
    wide = widest_float(vector.device)
    value = float(torch.dot(vector.to(wide), image.to(wide)))
    image.sub_(vector, alpha=value)
    return value, _length(image), vector


def _length(vector: Tensor) -> float:
    wide = widest_float(vector.device)
    return float(torch.linalg.vector_norm(vector, dtype=wide))


@dataclass(frozen=True)
class GradientNoise:
    """Noise that single batches add to the gradient.

    Attributes:
        variance: trace of the covariance of the gradient of a batch.
        squared_norm: unbiased estimate, possibly below 0, of the squared norm of the
            gradient of all data.
        scale: number of batches at which noise and gradient are equally large, variance
            / squared_norm; NaN if the squared norm is not above 0.
        batches: number of batches.
    """

    variance: float
    squared_norm: float
    scale: float
    batches: int


def gradient_noise(
    losses: Sequence[Loss],
    parameters: nn.Module | Iterable[Tensor],
) -> GradientNoise:
    """Compute the variance of the gradient over batches, relative to its mean.

    Args:
        losses: functions that return the mean loss of a batch each; batches of one
            size, drawn independently.
        parameters: the weights, or a model, which means all its trainable weights.

    Returns:
        The variance of a batch's gradient, the squared norm of the mean gradient, and
        the number of batches at which both are equally large.

    Raises:
        InputError: there are fewer than two losses, or they depend on none of the
            parameters.

    Source:
        McCandlish et al. 2018, arXiv:1812.06162, section 2.2 ("simple noise scale"),
        with its unbiased estimates.

    Example:
        >>> w = torch.zeros(1, requires_grad=True)
        >>> losses = [lambda: (w * 1).sum(), lambda: (w * 3).sum()]
        >>> found = training.gradient_noise(losses, [w])
        >>> found.variance, found.squared_norm
        (2.0, 3.0)
    """
    batch_losses = listed(losses)
    weights = trainable(parameters)
    count = len(batch_losses)
    if count < 2:
        raise InputError(
            f"got {count} batch; a variance needs the losses of at least 2"
        )
    device = weights[0].device
    wide = widest_float(device)
    count_of_weights = sum(weight.numel() for weight in weights)
    mean = torch.zeros(count_of_weights, dtype=wide, device=device)
    squares = 0.0
    connected = False
    with preserved_generators() as rewind:
        for number, loss in enumerate(batch_losses, start=1):
            # the same dropout in every loss; generators that a loss passes to torch go
            # on, since it may draw its batch from them
            rewind(passed=False)
            with torch.enable_grad():
                value = finite(loss())
                connected = connected or value.requires_grad
                parts: Sequence[Tensor]
                if value.requires_grad:
                    parts = torch.autograd.grad(
                        value, weights, allow_unused=True, materialize_grads=True
                    )
                else:
                    parts = [torch.zeros_like(weight) for weight in weights]
            gradient = torch.cat([part.reshape(-1).to(wide) for part in parts])
            # Welford's way: sums of squares of differences, never a difference of large
            # squares
            difference = gradient - mean
            mean = mean + difference / number
            squares += float(torch.dot(difference, gradient - mean))
    if not connected:
        raise InputError(
            "the losses depend on none of the parameters; give those of the model that"
            " they run"
        )
    variance = squares / (count - 1)
    # ‖mean‖² is too large by the variance of the mean
    squared_norm = float(torch.dot(mean, mean)) - variance / count
    scale = variance / squared_norm if squared_norm > 0 else math.nan
    return GradientNoise(variance, squared_norm, scale, count)
