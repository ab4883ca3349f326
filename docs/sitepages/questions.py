"""Which probe answers a question, drawn by which figure, and how well it finds what is
known to be there.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from sitepages.drawing import slugs
from sitepages.gallery import find_package
from sitepages.writing import DOCS, plain, table, write
from tsfm_lens.core.registry import find

PAGE = "reference/generated/questions.md"
HOWTOS = {
    "activation_patching": "patching",
    "minimal_circuit": "circuits",
    "circuit_curve": "circuits",
    "learned_scores": "circuits",
    "path_patching": "circuits",
    "edge_attribution": "circuits",
    "attention_sinks": "sinks",
    "direction": "directions",
    "input_attribution": "parts-of-the-past",
    "route_faithfulness": "verdict",
    "covariate_use": "covariates",
    "weight_effects": "fine-tuned-models",
}
"""Pages below docs/howto about a measurement, by its kind."""


@dataclass(frozen=True)
class Question:
    """One row.

    Attributes:
        text: as somebody asks it.
        kind: of the measurement that answers it.
        caveat: limit of the answer.
        method: its name in docs/planted.csv or docs/planted.explanations.csv; "" for
            what no planted model has been asked.
        level: of what is found: nodes, edges, inputs …
    """

    text: str
    kind: str
    caveat: str
    method: str = ""
    level: str = "nodes"


GROUPS: dict[str, tuple[Question, ...]] = {
    "Which components matter (ablation, patching, circuits)": (
        Question(
            "Which heads and MLPs does the forecast need?",
            "ablation_effects",
            "The model may never see a zero in normal use. Two redundant components"
            " both look unimportant.",
            "zero ablation, of the range",
        ),
        Question(
            "Which components carry the difference between two series?",
            "activation_patching",
            "It sees only what differs between the two series, so the pair decides the"
            " question.",
            "activation patching, denoise",
        ),
        Question(
            "Which components carry the difference, at the cost of one gradient?",
            "attribution_patching",
            "A gradient is wrong where the effect is far from linear. Check the largest"
            " effects by patching.",
            "attribution patching, denoise",
        ),
        Question(
            "Is this property one direction of the stream, and what does a dose of it"
            " do?",
            "direction",
            "The two groups must be alike in all but the property. Where all pairs"
            " differ by nearly the same vector, untrained models have such a direction,"
            " too.",
        ),
        Question(
            "Which few components are enough (a circuit)?",
            "minimal_circuit",
            "They are enough on these series. Several circuits may exist; the greedy"
            " search returns one.",
            "circuit, greedy, zeroed",
        ),
        Question(
            "How good is a ranking of components, at every size of circuit?",
            "circuit_curve",
            "A large area can come from circuits that overshoot, so read CPR and CMD"
            " together, beside those of random orders.",
        ),
        Question(
            "Which of hundreds of hidden units or connections matter together?",
            "learned_scores",
            "Scores are those of one of several rankings, chosen on series that were"
            " held out. Of tens of components a circuit found by removal is as good and"
            " sooner there. A mask of connections runs all series once for each head.",
        ),
        Question(
            "Which connections between components matter?",
            "path_patching",
            "Each connection costs one forward pass. `screen=0.1` patches only those of"
            " the largest estimates, and may miss a connection without gradient.",
            "path patching",
            "edges",
        ),
        Question(
            "Which connections matter, at the cost of one gradient?",
            "edge_attribution",
            "A gradient is wrong where the effect is far from linear. Check the largest"
            " by path patching.",
            "edge attribution",
            "edges",
        ),
        Question(
            "Which components write the forecast directly (direct logit attribution)?",
            "attribution",
            "It covers direct writes of the last stack only. It does not see components"
            " that act through others.",
            "direct attribution, linearised",
        ),
        Question(
            "Do later layers compensate for a lost component (self-repair)?",
            "causal_effects",
            "It says which components compensate, not why.",
            "self-repair",
            "repaired",
        ),
    ),
    "What heads look at": (
        Question(
            "Where does each head look?",
            "attention_patterns",
            "A head need not use what it looks at: see the planted decoys.",
            "attention, mean over heads",
            "inputs",
        ),
        Question(
            "Which heads have an attention sink, and what is it for?",
            "attention_sinks",
            "A constant and what differs between series are told apart with two series"
            " or more.",
        ),
        Question(
            "Which heads have sharp attention?",
            "head_entropy",
            "Sharp heads often matter, but not always.",
            "sharp heads",
        ),
        Question(
            "How far back can information have come (attention rollout)?",
            "attention_rollout",
            "It follows attention weights alone and leaves out MLPs and values.",
            "attention rollout",
            "inputs",
        ),
        Question(
            "Which heads copy the context?",
            "head_parroting",
            "The series need a season or a repeat; otherwise there is nothing to copy.",
            "parroting: copy lost without the head",
        ),
        Question(
            "Which heads are induction heads?",
            "induction_scores",
            "The test uses random tokens, far from real series. Repeated motifs test"
            " patch models less surely.",
            "induction: repeated tokens, copy",
        ),
        Question(
            "When during training do heads emerge?",
            "training_history",
            "It needs checkpoints of the training; two of the embedded models ship"
            " theirs.",
        ),
    ),
    "What each layer knows": (
        Question(
            "After which layer does the forecast form (logit lens)?",
            "logit_lens",
            "It reads every layer with the output head, which may not fit early"
            " layers.",
        ),
        Question(
            "How much accuracy does each layer add?",
            "layer_gain",
            "It compares with the truth of these series. A layer without gain may still"
            " prepare a later one.",
        ),
        Question(
            "How many futures does the model consider?",
            "lines_of_thought",
            "For token models only. It shows peaks of a distribution, not sampled"
            " paths.",
        ),
        Question(
            "Are layers or heads similar (CKA)?",
            "layer_similarity",
            "It compares what they hold. Whether one can be removed is a question for"
            " ablation.",
        ),
    ),
    "Which inputs matter (feature importance, SHAP, saliency)": (
        Question(
            "Which stretch of the past moved this forecast?",
            "input_attribution",
            "The result depends on the reference that you choose. Segments that work"
            " only together share their effect.",
            "shapley",
            "segments",
        ),
        Question(
            "Through which components did the input act?",
            "input_routes",
            "It is linear around this forecast unless you ask for exact routes. Read"
            " the faithfulness test with it.",
            "routes, exact",
            "routes",
        ),
        Question(
            "Can I trust that explanation (faithfulness)?",
            "route_faithfulness",
            "The test can fail, and the page says so.",
        ),
        Question(
            "Does the model use my covariates at all?",
            "covariate_use",
            "The answer holds for your series. Other series may differ.",
        ),
        Question(
            "Does the forecast only repeat the context?",
            "context_parroting",
            "A good forecast of a periodic series also repeats it, so compare the"
            " errors.",
        ),
        Question(
            "Does the forecast follow season and level?",
            "seasonality_bias",
            "It needs two seasons of context.",
        ),
    ),
    "Weights and size (rank, pruning, compression)": (
        Question(
            "How many directions do weights and streams use?",
            "flow_of_ranks",
            "Ranks depend on a threshold, so read the curves, not one number.",
        ),
        Question(
            "Which heads have an unusual rank?",
            "head_spectra",
            "Low query–key ranks point at heads that matter; value–output ranks do"
            " not.",
            "low stable rank, QK",
        ),
        Question(
            "How small can the model become (compression)?",
            "compression",
            "The answer holds for the series it is measured on. Hold out others for the"
            " final check.",
        ),
        Question(
            "Did fine-tuning change anything, and where?",
            "weight_effects",
            "Weights that moved far may do little, so read the effects. They hold for"
            " the series that you give.",
        ),
        Question(
            "How few of the weights that fine-tuning changed carry its gain?",
            "tuned_weights",
            "The list is certified on series by which nothing was chosen. With few of"
            " them the share that it keeps is uncertain.",
        ),
        Question(
            "How many heads does each layer need, over whole benchmarks?",
            "sweep_heads_at",
            "This is a sweep and takes minutes to days. Differences have intervals over"
            " datasets.",
        ),
    ),
}


def write_questions() -> None:
    """The page, with scores from the files that ``make planted-scores`` writes."""
    scores = read_scores()
    parts = [
        "# Which probe answers my question?",
        (
            "*AUROC* is the probability that a true part scores above a false one; 0.5"
            " is chance. It is a mean over models whose mechanism was set by hand. The"
            " value in parentheses is for untrained twins, which have no such part."
            " *Claims right* is the share of significant parts that are true."
            " [](../../planted.md) has all scores."
        ),
        (
            "Looking for a word? The [glossary](../glossary.md) has *p-value*, *SHAP*,"
            " *saliency*, *pruning* and others."
        ),
    ]
    for title, questions in GROUPS.items():
        rows = [_row(question, scores) for question in questions]
        header = ("question", "probe and figures", "AUROC (untrained)", "claims right")
        parts += [f"## {title}", table(header, rows)]
    write(PAGE, "\n\n".join(parts) + "\n")


def read_scores() -> pd.DataFrame:
    """Scores of probes and explanations on planted models."""
    names = ("planted.csv", "planted.explanations.csv")
    return pd.concat([pd.read_csv(DOCS / name) for name in names])


def _row(question: Question, scores: pd.DataFrame) -> tuple[str, ...]:
    measurement = find(question.kind)
    probe = measurement.function_name
    figures = [
        slug for slug, (other, _) in slugs().items() if other.kind == question.kind
    ]
    visible = ", ".join(
        f"[{slug.partition('-')[0]}](#figure-{slug})" for slug in figures
    )
    asked = "`tsfm-lens sweep`"
    if probe:
        asked = f"{{py:func}}`~tsfm_lens.{find_package(probe)}`"
    text = f"**{plain(question.text)}**<br>{plain(question.caveat)}"
    if question.kind in HOWTOS:
        text += f" [How to](../../howto/{HOWTOS[question.kind]}.md)"
    return (
        text,
        f"{asked}<br>{visible}",
        *score(question, scores),
    )


def score(question: Question, scores: pd.DataFrame) -> tuple[str, str]:
    """What it finds on planted models and on untrained twins, and how many of its
    claims are right; "" if not asked.

    Raises:
        ValueError: the files do not have the method.
    """
    if not question.method:
        return "", ""
    name = question.method
    rows = scores[(scores["method"] == name) & (scores["level"] == question.level)]
    planted, untrained = (
        rows[rows["condition"] == condition] for condition in ("planted", "untrained")
    )
    if not len(planted):
        raise ValueError(f"no scores of {name!r} on level {question.level!r}")
    there = f"{planted['auroc'].mean():.2f}"
    if untrained["auroc"].notna().any():
        there += f" ({untrained['auroc'].mean():.2f})"
    right = planted["claim_precision"].mean()
    return there, "" if pd.isna(right) else f"{100 * right:.0f} %"
