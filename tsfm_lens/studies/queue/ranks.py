"""Cells of the flow of ranks: models of series and of text, and small Chronos-Bolts.

Text and series are compared at equal sizes; Chronos-Bolt is trained by sizes and by
ranks of attention. Read :func:`measure_spectra` first, what is measured of every model,
then :func:`rank_cells`, the list. Training of recipes is in
:mod:`tsfm_lens.studies.recipes`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache, partial
from itertools import product
from operator import itemgetter
from typing import Any

import numpy as np
import pandas as pd
import torch
import xarray as xr
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import PreTrainedModel, T5Config, T5ForConditionalGeneration

from tsfm_lens import compress
from tsfm_lens.core.ranks import relative_spectrum
from tsfm_lens.data import SeriesBatch
from tsfm_lens.models import Lens, Run, load
from tsfm_lens.probes import embedding_ranks, flow_of_ranks, row_angles
from tsfm_lens.studies.papers.measures.low_rank import RATIOS
from tsfm_lens.studies.queue.driver import PLAN, QueueCell, Workplace, read_record
from tsfm_lens.studies.queue.text import (
    Text,
    check_text,
    decoded,
    draw_windows,
    python_text,
)
from tsfm_lens.studies.rank_theory.of_models import vocabulary_plane
from tsfm_lens.studies.recipes.export import as_pipeline
from tsfm_lens.studies.recipes.history import initial_model
from tsfm_lens.studies.recipes.lowrank import (
    draw_held_out,
    layer_weights,
    load_series,
    make_run,
)
from tsfm_lens.studies.recipes.recipe import MIXES, TrainingRecipe, recipe
from tsfm_lens.studies.recipes.train import Trainer
from tsfm_lens.training import Plan, Training
from tsfm_lens.training.losses import trapezoid_rate

ORDER = 3
SETTINGS: Mapping[str, Any] = PLAN["ranks"]
PAIRS = "text_and_series"
BOLT = "bolt_sizes"
SCHEDULES = "bolt_schedules"
VOCABULARIES = "vocabulary_sizes"
IDS = {
    PAIRS: "S0-F2 S0-F4 S0-F10 S0-T2",
    BOLT: "S0-F3 S0-F4 S0-F9 S0-F12",
    SCHEDULES: "S0-T3 S0-F6",
    VOCABULARIES: "S0-F4C",
}
EPSILON = (0.1, 0.01, 0.001)
MEASURED = 16
"""Series, or windows of text, that ranks of inputs are measured on."""
TOP = 10
"""Likeliest tokens that are compared."""
SPECIAL = ("<pad>", "</s>")
_HALVINGS = 40


# --- what is measured of every model --------------------------------------------------


def measure_spectra(run: Run) -> xr.Dataset:
    """Measure relative singular values of weights and embeddings, and angles.

    The weights are W_Q, its heads, and the first matrix of the MLP.
    """
    lens, stack = run.lens, run.lens.wiring.stacks[0]
    queries = relative_spectra(layer_weights(lens, "W_Q"))
    heads = relative_spectra(layer_weights(lens, "W_Q", per_head=True))
    inputs = relative_spectra(layer_weights(lens, "W_in"))
    embedded = embedding_ranks(run, epsilon=EPSILON)
    angles = row_angles(lens).isel(layer=0)
    spectrum = embedded["singular_value"].transpose("family", "mode")
    with np.errstate(invalid="ignore", divide="ignore"):
        spectrum = spectrum / spectrum.isel(mode=0, drop=True)
    measured = {
        "embedding_spectrum": spectrum,
        "mean_angle": embedded["mean_angle"],
        "signal_rank": embedded["signal_rank_estimate"].transpose("epsilon", "family"),
        "random_angle": xr.DataArray(embedded.attrs["random_angle"]),
        "angle_within": angles["within"],
        "angle_between": angles["between"],
        "input_rank": _input_ranks(run),
    }
    if "vocabulary" in embedded["family"]:
        measured["neighbour_ratio"] = vocabulary_plane(lens)["neighbour_ratio"]
    data = xr.Dataset(
        {
            "query_spectrum": (("layer", "mode"), queries),
            "head_spectrum": (
                ("layer", "head", "head_mode"),
                heads.reshape(stack.n_layers, stack.n_heads, -1),
            ),
            "mlp_spectrum": (("layer", "mode"), inputs),
            **{name: part.variable for name, part in measured.items()},
        },
        coords={
            "family": embedded["family"].values.astype(str),
            "epsilon": list(EPSILON),
        },
    )
    return data.drop_attrs().astype(np.float32)


def relative_spectra(weights: Tensor) -> np.ndarray:
    """Compute singular values of matrices, of the largest of each."""
    return relative_spectrum(torch.linalg.svdvals(weights).numpy())


def _input_ranks(run: Run) -> xr.DataArray:
    ranks = flow_of_ranks(run, epsilon=EPSILON)["epsilon_rank"]
    return ranks.transpose("epsilon", "stream")


def _named(data: xr.Dataset, arm: str, seed: int, record: str) -> xr.Dataset:
    """Give a part its arm and seed, and a record its settings."""
    plan = SETTINGS[record]
    settings = {"ids": IDS[record], "steps": plan["steps"], **plan["stage"]}
    return data.expand_dims(arm=[arm], seed=[seed]).assign_attrs(settings)


# --- models of series -----------------------------------------------------------------


def trained_lens(
    run: TrainingRecipe, workplace: Workplace, *, plain_embedding: bool = False
) -> Lens | None:
    """Train a recipe to its end and open it; None if it was stopped.

    ``plain_embedding`` draws a token model's embedding as that of T5, in place of
    features of the bins' ranks.
    """
    corpus = load_series(run, workplace.corpora)
    trainer = Trainer(run, workplace.folder, corpus, device="cpu")
    if plain_embedding:
        generator = torch.Generator().manual_seed(run.seed)
        with torch.no_grad():
            weight = trainer.model.get_parameter("shared.weight")
            weight.copy_(torch.randn(weight.shape, generator=generator))
    # a state that it goes on from has all weights
    if not trainer.finish(quiet=True):
        return None
    return load(as_pipeline(trainer.model.eval()), check=False)


def _run_held_out(lens: Lens, run: TrainingRecipe, n_series: int | None = None) -> Run:
    """Run a model on held-out series, of which so many are taken evenly."""
    series = draw_held_out(run)
    if n_series is not None:
        rows = np.linspace(0, len(series) - 1, n_series).astype(int)
        series = series.select(rows.tolist())
    samples = 20 if lens.adapter.readout == "token" else None
    horizon = run.stages[-1].horizon
    return lens.run(series, horizon, holdout=True, num_samples=samples, seed=0)


def bolt_recipe(record: str, arm: str, seed: int) -> TrainingRecipe:
    """Return a run of a small Chronos-Bolt.

    It has a width, a patch and a number of heads, or a schedule of ranks.
    """
    plan = SETTINGS[record]
    sizes = {**plan["base"], **(plan["arms"][arm] or {})}
    config = {
        **_widths(sizes["width"], sizes["heads"]),
        "chronos_config": {
            "input_patch_size": sizes["patch"],
            "input_patch_stride": sizes["patch"],
        },
    }
    changes = {"attention_rank": sizes.get("attention_rank"), "encoder_bias": ()}
    return _run_of("bolt-nano", arm, seed, plan, config, **changes)


def _widths(width: int, heads: int) -> dict[str, int]:
    sizes = {"d_model": width, "d_kv": width // heads, "d_ff": 4 * width}
    return {**sizes, "num_heads": heads}


def _run_of(
    name: str,
    arm: str,
    seed: int,
    plan: Mapping[str, Any],
    config: Mapping[str, Any],
    **changes: Any,
) -> TrainingRecipe:
    """Return a run of a recipe with other sizes, on the families of copies alone."""
    full = recipe(name)
    chronos = full.config["chronos_config"] | config["chronos_config"]
    steps = plan["steps"]
    update = {
        "name": arm,
        "seed": seed,
        "config": {**full.config, **config, "chronos_config": chronos},
        "stages": [{"start": 0, "mix": MIXES["copy"], **plan["stage"]}],
        "steps": steps,
        "warmup": steps // 12,
        "decay": steps // 4,
        "corpus": dict.fromkeys(MIXES["copy"], plan["rows_of_a_family"]),
        "restarts": (),
        **changes,
    }
    return full.changed(**update)


def bolt_run(record: str, arm: str, seed: int, workplace: Workplace) -> Any:
    """Train one Chronos-Bolt and measure its spectra and errors; None if stopped."""
    run = bolt_recipe(record, arm, seed)
    lens = trained_lens(run, workplace)
    if lens is None:
        return None
    # MASE and WQL of every held-out series
    scores = compress.quality(_run_held_out(lens, run), lens)
    data = {
        name: ("item", scores[name].values[0].astype(np.float32))
        for name in ("mase", "wql")
    }
    few = _run_held_out(lens, run, MEASURED)
    if record == BOLT:
        return _named(measure_spectra(few).assign(data), arm, seed, record)
    numbers = compress.sizes(lens)
    table = xr.Dataset(
        {
            **data,
            "all_numbers": float(numbers["all"]),
            "attention_numbers": float(numbers["attention"]),
            "input_rank": (("epsilon", "stream"), _input_ranks(few).values),
        },
        coords={"epsilon": list(EPSILON)},
    )
    return _named(table, arm, seed, record)


def vocabulary_run(rank: int, seed: int, workplace: Workplace) -> xr.Dataset | None:
    """Train the small Chronos with a fixed vocabulary of a rank, and measure W_Q.

    What training added to W_Q is measured too. None is returned if it was stopped.
    """
    steps = SETTINGS[VOCABULARIES]["steps"]
    run = make_run(f"vocabulary {rank}", seed, steps, vocabulary_rank=rank)
    before = layer_weights(initial_model(run), "W_Q")
    lens = trained_lens(run, workplace)
    if lens is None:
        return None
    after = layer_weights(lens, "W_Q")
    spectra = {"query_spectrum": after, "moved_spectrum": after - before}
    columns = {
        name: (("layer", "mode"), relative_spectra(weights).astype(np.float32))
        for name, weights in spectra.items()
    }
    data = xr.Dataset(columns).expand_dims(vocabulary=[rank], seed=[seed])
    return data.assign_attrs(
        ids=IDS[VOCABULARIES], steps=steps, width=run.config["d_model"]
    )


# --- models of text -------------------------------------------------------------------


@cache
def encoded_text(tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """Cut the text into byte pairs; return ids of its training and held-out part.

    The vocabulary is made of the training part.
    """
    text: Text = python_text()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=tokens, special_tokens=list(SPECIAL), show_progress=False
    )
    parts = [decoded(part) for part in (text.training, text.held_out)]
    tokenizer.train_from_iterator(parts[0].split("\n\n"), trainer)
    both = [np.array(tokenizer.encode(part).ids, dtype=np.int64) for part in parts]
    return both[0], both[1]


class TextTask:
    """Task of a T5 that continues text as Chronos continues series.

    It predicts the ``horizon`` tokens after a context.
    """

    name = "continuations of text"

    def __init__(self, model: PreTrainedModel, seed: int) -> None:
        plan = SETTINGS[PAIRS]
        self.model: torch.nn.Module = model
        self.stage = plan["stage"]
        self.seed = seed
        self.training, self.held_out = map(
            torch.from_numpy, encoded_text(plan["tokens"])
        )
        metadata = {
            "text": python_text().digest,
            "seed": seed,
            "sizes": [list(part.shape) for part in model.parameters()],
            "steps": plan["steps"],
            **self.stage,
        }
        self.identity = json.dumps(metadata, sort_keys=True)

    def pairs(self, ids: Tensor, count: int, *parts: int) -> tuple[Tensor, Tensor]:
        """Draw contexts (row, token), with the end of a sequence, and what follows."""
        context = self.stage["context"]
        length = context + self.stage["horizon"]
        # the last token is in no window
        rows = draw_windows(ids[:-1], count, length, *parts)
        bounds = torch.full((count, 1), SPECIAL.index("</s>"))
        return (
            torch.cat([rows[:, :context], bounds], dim=1),
            rows[:, context:].contiguous(),
        )

    def loss(self, step: int) -> Tensor:
        """Compute the cross-entropy of a batch, teacher-forced."""
        context, after = self.pairs(
            self.training, self.stage["rows"], self.seed, 0, step
        )
        loss: Tensor = self.model(input_ids=context, labels=after).loss
        return loss

    def evaluate(self) -> dict[str, float]:
        """Return no error: it is measured at the end."""
        return {}


def _sizes(width: int) -> dict[str, Any]:
    """Return the configuration that models of text and of series share."""
    plan = SETTINGS[PAIRS]
    layers = {"num_layers": plan["layers"], "num_decoder_layers": plan["layers"]}
    return {**_widths(width, plan["heads"]), **layers, "vocab_size": plan["tokens"]}


def trained_text(
    width: int, seed: int, workplace: Workplace
) -> tuple[Lens, TextTask] | None:
    """Train a T5 on text and open it, with its task; None if it was stopped."""
    plan = SETTINGS[PAIRS]
    config = recipe("chronos-nano").config | _sizes(width)
    for of_chronos in ("chronos_config", "architectures"):
        config.pop(of_chronos, None)
    torch.manual_seed(seed)
    model = T5ForConditionalGeneration(T5Config(**config))
    task = TextTask(model, seed)
    steps = plan["steps"]
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=plan["learning_rate"],
        weight_decay=0.01,
        betas=(0.9, 0.95),
    )
    rate = partial(
        trapezoid_rate,
        peak=plan["learning_rate"],
        first=0,
        last=steps,
        warmup=steps // 12,
        decay=steps // 4,
    )
    folder = workplace.folder / "text"
    run = Training(task, optimizer, Plan(steps=steps, clip=1.0), folder, rate=rate)
    if run.finish(quiet=True):
        return (load(model.eval(), check=False), task)
    return None


def pair_run(
    kind: str, width: int, seed: int, workplace: Workplace
) -> xr.Dataset | None:
    """Train a model of text, or of series, and measure it (S0-T2).

    The measures are its spectra, and its loss when it is truncated.

    Raises:
        InputError: the record is of another text, as another version of Python has.
    """
    plan = SETTINGS[PAIRS]
    check_text(read_record(workplace.records / f"{PAIRS}.nc"), python_text())
    if kind == "text":
        found = trained_text(width, seed, workplace)
        if found is None:
            return None
        lens, task = found
        context, after = task.pairs(task.held_out, plan["held_out"], 0, 1)
        few = SeriesBatch(
            tuple(row.double().numpy() for row in context[:MEASURED, :-1]),
            tuple(f"window {number}" for number in range(MEASURED)),
        )
        run = lens.run(few, plan["stage"]["horizon"], num_samples=1, seed=0)
        batch = {"input_ids": context, "labels": after}
    else:
        recipe_run = _series_recipe(width, seed)
        opened = trained_lens(recipe_run, workplace, plain_embedding=True)
        if opened is None:
            return None
        lens = opened
        run = _run_held_out(lens, recipe_run, MEASURED)
        batch = _series_batch(lens, recipe_run)
    data = measure_spectra(run).merge(cut_off(lens, batch))
    sizes = {name: plan[name] for name in ("tokens", "layers")}
    data = data.assign_attrs({**python_text().facts, **sizes})
    return _named(data, f"{kind}, d = {width}", seed, PAIRS)


def _series_recipe(width: int, seed: int) -> TrainingRecipe:
    """Return the run of Chronos at the sizes of the model of text."""
    plan = SETTINGS[PAIRS]
    chronos = {
        "n_tokens": plan["tokens"],
        "context_length": plan["stage"]["context"],
        "prediction_length": plan["stage"]["horizon"],
    }
    config = {**_sizes(width), "chronos_config": chronos}
    changes = {
        "learning_rate": plan["learning_rate"],
        "encoder_bias": (),
        "decoder_bias": (),
    }
    return _run_of("chronos-nano", f"series {width}", seed, plan, config, **changes)


def _series_batch(lens: Lens, run: TrainingRecipe) -> dict[str, Tensor]:
    """Return the tokens of held-out series as the native model takes them.

    Series with missing values are left out.
    """
    stage = run.stages[-1]
    rows = torch.from_numpy(np.stack(draw_held_out(run).values)).float()
    rows = rows[torch.isfinite(rows).all(1)]
    tokenizer = lens.adapter.native.tokenizer
    ids, mask, scale = tokenizer.context_input_transform(rows[:, : stage.context])
    labels, _ = tokenizer.label_input_transform(rows[:, stage.context :], scale)
    # the end that closes a label is no value
    labels = labels[:, : stage.horizon].contiguous()
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def at_ratio(lens: Lens, ratio: float) -> tuple[float, dict[str, int]]:
    """Find the ε at which the share of ranks is nearest to a ratio, and the ranks.

    The search halves an interval of log₁₀ ε.
    """
    matrices = compress.matrices(lens)
    forms = {name: matrix.form() for name, matrix in matrices.items()}
    low = -12.0
    high = 0.0
    tried = []
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        ranks = compress.chosen_ranks(lens, epsilon=10**middle)
        share = compress.compute_ratio(forms, ranks).ranks
        tried.append((abs(share - ratio), 10**middle, ranks))
        if share > ratio:
            low = middle
        else:
            high = middle
    # the share is a step function of ε, so the last halving need not be the nearest
    return min(tried, key=itemgetter(0))[1:]


def cut_off(lens: Lens, batch: Mapping[str, Tensor]) -> xr.Dataset:
    """Measure loss in nats and likeliest tokens of a truncated model.

    It is truncated to the shares of ranks of table 2.
    """
    full, likeliest = _token_scores(lens, batch)
    rows = [(full, 1.0, 0.0)]
    for ratio in RATIOS:
        epsilon, ranks = at_ratio(lens, ratio)
        loss, rest = _token_scores(compress.factorised(lens, ranks), batch)
        both = (likeliest[..., None] == rest[..., None, :]).any(-1).sum(-1)
        rows.append((loss, float((both / (2 * TOP - both)).float().mean()), epsilon))
    table = pd.DataFrame(rows, columns=["loss", "overlap", "cut_at"])
    return table.set_index(pd.Index([1.0, *RATIOS], name="ratio")).to_xarray()


def _token_scores(lens: Lens, batch: Mapping[str, Tensor]) -> tuple[float, Tensor]:
    """Compute the cross-entropy, teacher-forced, and the likeliest tokens.

    The tokens are (row, step, 10).
    """
    with torch.no_grad():
        out = lens.adapter.model(**batch)
    return float(out.loss), out.logits.topk(TOP, -1).indices


# --- the list -------------------------------------------------------------------------


def rank_cells() -> Iterator[QueueCell]:
    """List the cells, seed by seed, kind by kind."""
    pairs = SETTINGS[PAIRS]
    runs = {
        PAIRS: {
            f"{kind}, d = {width}": partial(pair_run, kind, width)
            for width, kind in product(pairs["widths"], ("text", "series"))
        },
        **{
            record: {
                arm: partial(bolt_run, record, arm) for arm in SETTINGS[record]["arms"]
            }
            for record in (BOLT, SCHEDULES)
        },
        VOCABULARIES: {
            f"rank {rank}": partial(vocabulary_run, rank)
            for rank in SETTINGS[VOCABULARIES]["ranks"]
        },
    }
    for record, functions in runs.items():
        plan = SETTINGS[record]
        for seed, (title, function) in product(plan["seeds"], functions.items()):
            run = partial(function, seed)
            more = {"seconds": plan["seconds"]}
            yield QueueCell.seeded(ORDER, record, title, seed, run, **more)
