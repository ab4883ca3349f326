"""Measures of the numbers of the paper on structured attention, on runs whose results ship and by counting."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import xarray as xr

from tsfm_lens.studies import structured
from tsfm_lens.studies.experiments import record
from tsfm_lens.studies.papers import items_structured as paper
from tsfm_lens.studies.papers.measures_structured_runs import MEASURES_OF_GRIDS
from tsfm_lens.studies.papers.measuring import Asked, Found
from tsfm_lens.studies.papers.verdicts import Part, Verdict, exactly, interval, judged

DRAWS = 20
ABOVE = "error, less that of the other"
NEAREST_ZERO = 1e-10
"""Differences below this in float64 are rounding."""


def _arms(data: xr.Dataset) -> dict[str, np.ndarray]:
    """Return errors after the last pair by arm without its width, NaN where a seed was not trained."""
    groups = [str(group) for group in data["group"].values]
    return dict(zip(groups, data["by_pairs"].isel(pairs=-1).transpose("arm", "seed").values, strict=True))


def _judge(data: xr.Dataset, *pairs: tuple[str, str, str]) -> Verdict:
    """Test whether each first arm errs more than the second, over the seeds that both have."""
    errors = _arms(data)
    parts = [Part(words, errors[more] - errors[less], ABOVE) for words, more, less in pairs]
    return judged(parts, range(data.sizes["seed"]), "seed")


def _result(data: xr.Dataset, values: dict[str, float], claims: dict[str, Verdict]) -> Found:
    errors, facts = _arms(data), data.attrs
    counts = [int(np.isfinite(of_seeds).sum()) for of_seeds in errors.values()]
    result = Found(
        values,
        {
            "inputs": str(facts["inputs"]),
            "width": ", ".join(map(str, sorted(set(data["width"].values.tolist())))),
            "layers": str(facts["layers"]),
            "steps": f"{facts['steps']:,}",
            "tokens": {"pairs": "one of x and the pair before"}.get(str(facts.get("tokens")), "one of x or y"),
            "seeds": " to ".join(map(str, sorted({min(counts), max(counts)}))),
            "intervals over": "seeds",
        },
        claims=claims,
    )
    for arm, of_seeds in errors.items():
        mean = interval(of_seeds, range(len(of_seeds)))
        result.values[paper.AFTER.format(arm=arm)] = mean.estimate
        if np.isfinite(mean.low):
            result.intervals[paper.AFTER.format(arm=arm)] = (mean.low, mean.high)
    return result


def by_rank(request: Asked) -> Found:
    """Measure figures 2 and 6: one head by the rank of its scores, against one of full rank."""
    data = record("in_context")
    inputs, full = int(data.attrs["inputs"]), f"1 head, rank {int(data['width'].max())}"
    ratios = {
        str(arm): float(ratio) for arm, ratio in zip(data["group"].values, data["rank_ratio"].values, strict=True)
    }
    low = [arm for arm, ratio in ratios.items() if arm.startswith("1 head, rank") and ratio < 1]
    claim = _judge(data, *((f"{arm}, against full rank", arm, full) for arm in low))
    start = data["curve"].isel(epoch=0).values
    values = {
        # the same untrained error in every run, on prompts whose answers have a mean square near 1
        paper.UNLEARNED: float(start[np.isfinite(start)].mean()),
        paper.SOLVED: float(structured.oracle_errors(inputs, data.sizes["pairs"])[-1]),
    }
    return _result(data, values, {paper.LOW_FAILS: claim})


def by_form(request: Asked) -> Found:
    """Measure figure 3: eight heads against one, and structured forms against low rank of as many parameters."""
    data = record("in_context")
    full = f"1 head, rank {int(data['width'].max())}"
    sizes = {str(arm): int(n) for arm, n in zip(data["group"].values, data["score_parameters"].values, strict=True)}
    eight = next(arm for arm in sizes if arm.startswith("8 heads, rank"))
    pairs, of_eight = [], []
    for form in (arm for arm in sizes if "MLR" in arm or "BTT" in arm):
        if form.startswith("8 heads"):
            of_eight.append((form.removeprefix("8 heads, "), eight, form))
            continue
        alike = [arm for arm in sizes if arm.startswith("1 head, rank") and sizes[arm] == sizes[form]]
        pairs += [(f"{form}, against {same.removeprefix('1 head, ')}", same, form) for same in alike]
    claims = {paper.EIGHT_FAIL: _judge(data, ("", eight, full)), paper.STRUCTURED: _judge(data, *pairs)}
    if of_eight:
        claims[paper.STRUCTURED_EIGHT] = _judge(data, *of_eight)
    return _result(data, {}, claims)


def by_width(request: Asked) -> Found:
    """Measure figures 3a and 11: errors of 1 head, 8 heads and 8 heads of BTT at each width."""
    data = record("in_context_widths")
    # a group of arms is a form at all widths; here each width is its own group
    data = data.assign_coords(group=("arm", [str(name) for name in data["arm"].values]))
    widths = sorted(set(data["width"].values.tolist()))
    wide = _judge(data, ("", f"8 heads, D = {widths[-1]}", f"1 head, D = {widths[-1]}"))
    forms = [(f"D = {width}", f"8 heads, D = {width}", f"8 heads, BTT, D = {width}") for width in widths]
    return _result(data, {}, {paper.EIGHT_WIDE: wide, paper.FORMS_WIDE: _judge(data, *forms)})


def families(request: Asked) -> Found:
    """Check table 1 by the modules themselves."""
    forms = {
        "low rank, r = 8": structured.LowRank(64, 64, 8),
        f"MLR {paper.RANKS}": structured.MultiLevelLowRank(64, 64, (16, 8, 4, 4)),
        "BTT, s = 2": structured.BlockTensorTrain(64, 64, 2),
    }
    values = {paper.PARAMETERS.format(family="dense"): float(torch.nn.Linear(64, 64, bias=False).weight.numel())}
    for family, form in forms.items():
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(request.seed)
            for part in form.parameters():
                part.normal_()
            values[paper.PARAMETERS.format(family=family)] = float(sum(part.numel() for part in form.parameters()))
            values[paper.RANK.format(family=family)] = float(torch.linalg.matrix_rank(form.double().dense()))
    return Found(values, {"ranks": "of matrices drawn here, in float64"})


def level_costs(request: Asked) -> Found:
    """Count the costs of table 2."""
    values: dict[str, float] = {}
    claims: dict[str, Verdict] = {}
    for words, ranks in (("32|8|8|16", (32, 8, 8, 16)), ("8 of 8", paper.EIGHT)):
        costs = structured.bilinear_level_operations(**paper.WIDE, ranks=ranks)
        least = min(costs.values())
        holds = exactly("", true=costs["c"] == least, of="multiply-adds of c, less the fewest")
        claims[paper.BEST.format(ranks=words)] = holds
        values |= {paper.COST.format(ranks=words, order=order): float(cost) for order, cost in costs.items()}
    return Found(values, claims=claims)


def train_costs(request: Asked) -> Found:
    """Count the costs of table 3."""
    costs = structured.bilinear_train_operations(256, 256, 2)
    words = {"both": "both sides", "keys": "keys alone"}
    return Found({paper.TRAIN.format(order=words[order]): float(cost) for order, cost in costs.items()})


def key_cache(request: Asked) -> Found:
    """Count the numbers in a cache of 1,024 tokens, against those of standard attention."""
    return Found(
        {
            paper.SAVES.format(ranks=words): 1024 * sum(ranks) / structured.key_cache_entries(1024, ranks)
            for words, ranks in paper.LISTS.items()
        },
        {"tokens": "1,024"},
    )


def score_costs(request: Asked) -> Found:
    """Compute T² Σ r_l / 2^(l-1) over T² Σ r_l."""
    return Found(
        {
            paper.FORMED.format(ranks=words): float(
                structured.level_attention_operations(1024, ranks) / (1024**2 * sum(ranks))
            )
            for words, ranks in paper.LISTS.items()
        },
        {"tokens": "1,024"},
    )


def lemma(request: Asked) -> Found:
    """Compare scores by blocks with x_jᵀ (Σ L_l R_lᵀ up to the deepest common level) x_j', in float64."""
    ranks, tokens, width = (3, 2, 2), 16, 5
    generator, apart = torch.Generator().manual_seed(request.seed), 0.0
    blocks = structured.token_blocks(tokens, len(ranks))
    depth = structured.block_depth(tokens, blocks)
    for _ in range(request.seeds or DRAWS):
        x = torch.randn(tokens, width, dtype=torch.float64, generator=generator)
        left, right = (
            [torch.randn(width, rank, dtype=torch.float64, generator=generator) for rank in ranks] for _ in range(2)
        )
        reach = structured.Reach(ranks, blocks, causal=False)
        scores = structured.reaching_scores(x @ torch.cat(left, 1), x @ torch.cat(right, 1), reach)
        forms = torch.stack([a @ b.T for a, b in zip(left, right, strict=True)]).cumsum(0)
        direct = torch.einsum("qd,qkde,ke->qk", x, forms[depth - 1], x)
        apart = max(apart, float((scores - direct).abs().max() / direct.abs().max()))
    values = {paper.APART: 0.0 if apart < NEAREST_ZERO else apart, "the same, as it is": apart}
    return Found(values, {"draws": str(request.seeds or DRAWS)})


MEASURES_OF_STRUCTURED: dict[str, Callable[[Asked], Found]] = {
    **MEASURES_OF_GRIDS,
    "S2-F2": by_rank,
    "S2-F3": by_form,
    "S2-F11": by_width,
    "S2-FL": score_costs,
    "S2-KV": key_cache,
    "S2-L1": lemma,
    "S2-T1": families,
    "S2-T2": level_costs,
    "S2-T3": train_costs,
}
