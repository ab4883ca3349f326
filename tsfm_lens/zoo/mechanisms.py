"""What a token checkpoint holds inside: induction heads, sharp heads, and what copying loses without them.

``python -m tsfm_lens.zoo.mechanisms [FOLDER]`` prints the table of the card.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np
import xarray as xr

from tsfm_lens.data import SeriesBatch
from tsfm_lens.hooks import Component
from tsfm_lens.models import Lens, load
from tsfm_lens.probes import head_entropy, repeated_tokens


@dataclass(frozen=True)
class Mechanisms:
    """Heads by kind, and the error of copying with and without them.

    Attributes:
        test: the repeated-tokens test.
        entropy: head entropies along forecasts of repeated motifs.
        induction, sharp, diffuse: cross-attention heads; ``diffuse`` are as many as ``induction``, the ones with
            the highest entropy that are neither induction nor sharp.
        copy_error: mean absolute error of the median forecast of a repeated motif, in its standard deviations:
            plain, and with each of the three sets ablated.
    """

    test: xr.Dataset
    entropy: xr.Dataset
    induction: tuple[Component, ...]
    sharp: tuple[Component, ...]
    diffuse: tuple[Component, ...]
    copy_error: dict[str, float]


def motifs(count: int, length: int, repeats: int, horizon: int, seed: int = 0) -> tuple[SeriesBatch, np.ndarray]:
    """Random motifs repeated exactly; what follows the context is known.

    Returns:
        The contexts of ``length * repeats`` steps, and the continuation (series, horizon).
    """
    rng = np.random.default_rng(seed)
    shapes = rng.standard_normal((count, length))
    whole = np.tile(shapes, (1, repeats + -(-horizon // length)))
    context = whole[:, : length * repeats]
    return SeriesBatch(tuple(context)), whole[:, length * repeats : length * repeats + horizon]


def measure(lens: Lens, *, motif: int = 24, repeats: int = 5, count: int = 24, seed: int = 0) -> Mechanisms:
    """Find the heads, then forecast repeated motifs without them.

    Args:
        lens: an encoder-decoder token model.
        motif, repeats: size of the repeated motif; both tests use it.
        count: series and, four times as many, token sequences.
        seed: of everything drawn.
    """
    test = repeated_tokens(lens, motif=motif, repeats=repeats, n_sequences=4 * count, seed=seed)
    horizon = min(lens.adapter.prediction_length, motif)
    batch, future = motifs(count, motif, repeats, horizon, seed)
    entropy = head_entropy(lens, batch.select(list(range(min(count, 6)))), horizon, kind="cross_attn", num_samples=8)
    induction = _heads(lens, test["induction"].values)
    sharp = _heads(lens, entropy["sharp"].values)
    rest = ~test["induction"].values & ~entropy["sharp"].values
    order = np.argsort(np.where(rest, -entropy["entropy"].values, np.inf), axis=None)
    widest = [_head(lens, *np.unravel_index(i, rest.shape)) for i in order[: int(rest.sum())]]
    diffuse = tuple(widest[: len(induction)])
    error = {"plain": _copy_error(lens, batch, future, ())}
    for name, heads in (("induction", induction), ("sharp", sharp), ("diffuse", diffuse)):
        error[name] = _copy_error(lens, batch, future, heads) if heads else float("nan")
    return Mechanisms(test, entropy, induction, sharp, diffuse, error)


def _copy_error(lens: Lens, batch: SeriesBatch, future: np.ndarray, heads: tuple[Component, ...]) -> float:
    if not heads:
        median = lens.forecast(batch, future.shape[1], num_samples=20).median
    else:
        with lens.ablate(*heads):
            median = lens.forecast(batch, future.shape[1], num_samples=20).median
    return float(np.abs(median - future).mean())


def _heads(lens: Lens, mask: np.ndarray) -> tuple[Component, ...]:
    return tuple(_head(lens, layer, head) for layer, head in np.argwhere(mask))


def _head(lens: Lens, layer: int, head: int) -> Component:
    return Component(lens.wiring.output_stack.name, int(layer), "cross_attn", int(head))


def main() -> None:
    """Print the table."""
    from rich.console import Console
    from rich.table import Table

    lens = load(sys.argv[1] if len(sys.argv) > 1 else "chronos-nano")
    found = measure(lens)
    console = Console()
    table = Table("head", "prefix matching", "copy score", "entropy (nats)", "normalised", "kind")
    for layer in range(found.test.sizes["layer"]):
        for head in range(found.test.sizes["head"]):
            one = _head(lens, layer, head)
            kinds = [kind for kind in ("induction", "sharp", "diffuse") if one in getattr(found, kind)]
            at = {"layer": layer, "head": head}
            numbers = [
                found.test.prefix_matching,
                found.test.copy_score,
                found.entropy.entropy,
                found.entropy.normalised,
            ]
            table.add_row(str(one), *(f"{float(array.isel(at)):.2f}" for array in numbers), ", ".join(kinds))
    console.print(table)
    console.print(f"copy accuracy on random tokens {float(found.test.copy_accuracy):.2f}")
    for name, value in found.copy_error.items():
        what = "plain" if name == "plain" else f"without the {len(getattr(found, name))} {name} heads"
        console.print(f"copy error of a repeated motif, {what}: {value:.2f} standard deviations")


if __name__ == "__main__":
    main()
