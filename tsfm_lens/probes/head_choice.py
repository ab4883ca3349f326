"""Which heads to ablate together: by stable rank, at random, by entropy; and how many a layer can lose."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from tsfm_lens.ablation.metrics import mae
from tsfm_lens.data import as_series
from tsfm_lens.errors import InputError, unknown_name
from tsfm_lens.hooks.component import Component
from tsfm_lens.hooks.wiring import Stack
from tsfm_lens.models.lens import Lens
from tsfm_lens.probes.spectra import head_spectra
from tsfm_lens.probes.trajectory import describe

ORDERS = ("low", "high")
TOLERANCE = 0.01


def attention_over_time(stack: Stack) -> str:
    """The last kind of attention of a stack between tokens in time; its last kind if there is none."""
    kinds = stack.attention_kinds()
    timed = {row.kind for layer in range(stack.n_layers) for row in stack.attentions(layer) if row.over == "time"}
    return next((kind for kind in reversed(kinds) if kind in timed), kinds[-1])


def heads_by_stable_rank(
    lens: Lens, keep: Mapping[int, int], *, order: str = "low", kind: str | None = None, paired: bool = True
) -> list[Component]:
    """The heads of some layers that go when so many are kept, ranked by the stable rank of W_Q W_Kᵀ.

    Args:
        lens: the model; layers are those of the stack that is read out.
        keep: layer -> number of heads kept.
        order: which heads of a layer go first, those of "low" or of "high" stable rank.
        kind: kind of attention that is ranked; the last one over time if None.
        paired: also take the heads of the same index from the layer's other attentions over time, as the paper does:
            in encoder-decoder models its "heads" are pairs of self- and cross-attention heads. False takes those of
            ``kind`` alone.

    Returns:
        The heads to ablate, in model order.

    Source:
        tsfm-lens paper, definition 5.2 and appendix B (S3-ORD, S3-H1PP, S3-ZA-H).

    Raises:
        InputError: more heads are kept than there are, or ``order`` is neither.
        UnknownNameError: no such layer or kind of attention.
    """
    if order not in ORDERS:
        raise InputError(f"order={order!r} is not known, choose 'low' or 'high'")
    chosen, _ = _checked(lens, keep, kind)
    ranks = head_spectra(lens, kind=chosen, products=["QK"])["order"].sel(product="QK")
    found: list[Component] = []
    for layer, kept in keep.items():
        ascending = np.argsort(ranks.sel(layer=str(layer)).values)
        first = ascending if order == "low" else ascending[::-1]
        found += _heads(lens, layer, first[: len(first) - kept].tolist(), chosen, paired)
    return sorted(found, key=_place)


def random_heads(
    lens: Lens, keep: Mapping[int, int], *, seed: int = 0, kind: str | None = None, paired: bool = True
) -> list[Component]:
    """Heads drawn at random without replacement, as many in each layer as :func:`heads_by_stable_rank` takes.

    Args:
        lens, keep, kind, paired: see :func:`heads_by_stable_rank`.
        seed: of the draw.

    Raises:
        InputError: more heads are kept than there are.
        UnknownNameError: no such layer or kind of attention.
    """
    chosen, n_heads = _checked(lens, keep, kind)
    rng = np.random.default_rng(seed)
    found: list[Component] = []
    for layer, kept in keep.items():
        found += _heads(lens, layer, rng.permutation(n_heads)[: n_heads - kept].tolist(), chosen, paired)
    return sorted(found, key=_place)


def sharp_heads(entropy: xr.Dataset, count: int = 1) -> list[Component]:
    """The heads of lowest attention entropy, the sharpest first.

    Args:
        entropy: from :func:`tsfm_lens.probes.head_entropy` or :func:`tsfm_lens.probes.rollout_maps`.
        count: heads.

    Raises:
        InputError: the result has no entropy of heads, or fewer heads than asked for.
    """
    return _by_entropy(entropy, count, 1.0)


def diffuse_heads(entropy: xr.Dataset, count: int = 1) -> list[Component]:
    """The heads of highest attention entropy, the most diffuse first; arguments as in :func:`sharp_heads`."""
    return _by_entropy(entropy, count, -1.0)


def heads_at_1pp(
    lens: Lens,
    series: Any,
    horizon: int | None = None,
    *,
    truth: Any,
    tolerance: float = TOLERANCE,
    kind: str | None = None,
    paired: bool = True,
    num_samples: int | None = None,
    seed: int = 0,
) -> xr.Dataset:
    """How many heads a layer must keep so that the error on these series rises by less than one percent.

    For each layer and both orders of stable rank: the smallest number of kept heads that passes, even if a
    larger one fails. The better order counts; the MLP stays.

    Args:
        lens: the model.
        series: the context.
        horizon: forecast steps; the model's prediction length if None.
        truth: (series, step) what came after the context.
        tolerance: relative rise of the geometric mean MASE that is allowed, exclusive.
        kind, paired: see :func:`heads_by_stable_rank`.
        num_samples, seed: of the forecasts.

    Returns:
        Dataset of kind "heads_at_1pp" over ``layer``: ``kept`` heads, the winning ``order`` and the relative
        ``rise`` of the error there.

    Source:
        tsfm-lens paper, definition 5.2 (S3-H1PP): a relative percent, strictly below.

    Raises:
        InputError: no truth is known, or a plain forecast has no error.
        UnknownNameError: no such kind of attention.
    """
    batch = as_series(series)
    steps = lens.adapter.prediction_length if horizon is None else int(horizon)
    known = np.asarray(truth, dtype=float)

    def error(heads: list[Component]) -> float:
        # the scale of MASE is the same before and after, so that it cancels in the ratio
        if not heads:
            made = lens.forecast(batch, steps, num_samples=num_samples, seed=seed).median
        else:
            with lens.ablate(*heads):
                made = lens.forecast(batch, steps, num_samples=num_samples, seed=seed).median
        with np.errstate(divide="ignore"):
            return float(np.log(mae(made, known)).mean())

    base = error([])
    if not np.isfinite(base):
        raise InputError("heads@1pp needs the truth of every series, and forecasts that miss it")
    stack = lens.wiring.output_stack
    chosen = attention_over_time(stack) if kind is None else kind
    chosen, layers = stack.layers_with(chosen)
    kept, orders, rises = [], [], []
    for layer in layers:
        best = (stack.n_heads, ORDERS[0], 0.0)
        for order in ORDERS:
            for count in range(best[0]):
                heads = heads_by_stable_rank(lens, {layer: count}, order=order, kind=chosen, paired=paired)
                rise = float(np.expm1(error(heads) - base))
                if rise < tolerance:
                    best = (count, order, rise)
                    break
        kept.append(best[0])
        orders.append(best[1])
        rises.append(best[2])
    data = xr.Dataset(
        {"kept": ("layer", kept), "order": ("layer", orders), "rise": ("layer", rises)},
        coords={"layer": list(map(str, layers))},
    )
    source = "tsfm-lens paper, definition 5.2 (S3-H1PP)"
    data.attrs = describe(
        lens,
        "heads_at_1pp",
        "Heads at one percent",
        source,
        attention=chosen,
        heads=stack.n_heads,
        paired=paired,
        tolerance=tolerance,
        seed=seed,
        horizon=steps,
    )
    return data


def _checked(lens: Lens, keep: Mapping[int, int], kind: str | None) -> tuple[str, int]:
    """The kind of attention and its heads a layer, after refusing layers and counts that do not exist."""
    stack = lens.wiring.output_stack
    chosen, layers = stack.layers_with(attention_over_time(stack) if kind is None else kind)
    for layer, kept in keep.items():
        if layer not in layers:
            raise unknown_name(f"layer with {chosen}", layer, map(str, layers))
        if not 0 <= kept <= stack.n_heads:
            raise InputError(f"layer {layer} is to keep {kept} heads, and it has {stack.n_heads}")
    return chosen, stack.n_heads


def _heads(lens: Lens, layer: int, indices: list[int], kind: str, paired: bool) -> list[Component]:
    stack = lens.wiring.output_stack
    timed = [row.kind for row in stack.attentions(layer) if row.over == "time"]
    # in model order, and the ranked kind even where nothing attends over time
    kinds = [each.kind for each in stack.attentions(layer) if each.kind == kind or (paired and each.kind in timed)]
    return [Component(stack.name, layer, each, head) for each in kinds for head in indices]


def _by_entropy(entropy: xr.Dataset, count: int, sign: float) -> list[Component]:
    if "entropy" not in entropy or set(entropy["entropy"].dims) != {"layer", "head"}:
        raise InputError(
            f"heads are sorted by a result with entropy (layer, head), such as head_entropy gives; "
            f"this one is of kind {entropy.attrs.get('kind')!r}"
        )
    values = entropy["entropy"].transpose("layer", "head")
    if not 1 <= count <= values.size:
        raise InputError(f"{count} heads are asked for, expected 1 to {values.size}")
    order = np.argsort(sign * values.values.ravel(), kind="stable")[:count]
    stack, kind = str(entropy.attrs.get("stack", "")), str(entropy.attrs["attention"])
    places = [divmod(int(flat), values.sizes["head"]) for flat in order]
    return [
        Component(stack, int(values["layer"].values[row]), kind, int(values["head"].values[col])) for row, col in places
    ]


def _place(component: Component) -> tuple[int, str, int]:
    return component.layer, component.kind or "", component.head or 0
