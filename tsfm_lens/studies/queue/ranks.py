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
from typing import Any

import numpy as np
import torch
import xarray as xr
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import PreTrainedModel, T5Config, T5ForConditionalGeneration

from tsfm_lens import compress
from tsfm_lens.data import SeriesBatch
from tsfm_lens.hooks.weights import parameters
from tsfm_lens.models import Lens, Run, load
from tsfm_lens.probes import embedding_ranks, flow_of_ranks, row_angles
from tsfm_lens.probes.weights import weight_matrices
from tsfm_lens.studies.papers.measures.low_rank import RATIOS
from tsfm_lens.studies.queue.driver import QueueCell, Workplace, read_record
from tsfm_lens.studies.queue.text import Text, check_text, decoded, python_text
from tsfm_lens.studies.rank_theory.of_models import vocabulary_plane
from tsfm_lens.studies.recipes.corpus import load_corpus
from tsfm_lens.studies.recipes.export import as_pipeline
from tsfm_lens.studies.recipes.lowrank import (
    CORPUS_SEED,
    RecipeRun,
    draw_held_out,
    make_run,
)
from tsfm_lens.studies.recipes.recipe import (
    MIXES,
    AttentionRank,
    TrainingRecipe,
    recipe,
)
from tsfm_lens.studies.recipes.train import Trainer
from tsfm_lens.studies.samformer.tasks import stream
from tsfm_lens.training import Plan, Training
from tsfm_lens.training.losses import TrainingStage, trapezoid_rate
from tsfm_lens.training.state import STATE

ORDER = 3
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
    values: dict[tuple[str, bool], list[np.ndarray]] = {}
    for matrix in weight_matrices(
        lens, stack=stack.name, parts=["W_Q", "W_in"], per_head=True
    ):
        singular = torch.linalg.svdvals(matrix.weight.double().cpu()).numpy()
        values.setdefault((matrix.part, bool(matrix.head)), []).append(
            singular / singular[0]
        )
    heads = np.stack(values["W_Q", True]).reshape(stack.n_layers, stack.n_heads, -1)
    embedded = embedding_ranks(run, epsilon=EPSILON)
    angles = row_angles(lens).isel(layer=0)
    flow = flow_of_ranks(run, epsilon=EPSILON)
    columns: dict[str, Any] = {
        "query_spectrum": (("layer", "mode"), np.stack(values["W_Q", False])),
        "head_spectrum": (("layer", "head", "head_mode"), heads),
        "mlp_spectrum": (("layer", "mode"), np.stack(values["W_in", False])),
        "embedding_spectrum": (
            ("family", "mode"),
            _relative(embedded["singular_value"]),
        ),
        "mean_angle": (
            "family",
            embedded["mean_angle"].reindex(family=embedded["family"]).values,
        ),
        "signal_rank": (
            ("epsilon", "family"),
            embedded["signal_rank_estimate"].transpose("epsilon", "family").values,
        ),
        "random_angle": ((), float(embedded.attrs["random_angle"])),
        "angle_within": ((), float(angles["within"])),
        "angle_between": ((), float(angles["between"])),
        "input_rank": (
            ("epsilon", "stream"),
            flow["epsilon_rank"].transpose("epsilon", "stream").values,
        ),
    }
    if "vocabulary" in embedded["family"]:
        columns["neighbour_ratio"] = (
            (),
            float(vocabulary_plane(lens)["neighbour_ratio"]),
        )
    data = xr.Dataset(
        columns,
        coords={
            "family": embedded["family"].values.astype(str),
            "epsilon": list(EPSILON),
        },
    )
    return data.astype(np.float32)


def _relative(values: xr.DataArray) -> np.ndarray:
    table = values.transpose("family", "mode").values
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(table / table[:, :1])


def _named(
    data: xr.Dataset, arm: str, seed: int, record: str, **attrs: Any
) -> xr.Dataset:
    """Give a part its arm and seed, and a record its settings."""
    return data.expand_dims(arm=[arm], seed=[seed]).assign_attrs(
        ids=IDS[record], **attrs
    )


# --- models of series -----------------------------------------------------------------


def trained_lens(
    run: RecipeRun, workplace: Workplace, *, plain_embedding: bool = False
) -> Lens | None:
    """Train a recipe to its end and open it; None if it was stopped.

    ``plain_embedding`` draws a token model's embedding as that of T5, in place of
    features of the bins' ranks.
    """
    corpus = load_corpus(
        run.recipe.corpus,
        seed=CORPUS_SEED,
        cache=workplace.folder.parent.parent / "corpora",
    )
    folder = workplace.folder / run.folder
    trainer = Trainer(run.recipe, folder, corpus, device="cpu")
    if plain_embedding:
        generator = torch.Generator().manual_seed(run.seed)
        with torch.no_grad():
            weight = trainer.model.get_parameter("shared.weight")
            weight.copy_(torch.randn(weight.shape, generator=generator))
    if (folder / STATE).exists():
        trainer.resume()
    if not trainer.run(quiet=True):
        return None
    return load(as_pipeline(trainer.model.eval()), check=False)


def _make_run(lens: Lens, run: RecipeRun, *, n_series: int | None = None) -> Run:
    series = draw_held_out(run)
    if n_series is not None:
        series = series.select(
            np.linspace(0, len(series) - 1, n_series).astype(int).tolist()
        )
    samples = None
    if lens.adapter.readout == "token":
        samples = 20
    return lens.run(
        series, run.recipe.stages[-1].horizon, holdout=True, num_samples=samples, seed=0
    )


def _errors(run: Run) -> dict[str, Any]:
    """Compute MASE and WQL of every held-out series."""
    scores = compress.quality(run, run.lens)
    return {
        name: ("item", scores[name].values[0].astype(np.float32))
        for name in ("mase", "wql")
    }


def bolt_recipe(
    plan: Mapping[str, Any], name: str, seed: int, **options: Any
) -> RecipeRun:
    """Return a run of a small Chronos-Bolt.

    It has a width, a patch and a number of heads, or a schedule of ranks.
    """
    sizes = {
        **plan["base"],
        **{key: options[key] for key in ("width", "patch", "heads") if key in options},
    }
    width = sizes["width"]
    full = recipe("bolt-nano")
    config = full.config | {
        "d_model": width,
        "d_kv": width // sizes["heads"],
        "d_ff": 4 * width,
    }
    patches = {"input_patch_size": sizes["patch"], "input_patch_stride": sizes["patch"]}
    config |= {
        "num_heads": sizes["heads"],
        "chronos_config": full.config["chronos_config"] | patches,
    }
    rank = None
    if options.get("attention_rank"):
        rank = AttentionRank(**options["attention_rank"])
    changes = {
        **_stages(plan),
        "name": name,
        "seed": seed,
        "config": config,
        "attention_rank": rank,
    }
    return RecipeRun(
        name,
        seed,
        full.model_copy(update={**changes, "encoder_bias": (), "restarts": ()}),
    )


def _stages(plan: Mapping[str, Any]) -> dict[str, Any]:
    stage = TrainingStage(start=0, mix=MIXES["copy"], **plan["stage"])
    steps = plan["steps"]
    return {
        "stages": (stage,),
        "steps": steps,
        "warmup": steps // 12,
        "decay": steps // 4,
        "corpus": dict.fromkeys(MIXES["copy"], plan["rows_of_a_family"]),
    }


def bolt_run(
    record: str,
    name: str,
    options: Mapping[str, Any],
    seed: int,
    plan: Mapping[str, Any],
    workplace: Workplace,
) -> Any:
    """Train one Chronos-Bolt and measure its spectra and errors; None if stopped."""
    run = bolt_recipe(plan, name, seed, **options)
    lens = trained_lens(run, workplace)
    if lens is None:
        return None
    data = _errors(_make_run(lens, run))
    if record == BOLT:
        return _named(
            measure_spectra(_make_run(lens, run, n_series=MEASURED)).assign(data),
            name,
            seed,
            record,
            **_settings(plan),
        )
    flow = flow_of_ranks(_make_run(lens, run, n_series=MEASURED), epsilon=EPSILON)
    numbers = compress.sizes(lens)
    sizes = {
        f"{part}_numbers": ((), float(numbers[part])) for part in ("all", "attention")
    }
    ranks = {
        "input_rank": (
            ("epsilon", "stream"),
            flow["epsilon_rank"].transpose("epsilon", "stream").values,
        )
    }
    table = xr.Dataset({**data, **sizes, **ranks}, coords={"epsilon": list(EPSILON)})
    return _named(table, name, seed, record, **_settings(plan))


def _settings(plan: Mapping[str, Any]) -> dict[str, Any]:
    return {"steps": plan["steps"], **plan["stage"]}


def vocabulary_run(
    rank: int, seed: int, steps: int, workplace: Workplace
) -> xr.Dataset | None:
    """Train the small Chronos with a fixed vocabulary of a rank, and measure W_Q.

    What training added to W_Q is measured too. None is returned if it was stopped.
    """
    run = make_run(f"vocabulary {rank}", seed, steps, vocabulary_rank=rank)
    before = _queries(load(as_pipeline(_untrained(run.recipe)), check=False))
    lens = trained_lens(run, workplace)
    if lens is None:
        return None
    after = _queries(lens)
    columns = {}
    for name, weights in (
        ("query_spectrum", after),
        ("moved_spectrum", after - before),
    ):
        values = np.linalg.svd(weights, compute_uv=False)
        columns[name] = (("layer", "mode"), (values / values[:, :1]).astype(np.float32))
    data = xr.Dataset(columns).expand_dims(vocabulary=[rank], seed=[seed])
    return data.assign_attrs(
        ids=IDS[VOCABULARIES], steps=steps, width=run.recipe.config["d_model"]
    )


def _untrained(of: TrainingRecipe) -> PreTrainedModel:
    from tsfm_lens.studies.recipes.models import build_model

    return build_model(of).eval()


def _queries(lens: Lens) -> np.ndarray:
    """Return W_Q of every layer of the encoder, (layer, row, column)."""
    stack = lens.wiring.stacks[0].name
    return np.stack(
        [
            weight_matrix.weight.double().cpu().numpy()
            for weight_matrix in weight_matrices(lens, stack=stack, parts=["W_Q"])
        ]
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

    def __init__(
        self, model: PreTrainedModel, plan: Mapping[str, Any], seed: int
    ) -> None:
        self.model: torch.nn.Module = model
        self.stage = plan["stage"]
        self.seed = seed
        self.training, self.held_out = map(
            torch.from_numpy, encoded_text(plan["tokens"])
        )
        sizes = [list(part.shape) for part in model.parameters()]
        metadata = {
            "text": python_text().digest,
            "seed": seed,
            "sizes": sizes,
            "steps": plan["steps"],
        }
        self.identity = json.dumps({**metadata, **self.stage}, sort_keys=True)

    def pairs(self, ids: Tensor, count: int, *parts: int) -> tuple[Tensor, Tensor]:
        """Draw contexts (row, token), with the end of a sequence, and what follows."""
        context = self.stage["context"]
        horizon = self.stage["horizon"]
        starts = torch.randint(
            len(ids) - context - horizon, (count,), generator=stream(*parts)
        )
        rows = ids[starts[:, None] + torch.arange(context + horizon)]
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


def _sizes(plan: Mapping[str, Any], width: int) -> dict[str, Any]:
    """Return the configuration that models of text and of series share."""
    sizes = {
        "d_model": width,
        "d_kv": width // plan["heads"],
        "d_ff": 4 * width,
        "num_heads": plan["heads"],
    }
    layers = {"num_layers": plan["layers"], "num_decoder_layers": plan["layers"]}
    return {**sizes, **layers, "vocab_size": plan["tokens"]}


def text_lens(
    width: int, seed: int, plan: Mapping[str, Any], workplace: Workplace
) -> tuple[Lens, TextTask] | None:
    """Train a T5 on text and open it, with its task; None if it was stopped."""
    full = recipe("chronos-nano").config
    config = {
        key: value
        for key, value in full.items()
        if key not in ("chronos_config", "architectures")
    }
    torch.manual_seed(seed)
    model = T5ForConditionalGeneration(T5Config(**(config | _sizes(plan, width))))
    task = TextTask(model, plan, seed)
    steps = plan["steps"]
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=plan["learning_rate"],
        weight_decay=0.01,
        betas=(0.9, 0.95),
    )

    def rate(step: int) -> float:
        warm = steps // 12
        decay = steps // 4
        return trapezoid_rate(
            step, plan["learning_rate"], first=0, last=steps, warmup=warm, decay=decay
        )

    run = Training(
        task,
        optimizer,
        Plan(steps=steps, clip=1.0),
        workplace.folder / "text",
        rate=rate,
    )
    if (workplace.folder / "text" / STATE).exists():
        run.resume()
    if run.run(quiet=True):
        return (load(model.eval(), check=False), task)
    return None


def pair_run(
    kind: str, width: int, seed: int, plan: Mapping[str, Any], workplace: Workplace
) -> xr.Dataset | None:
    """Train a model of text, or of series, and measure it (S0-T2).

    The measures are its spectra, and its loss when it is truncated.

    Raises:
        InputError: the record is of another text, as another version of Python has.
    """
    check_text(read_record(workplace.records / f"{PAIRS}.nc"), python_text())
    if kind == "text":
        found = text_lens(width, seed, plan, workplace)
        if found is None:
            return None
        lens, task = found
        context, after = task.pairs(task.held_out, plan["draw_held_out"], 0, 1)
        few = SeriesBatch(
            tuple(row.double().numpy() for row in context[:MEASURED, :-1]),
            _ids(MEASURED),
        )
        run = lens.run(few, plan["stage"]["horizon"], num_samples=1, seed=0)
        batch = {"input_ids": context, "labels": after}
    else:
        recipe_run = _series_recipe(plan, width, seed)
        opened = trained_lens(recipe_run, workplace, plain_embedding=True)
        if opened is None:
            return None
        lens = opened
        run = _make_run(opened, recipe_run, n_series=MEASURED)
        batch = _series_batch(lens, recipe_run)
    trimmed = cut_off(lens, batch)
    title = f"{kind}, d = {width}"
    metadata = {
        **_settings(plan),
        **python_text().facts,
        "tokens": plan["tokens"],
        "layers": plan["layers"],
    }
    return _named(measure_spectra(run).merge(trimmed), title, seed, PAIRS, **metadata)


def _ids(count: int) -> tuple[str, ...]:
    return tuple(f"window {number}" for number in range(count))


def _series_recipe(plan: Mapping[str, Any], width: int, seed: int) -> RecipeRun:
    """Return the run of Chronos at the sizes of the model of text."""
    full = recipe("chronos-nano")
    tokens = plan["tokens"]
    stage = plan["stage"]
    chronos = {
        "n_tokens": tokens,
        "context_length": stage["context"],
        "prediction_length": stage["horizon"],
    }
    config = (
        full.config
        | _sizes(plan, width)
        | {"chronos_config": full.config["chronos_config"] | chronos}
    )
    changes = {
        **_stages(plan),
        "name": f"series {width}",
        "seed": seed,
        "config": config,
    }
    changes |= {
        "learning_rate": plan["learning_rate"],
        "encoder_bias": (),
        "decoder_bias": (),
        "restarts": (),
    }
    return RecipeRun(f"series {width}", seed, full.model_copy(update=changes))


def _series_batch(lens: Lens, run: RecipeRun) -> dict[str, Tensor]:
    """Return the tokens of held-out series as the native model takes them.

    Series with missing values are left out.
    """
    stage = run.recipe.stages[-1]
    series = draw_held_out(run)
    rows = torch.from_numpy(np.stack(series.values)).float()
    full = torch.isfinite(rows).all(1)
    tokenizer = lens.adapter.native.tokenizer
    ids, mask, scale = tokenizer.context_input_transform(rows[full, : stage.context])
    labels, _ = tokenizer.label_input_transform(rows[full, stage.context :], scale)
    # the end that closes a label is no value
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "labels": labels[:, : stage.horizon].contiguous(),
    }


def spectra_and_forms(
    lens: Lens,
) -> tuple[dict[str, np.ndarray], dict[str, compress.BlockShape]]:
    """Return singular values of the attention matrices of a model, and their shapes."""
    matrices = compress.matrices(lens)
    forms = {name: matrix.form() for name, matrix in matrices.items()}
    weights = {
        name: parameters(lens.adapter.model, matrix.path)[0].detach().double()
        for name, matrix in matrices.items()
    }
    spectra = {
        name: torch.linalg.svdvals(weight).cpu().numpy()
        for name, weight in weights.items()
    }
    return spectra, forms


def at_ratio(
    spectra: dict[str, np.ndarray], forms: dict[str, compress.BlockShape], ratio: float
) -> tuple[float, dict[str, int]]:
    """Find the ε at which the share of ranks is nearest to a ratio, and the ranks.

    The search halves an interval of log₁₀ ε.
    """
    low = -12.0
    high = 0.0
    best: tuple[float, float, dict[str, int]] = (np.inf, 0.0, {})
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        ranks = compress.ranks_by_epsilon(spectra, 10**middle)
        share = compress.compute_ratio(forms, ranks).ranks
        # the share is a step function of ε, so the last halving need not be the nearest
        if abs(share - ratio) < best[0]:
            best = abs(share - ratio), 10**middle, ranks
        low, high = (middle, high) if share > ratio else (low, middle)
    return best[1:]


def cut_off(lens: Lens, batch: Mapping[str, Tensor]) -> xr.Dataset:
    """Measure loss in nats and likeliest tokens of a truncated model.

    It is truncated to the shares of ranks of table 2.
    """
    spectra, forms = spectra_and_forms(lens)
    full, likeliest = _token_scores(lens, batch)
    losses = [full]
    overlaps = [1.0]
    epsilons = [0.0]
    for ratio in RATIOS:
        epsilon, ranks = at_ratio(spectra, forms, ratio)
        loss, rest = _token_scores(compress.factorised(lens, ranks), batch)
        both = (likeliest[..., None] == rest[..., None, :]).any(-1).sum(-1)
        losses.append(loss)
        overlaps.append(float((both / (2 * TOP - both)).float().mean()))
        epsilons.append(epsilon)
    columns = {"loss": losses, "overlap": overlaps, "cut_at": epsilons}
    return xr.Dataset(
        {name: ("ratio", values) for name, values in columns.items()},
        coords={"ratio": [1.0, *RATIOS]},
    )


def _token_scores(lens: Lens, batch: Mapping[str, Tensor]) -> tuple[float, Tensor]:
    """Compute the cross-entropy, teacher-forced, and the likeliest tokens.

    The tokens are (row, step, 10).
    """
    with torch.no_grad():
        out = lens.adapter.model(**batch)
    return float(out.loss), out.logits.topk(TOP, -1).indices


# --- the list -------------------------------------------------------------------------


def rank_cells(plan: Mapping[str, Any]) -> Iterator[QueueCell]:
    """List the cells, seed by seed, kind by kind."""
    pairs, sizes, schedules, vocabularies = (
        plan[name] for name in (PAIRS, BOLT, SCHEDULES, VOCABULARIES)
    )
    for seed in pairs["seeds"]:
        for width in pairs["widths"]:
            for kind in ("text", "series"):
                title = f"{kind}, d = {width}"
                function = partial(pair_run, kind, width, seed, pairs)
                yield QueueCell(
                    ORDER,
                    PAIRS,
                    f"{title}, seed {seed}",
                    function,
                    title,
                    pairs["seconds"],
                )
    for record, part in ((BOLT, sizes), (SCHEDULES, schedules)):
        for seed in part["seeds"]:
            for name, options in part["arms"].items():
                function = partial(bolt_run, record, name, options or {}, seed, part)
                yield QueueCell(
                    ORDER,
                    record,
                    f"{name}, seed {seed}",
                    function,
                    name,
                    part["seconds"],
                )
    for seed in vocabularies["seeds"]:
        for rank in vocabularies["ranks"]:
            function = partial(vocabulary_run, rank, seed, vocabularies["steps"])
            yield QueueCell(
                ORDER,
                VOCABULARIES,
                f"rank {rank}, seed {seed}",
                function,
                "",
                vocabularies["seconds"],
            )
