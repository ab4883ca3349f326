"""Attention patterns with their time axes, and how sharply each head attends.

:func:`attention_patterns` shows one forward pass; ``rollout`` follows a forecast over
several. The functions without a probe choose stacks, kinds of attention and token axes
for the other probes of attention. Patterns show where heads attend, not what the
forecast depends on, which ``zero_ablation`` tests.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import xarray as xr

from tsfm_lens.ablation.rollouts import Progress
from tsfm_lens.core.errors import InputError, unknown_name
from tsfm_lens.core.registry import probe
from tsfm_lens.core.stats import ratio
from tsfm_lens.hooks.activations import TokenSpans
from tsfm_lens.hooks.wiring import Stack
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.run import Run

__all__ = ["attention_patterns", "head_entropy"]


# the paper's threshold (S3-HENT)
SHARP_BELOW = 0.38


def select_attention(lens: Lens) -> dict[str, dict[str, str]]:
    """Return the attention that a report shows, by name of the result.

    It is all attention over time of the output stack.
    """
    stack = lens.wiring.output_stack
    kinds = dict.fromkeys(stack.attention_kinds())
    # one decoder token attends to itself alone, which shows nothing
    single = stack.name == "decoder" and lens.emits == "quantile"
    # attention between variates has no time axis, and a single series has no other to
    # attend to
    selection = [
        kind
        for kind in kinds
        if layers_in_time(stack, kind) and not (single and kind == "self_attn")
    ]
    return {
        f"attention_patterns_{kind}": {"kind": kind, "stack": stack.name}
        for kind in selection
    }


@probe(
    "first",
    title="Attention",
    theme="Activations",
    summary="what each head attends to, over time",
    description=(
        "Each head's attention weights, drawn over the time that each token covers."
    ),
    source="tsfm-lens paper, section 4 and appendix D.2 (S3-ROLL, S3-HENT)",
    needs="heads",
    each=select_attention,
)
def attention_patterns(
    run: Run, *, kind: str | None = None, stack: str | None = None
) -> xr.Dataset:
    """Compute the attention of every head on one series.

    Each token is placed at the time steps that it covers.

    Patterns show where heads attend, not what determines the forecast.

    Args:
        run: the forecast to explain, of exactly one series and maybe its covariates.
        kind: "cross_attn", "self_attn" …; the stack's last kind of attention over time
            if None.
        stack: "encoder", "decoder"; the output stack if None.

    Returns:
        Dataset of kind "attention_patterns":

        - ``pattern`` (layer, head, query, key): weights; each row sums to 1.
        - ``entropy`` (layer, head): in nats, mean over queries.
        - ``native_median`` (series, step): median of the library's own forecast, in
          data units.

        Coordinates ``key_start``, ``key_stop`` and ``key_special``, and the same for
        queries, are the steps that a token covers, from the forecast start.

    Raises:
        InputError: several series or variates, a horizon longer than one pass, or
            attention between variates.
        UnknownNameError: the model has no such stack or kind of attention.

    Example:
        >>> dict(probes.attention_patterns(run)["pattern"].sizes)
        {'layer': 3, 'head': 4, 'query': 12, 'key': 129}
    """
    check_single(run, "attention patterns are drawn", covariates=True)
    data = _patterns(run, *pick_attention(run.lens, stack, kind))
    data["native_median"] = (("series", "step"), run.forecast.median)
    # whose multiples figures mark
    return data.assign_coords(season=("series", list(run.batch.seasonalities)))


def _patterns(run: Run, stack: Stack, kind: str, layers: list[int]) -> xr.Dataset:
    """Compute :func:`attention_patterns` without the forecast."""
    points = [f"{stack.prefix}.{layer}.{kind}.hook_pattern" for layer in layers]
    activations = run.in_one_pass().record(points)
    # the target is the first row of its item
    pattern = torch.stack([activations[point][0] for point in points]).cpu().double()
    data = run.dataset().assign_coords(pattern_coords(run, stack, kind, layers))
    data["pattern"] = (
        ("layer", "head", "query", "key"),
        pattern.numpy().astype(np.float32),
    )
    data["entropy"] = (
        ("layer", "head"),
        # of the pattern in double precision, which the result stores in single
        row_entropy(pattern.numpy()).mean(axis=-1),
        {"units": "nats"},
    )
    title = f"{kind} of the {stack.name or 'model'}"
    return data.assign_attrs(title=title, **attention_attrs(run, stack, kind))


def token_steps(spans: TokenSpans) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return first steps, end steps and the mask of ordinary tokens, (token,) each."""
    return (
        np.array(spans.start),
        np.array(spans.stop),
        np.array([not label for label in spans.special]),
    )


def span_coords(**axes: TokenSpans) -> dict[str, Any]:
    """Return coordinates of tokens along each axis.

    They are ``AXIS_start`` and ``AXIS_stop`` in steps, and ``AXIS_special``.
    """
    return {
        f"{axis}_{part}": (axis, list(getattr(spans, part)))
        for axis, spans in axes.items()
        for part in ("start", "stop", "special")
    }


def pattern_coords(
    run: Run, stack: Stack, kind: str, layers: list[int]
) -> dict[str, Any]:
    """Return the coordinates of attention patterns of one forward pass.

    The patterns are (layer, head, query, key).
    """
    keys = stack.attention(kind, layers[0]).keys_from or stack.name
    heads = {"layer": list(layers), "head": range(stack.n_heads)}
    return heads | span_coords(
        query=run.encoded.spans[stack.name], key=run.encoded.spans[keys]
    )


def attention_attrs(run: Run, stack: Stack, attention: str) -> dict[str, str]:
    """Return the attributes of a result on the attention of one series."""
    return {
        "stack": stack.name,
        "attention": attention,
        "series": run.batch.ids[0],
        "units": run.batch.units[0],
    }


def pick_attention(
    lens: Lens, stack: str | None, kind: str | None
) -> tuple[Stack, str, list[int]]:
    """Return a stack, a kind of its attention, and the layers where it is over time.

    None stands for the output stack, and for its last kind of attention over time.
    """
    chosen = lens.wiring.stack(stack)
    kinds = chosen.attention_kinds()
    if kind is None and kinds:
        attention = attention_over_time(chosen)
    else:
        attention = str(kind)
    if not kinds:
        raise InputError(
            f"{lens.model_id} has no attention there, so it has no heads to look at"
        )
    if attention not in kinds:
        raise unknown_name(
            f"attention in the {chosen.name or 'model'}", attention, kinds
        )
    layers = layers_in_time(chosen, attention)
    if not layers:
        raise InputError(
            f"{attention} attends over variates, not over time; read its pattern with "
            f"lens.run_with_cache(series, names_filter='**.{attention}.hook_pattern')"
        )
    return chosen, attention, layers


def forecast_queries(maps: xr.Dataset) -> np.ndarray:
    """Return the tokens that a forecast is read from, (query,).

    They are the tokens of its steps, or the last token of the context if there are
    none.
    """
    start = maps["query_start"].values
    stop = maps["query_stop"].values
    ordinary = maps["query_special"].values == ""
    ahead = np.flatnonzero(ordinary & (start >= 0) & (start < maps.sizes["step"]))
    tokens = np.flatnonzero(ordinary)
    if len(ahead):
        return ahead
    return tokens[[int(np.argmax(stop[tokens]))]]


def normalise(entropy: xr.DataArray) -> xr.DataArray:
    """Scale entropies to 0 … 1 over all heads."""
    # equal entropies have no range to divide by
    return (entropy - entropy.min()) / (float(entropy.max() - entropy.min()) or 1.0)


def layers_in_time(stack: Stack, kind: str) -> list[int]:
    """Return the layers in which a kind of attention is between tokens in time."""
    layers = range(stack.n_layers)
    return [
        layer
        for layer in layers
        # layers may differ: one kind may be over time in some and over variates in
        # others
        if any(
            attention.kind == kind and attention.over == "time"
            for attention in stack.attentions(layer)
        )
    ]


def attention_over_time(stack: Stack) -> str:
    """Return a stack's last kind of attention between tokens in time.

    If there is none, it is the stack's last kind.
    """
    kinds = stack.attention_kinds()
    return next(
        (kind for kind in reversed(kinds) if layers_in_time(stack, kind)), kinds[-1]
    )


def check_single(run: Run, what: str, *, covariates: bool = False) -> None:
    """Refuse a run of more than one series; see :func:`check_variates`."""
    targets = check_variates(run, covariates=covariates)
    if len(targets) != 1:
        raise InputError(
            f"{what} for one series at a time, got {len(targets)}; use run.select(…)"
        )


def check_variates(run: Run, *, covariates: bool = False) -> list[int]:
    """Refuse variates that attend to one another, and return the rows of targets.

    With ``covariates``, targets may have covariates, if the model keeps each series in
    a row of its own.

    Returns:
        Rows of the batch.
    """
    if covariates and not run.lens.packed:
        batch = run.batch.targets()
    else:
        batch = run.batch
    if batch.multivariate:
        raise InputError(
            "the series of an item attend to one another, and this is defined for the"
            " attention of one series over its own past; lens.run_with_cache(series,"
            " names_filter='**.hook_pattern') reads all of their attention"
        )
    return np.flatnonzero(run.batch.is_target).tolist()


def row_entropy(pattern: np.ndarray) -> np.ndarray:
    """Return the entropy in nats of attention rows, (…, query, key) -> (…, query).

    Rows are normalised first; an empty row has entropy 0.
    """
    total = pattern.sum(axis=-1, keepdims=True)
    p = ratio(pattern, total, 0.0)
    # 0 log 0 is 0
    result: np.ndarray = -np.sum(
        p * np.log(p, out=np.zeros_like(p), where=p > 0), axis=-1
    )
    return result


@probe(
    title="Attention entropy",
    theme="Activations",
    summary="attention entropy of every head; sharp and diffuse heads",
    description=(
        "How widely each head spreads its attention along the forecast. A sharp "
        "head reads few places; a diffuse one averages over many."
    ),
    source="tsfm-lens paper, section 4 (S3-HENT)",
    paper=("S3-HENT",),
    needs="heads",
)
def head_entropy(
    run: Run,
    *,
    kind: str | None = None,
    sharp_below: float = SHARP_BELOW,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Measure how widely each head of the output stack spreads its attention.

    Entropies are means along a forecast. By the scaling over heads, every model has
    sharp heads, untrained ones too, and a sharp head may do nothing.

    Args:
        run: the forecast to explain.
        kind: kind of attention; the stack's last kind if None.
        sharp_below: heads below this normalised entropy are sharp.
        progress: called with (done, of) after each series.

    Returns:
        Dataset of kind "head_entropy":

        - ``entropy`` (layer, head): in nats, mean over forecast steps and series.
        - ``normalised`` (layer, head): min-max scaled over all heads, 0 to 1. Never
          compare it across models.
        - ``sharp`` (layer, head): whether ``normalised`` is below ``sharp_below``.

    Source:
        tsfm-lens paper, section 4 (S3-HENT).

    Raises:
        InputError: several variates, a horizon longer than one pass, or attention
            between variates.
        UnknownNameError: no such kind of attention.

    Example:
        >>> probes.head_entropy(run)["entropy"].dims
        ('layer', 'head')
    """
    rows = check_variates(run, covariates=True)
    stack, attention, layers = pick_attention(run.lens, None, kind)
    entropies = []
    for target in rows:
        # the patterns of one series at a time are held
        entropies.append(
            _patterns(run.select(target), stack, attention, layers)["entropy"]
        )
        if progress is not None:
            progress(len(entropies), len(rows))
    entropy = xr.concat(entropies, dim="series").mean("series")
    data = xr.Dataset({"entropy": entropy, "normalised": normalise(entropy)})
    data["sharp"] = data["normalised"] < sharp_below
    return data.assign_attrs(
        stack=stack.name, attention=attention, sharp_below=sharp_below
    )
