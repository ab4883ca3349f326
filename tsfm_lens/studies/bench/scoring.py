"""Scores of answers to the benchmark.

:func:`score_files` scores files, :func:`score_submission` one answer, and
:func:`score_answer` the same without its circuits. Answers of strangers and of the
methods of the package are compared alike.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from tsfm_lens.core.errors import InputError, LensError
from tsfm_lens.probes import circuit_curve
from tsfm_lens.probes.given import check_seed
from tsfm_lens.studies.bench.models import SealedModel, draw_again, sealed_models
from tsfm_lens.studies.bench.submission import Submission, read_submission
from tsfm_lens.studies.method_scores.methods import PARTS
from tsfm_lens.studies.method_scores.scores import has_answer, score_ranking
from tsfm_lens.studies.method_scores.series import EvaluationCase

COLUMNS = (
    "file",
    "model",
    "method",
    "level",
    "condition",
    "candidates",
    "true",
    "auroc",
    "precision",
    "claimed",
    "claim_precision",
    "claim_recall",
    "cpr",
    "cmd",
    "cpr_removed",
    "cmd_removed",
    "draw",
    "forwards",
    "seconds",
)
"""Columns of the scores."""
MANY = 64
"""Parts from which circuits of some sizes alone are measured, on fewer series."""
SIZES = 10
FEW_SERIES = 2
DRAWS = 10**6
"""Seeds that the scorer draws from."""


def score_submission(
    submission: Submission, sealed: SealedModel, *, draw: int | None = None
) -> pd.DataFrame:
    """Compare an answer with the truth.

    Args:
        submission: the answer.
        sealed: the model that it is about.
        draw: seed of the series that circuits are measured on; those that were fetched
            with the model if None.

    Returns:
        A row for each level with scores, in the columns :data:`COLUMNS`. CPR and CMD
        are those of circuits of the best nodes, kept or removed, with the altered run
        in the place of what is ablated; see
        :func:`~tsfm_lens.probes.circuit_curve`. Of a twin, "auroc" is the chance level
        of the method, and "claimed" its share of wrong claims.

    Raises:
        InputError: the seal is of another model, there are no scores, or none of a
            level that the model has an answer for.
        UnknownNameError: a score or a claim is of no candidate.
    """
    rows = score_answer(submission, sealed)
    if submission.nodes:
        case = sealed.case
        of_nodes = rows["level"] == PARTS
        if draw is not None:
            case = draw_again(sealed, draw)
            rows.loc[of_nodes, "draw"] = draw
        for name, area in _areas(submission, case).items():
            rows.loc[of_nodes, name] = area
    return rows.assign(model=submission.model, condition=sealed.condition).reindex(
        columns=COLUMNS[1:]
    )


def score_answer(
    submission: Submission, sealed: SealedModel, *, in_scope: bool = False
) -> pd.DataFrame:
    """Compare the scores and claims of an answer with the truth, without circuits.

    Args:
        submission: the answer.
        sealed: the model that it is about.
        in_scope: leave out candidates without a score, rather than rank them last;
            "scope" is the share of the true ones that is left.

    Returns:
        A row for each level with scores that the model has an answer for.

    Raises:
        InputError: as of :func:`score_submission`.
    """
    if submission.seal != sealed.seal:
        raise InputError(f"the seal is not that of {sealed.card['model']}")
    case = sealed.case
    rankings = submission.rankings(sealed, in_scope=in_scope)
    rows = [
        {"level": level, **score_ranking(case, level, ranking)}
        for level, ranking in rankings.items()
        if has_answer(case.card, level)
    ]
    if not rows:
        raise InputError(f"{sealed.card['model']} has no answer for these scores")
    cost = {"forwards": submission.forwards, "seconds": submission.seconds}
    return pd.DataFrame(rows).assign(method=submission.method, **cost)


def _areas(submission: Submission, case: EvaluationCase) -> dict[str, float]:
    """Return the areas under the curves of circuits that the nodes' scores choose."""
    ranking = pd.Series(submission.nodes, dtype=float).reindex(case.nodes).to_dict()
    runs = [case.clean, case.corrupted]
    most = None
    if len(ranking) >= MANY:
        most = SIZES
        runs = [run.select(range(FEW_SERIES)) for run in runs]
    try:
        data = circuit_curve(runs[0], ranking, runs[1], draws=0, most=most)
    except InputError:
        # a model that forecasts nothing has no circuit
        return {}
    areas = {}
    for suffix, direction in (("", "best kept"), ("_removed", "best removed")):
        for name in ("cpr", "cmd"):
            area = data[name].sel(direction=direction).mean("series")
            areas[f"{name}{suffix}"] = float(area)
    return areas


def score_files(
    files: str | Path | Iterable[str | Path], seed: int, draw: int | None = None
) -> pd.DataFrame:
    """Score files of answers.

    Args:
        files: one for each model and method, or a single one. Each model is run once,
            however many files are about it.
        seed: the one that the models were fetched with.
        draw: seed of the series that circuits are measured on. If None it is drawn now,
            so that no answer can have been made for these series.

    Returns:
        A row for each file and level, in the order of the files; see
        :func:`score_submission`.

    Raises:
        InputError: a file is wrong, and the message names it; or there is none, or a
            seed is none.
    """
    check_seed(seed)
    if draw is None:
        draw = secrets.randbelow(DRAWS)
    check_seed(draw)
    # a single path is iterable, too
    if isinstance(files, str | Path):
        files = [files]
    answers = [(str(file), read_submission(file)) for file in files]
    if not answers:
        raise InputError("there are no files to score; give one or more")
    tables = {}
    # answers about one model follow each other, so that it is built and run once
    for place in sorted(range(len(answers)), key=lambda at: answers[at][1].model):
        file, submission = answers[place]
        try:
            sealed = _find_model(submission, seed)
            table = score_submission(submission, sealed, draw=draw)
        except LensError as error:
            raise InputError(f"answer {file!r}: {error}") from error
        tables[place] = table.assign(file=file)
    in_order = pd.concat(tables).sort_index().reset_index(drop=True)
    return in_order[list(COLUMNS)]


def _find_model(submission: Submission, seed: int) -> SealedModel:
    """Return the model or the twin that has the seal of an answer."""
    for sealed in sealed_models(submission.model, seed):
        if sealed.seal == submission.seal:
            return sealed
    raise InputError(
        f"its seal is neither that of {submission.model} fetched with --seed {seed},"
        " nor that of its twin: give the seed that it was fetched with, and copy the"
        " seal from bench.json; another version of the package makes other seals"
    )
