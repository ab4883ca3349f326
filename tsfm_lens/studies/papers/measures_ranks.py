"""Measures of what the paper on the flow of ranks prints of models, on one model after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TypeVar

import numpy as np
import torch
import xarray as xr

from tsfm_lens import compress
from tsfm_lens.probes import embedding_ranks, flow_of_ranks, row_angles, weight_ranks
from tsfm_lens.probes.row_angles import random_angle
from tsfm_lens.probes.weight_ranks import weight_matrices
from tsfm_lens.studies.papers import values_ranks as paper
from tsfm_lens.studies.papers.measuring import Asked, Found
from tsfm_lens.studies.papers.verdicts import FAILS, HOLDS, Part, Tested, Verdict, judged, undecided
from tsfm_lens.studies.rank_theory import ranks_by_model, spectra_by_patch, vocabulary_plane

T = TypeVar("T")
EPSILON = (0.1, 0.01)
FINE = EPSILON[-1]
ALMOST_LINEAR, CONSTANT_WITHIN = 0.8, 1.5  # a power, a factor
ROUNDING = 1e-12  # in double precision, relative
ATTENTION = ("W_Q", "W_K", "W_V", "W_O")


@dataclass
class _Sheet:
    """Measured quantities, model by model.

    Attributes:
        values: by quantity.
        settings: by name, several values where models differ.
        text: models that read text.
        family: architecture of each model.
    """

    values: dict[str, float] = field(default_factory=dict)
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    text: set[str] = field(default_factory=set)
    family: dict[str, str] = field(default_factory=dict)

    def each(self, requests: Iterator[Asked], *, series: bool = False) -> Iterator[tuple[str, Asked]]:
        """Yield models by name, in turn, and note their settings."""
        for request in requests:
            name = request.model.model_id
            self.family[name] = request.model.wiring.architecture
            if request.model.takes_ids:
                self.text.add(name)
            words = request.settings() if series else {}
            if request.model.takes_ids and request.stand_in and series:
                words["series"] = "random ids of tokens"
            for key, value in words.items():
                previous = self.settings.get(key)
                self.settings[key] = value if previous in (None, value) else f"{previous}; {value}"
            yield name, request

    def put(self, model: str, quantity: str, value: float | xr.DataArray) -> None:
        """Add one number of one model."""
        self.values[f"{model}: {quantity}"] = float(value)

    def result(self, claims: dict[str, Verdict], **settings: str) -> Found:
        """Return everything measured."""
        return Found(self.values, {**self.settings, **settings}, intervals=self.intervals, claims=claims)

    def of_series(self, by_model: dict[str, T]) -> dict[str, T]:
        """Select the entries of models of series."""
        return {name: value for name, value in by_model.items() if name not in self.text}

    def of_text(self, by_model: dict[str, T]) -> dict[str, T]:
        """Select the entries of models of text."""
        return {name: value for name, value in by_model.items() if name in self.text}

    def steps(
        self, of: dict[str, tuple[float, float]], what: str, measure: str, *, falling: bool = False, within: float = 0.0
    ) -> Verdict:
        """Test that a measure rises, falls, or stays within a factor from place to place within an architecture.

        Args:
            of: place (a width, heads, a patch) and measure of each model; their mean where several have one place.
            what: name of the place; measure: name of the measure.
            falling: test for a fall instead of a rise; within: for a factor instead.
        """
        parts = []
        for family in dict.fromkeys(self.family[name] for name in of):
            own = [pair for name, pair in of.items() if self.family[name] == family]
            means = {place: float(np.mean([value for at, value in own if at == place])) for place, _ in sorted(own)}
            for (one, before), (other, after) in pairwise(means.items()):
                ratio = after / before
                true = max(ratio, 1 / ratio) <= within if within else ratio < 1 if falling else ratio > 1
                parts.append(_exact(f"{family}, {what} {one:g} to {other:g}", true, measure))
        return _whole(parts, f"no architecture is among the models with more than one {what}", measure)


def cut_off_matrices(requests: Iterator[Asked]) -> Found:
    """Cut every attention matrix at its ε-rank, and count what is left in both readings of "ratio"."""
    sheet, off = _Sheet(), 0
    for name, request in sheet.each(requests):
        weights = [one.weight.double().cpu() for one in weight_matrices(request.model, parts=ATTENTION)]
        spectra = {str(place): torch.linalg.svdvals(weight).numpy() for place, weight in enumerate(weights)}
        forms = [compress.BlockShape(1, *weight.shape) for weight in weights]
        for level in EPSILON:
            ranks = list(compress.ranks_by_epsilon(spectra, level).values())
            for weight, rank, values in zip(weights, ranks, spectra.values(), strict=True):
                residual = weight - compress.product(compress.truncate(weight, rank))
                off += int(torch.linalg.matrix_norm(residual, 2) > level * float(values[0]) * (1 + ROUNDING))
            ratio = compress.ratio_of(forms, ranks)
            sheet.put(name, f"ratio at ε = {level:g}, of ranks", ratio.ranks)
            sheet.put(name, f"ratio at ε = {level:g}, of entries of the factors", ratio.factors)
    sheet.values[paper.MODEL_CUT_OFF] = off
    for quantity, rank in ((paper.QUARTER, 16), (paper.HALF, 32)):
        ratio = compress.ratio_of([compress.BlockShape(12, 64, 768)], [rank])
        sheet.values[quantity] = ratio.ranks
        sheet.values[f"{quantity}, of entries of the factors"] = ratio.factors
    return sheet.result({}, **_levels())


def scores(requests: Iterator[Asked]) -> Found:
    """Score a model beside itself, and cut to a quarter of its ranks."""
    sheet, same = _Sheet(), dict.fromkeys((paper.SAME_MASE, paper.SAME_WQL), 0.0)
    for name, request in sheet.each(requests, series=True):
        run = request.run
        if request.model.takes_ids:
            continue
        quality = compress.quality(run, request.model)
        for quantity, error in ((paper.SAME_MASE, "mase"), (paper.SAME_WQL, "wql")):
            same[quantity] = _farthest(0.0, same[quantity], float(quality[f"{error}_rise_estimate"]))
        smaller, _ = compress.compressed(compress.calibration_run(run), 0.25)
        quality_at_quarter = compress.quality(run, smaller)
        for error in ("mase", "wql"):
            quantity = f"rise of {error.upper()} at a quarter of the ranks"
            sheet.put(name, quantity, float(quality_at_quarter[f"{error}_rise_estimate"]))
            ends = tuple(float(quality_at_quarter[f"{error}_rise_{end}"]) for end in ("low", "high"))
            if np.isfinite(ends).all():
                sheet.intervals[f"{name}: {quantity}"] = (ends[0], ends[1])
        if "overlap" in quality:
            whole, again, after = (
                float(each) for each in [*quality["log_perplexity"], quality_at_quarter["log_perplexity"][1]]
            )
            same[paper.SAME_OVERLAP] = _farthest(1.0, same.get(paper.SAME_OVERLAP, 1.0), float(quality["overlap"]))
            same[paper.SAME_LPPL] = _farthest(1.0, same.get(paper.SAME_LPPL, 1.0), again / whole)
            sheet.put(name, "overlap at a quarter of the ranks", float(quality_at_quarter["overlap"]))
            sheet.put(name, "log-perplexity at a quarter of the ranks, over its own", after / whole)
    sheet.values |= same
    return sheet.result({})


def embedded_spectra(requests: Iterator[Asked]) -> Found:
    """Measure ranks of embedded families of signals, and the share of a vocabulary in two directions."""
    sheet, shares, planes = _Sheet(), {}, {}
    for name, request in sheet.each(requests, series=True):
        ranks = _families(sheet, name, request)
        shares[name] = max(ranks[family] for family in ranks if family not in ("vocabulary", "zero"))
        if "vocabulary" in ranks:
            plane = vocabulary_plane(request.model)
            planes[name] = float(plane["neighbour_ratio"])
            sheet.put(name, "distance of neighbouring tokens over that of others, on two directions", planes[name])
            sheet.put(name, "share of the vocabulary's squares along two directions", float(plane["share"].sum()))
    claims = {
        paper.FASTER: _apart(sheet.of_text(shares), sheet.of_series(shares), f"share of directions at ε = {FINE:g}"),
        paper.STRUCTURED: _apart(
            sheet.of_text(planes), sheet.of_series(planes), "distance of neighbours over that of others"
        ),
    }
    return sheet.result(claims, **_levels())


def embedded_patches(requests: Iterator[Asked]) -> Found:
    """Measure ranks of embedded noise by patch size, and angles of its tokens beside those of random vectors."""
    sheet, by_patch, tokens = _Sheet(), {}, []
    for name, request in sheet.each(requests, series=True):
        if request.model.takes_ids:
            continue
        embedding = embedding_ranks(request.run, epsilon=EPSILON, seed=request.seed)
        beside = spectra_by_patch(request.run, epsilon=FINE, seed=request.seed)
        for label, patch, rank in zip(
            beside["embedding"].values, beside["patch"].values, beside["epsilon_rank"].values[0], strict=True
        ):
            of_model = str(label) == name
            sheet.put(name, f"{FINE:g}-rank of noise, {'' if of_model else 'random MLP of '}patch {patch}", rank)
            if of_model:
                k = float(patch)
                by_patch[name] = (k, float(rank) / request.model.wiring.stacks[0].d_model)
        angle, random = float(embedding["mean_angle"].sel(family="white noise")), float(embedding.attrs["random_angle"])
        for family in ("sinusoids", "white noise"):
            sheet.put(name, f"mean angle of tokens, {family}", float(embedding["mean_angle"].sel(family=family)))
        sheet.put(name, f"mean angle of random lines in {k:g} dimensions", random_angle(int(k)))
        sheet.put(name, f"mean angle of random lines in {embedding.attrs['d_model']} dimensions", random)
        tokens.append(_exact(name, angle < random, "mean angle of noise below that of random lines"))
    claims = {
        paper.BY_PATCH: sheet.steps(by_patch, "patch", "share of directions"),
        paper.SMALLER_SPACE: _whole(tokens, "no model of series is given", "mean angle"),
    }
    return sheet.result(claims, **_levels())


def embedded_noise(requests: Iterator[Asked]) -> Found:
    """Measure ranks of single signals of noise and of sinusoids, over signals."""
    sheet, parts = _Sheet(), []
    for name, request in sheet.each(requests, series=True):
        if request.model.takes_ids:
            continue
        embedding = embedding_ranks(request.run, epsilon=EPSILON, seed=request.seed)
        at = embedding.sel(epsilon=FINE)
        for family in ("sinusoids", "white noise"):
            sheet.put(name, f"{FINE:g}-rank of a signal of {family}", at["signal_rank_estimate"].sel(family=family))
            sheet.put(name, f"mean angle of tokens, {family}", embedding["mean_angle"].sel(family=family))
        noise, sines = (at["signal_rank"].sel(family=family).values for family in ("white noise", "sinusoids"))
        # any signal of noise against any sinusoid: they are drawn independently
        parts.append(Part(name, noise - sines, f"{FINE:g}-rank of a signal"))
    count = max((len(part.margins) for part in parts), default=0)
    parts = [
        replace(part, margins=np.pad(part.margins, (0, count - len(part.margins)), constant_values=np.nan))
        for part in parts
    ]
    claim = judged(parts, range(count), "pair") if parts else undecided("no model of series is given", "rank")
    return sheet.result({paper.RANDOM_HIGHER: claim}, **_levels())


def query_ranks(requests: Iterator[Asked]) -> Found:
    """Measure average ranks of W_Q by width."""
    sheet, shares = _Sheet(), {}
    for name, request in sheet.each(requests):
        ranks = ranks_by_model([request.model], epsilon=EPSILON).isel(model=0)
        width = float(ranks["width"])
        sheet.put(name, "d", width)
        for level, rank in zip(EPSILON, ranks["rank"].values, strict=True):
            sheet.put(name, f"mean {level:g}-rank of W_Q", rank)
            sheet.put(name, f"mean {level:g}-rank of W_Q over d", rank / width)
        shares[name] = (width, float(ranks["rank"].sel(epsilon=FINE)) / width)
    power, text = np.nan, sorted(sheet.of_text(shares).values())
    if len({width for width, _ in text}) > 1:
        widths, own = np.array(text).T
        power = float(np.polyfit(np.log(widths), np.log(own * widths), 1)[0])
        sheet.values["power of d that the rank of W_Q in language models grows with"] = power
    linear = [_exact("", power >= ALMOST_LINEAR, "power of d")] if np.isfinite(power) else []
    claims = {
        paper.STAYS_LOW: sheet.steps(sheet.of_series(shares), "width", "share of the full rank", falling=True),
        paper.LINEAR: _whole(linear, "language models of two widths or more are needed", "power of d"),
    }
    return sheet.result(claims, **_levels())


def ranks_by_layer(requests: Iterator[Asked]) -> Found:
    """Measure ranks of W_Q and of the input of every layer, of series and of the constant zero signal."""
    sheet, weights, inputs, clusters = _Sheet(), [], [], range(0)
    for name, request in sheet.each(requests, series=True):
        run = request.run
        flow = flow_of_ranks(run, epsilon=EPSILON, apart=len(run.batch))
        fine = flow.sel(epsilon=FINE)
        for layer, rank in zip(flow["layer"].values, fine["weight_rank"].values, strict=True):
            sheet.put(name, f"{FINE:g}-rank of W_Q, layer {layer}", rank)
        _streams(sheet, name, "series", fine)
        if not request.model.takes_ids:
            zeros = request.model.run([np.zeros(max(run.batch.lengths))], run.horizon, num_samples=run.num_samples)
            _streams(sheet, name, "the zero signal", flow_of_ranks(zeros, epsilon=[FINE]).sel(epsilon=FINE))
        ends = fine["weight_rank"].values[[0, -1]]
        weights.append(_exact(name, ends[1] > ends[0], f"{FINE:g}-rank of W_Q"))
        # the input of the last layer against that of the first
        rise = fine["series_rank"].isel(stream=-2) - fine["series_rank"].isel(stream=0)
        inputs.append(Part(name, rise.values, f"{FINE:g}-rank of the input"))
        clusters = range(flow.sizes["series"])
    claims = {paper.DEEPER_WEIGHTS: Verdict(tuple(weights)), paper.DEEPER_INPUT: judged(inputs, clusters)}
    return sheet.result(claims, **_levels())


def head_ranks(requests: Iterator[Asked]) -> Found:
    """Measure mean ranks of W_Q and its heads by number of heads, and whether rows of a head lie together."""
    sheet, whole, single, blocks = _Sheet(), {}, {}, []
    for name, request in sheet.each(requests):
        ranks = ranks_by_model([request.model], epsilon=FINE).isel(model=0, epsilon=0)
        heads, rank, own = (float(ranks[each]) for each in ("heads", "rank", "head_rank"))
        whole[name], single[name] = (heads, rank / float(ranks["width"])), (heads, own)
        sheet.put(name, "heads", heads)
        sheet.put(name, f"mean {FINE:g}-rank of W_Q", rank)
        sheet.put(name, f"mean {FINE:g}-rank of W_Q of one head", own)
        angles = row_angles(request.model, seed=request.seed).isel(layer=0)
        for which, words in (("within", "within a head"), ("between", "of different heads")):
            sheet.put(name, f"mean angle of rows {words}, first layer", float(angles[which]))
        blocks.append(_exact(name, bool(angles["closer_stands_out"]), "angle between heads less that within"))
    claims = {
        paper.MORE_HEADS: sheet.steps(whole, "heads", "share of the full rank"),
        paper.HEAD_CONSTANT: sheet.steps(single, "heads", "mean rank of a head", within=CONSTANT_WITHIN),
        paper.BLOCKS: Verdict(tuple(blocks)),
    }
    return sheet.result(claims, **_levels())


def weight_spectra(requests: Iterator[Asked]) -> Found:
    """Measure shares of relative singular values above 0.1 of W_Q and the MLP's first matrix, layer by layer."""
    sheet, shares, deeper, less = _Sheet(), {}, [], []
    for name, request in sheet.each(requests):
        stack = request.model.wiring.stacks[0]
        ranks = weight_ranks(request.model, stack=stack.name, epsilon=EPSILON, parts=["W_Q", "W_in"])
        share = ranks["decade_count"].isel(decade=0).values / ranks["full"].values
        kind = ranks["layer_kind"].values
        parts = ranks["part"].values
        queries = share[(parts == "W_Q") & (kind == kind[0])]
        hidden = share[parts == "W_in"]
        for layer, value in enumerate(queries):
            sheet.put(name, f"share of W_Q above 0.1, layer {layer}", value)
        shares[name] = float(np.median(queries))
        sheet.put(name, "share of the MLP's first matrix above 0.1, median layer", np.median(hidden))
        half = max(len(queries) // 2, 1)
        if name not in sheet.text:
            rise = queries[-half:].mean() > queries[:half].mean()
            deeper.append(_exact(name, rise, "share of the later half over the earlier"))
            less.append(_exact(name, np.median(queries) < np.median(hidden), "share above 0.1"))
    claims = {
        paper.WEIGHTS_FASTER: _apart(sheet.of_text(shares), sheet.of_series(shares), "share above 0.1"),
        paper.DEEPER_WEIGHTS: _whole(deeper, "no model of series is given", "share above 0.1"),
        paper.LESS_THAN_MLP: _whole(less, "no model of series is given", "share above 0.1"),
    }
    return sheet.result(claims)


def _families(sheet: _Sheet, name: str, request: Asked) -> dict[str, float]:
    """Compute the share of all directions that each family uses; leave out those that rounding hides."""
    ranks = embedding_ranks(request.run, epsilon=EPSILON, seed=request.seed).sel(epsilon=FINE)
    shares = {}
    for family in map(str, ranks["family"].values):
        one = ranks.sel(family=family)
        if bool(one["told"]):
            sheet.put(name, f"{FINE:g}-rank of {family}, of {int(one['full'])}", one["epsilon_rank"])
            shares[family] = float(one["epsilon_rank"] / one["full"])
    return shares


def _streams(sheet: _Sheet, name: str, what: str, fine: xr.Dataset) -> None:
    for place, rank in enumerate(fine["epsilon_rank"].values[:-1]):
        sheet.put(name, f"{FINE:g}-rank of the input of layer {place}, {what}", rank)


def _apart(more: dict[str, float], less: dict[str, float], of: str) -> Verdict:
    """Test that each value of the first is larger than each of the second."""
    parts = [_exact(f"{one} over {other}", more[one] > less[other], of) for one in more for other in less]
    return _whole(parts, "models of series and of text are both needed", of)


def _whole(parts: Sequence[Tested], why: str, of: str) -> Verdict:
    """Build a verdict of parts that need no draws, or say why there are none."""
    return Verdict(tuple(parts)) if parts else undecided(why, of)


def _exact(words: str, true: bool | np.bool_, of: str) -> Tested:
    return Tested(words, of, HOLDS if true else FAILS, why="exact, nothing is drawn")


def _farthest(reference: float, *values: float) -> float:
    """Return the value farthest from a reference; one that is no number is farthest."""
    return max(values, key=lambda value: abs(value - reference) if np.isfinite(value) else np.inf)


def _levels() -> dict[str, str]:
    return {"ε": f"{', '.join(f'{level:g}' for level in EPSILON)}, of claims {FINE:g}"}


MEASURES_OF_RANKS: dict[str, Callable[[Iterator[Asked]], Found]] = {
    "S0-F10": weight_spectra,
    "S0-F13": embedded_noise,
    "S0-F2": embedded_spectra,
    "S0-F3": embedded_patches,
    "S0-F4": query_ranks,
    "S0-F5": ranks_by_layer,
    "S0-F6": ranks_by_layer,
    "S0-F9": head_ranks,
    "S0-METR": scores,
    "S0-TSVD": cut_off_matrices,
}
