"""Measures of what the paper on the flow of ranks prints of models.

Models are opened one after another, so that only one is in memory. Read
:class:`ResultTable` first, which collects values by model and builds the claims that
compare models; each function below it is one figure. Ranks and angles are computed by
:mod:`tsfm_lens.probes`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product
from typing import TypeVar

import numpy as np
import torch
import xarray as xr
from scipy.stats import kendalltau

from tsfm_lens import compress
from tsfm_lens.probes import embedding_ranks, flow_of_ranks, row_angles, weight_ranks
from tsfm_lens.probes.weights import random_angle, weight_matrices
from tsfm_lens.studies.papers.context import (
    Context,
    MeasuredValues,
    judge_parts,
    measure,
)
from tsfm_lens.studies.papers.verdicts import (
    NO_LEVEL,
    ClaimPart,
    Tested,
    Verdict,
    combine_tests,
    exactly,
    undecided,
)
from tsfm_lens.studies.rank_theory.of_models import (
    ranks_by_model,
    spectra_by_patch,
    vocabulary_plane,
)

T = TypeVar("T")
EPSILON = (0.1, 0.01, 0.001)
# a power, a factor
ALMOST_LINEAR = 0.8
CONSTANT_WITHIN = 1.5
ROUNDING = 1e-12  # in double precision, relative
ATTENTION = ("W_Q", "W_K", "W_V", "W_O")
FAMILIES = ("sinusoids", "white noise")
_LEVELS = {"ε": ", ".join(f"{level:g}" for level in EPSILON)}
_NO_SERIES = "no model of series is given"


@dataclass
class ResultTable(MeasuredValues):
    """Measured values, model by model."""

    text: set[str] = field(default_factory=set)
    family: dict[str, str] = field(default_factory=dict)

    def each(
        self,
        contexts: Iterator[Context],
        *,
        series: bool = False,
        text: bool = True,
        levels: bool = True,
    ) -> Iterator[tuple[str, Context]]:
        """Yield models by name, in turn, and note their settings."""
        for context in contexts:
            name = context.model.model_id
            is_text = context.model.takes_ids
            self.family[name] = context.model.wiring.architecture
            if series:
                label = context.settings()
            else:
                label = {}
            if is_text:
                self.text.add(name)
                if context.stand_in and series:
                    label["series"] = "random ids of tokens"
            for key, value in label.items():
                previous = self.settings.get(key)
                self.settings[key] = (
                    value if previous in (None, value) else f"{previous}; {value}"
                )
            if text or not is_text:
                yield name, context
        if levels:
            self.settings |= _LEVELS

    def apart(self, by_model: Mapping[str, Mapping[float, float]], of: str) -> Verdict:
        """Test that models of text have larger values than models of series, at each ε.

        Every model of text is compared with every model of series.
        """
        parts = [
            exactly(f"{one} over {other}", value > by_model[other][level], of, level)
            for one in by_model
            for other in by_model
            for level, value in by_model[one].items()
            if one in self.text and other not in self.text
        ]
        return _exact_verdict(parts, "models of series and of text are both needed", of)

    def steps(
        self,
        of: Mapping[str, tuple[float, Mapping[float, float]]],
        what: str,
        quantity: str,
        *,
        falling: bool = False,
        within: float = 0.0,
    ) -> Verdict:
        """Test that a quantity rises, falls, or stays within a factor, at each ε.

        Models of one architecture are compared in the order of ``what``.
        """
        parts = []
        for family, level in product(
            dict.fromkeys(self.family[name] for name in of), EPSILON
        ):
            sorted_values = sorted(
                (at, values[level])
                for name, (at, values) in of.items()
                if self.family[name] == family
            )
            means = {
                size: float(
                    np.mean([value for at, value in sorted_values if at == size])
                )
                for size, _ in sorted_values
            }
            for (one, before), (other, after) in pairwise(means.items()):
                ratio = after / before
                if within:
                    true = max(ratio, 1 / ratio) <= within
                elif falling:
                    true = ratio < 1
                else:
                    true = ratio > 1
                parts.append(
                    exactly(
                        f"{family}, {what} {one:g} to {other:g}", true, quantity, level
                    )
                )
        return _exact_verdict(
            parts, f"no architecture has models here that differ in {what}", quantity
        )


def _by_level(values: xr.DataArray) -> dict[float, float]:
    """Return a value for each ε."""
    return dict(
        zip(
            map(float, values["epsilon"].values), map(float, values.values), strict=True
        )
    )


def _deeper(name: str, ranks: np.ndarray) -> list[Tested]:
    """Test that ε-ranks (epsilon, layer) of a model's weights rise over its layers.

    There is one part for each ε.
    """
    trends = [kendalltau(range(len(row)), row).statistic for row in ranks]
    of = "Kendall's τ of rank and layer"
    return [
        exactly(name, trend > 0, of, level)
        for trend, level in zip(trends, EPSILON, strict=True)
    ]


def _exact_verdict(parts: Sequence[Tested], why: str, of: str) -> Verdict:
    """Build a verdict of parts that need no draws, or say why there are none."""
    if parts:
        return Verdict(tuple(parts))
    return undecided(why, of)


@measure("S0-TSVD")
def truncate_matrices(contexts: Iterator[Context]) -> MeasuredValues:
    """Truncate every attention matrix at its ε-rank, and count what is left.

    The share is given in both readings of "ratio": of ranks, and of entries.
    """
    table = ResultTable()
    misses = 0
    for name, context in table.each(contexts):
        weights = [
            matrix.weight.double().cpu()
            for matrix in weight_matrices(context.model, parts=ATTENTION)
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
    table: ResultTable, quantity: str, suffix: str, ratio: compress.Ratio
) -> None:
    table.add(quantity + suffix, ratio.ranks)
    table.add(f"{quantity}, of entries of the factors", ratio.factors)


@measure("S0-METR")
def scores(contexts: Iterator[Context]) -> MeasuredValues:
    """Score a model against itself, and truncated to a quarter of its ranks."""
    table = ResultTable()
    same = {"same_mase": 0.0, "same_wql": 0.0}
    for name, context in table.each(contexts, series=True, text=False, levels=False):
        run = context.run
        itself = compress.quality(run, context.model)
        smaller, _ = compress.compressed(compress.calibration_run(run), 0.25)
        quarter = compress.quality(run, smaller)
        for error in ("mase", "wql"):
            key = f"same_{error}"
            same[key] = _farthest(
                0.0, same[key], float(itself[f"{error}_rise_estimate"])
            )
            rise = [
                float(quarter[f"{error}_rise_{end}"])
                for end in ("estimate", "low", "high")
            ]
            table.add(
                f"{name}: rise of {error.upper()} at a quarter of the ranks", *rise
            )
        if "overlap" in itself:
            full, again = map(float, itself["log_perplexity"])
            same["same_overlap"] = _farthest(
                1.0, same.get("same_overlap", 1.0), float(itself["overlap"])
            )
            same["same_lppl"] = _farthest(1.0, same.get("same_lppl", 1.0), again / full)
            after = float(quarter["log_perplexity"][1])
            table.add(f"{name}: overlap at a quarter of the ranks", quarter["overlap"])
            table.add(
                f"{name}: log-perplexity at a quarter of the ranks, over its own",
                after / full,
            )
    table.values |= same
    return table


def _farthest(reference: float, *values: float) -> float:
    """Return the value farthest from a reference; one that is no number is farthest."""
    return max(
        values,
        key=lambda value: abs(value - reference) if np.isfinite(value) else np.inf,
    )


@measure("S0-F2")
def embedded_spectra(contexts: Iterator[Context]) -> MeasuredValues:
    """Measure ranks of embedded families of signals.

    Of a vocabulary, the share in its two leading directions is measured too.
    """
    table = ResultTable()
    shares = {}
    planes = {}
    for name, context in table.each(contexts, series=True):
        ranks = embedding_ranks(context.run, epsilon=EPSILON, seed=context.seed)
        for level, family in product(EPSILON, map(str, ranks["family"].values)):
            one = ranks.sel(epsilon=level, family=family)
            # rounding hides the others
            if bool(one["told"]):
                table.add(
                    f"{name}: {level:g}-rank of {family}, of {int(one['full'])}",
                    one["epsilon_rank"],
                )
        of_signals = ranks.drop_sel(family=["vocabulary", "zero"], errors="ignore")
        share = (of_signals["epsilon_rank"] / of_signals["full"]).where(
            of_signals["told"]
        )
        shares[name] = _by_level(share.max("family"))
        if "vocabulary" in ranks["family"]:
            plane = vocabulary_plane(context.model)
            planes[name] = {NO_LEVEL: float(plane["neighbour_ratio"])}
            text = (
                "distance of neighbouring tokens over that of others, on two directions"
            )
            table.add(f"{name}: {text}", planes[name][NO_LEVEL])
            table.add(
                f"{name}: share of the vocabulary's squares along two directions",
                plane["share"].sum(),
            )
    table.claims["faster"] = table.apart(shares, "share of directions")
    table.claims["structured"] = table.apart(
        planes, "distance of neighbours over that of others"
    )
    return table


@measure("S0-F3")
def embedded_patches(contexts: Iterator[Context]) -> MeasuredValues:
    """Measure ranks of embedded noise by patch size, and angles between its tokens.

    Mean angles of random lines are added for comparison.
    """
    table = ResultTable()
    by_patch = {}
    tokens = []
    for name, context in table.each(contexts, series=True, text=False):
        embedding = embedding_ranks(context.run, epsilon=EPSILON, seed=context.seed)
        spectra = spectra_by_patch(context.run, epsilon=EPSILON, seed=context.seed)
        for index, (label, patch) in enumerate(
            zip(spectra["embedding"].values, spectra["patch"].values, strict=True)
        ):
            of_model = str(label) == name
            embedder = "" if of_model else "random MLP of "
            ranks = _by_level(spectra["epsilon_rank"][:, index])
            for level, rank in ranks.items():
                quantity = f"{level:g}-rank of noise, {embedder}patch {patch}"
                table.add(f"{name}: {quantity}", rank)
            if of_model:
                k = float(patch)
                width = context.model.wiring.stacks[0].d_model
                by_patch[name] = (
                    k,
                    {level: rank / width for level, rank in ranks.items()},
                )
        angles = embedding["mean_angle"]
        random = float(embedding.attrs["random_angle"])
        for family in FAMILIES:
            table.add(
                f"{name}: mean angle of tokens, {family}", angles.sel(family=family)
            )
        table.add(
            f"{name}: mean angle of random lines in {k:g} dimensions",
            random_angle(int(k)),
        )
        table.add(
            f"{name}: mean angle of random lines in {embedding.attrs['d_model']}"
            " dimensions",
            random,
        )
        below = float(angles.sel(family="white noise")) < random
        tokens.append(
            exactly(name, below, "mean angle of noise below that of random lines")
        )
    table.claims["by_patch"] = table.steps(by_patch, "patch", "share of directions")
    table.claims["smaller_space"] = _exact_verdict(tokens, _NO_SERIES, "mean angle")
    return table


@measure("S0-F13")
def embedded_noise(contexts: Iterator[Context]) -> MeasuredValues:
    """Measure ranks of single signals of noise and of sinusoids, over signals."""
    table = ResultTable()
    parts = []
    for name, context in table.each(contexts, series=True, text=False):
        embedding = embedding_ranks(context.run, epsilon=EPSILON, seed=context.seed)
        for family in FAMILIES:
            for level, rank in _by_level(
                embedding["signal_rank_estimate"].sel(family=family)
            ).items():
                table.add(f"{name}: {level:g}-rank of a signal of {family}", rank)
            table.add(
                f"{name}: mean angle of tokens, {family}",
                embedding["mean_angle"].sel(family=family),
            )
        for level in EPSILON:
            sines, noise = (
                embedding["signal_rank"].sel(epsilon=level, family=family).values
                for family in FAMILIES
            )
            # any signal of noise against any sinusoid: they are drawn independently
            parts.append(ClaimPart(name, noise - sines, "ε-rank of a signal", level))
    table.claims["random_higher"] = (
        judge_parts("pair", *parts) if parts else undecided(_NO_SERIES, "rank")
    )
    return table


@measure("S0-F4")
def query_ranks(contexts: Iterator[Context]) -> MeasuredValues:
    """Measure average ranks of W_Q by width."""
    table = ResultTable()
    shares = {}
    for name, context in table.each(contexts):
        ranks = ranks_by_model([context.model], epsilon=EPSILON).isel(model=0)
        width = float(ranks["width"])
        table.add(f"{name}: d", width)
        for level, rank in _by_level(ranks["rank"]).items():
            table.add(f"{name}: mean {level:g}-rank of W_Q", rank)
            table.add(f"{name}: mean {level:g}-rank of W_Q over d", rank / width)
        shares[name] = (width, _by_level(ranks["rank"] / width))
    of_text = [pair for name, pair in shares.items() if name in table.text]
    of_series = {name: pair for name, pair in shares.items() if name not in table.text}
    linear = []
    for level in EPSILON if len({width for width, _ in of_text}) > 1 else ():
        widths, rank_shares = np.array([(width, of[level]) for width, of in of_text]).T
        power = float(np.polyfit(np.log(widths), np.log(rank_shares * widths), 1)[0])
        table.add(
            f"power of d that the {level:g}-rank of W_Q in language models grows with",
            power,
        )
        linear += (
            [exactly("", power >= ALMOST_LINEAR, "power of d", level)]
            if np.isfinite(power)
            else []
        )
    table.claims["stays_low"] = table.steps(
        of_series, "width", "share of the full rank", falling=True
    )
    table.claims["linear"] = _exact_verdict(
        linear, "language models of two widths or more are needed", "power of d"
    )
    return table


@measure("S0-F5", "S0-F6")
def ranks_by_layer(contexts: Iterator[Context]) -> MeasuredValues:
    """Measure ranks of W_Q and of the input of every layer.

    Inputs are those of the series and of the constant zero signal.
    """
    table = ResultTable()
    weights = []
    inputs = []
    clusters = range(0)
    for name, context in table.each(contexts, series=True):
        run = context.run
        flow = flow_of_ranks(run, epsilon=EPSILON, apart=len(run.batch))
        streams = {"series": flow}
        if not context.model.takes_ids:
            zeros = context.model.run(
                [np.zeros(max(run.batch.lengths))],
                run.horizon,
                num_samples=run.num_samples,
            )
            streams["the zero signal"] = flow_of_ranks(zeros, epsilon=EPSILON)
        for level in EPSILON:
            for layer, rank in zip(
                flow["layer"].values,
                flow["weight_rank"].sel(epsilon=level).values,
                strict=True,
            ):
                table.add(f"{name}: {level:g}-rank of W_Q, layer {layer}", rank)
            for text, stream in streams.items():
                for layer_index, rank in enumerate(
                    stream["epsilon_rank"].sel(epsilon=level).values[:-1]
                ):
                    table.add(
                        f"{name}: {level:g}-rank of the input of layer {layer_index},"
                        f" {text}",
                        rank,
                    )
            # the inputs of all layers, by series
            ranks = (
                flow["series_rank"]
                .sel(epsilon=level)
                .isel(stream=slice(-1))
                .transpose("series", "stream")
                .values
            )
            trends = np.array(
                [kendalltau(range(len(row)), row).statistic for row in ranks]
            )
            inputs.append(
                ClaimPart(
                    name,
                    np.nan_to_num(trends),
                    "Kendall's τ of the input's rank and layer",
                    level,
                )
            )
        weights += _deeper(name, flow["weight_rank"].sel(epsilon=list(EPSILON)).values)
        clusters = range(flow.sizes["series"])
    table.claims = {
        "deeper_weights": Verdict(tuple(weights)),
        "deeper_input": combine_tests(inputs, clusters),
    }
    return table


@measure("S0-F9")
def head_ranks(contexts: Iterator[Context]) -> MeasuredValues:
    """Measure mean ranks of W_Q and its heads by number of heads.

    Angles say whether the rows of one head lie together.
    """
    table = ResultTable()
    full = {}
    single = {}
    blocks = []
    for name, context in table.each(contexts):
        ranks = ranks_by_model([context.model], epsilon=EPSILON).isel(model=0)
        heads = float(ranks["heads"])
        full[name], single[name] = (
            (heads, _by_level(ranks["rank"] / ranks["width"])),
            (heads, _by_level(ranks["head_rank"])),
        )
        angles = row_angles(context.model, seed=context.seed).isel(layer=0)
        numbers = {
            "heads": heads,
            **{
                f"mean {level:g}-rank of W_Q": rank
                for level, rank in _by_level(ranks["rank"]).items()
            },
            **{
                f"mean {level:g}-rank of W_Q of one head": rank
                for level, rank in single[name][1].items()
            },
            "mean angle of rows within a head, first layer": angles["within"],
            "mean angle of rows of different heads, first layer": angles["between"],
        }
        for quantity, number in numbers.items():
            table.add(f"{name}: {quantity}", number)
        blocks.append(
            exactly(
                name,
                bool(angles["closer_significant"]),
                "angle between heads less that within",
            )
        )
    table.claims = {
        "more_heads": table.steps(full, "heads", "share of the full rank"),
        "head_constant": table.steps(
            single, "heads", "mean rank of a head", within=CONSTANT_WITHIN
        ),
        "blocks": Verdict(tuple(blocks)),
    }
    return table


@measure("S0-F10")
def weight_spectra(contexts: Iterator[Context]) -> MeasuredValues:
    """Measure shares of relative singular values above ε, layer by layer.

    The matrices are W_Q and the first one of the MLP.
    """
    table = ResultTable()
    shares = {}
    deeper = []
    less = []
    for name, context in table.each(contexts):
        stack = context.model.wiring.stacks[0].name
        ranks = weight_ranks(
            context.model, stack=stack, epsilon=EPSILON, parts=["W_Q", "W_in"]
        )
        share = ranks["rank_share"]
        kind = ranks["layer_kind"].values
        parts = ranks["part"].values
        queries = share[:, (parts == "W_Q") & (kind == kind[0])]
        hidden = share[:, parts == "W_in"]
        shares[name] = _by_level(queries.median("matrix"))
        of_hidden = _by_level(hidden.median("matrix"))
        for level, row in zip(EPSILON, queries.values, strict=True):
            for layer, value in enumerate(row):
                table.add(f"{name}: share of W_Q above {level:g}, layer {layer}", value)
            table.add(
                f"{name}: share of the MLP's first matrix above {level:g}, median"
                " layer",
                of_hidden[level],
            )
        if name not in table.text:
            deeper += _deeper(name, queries.values)
            of = "share above ε, less that of the MLP's"
            less += [
                exactly(name, shares[name][level] < of_hidden[level], of, level)
                for level in EPSILON
            ]
    table.claims = {
        "weights_faster": table.apart(shares, "share above ε"),
        "deeper_weights": _exact_verdict(deeper, _NO_SERIES, "rank and layer"),
        "less_than_mlp": _exact_verdict(less, _NO_SERIES, "share above ε"),
    }
    return table
