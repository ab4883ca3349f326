"""Cells of models with structured attention: of characters, and Chronos by levels.

Language models differ in their scoring function. Read :func:`language_run` first, which
trains one and returns its part of the record; functions ``…_cells`` list the cells. The
scoring functions are in :mod:`tsfm_lens.studies.structured`, the text in
:mod:`tsfm_lens.studies.queue.text`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
import xarray as xr
from torch import Tensor, nn

from tsfm_lens.studies.experiments.running import make_optimizer
from tsfm_lens.studies.queue.driver import PLAN, QueueCell, Workplace, read_record
from tsfm_lens.studies.queue.text import (
    SYMBOLS,
    Text,
    check_text,
    draw_windows,
    find_text,
)
from tsfm_lens.studies.recipes.levels import LEVELS, level_record, level_run
from tsfm_lens.studies.recipes.lowrank import load_series
from tsfm_lens.studies.samformer.tasks import cosine_by_epoch
from tsfm_lens.studies.structured.counts import level_attention_operations
from tsfm_lens.studies.structured.forms import (
    ScoringForm,
    Standard,
    TokenLevels,
    form_of_name,
    mixed,
)
from tsfm_lens.studies.structured.models import Encoder, TokenEmbedding
from tsfm_lens.studies.structured.training import redraw
from tsfm_lens.studies.train_config import OptimizerFields
from tsfm_lens.training import Plan, Training, read_log
from tsfm_lens.training.state import LOG

ORDER = 4
SETTINGS: Mapping[str, Any] = PLAN["language"]
LAST_ORDER = 6
WIDE_ORDER = 7
LANGUAGE = "language_runs"
WIDE = "language_runs_wide"
LEVELLED = "chronos_level_runs"
IDS = {
    **dict.fromkeys((LANGUAGE, WIDE), "S2-LM S2-F4 S2-F13"),
    LEVELLED: "S2-CHR S2-F15",
}


class LanguageModel(nn.Module):
    """Causal model of characters.

    It maps numbers of symbols (batch, token) to logits (batch, token, symbol) of the
    next one.
    """

    def __init__(
        self,
        width: int,
        layers: int,
        heads: int,
        forms: Sequence[ScoringForm],
        tokens: int,
    ) -> None:
        super().__init__()
        self.embed = TokenEmbedding(len(SYMBOLS), width, tokens)
        self.encoder = Encoder(width, layers, heads, forms)
        self.read_out = nn.Linear(width, len(SYMBOLS))

    def forward(self, ids: Tensor) -> Tensor:
        """Compute the logits of the symbol after each."""
        symbols = F.one_hot(ids, len(SYMBOLS)).to(self.read_out.weight)
        logits: Tensor = self.read_out(self.encoder(self.embed(symbols)))
        return logits


class LanguageTask:
    """Task of a model of characters, on windows drawn anew for every step."""

    name = "characters"

    def __init__(
        self,
        model: LanguageModel,
        text: Text,
        seed: int,
        arm: str,
    ) -> None:
        self.model: nn.Module = model
        self.seed = seed
        self.batch = SETTINGS["batch"]
        self.tokens = SETTINGS["tokens"]
        self.training = torch.from_numpy(text.training.astype(np.int64))
        held_out = torch.from_numpy(text.held_out.astype(np.int64))
        length = self.tokens + 1
        self.held_out = draw_windows(held_out, SETTINGS["held_out"], length, 0, 1)
        sizes = {name: list(part.shape) for name, part in model.named_parameters()}
        settings = {
            "arm": arm,
            "seed": seed,
            "text": text.digest,
            "sizes": sizes,
            **SETTINGS["training"],
            "batch": self.batch,
            "tokens": self.tokens,
        }
        # a run whose identity differs in any of these is not resumed
        self.identity = json.dumps(settings, sort_keys=True)

    def _loss(self, windows: Tensor) -> Tensor:
        windows = windows.to(next(self.model.parameters()).device)
        return F.cross_entropy(
            self.model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten()
        )

    def loss(self, step: int) -> Tensor:
        """Compute the cross-entropy of a batch in nats a symbol."""
        length = self.tokens + 1
        return self._loss(
            draw_windows(self.training, self.batch, length, self.seed, 0, step)
        )

    def evaluate(self) -> dict[str, float]:
        """Compute the cross-entropy on the windows that are held out."""
        self.model.eval()
        with torch.no_grad():
            losses = [
                float(self._loss(part)) for part in self.held_out.split(self.batch)
            ]
        self.model.train()
        return {"validation": float(np.mean(losses))}


def list_forms(arm: str) -> tuple[ScoringForm, ...]:
    """Return the scoring function of every layer."""
    forms = SETTINGS["arms"][arm]["forms"]
    pattern = [form_of_name(form["name"], form.get("options", {})) for form in forms]
    return mixed(SETTINGS["layers"], pattern)


def operations(
    forms: Sequence[ScoringForm], width: int, heads: int, tokens: int
) -> dict[str, float]:
    """Count the multiply-adds of a forward of one sequence (S2-F4).

    They are those of scores, of sums of values, and of all else.
    """
    d_head = width // heads
    scores = values = rest = 0.0
    for form in forms:
        projections = 4 * width**2
        seen = tokens
        if isinstance(form, TokenLevels):
            scores += heads * float(level_attention_operations(tokens, form.ranks))
            projections = 2 * width * heads * sum(form.ranks) + 2 * width**2
        else:
            assert isinstance(form, Standard)
            if form.window is not None:
                seen = min(tokens, form.window + 1)
            scores += heads * tokens * seen * d_head
        values += heads * tokens * seen * d_head
        rest += tokens * (projections + 8 * width**2)
    rest += 2 * tokens * width * len(SYMBOLS)
    return {"scores": scores, "values": values, "rest": rest}


def language_run(
    record: str, arm: str, width: int, seed: int, workplace: Workplace
) -> xr.Dataset | None:
    """Train one model of characters; None if it was stopped.

    Wide ones train on a GPU.

    Raises:
        InputError: the record is of another text, as another version of Python has.
    """
    text = find_text(workplace.records)
    for name in (LANGUAGE, record):
        check_text(read_record(workplace.records / f"{name}.nc"), text)
    heads = width // SETTINGS["d_head"]
    layers, tokens = SETTINGS["layers"], SETTINGS["tokens"]
    forms = list_forms(arm)
    model = LanguageModel(width, layers, heads, forms, tokens)
    redraw(model, seed)
    if record == WIDE:
        model.to("cuda")
    task = LanguageTask(model, text, seed, arm)
    training = SETTINGS["training"]
    fields = OptimizerFields(**training["optimizer"])
    steps = training["steps"]
    every = training["evaluate_every"]
    falling = cosine_by_epoch(fields.learning_rate, 1, epochs=steps, floor=0.0)

    def rate(step: int) -> float:
        return falling(step) * min(1.0, (step + 1) / fields.warm_up)

    plan = Plan(steps=steps, save_every=every, evaluate_every=every, clip=fields.clip)
    optimizer = make_optimizer(model, fields)
    run = Training(task, optimizer, plan, workplace.folder, rate=rate)
    if not run.finish(quiet=True):
        return None
    lines = [line for line in read_log(workplace.folder / LOG) if "validation" in line]
    curve = pd.DataFrame(lines).set_index("step")["validation"].to_xarray()
    data = xr.Dataset(
        {
            "validation": curve[-1].drop_vars("step"),
            "curve": curve.astype(np.float32),
        }
    ).expand_dims(seed=[seed])
    for name, counted in operations(forms, width, heads, tokens).items():
        data[f"operations_{name}"] = counted
    data["parameters"] = float(sum(part.numel() for part in model.parameters()))
    data = data.expand_dims(arm=[f"{arm}, D = {width}"])
    data = data.assign_coords(width=("arm", [width]))
    metadata = {n: SETTINGS[n] for n in ("layers", "d_head", "tokens", "batch")}
    return data.assign_attrs(**text.facts, **metadata, steps=steps, ids=IDS[record])


def language_cells() -> Iterator[QueueCell]:
    """List the language models seed by seed, the wide ones after all others."""
    for record, order, widths in (
        (LANGUAGE, ORDER, SETTINGS["widths"]),
        (WIDE, WIDE_ORDER, SETTINGS["wide_widths"]),
    ):
        for seed, width, arm in product(SETTINGS["seeds"], widths, SETTINGS["arms"]):
            function = partial(language_run, record, arm, width, seed)
            more = {
                "seconds": SETTINGS["seconds"][width],
                "needs_cuda": record == WIDE,
            }
            title = f"{arm}, D = {width}"
            yield QueueCell.seeded(order, record, title, seed, function, **more)


def trained_levels(
    arm: str, seed: int, steps: int, workplace: Workplace
) -> xr.Dataset | None:
    """Train one small Chronos whose encoder scores by levels; None if it was stopped.

    The levels are nested blocks of tokens.
    """
    run = level_run(arm, seed, steps)
    corpus = load_series(run, workplace.corpora)
    data = level_record(run, workplace.folder, corpus)
    if data is None:
        return None
    return data.assign_attrs(ids=IDS[LEVELLED])


def level_cells() -> Iterator[QueueCell]:
    """List the runs of Chronos by levels."""
    plan = PLAN["last"][LEVELLED]
    more = {"seconds": plan["seconds"]}
    for seed, arm in product(range(plan["seeds"]), LEVELS):
        function = partial(trained_levels, arm, seed, plan["steps"])
        yield QueueCell.seeded(LAST_ORDER, LEVELLED, arm, seed, function, **more)
