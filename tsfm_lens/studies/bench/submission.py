"""Answers of a method about one model of the benchmark, as a file.

:class:`Submission` is the file's content, :func:`read_submission` reads it,
:func:`from_importances` converts what the circuit track of MIB takes, and
:func:`answer` lets a method of the package answer.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from itertools import chain, compress
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, NonNegativeInt, ValidationError

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
    nodes: Scores = Field(default_factory=dict)
    edges: Scores = Field(default_factory=dict)
    inputs: Scores = Field(default_factory=dict)
    repaired: Scores = Field(default_factory=dict)
    pairs: Scores = Field(default_factory=dict)
    segments: Scores = Field(default_factory=dict)
    routes: Scores = Field(default_factory=dict)
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
        candidates = {
            level: CANDIDATES[level](sealed.case) for level in LEVELS if self[level]
        }
        if not candidates:
            raise InputError(
                f"scores of {' or '.join(LEVELS)} are expected, and there are none"
            )
        for level, names in candidates.items():
            _check_names(level, self[level], names)
        _check_names("claims", self.claims or (), list(chain(*candidates.values())))
        if in_scope:
            candidates = {level: tuple(self[level]) for level in candidates}
        return {level: self._rank(level, names) for level, names in candidates.items()}

    def __getitem__(self, field: str) -> Scores:
        return dict(getattr(self, field))

    def _rank(self, field: str, names: Sequence[str]) -> Ranking:
        """Return scores of all candidates, NaN where there is none."""
        given = self[field]
        scores = np.array([given.get(name) for name in names], dtype=float)
        claims = None
        if self.claims is not None:
            claims = np.isin(names, self.claims)
        return Ranking(tuple(names), scores, claims)

    def write(self, file: str | Path) -> None:
        """Write the file."""
        write_atomically(Path(file), self.model_dump_json(indent=1).encode())


def _check_names(field: str, given: Any, names: Sequence[str]) -> None:
    known = set(names)
    for name in given:
        if name not in known:
            hint = f"{PUBLIC_CARD} lists nodes and tokens"
            raise unknown_name(f"candidate of {field!r}", name, names, hint=hint)


def _read_json(file: Path, what: str) -> dict[str, Any]:
    if file.is_dir():
        raise InputError(f"{what} {str(file)!r} is a folder, expected a file in it")
    if not file.is_file():
        raise missing_file(file, (".json",))
    try:
        # editors of Windows begin files with a mark
        text = file.read_text(encoding="utf-8-sig")
        content = json.loads(text, object_pairs_hook=_read_object)
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{what} {str(file)!r} is no JSON: {error}") from error
    if not isinstance(content, dict):
        raise InputError(
            f"{what} {str(file)!r} holds {type(content).__name__}, expected an object"
        )
    return content


def _read_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON; of equal keys Python would take the last."""
    content = dict(pairs)
    if len(content) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"{twice!r} stands in it twice")
    return content


def read_submission(file: str | Path) -> Submission:
    """Read an answer.

    Returns:
        The answer, whose names are not checked yet.

    Raises:
        InputError: there is no such file, or a field is missing, unknown or wrong.
    """
    content = _read_json(Path(file), "answer")
    try:
        return Submission.model_validate(content)
    except ValidationError as error:
        fields = list(Submission.model_fields)
        problems = complaints(error, "an answer", lambda path: fields)
        raise InputError(f"answer {str(file)!r}: {problems}") from error


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
    for name in names:
        if name not in METHODS:
            raise unknown_name("method", name, METHODS)
    return answer_by(sealed, ", ".join(names), [METHODS[name] for name in names])


def answer_by(sealed: SealedModel, name: str, methods: Sequence[Method]) -> Submission:
    """Let methods answer under one name, at most one for each level.

    Returns:
        What is written into a file. Levels that the model has no answer for are left
        out.
    """
    # any of the fields with scores
    scores: dict[str, Any] = {}
    claims: list[str] | None = None
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
            claims = [*(claims or ()), *compress(ranking.names, ranking.claims)]
    return Submission(
        model=sealed.card["model"],
        seal=sealed.seal,
        method=name,
        forwards=state.forwards - passed,
        seconds=time.perf_counter() - start,
        claims=None if claims is None else tuple(claims),
        **scores,
    )


_MIB_NODE = re.compile(r"(?:a(?P<layer>\d+)\.h(?P<head>\d+)|m(?P<mlp>\d+))")
_MIB_INPUT = "input"
_MIB_OUTPUT = "logits"


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
    content = _read_json(Path(file), "importances")
    card = _read_json(Path(folder) / PUBLIC_CARD, "public card")
    missing = {
        field
        for field in ("nodes", "edges")
        if not isinstance(content.get(field), dict)
    }
    if missing:
        raise InputError(
            f"importances {str(file)!r} lack {' and '.join(sorted(missing))}; expected"
            " an object with nodes and edges"
        )
    nodes: Scores = {}
    edges: Scores = {}
    claims = []
    for field, scores in (("nodes", nodes), ("edges", edges)):
        for name, entry in content[field].items():
            if field == "edges" and name.count(ARROW) != 1:
                raise InputError(
                    f"importances {str(file)!r}: {name!r} is no edge, expected a name"
                    f" such as 'm0{ARROW}m1'"
                )
            ends = [
                _convert_node(re.sub(r"<[qkv]>$", "", end), card["nodes"])
                for end in name.split(ARROW)
            ]
            if not all(ends) or ends == ["output"]:
                continue
            ours = ARROW.join(ends)
            score, is_in_graph = _read_entry(file, name, entry)
            if score is not None:
                scores[ours] = max(score, scores.get(ours) or 0.0)
            if is_in_graph:
                claims.append(ours)
    scored = {*nodes, *edges}
    chosen = tuple(dict.fromkeys(claim for claim in claims if claim in scored))
    return Submission(
        model=card["model"],
        seal=card["seal"],
        method=method,
        nodes=nodes,
        edges=edges,
        claims=chosen if 0 < len(chosen) < len(scored) else None,
    )


def _read_entry(file: str | Path, name: str, entry: Any) -> tuple[float | None, bool]:
    """Return the size of a score, None without one, and whether it is in the graph."""
    # older files hold a boolean for each node
    if isinstance(entry, bool):
        return None, entry
    if not isinstance(entry, Mapping):
        raise InputError(
            f"importances {str(file)!r}: {name} is {entry!r}, expected an object with"
            " score and in_graph"
        )
    score = entry.get("score")
    if score is not None and not isinstance(score, int | float):
        raise InputError(
            f"importances {str(file)!r}: the score of {name} is {score!r}, expected a"
            " number"
        )
    if score is not None and np.isfinite(score):
        score = abs(float(score))
    else:
        score = None
    return score, bool(entry.get("in_graph", False))


def _convert_node(name: str, nodes: Sequence[str]) -> str:
    """Return our name of a node of MIB; empty for its input."""
    if name == _MIB_INPUT:
        return ""
    if name == _MIB_OUTPUT:
        return "output"
    # models of several stacks or attentions have no names in MIB, and keep ours
    if name in nodes or name == "output":
        return name
    match = _MIB_NODE.fullmatch(name)
    if match is not None:
        if match["mlp"] is not None:
            suffix = rf"{match['mlp']}\.mlp"
        else:
            suffix = rf"{match['layer']}\.\w+\.{match['head']}"
        found = [node for node in nodes if re.fullmatch(suffix, node)]
        if len(found) == 1:
            return found[0]
    raise unknown_name(
        "node of the model", name, nodes, hint="use these in importances"
    )
