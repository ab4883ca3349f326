"""Which probe answers a question, drawn by which figure, and how well it finds what is known to be there."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from sitepages.drawing import slugs
from sitepages.gallery import package_of
from sitepages.writing import DOCS, plain, table, write
from tsfm_lens.registry import find

PAGE = "reference/generated/questions.md"


@dataclass(frozen=True)
class Question:
    """One row.

    Attributes:
        text: as somebody asks it.
        kind: of the measurement that answers it.
        caveat: what the answer does not say.
        method: its name in docs/planted.csv, or "explanations: NAME" in docs/planted.explanations.csv; "" for what no
            planted model has been asked.
        level: of what is found: parts, edges, inputs …
    """

    text: str
    kind: str
    caveat: str
    method: str = ""
    level: str = "parts"


GROUPS: dict[str, tuple[Question, ...]] = {
    "What is inside, and who does it": (
        Question(
            "Which heads and MLPs does the forecast need?",
            "ablation",
            "A zero is a value the model may never see; two that can stand in for each other both seem useless.",
            "zero ablation, of the range",
        ),
        Question(
            "Which of them carry what differs between two series?",
            "patching",
            "Finds only what the two series make different; the pair decides the question.",
            "activation patching, denoise",
        ),
        Question(
            "The same over all places at once, cheaply?",
            "attribution_patching",
            "A gradient: wrong where the effect is not close to linear. Check the largest by patching.",
            "attribution patching, denoise",
        ),
        Question(
            "Which few components are enough?",
            "circuit",
            "Enough on these series; several circuits may be, and the greedy search gives one.",
            "circuit, greedy, zeroed",
        ),
        Question(
            "Through which connections does it flow?",
            "paths",
            "One forward a connection; start from the components that matter.",
            "path patching",
            "edges",
        ),
        Question(
            "The same over all connections, cheaply?",
            "edges",
            "A gradient, as above.",
            "edge attribution",
            "edges",
        ),
        Question(
            "Who writes the forecast directly?",
            "attribution",
            "Only the last stack, and only direct writes: who makes others write is not seen.",
            "direct attribution, linearised",
        ),
        Question(
            "Do later layers repair a loss?",
            "effects",
            "Needs backups that wake when another head is gone; it says who, not why.",
            "self-repair",
            "repaired",
        ),
    ),
    "What heads look at": (
        Question(
            "Where does each head look?",
            "attention",
            "What is looked at need not be used: see the planted decoys.",
            "attention, mean over heads",
            "inputs",
        ),
        Question(
            "Which heads look sharply at one place?",
            "head_entropy",
            "Sharp heads are often, not always, the ones that matter.",
            "sharp heads",
        ),
        Question(
            "How far may a token have reached?",
            "attention_rollout",
            "An upper bound by attention alone; MLPs and values are not in it.",
            "attention rollout",
            "inputs",
        ),
        Question(
            "Which heads copy the context?",
            "head_parroting",
            "For series with a season or a repeat; else there is nothing to copy.",
            "parroting: copy lost without the head",
        ),
        Question(
            "Which heads are induction heads?",
            "induction",
            "On random tokens, far from real series; motifs test the same on patches, less surely.",
            "induction: repeated tokens, copy",
        ),
        Question(
            "When in training does a head get its ability?",
            "training_history",
            "Needs checkpoints of the training; two of the embedded models ship theirs.",
        ),
    ),
    "What is known where": (
        Question(
            "After which layer is the forecast there?",
            "logit_lens",
            "Reads every layer by the last one's head, which early layers may not speak.",
        ),
        Question(
            "What does each layer add in accuracy?",
            "layer_gain",
            "Against the truth of these series; a layer without gain may still prepare one.",
        ),
        Question(
            "How many futures does the model weigh?",
            "lines_of_thought",
            "Models with tokens alone; peaks of a distribution, not sampled paths.",
        ),
        Question(
            "Are layers or heads alike?",
            "layer_similarity",
            "Alike in what they hold; whether one can go is a question of ablation.",
        ),
    ),
    "What the input does": (
        Question(
            "Which stretch of the past moved this forecast?",
            "input_attribution",
            "Against a reference that you choose; parts that only work together share what they do.",
            "explanations: shapley",
            "inputs",
        ),
        Question(
            "Through which components?",
            "input_routes",
            "Linear around this forecast unless exact routes are asked for; read the proof beside it.",
            "explanations: routes, exact",
            "routes",
        ),
        Question(
            "Can that explanation be trusted?",
            "route_faithfulness",
            "It can fail, and then says so.",
        ),
        Question(
            "Does the model use my covariates at all?",
            "covariate_use",
            "Over the series you give; unused here may be used elsewhere.",
        ),
        Question(
            "Does the forecast only repeat the context?",
            "parroting",
            "A good forecast of a periodic series repeats it, too: compare the errors.",
        ),
        Question(
            "Does it follow season and level?",
            "seasonality",
            "Needs two seasons of context.",
        ),
    ),
    "Weights and size": (
        Question(
            "How many directions do weights and streams use?",
            "flow_of_ranks",
            "Ranks depend on a threshold; read the curves, not one number.",
        ),
        Question(
            "Which heads does their rank single out?",
            "spectra",
            "Query–key ranks point at what matters, value–output ranks do not.",
            "low stable rank, QK",
        ),
        Question(
            "How small may the model become?",
            "compression",
            "On the series that it is measured on; keep others for the last word.",
        ),
        Question(
            "How many heads does each layer need, over whole benchmarks?",
            "sweep_heads_at",
            "A sweep: minutes to days. Differences have intervals over datasets.",
        ),
    ),
}


def write_questions() -> None:
    """The page, with scores from the files that ``make planted-scores`` and ``make explanation-scores`` write."""
    scores = pd.read_csv(DOCS / "planted.csv")
    explained = pd.read_csv(DOCS / "planted.explanations.csv")
    parts = [
        "# Which probe answers my question?",
        "Found: the mean chance, over models whose mechanism was set by hand, that a true part scores above another "
        "one (AUROC; 0.5 is chance), and beside it the same on untrained twins, which have no such part. Claims right: "
        "of what it names as standing out, the share that is true. All of it is in [](../../planted.md).",
    ]
    for title, questions in GROUPS.items():
        rows = [_row(question, scores, explained) for question in questions]
        header = ("question", "probe and figures", "found (untrained)", "claims right")
        parts += [f"## {title}", table(header, rows)]
    write(PAGE, "\n\n".join(parts) + "\n")


def _row(question: Question, scores: pd.DataFrame, explained: pd.DataFrame) -> tuple[str, ...]:
    measurement = find(question.kind)
    probe = measurement.probe.name if measurement.probe is not None else ""
    figures = [slug for slug, (other, _) in slugs().items() if other.kind == question.kind]
    shown = ", ".join(f"[{slug.partition('-')[0]}](#figure-{slug})" for slug in figures)
    asked = f"{{py:func}}`~tsfm_lens.{package_of(probe)}`" if probe else "`tsfm-lens sweep`"
    return (
        f"**{plain(question.text)}**<br>{plain(question.caveat)}",
        f"{asked}<br>{shown}",
        *score(question, scores, explained),
    )


def score(question: Question, scores: pd.DataFrame, explained: pd.DataFrame) -> tuple[str, str]:
    """What it finds on planted models and on untrained twins, and how many of its claims are right; "" if not asked.

    Raises:
        ValueError: the files do not have the method.
    """
    if not question.method:
        return "", ""
    name = question.method.removeprefix("explanations: ")
    source = scores if name == question.method else explained
    rows = source[(source["method"] == name) & (source["level"] == question.level)]
    planted, untrained = (rows[rows["condition"] == condition] for condition in ("planted", "untrained"))
    if not len(planted):
        raise ValueError(f"no scores of {name!r} on level {question.level!r}")
    there = f"{planted['auroc'].mean():.2f}"
    if untrained["auroc"].notna().any():
        there += f" ({untrained['auroc'].mean():.2f})"
    right = planted["claim_precision"].mean() if "claim_precision" in planted else float("nan")
    return there, "" if pd.isna(right) else f"{100 * right:.0f} %"
