"""Measures of the numbers of the paper on structured attention.

Errors are read from runs whose results ship; costs and ranks are counted, or checked on
small random matrices. One function an item; :func:`by_rank` is the one to read first.
The modules that are counted are in :mod:`tsfm_lens.studies.structured`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from itertools import chain, product
from typing import Any

import numpy as np
import torch
import xarray as xr

from tsfm_lens.compress.timing import ratios
from tsfm_lens.studies import structured
from tsfm_lens.studies.experiments.grids import errors_by_rate, with_forms
from tsfm_lens.studies.experiments.records import record
from tsfm_lens.studies.experiments.running import prepare
from tsfm_lens.studies.papers.context import (
    Context,
    MeasuredValues,
    describe_distance,
    describe_seeds,
    from_record,
    measure,
)
from tsfm_lens.studies.papers.values import by_name
from tsfm_lens.studies.papers.verdicts import (
    POSITIVE,
    ClaimPart,
    Verdict,
    exactly,
    judge_parts,
)
from tsfm_lens.studies.queue.driver import PLAN
from tsfm_lens.studies.queue.language import LEVELLED
from tsfm_lens.studies.queue.trainings import ENCODERS, SINGLE, single_token_arms
from tsfm_lens.studies.train_config import TrainConfig

TOKENS = 1024
WINDOW = 128
EIGHT = (8,) * 8
LISTS = {
    "r/8, 8 levels": EIGHT,
    "32|8|6|4|4|4|4|2": (32, 8, 6, 4, 4, 4, 4, 2),
    "32|10|8|8|4|2": (32, 10, 8, 8, 4, 2),
    "48|16": (48, 16),
    "40|16|4|4": (40, 16, 4, 4),
}
"""The paper's ranks of MLR attention."""


# --- regression in context ------------------------------------------------------------


def _errors(data: xr.Dataset) -> dict[str, np.ndarray]:
    """Return errors after the last pair by arm, without the arm's width.

    An error is NaN where a seed was not trained.
    """
    return by_name(data["by_pairs"].isel(pairs=-1).swap_dims(arm="group"), "group")


def _verdict(data: xr.Dataset, *pairs: tuple[str, str, str]) -> Verdict:
    """Test whether each first arm errs more than the second, over seeds of both."""
    errors = _errors(data)
    of = "error, less that of the other"
    parts = [
        ClaimPart(text, errors[more] - errors[less], of) for text, more, less in pairs
    ]
    return judge_parts("seed", *parts)


def _result(data: xr.Dataset, claims: dict[str, Verdict]) -> MeasuredValues:
    errors = _errors(data)
    metadata = data.attrs
    settings = {
        "inputs": metadata["inputs"],
        "width": np.unique(data["width"]),
        "layers": metadata["layers"],
        "steps": f"{metadata['steps']:,}",
        "tokens": "one of x and the pair before",
        "seeds": describe_seeds(
            data, [np.isfinite(of_seeds).sum() for of_seeds in errors.values()]
        ),
        "intervals over": "seeds",
    }
    result = MeasuredValues(settings=settings, claims=claims)
    result.means("error after the last pair, {}", errors, POSITIVE)
    longer = single_tokens()
    text = f"{longer.attrs['steps']:,} steps with tokens of x or y"
    errors = _errors(longer)
    result.means(f"error after the last pair, {text}, {{}}", errors, POSITIVE)
    least = min(map(np.median, errors.values()))
    result.notes = (
        f"claims on 8 heads at one width are of {text}, {len(longer['seed'])} seeds;"
        f" the best arm has a median error of {least:.2f} there, and 1 is no knowledge",
    )
    return result


def single_tokens() -> xr.Dataset:
    """Load the longer runs, of the paper's tokens, with ranks and sizes of arms."""
    return with_forms(record(SINGLE), single_token_arms())


def _full_rank(data: xr.Dataset) -> str:
    return f"1 head, rank {int(data['width'].max())}"


def _of_eight_heads() -> dict[str, Verdict]:
    """Judge claims on 8 heads by the longer runs."""
    data = single_tokens()
    eight = [arm for arm in data["group"].values.tolist() if arm.startswith("8 heads")]
    (low,) = (arm for arm in eight if arm.startswith("8 heads, rank"))
    forms = [(arm.removeprefix("8 heads, "), low, arm) for arm in eight if arm != low]
    return {
        "eight_fail": _verdict(data, ("", low, _full_rank(data))),
        "structured_eight": _verdict(data, *forms),
    }


@from_record("S2-F2")
def by_rank() -> MeasuredValues:
    """Measure figures 2 and 6: one head by the rank of its scores, or of full rank."""
    data = record("in_context")
    low = data["group"].values[data["rank_ratio"].values < 1].tolist()
    pairs = [
        (f"{arm}, against full rank", arm, _full_rank(data))
        for arm in low
        if arm.startswith("1 head, rank")
    ]
    claims = {
        "low_fails": _verdict(data, *pairs),
        "eight_fail": _of_eight_heads()["eight_fail"],
    }
    result = _result(data, claims)
    # the same untrained error in every run, on prompts whose answers have a mean
    # square near 1
    unlearned = np.nanmean(data["curve"].isel(epoch=0).values)
    inputs = int(data.attrs["inputs"])
    solved = structured.oracle_errors(inputs, data.sizes["pairs"])[-1]
    values = {"unlearned": float(unlearned), "solved": float(solved)}
    result.values = values | result.values
    return result


@from_record("S2-F3")
def by_form() -> MeasuredValues:
    """Measure figure 3: eight heads against one, and structured forms against low rank.

    A structured form is compared with low rank of the same number of parameters.
    """
    data = record("in_context")
    names = data["group"].values.tolist()
    sizes = dict(zip(names, data["score_parameters"].values, strict=True))
    pairs = [
        (f"{form}, against {low.removeprefix('1 head, ')}", low, form)
        for form, low in product(sizes, sizes)
        if form.startswith(("1 head, MLR", "1 head, BTT"))
        and low.startswith("1 head, rank")
        and sizes[low] == sizes[form]
    ]
    return _result(data, {"structured": _verdict(data, *pairs), **_of_eight_heads()})


@from_record("S2-F11")
def by_width() -> MeasuredValues:
    """Measure figures 3a and 11: errors at each width.

    The forms are 1 head, 8 heads, and 8 heads of BTT.
    """
    data = record("in_context_widths")
    # a group of arms is a form at all widths; here each width is its own group
    data = data.assign_coords(group=data["arm"])
    widths = np.unique(data["width"])
    widest = f"D = {widths[-1]}"
    forms = [
        (f"D = {width}", f"8 heads, D = {width}", f"8 heads, BTT, D = {width}")
        for width in widths
    ]
    claims = {
        "eight_wide": _verdict(data, ("", f"8 heads, {widest}", f"1 head, {widest}")),
        "forms_wide": _verdict(data, *forms),
    }
    return _result(data, claims)


# --- other trainings ------------------------------------------------------------------


@from_record("S2-ETT")
def forecasts() -> MeasuredValues:
    """Measure figure 14: test errors over those of standard attention.

    Errors are absolute, and compared by the same seed.
    """
    data, longer = map(record, ("encoders", ENCODERS))
    errors = by_name(data["test_mae"]) | by_name(longer["test_mae"])
    plan = PLAN["last"][ENCODERS]
    horizons = ", ".join(map(str, plan["horizons"]))
    seeds = describe_seeds(data, data["test_mae"].notnull().sum("seed"))
    settings = {
        "width": 32,
        "heads": 4,
        "layers": 2,
        "steps": f"one epoch; at T of {horizons} {plan['epochs']} epochs",
        "seeds": f"{seeds}; at these {len(longer['seed'])}",
        "intervals over": "seeds",
    }
    result = MeasuredValues(settings=settings)

    def gain(form: str, horizon: int) -> np.ndarray:
        standard, other = (
            errors[f"{arm}, T = {horizon}"] for arm in ("standard", form)
        )
        return np.asarray(np.log(standard) - np.log(other))

    two, four = "MLR attention 6+2", "MLR attention 4+2+1+1"
    of = "logarithm of the ratio of absolute errors"
    result.judge("better", gain(two, 96), of)
    result.judge("better_336", gain(two, 336), of)
    result.judge("grows", gain(four, 336) - gain(four, 192), of)
    by_horizon = sorted(errors, key=lambda arm: int(arm.rpartition(" ")[2]))
    for arm in by_horizon:
        form, _, horizon = arm.rpartition(", ")
        if form == "standard":
            result.mean(f"absolute error, {arm}", errors[arm], POSITIVE)
        else:
            result.mean(
                f"absolute error over that of standard attention, less 1, {arm}",
                errors[arm] / errors[f"standard, {horizon}"] - 1,
                (-1.0, math.inf),
            )
    return result


@from_record("S2-CHR")
def chronos() -> MeasuredValues:
    """Measure figure 15: losses at equal steps, and costs of the scores."""
    data = record(LEVELLED)
    loss = by_name(data["loss"])
    metadata = data.attrs
    settings = {
        "steps": f"{metadata['steps']:,} of {metadata['rows']} rows",
        "context": metadata["context"],
        "horizon": metadata["horizon"],
        "ranks": "of heads of 16",
        "layers": "the encoder's",
        "seeds": describe_seeds(data, data.sizes["seed"]),
        "intervals over": "seeds",
    }
    result = MeasuredValues(settings=settings)
    margins = np.log(loss["standard"]) - np.log(loss["MLR 8+2+2+2+1+1"])
    result.judge("reaches", margins, "logarithm of the ratio of losses")
    of_standard = "of standard attention"
    for arm, of_seeds in loss.items():
        result.mean(f"loss in nats, {arm}", of_seeds, POSITIVE)
        if arm != "standard":
            excess = of_seeds - loss["standard"]
            result.mean(f"loss in nats, less that {of_standard}, {arm}", excess)
            text = f"multiply-adds of the encoder's scores over those {of_standard}"
            result.add(f"{text}, {arm}", data["score_share"].sel(arm=arm))
    return result


def rate_errors() -> xr.Dataset:
    """Read the errors by learning rate, at six rates of three widths."""
    return errors_by_rate(record("transfer_rates"))


@from_record("S2-F5")
def rates() -> MeasuredValues:
    """Measure figure 5: the rate of the lowest error at every width."""
    data = rate_errors()
    settings = {
        "widths": data["width"],
        "data": "prompts of linear regression",
        "heads": "of 4",
        "steps": data.attrs["steps"],
        "seeds": describe_seeds(data, data.sizes["seed"]),
        "intervals over": "seeds",
    }
    result = MeasuredValues(settings=settings)
    changes = {}
    for kind, errors in by_name(
        data["mse"].transpose(..., "width", "seed", "rate"), "parametrisation"
    ).items():
        best = data["rate"].values[errors.argmin(-1)]
        changes[kind] = abs(np.log(best[-1]) - np.log(best[0]))
        text = f"best rate at the largest width over that at the smallest, {kind}"
        result.mean(text, best[-1] / best[0], POSITIVE)
        lowest = zip(data["width"].values, errors.min(-1), strict=True)
        result.means(f"lowest error, {kind}, width {{}}", dict(lowest), POSITIVE)
    margins = changes["standard parametrisation"] - changes["μP"]
    of = "logarithm by which the best rate changes, less that by μP"
    result.judge("transfers", margins, of)
    return result


@from_record("S2-LM")
def language_models() -> MeasuredValues:
    """Compare models of characters by their scoring function."""
    return compare_losses(record("language_runs"), PLAN["language"])


def compare_losses(data: xr.Dataset, plan: Mapping[str, Any]) -> MeasuredValues:
    """Compare the loss of MLR attention with that of the other kinds of attention.

    A power law through the widths of another kind gives its loss at the operations of
    MLR attention. The widths of a seed are one unit of the test.
    """
    widths, seeds = plan["widths"], plan["seeds"]
    operations = data["operations_scores"] + data["operations_values"]
    operations = operations + data["operations_rest"]
    titles = {arm: [f"{arm}, D = {width}" for width in widths] for arm in plan["arms"]}
    losses = data["validation"].sel(seed=seeds).transpose("arm", "seed")
    # (width,) and (width, seed) by kind of attention
    costs, logarithms = (
        {arm: np.log(values.sel(arm=titles[arm]).values) for arm in titles}
        for values in (operations, losses)
    )
    settings = {
        "data": data.attrs["text"],
        "width": widths,
        **{name: f"{data.attrs[name]:,}" for name in ("tokens", "layers", "steps")},
        "seeds": describe_seeds(data, len(seeds)),
        "intervals over": "seeds",
    }
    result = MeasuredValues(settings=settings)
    for arm in titles:
        if arm == "MLR":
            continue
        slope, start = np.polyfit(costs[arm], logarithms[arm], 1)
        law = slope * costs["MLR"][:, None] + start
        margins = (law - logarithms["MLR"]).mean(0)
        result.judge(f"lower than {arm}", margins, "logarithm of the ratio of losses")
    for title in chain(*titles.values()):
        of_arm = losses.sel(arm=title).values
        result.mean(f"loss in nats, {title}", of_arm, POSITIVE)
        result.add(f"multiply-adds, {title}", operations.sel(arm=title))
    return result


@measure("S2-F12", draws=12)
def step_time(context: Context) -> MeasuredValues:
    """Measure figure 12: full training steps at the paper's size, timed in turn."""
    steps = []
    for name in ("attention", "bilinear-btt"):
        content = {
            "model": {"name": name, "options": {"width": 64, "layers": 6, "heads": 8}},
            "data": {"kind": "in-context", "inputs": 16, "held_out": 1},
            "plan": {"batch": 64},
        }
        steps.append(prepare(TrainConfig.model_validate(content))[0].train_step)
    plain, form = steps
    # processor time, to which other processes of the machine do not add
    ((middle, low, high),) = ratios(
        [form], plain, rounds=context.draws, clock=time.process_time
    )
    settings = {
        "inputs": 16,
        "width": 64,
        "heads": 8,
        "layers": 6,
        "device": "CPU, one thread or as set",
    }
    result = MeasuredValues(settings=settings)
    result.add("slower", middle, low, high)
    return result


# --- counts ---------------------------------------------------------------------------


@measure("S2-SWA")
def windows(context: Context) -> MeasuredValues:
    """Count keys that are scored at all, and shares of pairs by pattern of layers."""
    x = torch.ones(1, TOKENS, 1)
    near = structured.Reach((1,), (TOKENS,), causal=True, window=WINDOW)
    full = structured.Reach((1,), (TOKENS,), causal=True)
    scores = [structured.reaching_scores(x, x, distance) for distance in (near, full)]
    keys_near, keys = (torch.isfinite(score).sum(-1)[0] for score in scores)
    windowed = float(keys_near.sum())
    total = float(keys.sum())
    text = "multiply-adds of the scores over those of standard attention"
    values = {
        "seen": keys_near.max(),
        f"{text}, windows in every layer": windowed / total,
        # global, window, window, twice, as in the published code
        f"{text}, one layer in three global": (total + 2 * windowed) / (3 * total),
    }
    return MeasuredValues(
        values, {"tokens": f"{TOKENS:,}", "window": WINDOW, "layers": 6}
    )


@measure("S2-T1")
def families(context: Context) -> MeasuredValues:
    """Check table 1 by the modules themselves."""
    forms = {
        "low rank, r = 8": structured.MultiLevelLowRank(64, 64, (8,)),
        "MLR 16|8|4|4": structured.MultiLevelLowRank(64, 64, (16, 8, 4, 4)),
        "BTT, s = 2": structured.BlockTensorTrain(64, 64, 2),
    }
    values = {
        "parameters, dense, D = 64": torch.nn.Linear(64, 64, bias=False).weight.numel()
    }
    for family, form in forms.items():
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(context.seed)
            for part in form.parameters():
                part.normal_()
            values[f"parameters, {family}, D = 64"] = sum(
                part.numel() for part in form.parameters()
            )
            rank = torch.linalg.matrix_rank(form.double().dense())
            values[f"rank, {family}, D = 64"] = int(rank)
    return MeasuredValues(values, {"ranks": "of matrices drawn here, in float64"})


@measure("S2-T2")
def level_costs(context: Context) -> MeasuredValues:
    """Count the costs of table 2."""
    result = MeasuredValues()
    for text, ranks in (("32|8|8|16", (32, 8, 8, 16)), ("8 of 8", EIGHT)):
        costs = structured.bilinear_level_operations(tokens=256, width=512, ranks=ranks)
        cheapest = costs["c"] == min(costs.values())
        result.claims[f"best {text}"] = Verdict(
            (exactly("", cheapest, "multiply-adds of c, less the fewest"),)
        )
        for order, cost in costs.items():
            quantity = f"multiply-adds, T = 256, D = 512, ranks {text}, order {order}"
            result.add(quantity, cost)
    return result


@measure("S2-T3")
def train_costs(context: Context) -> MeasuredValues:
    """Count the costs of table 3."""
    costs = structured.bilinear_train_operations(256, 256, 2)
    sides = {"both": "both sides", "keys": "keys alone"}
    values = {
        f"multiply-adds, T = D = 256, s = 2, {sides[order]}": cost
        for order, cost in costs.items()
    }
    return MeasuredValues(values)


@measure("S2-KV")
def key_cache(context: Context) -> MeasuredValues:
    """Count the numbers in a cache of 1,024 tokens, against standard attention."""
    values = {
        f"key cache, times smaller, {text}": (
            TOKENS * sum(ranks) / structured.key_cache_entries(TOKENS, ranks)
        )
        for text, ranks in LISTS.items()
    }
    return MeasuredValues(values, {"tokens": "1,024"})


@measure("S2-FL")
def score_costs(context: Context) -> MeasuredValues:
    """Compute T² Σ r_l / 2^(l-1) over T² Σ r_l."""
    values = {
        f"multiply-adds of the scores over those of standard attention, {text}": (
            structured.level_attention_operations(TOKENS, ranks)
            / (TOKENS**2 * sum(ranks))
        )
        for text, ranks in LISTS.items()
    }
    return MeasuredValues(values, {"tokens": "1,024"})


@measure("S2-L1", draws=20)
def lemma(context: Context) -> MeasuredValues:
    """Compare scores by blocks with the direct formula, in float64.

    It is x_jᵀ (Σ L_l R_lᵀ) x_j', summed up to the deepest level that both tokens share.
    """
    ranks = (3, 2, 2)
    tokens = 16
    width = 5
    generator = torch.Generator().manual_seed(context.seed)
    largest = 0.0
    blocks = structured.token_blocks(tokens, len(ranks))
    depth = structured.block_depth(tokens, blocks)
    for _ in range(context.draws):
        x = torch.randn(tokens, width, dtype=torch.float64, generator=generator)
        left, right = (
            [
                torch.randn(width, rank, dtype=torch.float64, generator=generator)
                for rank in ranks
            ]
            for _ in range(2)
        )
        distance = structured.Reach(ranks, blocks, causal=False)
        scores = structured.reaching_scores(
            x @ torch.cat(left, 1), x @ torch.cat(right, 1), distance
        )
        forms = torch.stack([a @ b.T for a, b in zip(left, right, strict=True)]).cumsum(
            0
        )
        direct = torch.einsum("qd,qkde,ke->qk", x, forms[depth - 1], x)
        largest = max(
            largest, float((scores - direct).abs().max() / direct.abs().max())
        )
    return describe_distance(context, largest, 1e-10)
