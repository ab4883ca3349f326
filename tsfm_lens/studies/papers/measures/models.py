"""Measures of what the paper on the flow of ranks prints of models.

Models are opened one after another, so that only one is in memory. Each function is one
figure. Read :func:`_with_settings` first, which passes the models on and notes what
they are measured on. Ranks and angles are computed by :mod:`tsfm_lens.probes`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import torch
import xarray as xr
from scipy.stats import kendalltau

from tsfm_lens import compress
from tsfm_lens.core.errors import InputError
from tsfm_lens.models.run import Run
from tsfm_lens.probes import embedding_ranks, flow_of_ranks
from tsfm_lens.probes.weights import weight_matrices
from tsfm_lens.studies.papers.context import MeasuredValues, measure
from tsfm_lens.studies.papers.values import by_name
from tsfm_lens.studies.papers.verdicts import (
    WINDOW,
    Verdict,
    exactly,
)

EPSILON = (0.1, 0.01, 0.001)
# a power, a factor
ALMOST_LINEAR = 0.8
CONSTANT_WITHIN = 1.5
ROUNDING = 1e-12  # in double precision, relative
ATTENTION = ("W_Q", "W_K", "W_V", "W_O")
FAMILIES = ("sinusoids", "white noise")
_LEVELS = {"ε": ", ".join(map(str, EPSILON))}


def _with_settings(
    result: MeasuredValues, runs: Iterator[Run], *, text: bool = True
) -> Iterator[tuple[str, Run]]:
    """Yield runs with the names of their models, in turn, and note their settings.

    Raises:
        InputError: a model of text, unless ``text``.
    """
    for run in runs:
        name = run.lens.model_id
        if run.lens.takes_ids and not text:
            raise InputError(f"{name} reads tokens of text, expected a model of series")
        for key, value in _settings(run).items():
            previous = result.settings.get(key, value)
            if previous != value:
                value = f"{previous}; {value}"
            result.settings[key] = value
        yield name, run


def _settings(run: Run) -> dict[str, str]:
    """Describe series and forecasts by the keys of the items' settings."""
    adapter = run.lens.adapter
    if run.lens.takes_ids:
        series = "random ids of tokens"
    else:
        series = "windows of Lorenz and Roessler made here"
    settings = {
        "series": series,
        "windows": str(len(run.batch)),
        "context": str(max(run.batch.lengths)),
        "horizon": str(run.horizon),
    }
    if adapter.readout == "token":
        settings["samples"] = str(adapter.samples)
    settings["seeds"] = "none needed, nothing that is measured is drawn"
    settings["intervals over"] = f"{len(run.batch)} windows"
    return settings


def trend(values: xr.DataArray, dim: str) -> xr.DataArray:
    """Return Kendall's τ of values with their order along a dimension.

    It is 0 of constants.
    """
    return xr.apply_ufunc(
        lambda row: kendalltau(range(len(row)), row).statistic,
        values,
        input_core_dims=[[dim]],
        vectorize=True,
    ).fillna(0)


@measure("S0-TSVD")
def truncate_matrices(runs: Iterator[Run]) -> MeasuredValues:
    """Truncate every attention matrix at its ε-rank, and count what is left.

    The share is given in both readings of "ratio": of ranks, and of entries.
    """
    table = MeasuredValues(settings=dict(_LEVELS))
    misses = 0
    for run in runs:
        name = run.lens.model_id
        weights = [
            matrix.weight.double().cpu()
            for matrix in weight_matrices(run.lens, parts=ATTENTION)
        ]
        spectra = {
            str(index): torch.linalg.svdvals(weight).numpy()
            for index, weight in enumerate(weights)
        }
        forms = [compress.BlockShape(1, *weight.shape) for weight in weights]
        for level in EPSILON:
            ranks = list(compress.ranks_by_epsilon(spectra, level).values())
            for weight, rank, values in zip(
                weights, ranks, spectra.values(), strict=True
            ):
                residual = weight - compress.product(compress.truncate(weight, rank))
                misses += int(
                    torch.linalg.matrix_norm(residual, 2)
                    > level * float(values[0]) * (1 + ROUNDING)
                )
            _add_ratios(
                table,
                f"{name}: ratio at ε = {level:g}",
                ", of ranks",
                compress.compute_ratio(forms, ranks),
            )
    table.add("model_cut_off", misses)
    for rank in (16, 32):
        ratio = compress.compute_ratio([compress.BlockShape(12, 64, 768)], [rank])
        _add_ratios(table, f"size ratio of rank {rank} of heads of 64", "", ratio)
    return table


def _add_ratios(
    table: MeasuredValues, quantity: str, suffix: str, ratio: compress.Ratio
) -> None:
    table.add(quantity + suffix, ratio.ranks)
    table.add(f"{quantity}, of entries of the factors", ratio.factors)


@measure("S0-METR")
def scores(runs: Iterator[Run]) -> MeasuredValues:
    """Score a model against itself, and truncated to a quarter of its ranks."""
    table = MeasuredValues()
    same: defaultdict[str, list[float]] = defaultdict(list)
    for name, run in _with_settings(table, runs, text=False):
        itself = compress.quality(run, run.lens)
        smaller, _ = compress.compressed(compress.calibration_run(run), 0.25)
        quarter = compress.quality(run, smaller)
        for error in ("mase", "wql"):
            same[f"same_{error}"].append(float(itself[f"{error}_rise_estimate"]))
            rise = [
                quarter[f"{error}_rise_{end}"] for end in ("estimate", "low", "high")
            ]
            table.add(
                f"{name}: rise of {error.upper()} at a quarter of the ranks", *rise
            )
        if "overlap" in itself:
            full, again = map(float, itself["log_perplexity"])
            same["same_overlap"].append(float(itself["overlap"]))
            same["same_lppl"].append(again / full)
            after = float(quarter["log_perplexity"][1])
            table.add(f"{name}: overlap at a quarter of the ranks", quarter["overlap"])
            table.add(
                f"{name}: log-perplexity at a quarter of the ranks, over its own",
                after / full,
            )
    for key, found in same.items():
        expected = 1.0 if key in ("same_overlap", "same_lppl") else 0.0
        # what is no number is farthest from it
        off = np.nan_to_num(np.abs(np.array(found) - expected), nan=np.inf)
        table.add(key, found[off.argmax()])
    return table


@measure("S0-F13")
def embedded_noise(runs: Iterator[Run]) -> MeasuredValues:
    """Measure ranks of single signals of noise and of sinusoids, over signals."""
    table = MeasuredValues(over="pair")
    for name, run in _with_settings(table, runs, text=False):
        embedding = embedding_ranks(run, epsilon=EPSILON, seed=run.seed)
        for family in FAMILIES:
            ranks = embedding["signal_rank_estimate"].sel(family=family)
            text = f"{name}: {{:g}}-rank of a signal of {family}"
            table.add_each(text, by_name(ranks, "epsilon"))
            text = f"{name}: mean angle of tokens, {family}"
            table.add(text, embedding["mean_angle"].sel(family=family))
        for level in EPSILON:
            sines, noise = (
                embedding["signal_rank"].sel(epsilon=level, family=family).values
                for family in FAMILIES
            )
            # any signal of noise against any sinusoid: they are drawn independently
            of = "ε-rank of a signal"
            table.judge("random_higher", noise - sines, of, name, level)
    table.settings |= _LEVELS
    return table


@measure("S0-F5", "S0-F6")
def ranks_by_layer(runs: Iterator[Run]) -> MeasuredValues:
    """Measure ranks of W_Q and of the input of every layer.

    Inputs are those of the series and of the constant zero signal.
    """
    table = MeasuredValues(over=WINDOW)
    weights = []
    for name, run in _with_settings(table, runs):
        flow = flow_of_ranks(run, epsilon=EPSILON, apart=len(run.batch))
        streams = {"series": flow}
        if not run.lens.takes_ids:
            zeros = run.lens.run(
                [np.zeros(max(run.batch.lengths))],
                run.horizon,
                num_samples=run.num_samples,
            )
            streams["the zero signal"] = flow_of_ranks(zeros, epsilon=EPSILON)
        for level in EPSILON:
            text = f"{name}: {level:g}-rank of"
            of_weights = flow["weight_rank"].sel(epsilon=level)
            table.add_each(f"{text} W_Q, layer {{}}", by_name(of_weights, "layer"))
            for signal, stream in streams.items():
                ranks = stream["epsilon_rank"].sel(epsilon=level).values[:-1]
                of_inputs = f"{text} the input of layer {{}}, {signal}"
                table.add_each(of_inputs, dict(enumerate(ranks)))
            # the inputs of all layers, by series
            of_series = flow["series_rank"].sel(epsilon=level).isel(stream=slice(-1))
            of = "Kendall's τ of the input's rank and layer"
            trends = trend(of_series, "stream").values
            table.judge("deeper_input", trends, of, name, level)
            rises = bool(trend(of_weights, "layer") > 0)
            of = "Kendall's τ of rank and layer"
            weights.append(exactly(name, rises, of, level))
    table.claims = {"deeper_weights": Verdict(tuple(weights)), **table.claims}
    table.settings |= _LEVELS
    return table
