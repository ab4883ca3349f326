"""Measures of what the paper on the flow of ranks prints of models, on one model after another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TypeVar

import numpy as np
import torch

from tsfm_lens import compress
from tsfm_lens.probes import embedding_ranks, flow_of_ranks, row_angles, weight_ranks
from tsfm_lens.probes.weights import random_angle, weight_matrices
from tsfm_lens.studies.papers.context import Context, MeasuredValues, measure, verdict_over
from tsfm_lens.studies.papers.verdicts import ClaimPart, Tested, Verdict, exactly, judged, undecided
from tsfm_lens.studies.rank_theory.of_models import ranks_by_model, spectra_by_patch, vocabulary_plane

T = TypeVar("T")
EPSILON = (0.1, 0.01)
FINE = EPSILON[-1]
ALMOST_LINEAR, CONSTANT_WITHIN = 0.8, 1.5  # a power, a factor
ROUNDING = 1e-12  # in double precision, relative
ATTENTION = ("W_Q", "W_K", "W_V", "W_O")
FAMILIES = ("sinusoids", "white noise")
_LEVELS = {"ε": f"{', '.join(f'{level:g}' for level in EPSILON)}, of claims {FINE:g}"}
_NO_SERIES = "no model of series is given"


@dataclass
class ResultTable(MeasuredValues):
    """Measured values, model by model."""

    text: set[str] = field(default_factory=set)
    family: dict[str, str] = field(default_factory=dict)

    def each(
        self, contexts: Iterator[Context], *, series: bool = False, text: bool = True, levels: bool = True
    ) -> Iterator[tuple[str, Context]]:
        """Yield models by name, in turn, and note their settings."""
        for context in contexts:
            name, is_text = context.model.model_id, context.model.takes_ids
            self.family[name] = context.model.wiring.architecture
            words = context.settings() if series else {}
            if is_text:
                self.text.add(name)
                if context.stand_in and series:
                    words["series"] = "random ids of tokens"
            for key, value in words.items():
                previous = self.settings.get(key)
                self.settings[key] = value if previous in (None, value) else f"{previous}; {value}"
            if text or not is_text:
                yield name, context
        if levels:
            self.settings |= _LEVELS

    def apart(self, by_model: dict[str, float], of: str) -> Verdict:
        """Test that each value of a model of text is larger than each of a model of series."""
        parts = [
            exactly(f"{one} over {other}", by_model[one] > by_model[other], of)
            for one in by_model
            for other in by_model
            if one in self.text and other not in self.text
        ]
        return _whole(parts, "models of series and of text are both needed", of)

    def steps(
        self,
        of: dict[str, tuple[float, float]],
        what: str,
        quantity: str,
        *,
        falling: bool = False,
        within: float = 0.0,
    ) -> Verdict:
        """Test that a quantity rises, falls, or stays within a factor from place to place within an architecture."""
        parts = []
        for family in dict.fromkeys(self.family[name] for name in of):
            own = [pair for name, pair in of.items() if self.family[name] == family]
            means = {place: float(np.mean([value for at, value in own if at == place])) for place, _ in sorted(own)}
            for (one, before), (other, after) in pairwise(means.items()):
                ratio = after / before
                true = max(ratio, 1 / ratio) <= within if within else ratio < 1 if falling else ratio > 1
                parts.append(exactly(f"{family}, {what} {one:g} to {other:g}", true, quantity))
        return _whole(parts, f"no architecture is among the models with more than one {what}", quantity)


def _whole(parts: Sequence[Tested], why: str, of: str) -> Verdict:
    """Build a verdict of parts that need no draws, or say why there are none."""
    return Verdict(tuple(parts)) if parts else undecided(why, of)


@measure("S0-TSVD")
def cut_off_matrices(contexts: Iterator[Context]) -> MeasuredValues:
    """Cut every attention matrix at its ε-rank, and count what is left in both readings of "ratio"."""
    table, off = ResultTable(), 0
    for name, context in table.each(contexts):
        weights = [one.weight.double().cpu() for one in weight_matrices(context.model, parts=ATTENTION)]
        spectra = {str(place): torch.linalg.svdvals(weight).numpy() for place, weight in enumerate(weights)}
        forms = [compress.BlockShape(1, *weight.shape) for weight in weights]
        for level in EPSILON:
            ranks = list(compress.ranks_by_epsilon(spectra, level).values())
            for weight, rank, values in zip(weights, ranks, spectra.values(), strict=True):
                residual = weight - compress.product(compress.truncate(weight, rank))
                off += int(torch.linalg.matrix_norm(residual, 2) > level * float(values[0]) * (1 + ROUNDING))
            _add_ratios(table, f"{name}: ratio at ε = {level:g}", ", of ranks", compress.ratio_of(forms, ranks))
    table.add("model_cut_off", off)
    for rank in (16, 32):
        ratio = compress.ratio_of([compress.BlockShape(12, 64, 768)], [rank])
        _add_ratios(table, f"size ratio of rank {rank} of heads of 64", "", ratio)
    return table


def _add_ratios(table: ResultTable, quantity: str, words: str, ratio: compress.Ratio) -> None:
    table.add(quantity + words, ratio.ranks)
    table.add(f"{quantity}, of entries of the factors", ratio.factors)


@measure("S0-METR")
def scores(contexts: Iterator[Context]) -> MeasuredValues:
    """Score a model beside itself, and cut to a quarter of its ranks."""
    table, same = ResultTable(), {"same_mase": 0.0, "same_wql": 0.0}
    for name, context in table.each(contexts, series=True, text=False, levels=False):
        run = context.run
        itself = compress.quality(run, context.model)
        smaller, _ = compress.compressed(compress.calibration_run(run), 0.25)
        quarter = compress.quality(run, smaller)
        for error in ("mase", "wql"):
            key = f"same_{error}"
            same[key] = _farthest(0.0, same[key], float(itself[f"{error}_rise_estimate"]))
            rise = [float(quarter[f"{error}_rise_{end}"]) for end in ("estimate", "low", "high")]
            table.add(f"{name}: rise of {error.upper()} at a quarter of the ranks", *rise)
        if "overlap" in itself:
            whole, again = map(float, itself["log_perplexity"])
            same["same_overlap"] = _farthest(1.0, same.get("same_overlap", 1.0), float(itself["overlap"]))
            same["same_lppl"] = _farthest(1.0, same.get("same_lppl", 1.0), again / whole)
            after = float(quarter["log_perplexity"][1])
            table.add(f"{name}: overlap at a quarter of the ranks", quarter["overlap"])
            table.add(f"{name}: log-perplexity at a quarter of the ranks, over its own", after / whole)
    table.values |= same
    return table


def _farthest(reference: float, *values: float) -> float:
    """Return the value farthest from a reference; one that is no number is farthest."""
    return max(values, key=lambda value: abs(value - reference) if np.isfinite(value) else np.inf)


@measure("S0-F2")
def embedded_spectra(contexts: Iterator[Context]) -> MeasuredValues:
    """Measure ranks of embedded families of signals, and the share of a vocabulary in two directions."""
    table, shares, planes = ResultTable(), {}, {}
    for name, context in table.each(contexts, series=True):
        ranks = embedding_ranks(context.run, epsilon=EPSILON, seed=context.seed).sel(epsilon=FINE)
        of_family = {}
        for family in map(str, ranks["family"].values):
            one = ranks.sel(family=family)
            # rounding hides the others
            if bool(one["told"]):
                table.add(f"{name}: {FINE:g}-rank of {family}, of {int(one['full'])}", one["epsilon_rank"])
                of_family[family] = float(one["epsilon_rank"] / one["full"])
        shares[name] = max(share for family, share in of_family.items() if family not in ("vocabulary", "zero"))
        if "vocabulary" in of_family:
            plane = vocabulary_plane(context.model)
            planes[name] = float(plane["neighbour_ratio"])
            words = "distance of neighbouring tokens over that of others, on two directions"
            table.add(f"{name}: {words}", planes[name])
            table.add(f"{name}: share of the vocabulary's squares along two directions", plane["share"].sum())
    table.claims["faster"] = table.apart(shares, f"share of directions at ε = {FINE:g}")
    table.claims["structured"] = table.apart(planes, "distance of neighbours over that of others")
    return table


@measure("S0-F3")
def embedded_patches(contexts: Iterator[Context]) -> MeasuredValues:
    """Measure ranks of embedded noise by patch size, and angles of its tokens beside those of random vectors."""
    table, by_patch, tokens = ResultTable(), {}, []
    for name, context in table.each(contexts, series=True, text=False):
        embedding = embedding_ranks(context.run, epsilon=EPSILON, seed=context.seed)
        beside = spectra_by_patch(context.run, epsilon=FINE, seed=context.seed)
        rows = (beside["embedding"].values, beside["patch"].values, beside["epsilon_rank"].values[0])
        for label, patch, rank in zip(*rows, strict=True):
            of_model = str(label) == name
            table.add(f"{name}: {FINE:g}-rank of noise, {'' if of_model else 'random MLP of '}patch {patch}", rank)
            if of_model:
                k = float(patch)
                by_patch[name] = (k, float(rank) / context.model.wiring.stacks[0].d_model)
        angles, random = embedding["mean_angle"], float(embedding.attrs["random_angle"])
        for family in FAMILIES:
            table.add(f"{name}: mean angle of tokens, {family}", angles.sel(family=family))
        table.add(f"{name}: mean angle of random lines in {k:g} dimensions", random_angle(int(k)))
        table.add(f"{name}: mean angle of random lines in {embedding.attrs['d_model']} dimensions", random)
        below = float(angles.sel(family="white noise")) < random
        tokens.append(exactly(name, below, "mean angle of noise below that of random lines"))
    table.claims["by_patch"] = table.steps(by_patch, "patch", "share of directions")
    table.claims["smaller_space"] = _whole(tokens, _NO_SERIES, "mean angle")
    return table


@measure("S0-F13")
def embedded_noise(contexts: Iterator[Context]) -> MeasuredValues:
    """Measure ranks of single signals of noise and of sinusoids, over signals."""
    table, parts = ResultTable(), []
    for name, context in table.each(contexts, series=True, text=False):
        embedding = embedding_ranks(context.run, epsilon=EPSILON, seed=context.seed)
        at = embedding.sel(epsilon=FINE)
        for family in FAMILIES:
            rank = at["signal_rank_estimate"].sel(family=family)
            table.add(f"{name}: {FINE:g}-rank of a signal of {family}", rank)
            table.add(f"{name}: mean angle of tokens, {family}", embedding["mean_angle"].sel(family=family))
        sines, noise = (at["signal_rank"].sel(family=family).values for family in FAMILIES)
        # any signal of noise against any sinusoid: they are drawn independently
        parts.append(ClaimPart(name, noise - sines, f"{FINE:g}-rank of a signal"))
    count = max((len(part.margins) for part in parts), default=0)
    for place, part in enumerate(parts):
        short = (0, count - len(part.margins))
        parts[place] = replace(part, margins=np.pad(part.margins, short, constant_values=np.nan))
    table.claims["random_higher"] = verdict_over("pair", *parts) if parts else undecided(_NO_SERIES, "rank")
    return table


@measure("S0-F4")
def query_ranks(contexts: Iterator[Context]) -> MeasuredValues:
    """Measure average ranks of W_Q by width."""
    table, shares = ResultTable(), {}
    for name, context in table.each(contexts):
        ranks = ranks_by_model([context.model], epsilon=EPSILON).isel(model=0)
        width = float(ranks["width"])
        table.add(f"{name}: d", width)
        for level, rank in zip(EPSILON, ranks["rank"].values, strict=True):
            table.add(f"{name}: mean {level:g}-rank of W_Q", rank)
            table.add(f"{name}: mean {level:g}-rank of W_Q over d", rank / width)
        shares[name] = (width, float(ranks["rank"].sel(epsilon=FINE)) / width)
    text = sorted(pair for name, pair in shares.items() if name in table.text)
    of_series = {name: pair for name, pair in shares.items() if name not in table.text}
    linear = []
    if len({width for width, _ in text}) > 1:
        widths, own = np.array(text).T
        power = float(np.polyfit(np.log(widths), np.log(own * widths), 1)[0])
        table.add("power of d that the rank of W_Q in language models grows with", power)
        linear = [exactly("", power >= ALMOST_LINEAR, "power of d")] if np.isfinite(power) else []
    table.claims["stays_low"] = table.steps(of_series, "width", "share of the full rank", falling=True)
    table.claims["linear"] = _whole(linear, "language models of two widths or more are needed", "power of d")
    return table


@measure("S0-F5", "S0-F6")
def ranks_by_layer(contexts: Iterator[Context]) -> MeasuredValues:
    """Measure ranks of W_Q and of the input of every layer, of series and of the constant zero signal."""
    table, weights, inputs, clusters = ResultTable(), [], [], range(0)
    for name, context in table.each(contexts, series=True):
        run = context.run
        flow = flow_of_ranks(run, epsilon=EPSILON, apart=len(run.batch))
        fine = flow.sel(epsilon=FINE)
        for layer, rank in zip(flow["layer"].values, fine["weight_rank"].values, strict=True):
            table.add(f"{name}: {FINE:g}-rank of W_Q, layer {layer}", rank)
        streams = {"series": fine}
        if not context.model.takes_ids:
            zeros = context.model.run([np.zeros(max(run.batch.lengths))], run.horizon, num_samples=run.num_samples)
            streams["the zero signal"] = flow_of_ranks(zeros, epsilon=[FINE]).sel(epsilon=FINE)
        for words, stream in streams.items():
            for place, rank in enumerate(stream["epsilon_rank"].values[:-1]):
                table.add(f"{name}: {FINE:g}-rank of the input of layer {place}, {words}", rank)
        ends = fine["weight_rank"].values[[0, -1]]
        weights.append(exactly(name, ends[1] > ends[0], f"{FINE:g}-rank of W_Q"))
        # the input of the last layer against that of the first
        rise = fine["series_rank"].isel(stream=-2) - fine["series_rank"].isel(stream=0)
        inputs.append(ClaimPart(name, rise.values, f"{FINE:g}-rank of the input"))
        clusters = range(flow.sizes["series"])
    table.claims = {"deeper_weights": Verdict(tuple(weights)), "deeper_input": judged(inputs, clusters)}
    return table


@measure("S0-F9")
def head_ranks(contexts: Iterator[Context]) -> MeasuredValues:
    """Measure mean ranks of W_Q and its heads by number of heads, and whether rows of a head lie together."""
    table, whole, single, blocks = ResultTable(), {}, {}, []
    for name, context in table.each(contexts):
        ranks = ranks_by_model([context.model], epsilon=FINE).isel(model=0, epsilon=0)
        heads, rank, own = (float(ranks[each]) for each in ("heads", "rank", "head_rank"))
        whole[name], single[name] = (heads, rank / float(ranks["width"])), (heads, own)
        angles = row_angles(context.model, seed=context.seed).isel(layer=0)
        numbers = {
            "heads": heads,
            f"mean {FINE:g}-rank of W_Q": rank,
            f"mean {FINE:g}-rank of W_Q of one head": own,
            "mean angle of rows within a head, first layer": angles["within"],
            "mean angle of rows of different heads, first layer": angles["between"],
        }
        for quantity, number in numbers.items():
            table.add(f"{name}: {quantity}", number)
        blocks.append(exactly(name, bool(angles["closer_significant"]), "angle between heads less that within"))
    table.claims = {
        "more_heads": table.steps(whole, "heads", "share of the full rank"),
        "head_constant": table.steps(single, "heads", "mean rank of a head", within=CONSTANT_WITHIN),
        "blocks": Verdict(tuple(blocks)),
    }
    return table


@measure("S0-F10")
def weight_spectra(contexts: Iterator[Context]) -> MeasuredValues:
    """Measure shares of relative singular values above 0.1 of W_Q and the MLP's first matrix, layer by layer."""
    table, shares, deeper, less = ResultTable(), {}, [], []
    for name, context in table.each(contexts, levels=False):
        stack = context.model.wiring.stacks[0].name
        ranks = weight_ranks(context.model, stack=stack, epsilon=EPSILON, parts=["W_Q", "W_in"])
        share = ranks["decade_count"].isel(decade=0).values / ranks["full"].values
        kind, parts = ranks["layer_kind"].values, ranks["part"].values
        queries, hidden = share[(parts == "W_Q") & (kind == kind[0])], share[parts == "W_in"]
        for layer, value in enumerate(queries):
            table.add(f"{name}: share of W_Q above 0.1, layer {layer}", value)
        shares[name] = float(np.median(queries))
        table.add(f"{name}: share of the MLP's first matrix above 0.1, median layer", np.median(hidden))
        half = max(len(queries) // 2, 1)
        if name not in table.text:
            rise = queries[-half:].mean() > queries[:half].mean()
            deeper.append(exactly(name, rise, "share of the later half over the earlier"))
            less.append(exactly(name, np.median(queries) < np.median(hidden), "share above 0.1"))
    table.claims = {
        "weights_faster": table.apart(shares, "share above 0.1"),
        "deeper_weights": _whole(deeper, _NO_SERIES, "share above 0.1"),
        "less_than_mlp": _whole(less, _NO_SERIES, "share above 0.1"),
    }
    return table
