"""Answers of a method about one model of the benchmark, as a file.

:class:`Submission` is the file's content, :func:`read_submission` reads it,
:func:`from_importances` converts what the circuit track of MIB takes, and
:func:`answer` lets a method of the package answer.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain, compress
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    NonNegativeInt,
    ValidationError,
)

from tsfm_lens.core.errors import InputError, unknown_name
from tsfm_lens.core.io import write_atomically
from tsfm_lens.data.checked import Strict, complaints
from tsfm_lens.data.files import missing_file
from tsfm_lens.studies.bench.models import CANDIDATES, PUBLIC_CARD, SealedModel
from tsfm_lens.studies.method_scores.methods import (
    ARROW,
    LEVELS,
    METHODS,
    Method,
    Ranking,
)

# strict, since true and "1" are no scores
Finite = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Scores = dict[str, Finite | None]
NO_SCORES: Any = Field(default_factory=dict)
HINT = f"{PUBLIC_CARD} lists nodes and tokens"


class Submission(Strict):
    """What a method says about one model.

    Attributes:
        model: name of the model, from its public card.
        seal: seal of the public card.
        method: name of the method.
        forwards: forward passes that it took, of one series each.
        seconds: time that it took.
        nodes: score of each head and MLP; more means more important. A candidate
            without a score, or with null, ranks below all others.
        edges: score of each edge, by name like "encoder.0.mlp->output".
        inputs: score of each token of each series, by name like "0:3", series first.
        repaired: score of each head and MLP that others may make up for.
        pairs: score of each two that make up for each other, by name like "a + b".
        segments: score of each segment of the input at each step of each forecast, by
            name like "0:3:past -16 to -1", series first.
        routes: score of each head and MLP through which the input acts.
        claims: names of nodes, edges and inputs that the method calls true; null if it
            makes no claims.
    """

    format: Literal[1] = 1
    model: str
    seal: str
    method: str = Field(min_length=1)
    forwards: NonNegativeInt | None = None
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    nodes: Scores = NO_SCORES
    edges: Scores = NO_SCORES
    inputs: Scores = NO_SCORES
    repaired: Scores = NO_SCORES
    pairs: Scores = NO_SCORES
    segments: Scores = NO_SCORES
    routes: Scores = NO_SCORES
    claims: tuple[str, ...] | None = None

    def rankings(
        self, sealed: SealedModel, *, in_scope: bool = False
    ) -> dict[str, Ranking]:
        """Return the scores of each level that has some, as the methods give them.

        Args:
            sealed: the model that it is about.
            in_scope: leave out candidates without a score, rather than rank them last.

        Raises:
            InputError: there are no scores.
            UnknownNameError: a score or a claim is of no candidate.
        """
        rankings = {}
        known: list[str] = []
        for level in LEVELS:
            given: Scores = getattr(self, level)
            if not given:
                continue
            names = CANDIDATES[level](sealed.case)
            known += names
            check_names(f"candidate of {level!r}", given, names, HINT)
            if in_scope:
                names = tuple(given)
            scores = np.array([given.get(name) for name in names], dtype=float)
            claims = None
            if self.claims is not None:
                claims = np.isin(names, self.claims)
            rankings[level] = Ranking(names, scores, claims)
        if not rankings:
            raise InputError(
                f"scores of {' or '.join(LEVELS)} are expected, and there are none"
            )
        check_names("candidate of 'claims'", self.claims or (), known, HINT)
        return rankings

    def write(self, file: str | Path) -> None:
        """Write the file."""
        write_atomically(Path(file), self.model_dump_json(indent=1).encode())


def check_names(
    what: str, given: Iterable[str], names: Iterable[str], hint: str = ""
) -> None:
    """Refuse the first name that is none of those known."""
    known = dict.fromkeys(names)
    for name in given:
        if name not in known:
            raise unknown_name(what, name, known, hint=hint)


def _read_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON; of equal keys Python would take the last."""
    for key, count in Counter(key for key, _ in pairs).items():
        if count > 1:
            raise ValueError(f"{key!r} stands in it twice")
    return dict(pairs)


Content = TypeVar("Content", bound=BaseModel)


def _read(file: str | Path, kind: type[Content], what: str) -> Content:
    """Read a file of JSON, and check its fields."""
    try:
        # editors of Windows begin files with a mark
        text = Path(file).read_text(encoding="utf-8-sig")
        return kind.model_validate(json.loads(text, object_pairs_hook=_read_object))
    except FileNotFoundError:
        raise missing_file(Path(file), (".json",)) from None
    except ValidationError as error:
        fields = list(kind.model_fields)
        problems = complaints(error, f"an {what}", lambda path: fields)
        raise InputError(f"{what} {str(file)!r}: {problems}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{what} {str(file)!r} is no JSON: {error}") from error


def read_submission(file: str | Path) -> Submission:
    """Read an answer.

    Returns:
        The answer, whose names are not checked yet.

    Raises:
        InputError: there is no such file, or a field is missing, unknown or wrong.
    """
    return _read(file, Submission, "answer")


def answer(sealed: SealedModel, names: Sequence[str]) -> Submission:
    """Let methods of the package answer, one for each level.

    Args:
        sealed: a model of the benchmark.
        names: methods of :data:`~tsfm_lens.studies.method_scores.methods.METHODS`.

    Returns:
        What is written into a file.

    Raises:
        UnknownNameError: no such method.
    """
    check_names("method", names, METHODS)
    methods = chain.from_iterable(METHODS[name] for name in names)
    return answer_by(sealed, ", ".join(names), methods)


def answer_by(sealed: SealedModel, name: str, methods: Iterable[Method]) -> Submission:
    """Let methods answer under one name, at most one for each level.

    Returns:
        What is written into a file. Levels that the model has no answer for are left
        out.
    """
    # any of the fields with scores
    scores: dict[str, Any] = {}
    claims: tuple[str, ...] | None = None
    state = sealed.case.lens.registry.state
    passed = state.forwards
    start = time.perf_counter()
    for method in methods:
        ranking = method.rank(sealed.case)
        scores[method.level] = {
            one: float(score) if np.isfinite(score) else None
            for one, score in zip(ranking.names, ranking.scores, strict=True)
        }
        if ranking.claims is not None:
            claims = (*(claims or ()), *compress(ranking.names, ranking.claims))
    return Submission(
        model=sealed.card["model"],
        seal=sealed.seal,
        method=name,
        forwards=state.forwards - passed,
        seconds=time.perf_counter() - start,
        claims=claims,
        **scores,
    )


_MIB_NODE = re.compile(r"a(?P<layer>\d+)\.h(?P<head>\d+)|m(?P<mlp>\d+)")
_MIB_INPUT = "input"
_MIB_OUTPUT = "logits"


class _PublicCard(BaseModel):
    """What is read of a public card."""

    model: str
    seal: str
    nodes: tuple[str, ...]


class _Entry(BaseModel):
    """Node or edge of MIB."""

    score: Annotated[float, Field(strict=True)] | None = None
    in_graph: bool = False


def _check_edge(name: str) -> str:
    if name.count(ARROW) != 1:
        raise ValueError(f"it is no edge, expected a name such as 'm0{ARROW}m1'")
    return name


class _Importances(BaseModel):
    """Content of a file of MIB's circuit track."""

    nodes: dict[str, _Entry]
    edges: dict[Annotated[str, AfterValidator(_check_edge)], _Entry]


def from_importances(file: str | Path, folder: str | Path, method: str) -> Submission:
    """Convert a file of MIB's circuit track into an answer.

    Sizes of scores are kept, as MIB ranks by size. Edges into the query, key and value
    of a head become one, with the largest of their scores. The node "input" has no
    counterpart. Claims are what is "in_graph", unless all or nothing is.

    Args:
        file: ``importances.json``, an object with "nodes" and "edges".
        folder: the model, as :func:`~tsfm_lens.studies.bench.models.fetch` wrote it.
        method: name of the method.

    Returns:
        The answer.

    Raises:
        InputError: a file is missing or of another kind, or a node has another name.

    Source:
        Mueller et al. 2025, MIB: A Mechanistic Interpretability Benchmark. Nodes are
        called like "a0.h1" and "m0", edges like "a0.h1->m1" and "m0->a1.h0<q>".
    """
    importances = _read(file, _Importances, "importances")
    card = _read(Path(folder) / PUBLIC_CARD, _PublicCard, "public card")
    found: dict[str, Any] = {"nodes": {}, "edges": {}}
    claims = []
    for field, scores in found.items():
        for name, entry in getattr(importances, field).items():
            ends = [
                _convert_node(re.sub(r"<[qkv]>$", "", end), card.nodes)
                for end in name.split(ARROW)
            ]
            if not all(ends) or ends == ["output"]:
                continue
            ours = ARROW.join(ends)
            if entry.score is not None and np.isfinite(entry.score):
                scores[ours] = max(abs(entry.score), scores.get(ours) or 0.0)
            if entry.in_graph:
                claims.append(ours)
    scored = {*found["nodes"], *found["edges"]}
    chosen = tuple(dict.fromkeys(claim for claim in claims if claim in scored))
    return Submission(
        model=card.model,
        seal=card.seal,
        method=method,
        claims=chosen if 0 < len(chosen) < len(scored) else None,
        **found,
    )


def _convert_node(name: str, nodes: Sequence[str]) -> str:
    """Return our name of a node of MIB; empty for its input."""
    if name == _MIB_INPUT:
        return ""
    if name == _MIB_OUTPUT:
        return "output"
    # models of several stacks or attentions have no names in MIB, and keep ours
    if name in nodes or name == "output":
        return name
    if match := _MIB_NODE.fullmatch(name):
        suffix = rf"{match['mlp']}\.mlp"
        if match["mlp"] is None:
            suffix = rf"{match['layer']}\.\w+\.{match['head']}"
        found = [node for node in nodes if re.fullmatch(suffix, node)]
        if len(found) == 1:
            return found[0]
    raise unknown_name(
        "node of the model", name, nodes, hint="use these in importances"
    )
