"""Numbers, lists and names as sentences write them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import xarray as xr

from tsfm_lens.viz.select import layer_name, names


def num(value: float) -> str:
    """Three significant digits."""
    return f"{value:.3g}"


def signed(value: float) -> str:
    """Three significant digits with a true sign."""
    return f"{value:+.3g}".replace("-", "−")


def capital(text: str) -> str:
    """The text as a sentence begins."""
    return text[:1].upper() + text[1:]


def nats(entropy: float) -> str:
    """An entropy, with what rounding leaves of zero as zero."""
    return f"{num(entropy) if entropy >= 5e-4 else '0'} nats"


def listed(words: list[str]) -> str:
    """Words with commas and an "and"."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def layers(ds: xr.Dataset, dim: str = "layer") -> list[str]:
    """The layers in words."""
    words = [layer_name(v) for v in names(ds, dim)]
    return ["the embedding" if word == "embedding" else word for word in words]


def measured(unit: str) -> Callable[[float], str]:
    """How to write a value in this unit."""
    return lambda value: f"{num(value)} {unit}".rstrip()


def head_at(ds: xr.Dataset, place: int) -> str:
    """The head at a flat place of (layer, head)."""
    layer, head = divmod(int(place), ds.sizes["head"])
    return f"{layer_name(names(ds, 'layer')[layer])}, head {names(ds, 'head')[head]}"


def extremes(values: np.ndarray) -> tuple[int, int]:
    """Flat places of the smallest and the largest finite value."""
    flat = np.asarray(values, dtype=float).ravel()
    return int(np.nanargmin(flat)), int(np.nanargmax(flat))
