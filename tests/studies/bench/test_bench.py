"""Answers to the benchmark are scored as methods of the package are, and what is wrong
with a file is said.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal
from typer.testing import CliRunner

import tsfm_lens
from refusals import expect_error
from tsfm_lens import probes
from tsfm_lens.ablation import Variant, point_forecasts
from tsfm_lens.cli import app
from tsfm_lens.core.errors import InputError
from tsfm_lens.hooks import Component
from tsfm_lens.models import Lens
from tsfm_lens.probes.edge_masks import edge_coords, list_edges
from tsfm_lens.probes.patching import parse_sites
from tsfm_lens.studies.bench import models as bench_models
from tsfm_lens.studies.bench.models import (
    CANDIDATES,
    PUBLIC_CARD,
    SERIES,
    TWIN,
    SealedModel,
    bench_names,
    draw_again,
    fetch,
    sealed_models,
    separating_names,
)
from tsfm_lens.studies.bench.planted import score_probe
from tsfm_lens.studies.bench.rivals import RIVALS
from tsfm_lens.studies.bench.scoring import (
    score_answer,
    score_files,
    score_submission,
)
from tsfm_lens.studies.bench.submission import (
    Submission,
    answer,
    answer_by,
    from_importances,
    read_submission,
)
from tsfm_lens.studies.bench.table import fill_table, mechanism_of, summarise
from tsfm_lens.studies.method_scores.explanations import EXPLANATIONS
from tsfm_lens.studies.method_scores.methods import EDGES, METHODS, PARTS
from tsfm_lens.studies.method_scores.series import EvaluationCase, evaluation_case
from tsfm_lens.zoo.planted.card import Card

NAME = "cancelling-chronos-bolt"
SEED = 11
RUNNER = CliRunner()


@pytest.fixture(scope="module")
def sealed() -> SealedModel:
    return sealed_models(NAME, SEED)[0]


@pytest.fixture
def content(sealed: SealedModel) -> dict[str, Any]:
    """Content of a file that is right."""
    return {
        "format": 1,
        "model": NAME,
        "seal": sealed.seal,
        "method": "mine",
        "nodes": dict.fromkeys(sealed.case.nodes, 0.5),
    }


@pytest.fixture(scope="module")
def fetched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fetch(NAME, SEED, tmp_path_factory.mktemp("fetched") / "model")


def test_a_fetched_model_is_the_planted_one_without_truth(
    fetched: Path, sealed: SealedModel
) -> None:
    folders = (fetched, fetched / TWIN)
    for folder, one in zip(folders, sealed_models(NAME, SEED), strict=True):
        files = {file.name for file in folder.iterdir() if file.is_file()}
        assert files == {"config.json", "model.safetensors", PUBLIC_CARD, SERIES}
        card = json.loads((folder / PUBLIC_CARD).read_text())
        assert set(card) == {
            *("format", "model", "horizon", "nodes", "tokens", "segments", "seal"),
        }
        series = np.load(folder / SERIES)
        run = tsfm_lens.load(folder).run(list(series["clean"]), card["horizon"])
        assert_array_equal(run.point, one.case.clean.point)
    # the true parts are no names of their own, and stand in no order
    assert card["nodes"] == list(map(str, sealed.case.components))


def test_circuits_are_measured_on_series_drawn_after_the_answer(
    sealed: SealedModel, tmp_path: Path
) -> None:
    """CPR and CMD are of new series at every call, unless their seed is given."""
    file = tmp_path / "answer.json"
    answer(sealed, ["zero ablation"]).write(file)
    first, second = (score_files([file], SEED).iloc[0] for _ in range(2))
    assert first["draw"] != second["draw"]
    assert first["cpr"] != second["cpr"]
    assert first["auroc"] == second["auroc"]
    again = score_files([file], SEED, int(first["draw"])).iloc[0]
    assert again["cpr"] == first["cpr"]
    expect_error("seed is", score_files, [file], SEED, -1)
    drawn = draw_again(sealed, 1).clean.batch.values
    for new, old in zip(drawn, sealed.case.clean.batch.values, strict=True):
        assert not np.array_equal(new, old)


def test_each_model_is_run_once_for_all_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two models, whose files are in turn, and the twin of one."""
    models = [sealed_models(name, SEED)[0] for name in (NAME, "split-chronos-bolt")]
    models += [sealed_models(NAME, SEED)[1], *models]
    files = [tmp_path / f"{place}.json" for place in range(len(models))]
    for file, one in zip(files, models, strict=True):
        nodes = {name: float(at) for at, name in enumerate(one.case.nodes)}
        given = Submission(
            model=str(one.card["model"]), seal=one.seal, method=file.stem, nodes=nodes
        )
        given.write(file)
    alone = [score_files([file], SEED, 3).iloc[0] for file in files]
    runs = []

    def counted(lens: Lens, card: Card, **options: Any) -> EvaluationCase:
        runs.append((card.mechanism, options["seed"]))
        return evaluation_case(lens, card, **options)

    monkeypatch.setattr(bench_models, "evaluation_case", counted)
    sealed_models.cache_clear()
    found = score_files(files, SEED, 3)
    pd.testing.assert_frame_equal(found, pd.DataFrame(alone).reset_index(drop=True))
    # each model and its twin as they were fetched, and on new series those with a file
    assert sorted(seed for _, seed in runs) == 3 * [3] + 4 * [SEED]


def test_a_seed_makes_the_same_seal_again(sealed: SealedModel) -> None:
    sealed_models.cache_clear()
    again, twin = sealed_models(NAME, SEED)
    assert again.seal == sealed.seal != twin.seal
    assert sealed_models(NAME, SEED + 1)[0].seal != sealed.seal


@pytest.mark.parametrize(
    "name",
    [
        "zero ablation",
        "edge attribution",
        "attention rollout",
        # of two stacks it scores one
        "stream shares",
        # segments and routes are fields of an answer, which strangers may fill
        "newest first",
        "routes, first order",
    ],
)
def test_a_file_is_scored_as_the_method_itself(
    name: str, sealed: SealedModel, tmp_path: Path
) -> None:
    """What a method says is scored alike with and without a file in between."""
    methods = {**EXPLANATIONS, **METHODS}[name]
    answer_by(sealed, name, methods).write(tmp_path / "answer.json")
    given = read_submission(tmp_path / "answer.json")
    row = score_answer(given, sealed).iloc[0]
    direct = score_probe(sealed, methods).iloc[0]
    measures = ("candidates", "auroc", "precision", "true", "claimed")
    if direct["scope"] == 1:
        for measure in measures:
            if measure in direct:
                assert row[measure] == direct[measure]
    else:
        # a file answers for every candidate; those without a score rank last
        assert row["candidates"] == len(sealed.case.nodes) > direct["candidates"]
        assert row["true"] > direct["true"]


def test_the_truth_scores_one(sealed: SealedModel) -> None:
    card = sealed.case.card
    true = card.components("mechanism")
    edges = {"->".join(edge): 1.0 for edge in card.edges}
    best = Submission(
        model=NAME,
        seal=sealed.seal,
        method="the card",
        nodes=dict.fromkeys(true, 1.0),
        edges=edges,
        claims=(*true, *edges),
    )
    rows = score_answer(best, sealed).set_index("level")
    assert list(rows.index) == ["nodes", "edges"]
    columns = ["auroc", "precision", "claim_precision", "claim_recall"]
    assert (rows[columns] == 1).all(axis=None)


def test_zero_ablation_falls_for_the_pair(sealed: SealedModel) -> None:
    """The heads that cancel rank first, though the forecast stays without them."""
    given = answer(sealed, ["zero ablation"])
    pair = sealed.case.card.components("cancelling")
    first = sorted(given.nodes, key=lambda name: given.nodes[name] or 0.0)[-2:]
    assert set(first) == set(pair)
    row = score_answer(given, sealed).iloc[0]
    assert row["precision"] < 1


def test_claims_on_twins_are_counted(tmp_path: Path) -> None:
    _, twin = sealed_models(NAME, SEED)
    answer(twin, ["zero ablation, of the range"]).write(tmp_path / "twin.json")
    row = score_files([tmp_path / "twin.json"], SEED).iloc[0]
    assert row["condition"] == "untrained"
    assert row["claimed"] > 0.5


@pytest.mark.parametrize("name", ["dead-chronos", "dead-chronos-bolt"])
def test_dead_units_act_only_in_the_altered_runs(name: str) -> None:
    """The MLP that decides on the gate writes nothing in clean runs."""
    case = sealed_models(name, SEED)[0].case
    (deciding,) = (
        part.component
        for part in case.card.parts
        if "flag" in part.does and part.does.split()[0] in ("writes", "raises")
    )
    without = Variant.zero(Component.parse(deciding))
    shifts = [
        float(np.abs(point_forecasts(run, [without])[0] - run.point).max())
        for run in (case.clean, case.corrupted)
    ]
    assert shifts[0] < 0.01 * shifts[1]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": 2}, "format"),
        ({"node": {}}, "nearest is 'nodes'"),
        ({"model": "canceling-chronos-bolt"}, NAME),
        ({"seal": "0"}, "seed"),
        ({"nodes": {}}, "nodes or edges or inputs"),
        ({"nodes": {"encoder.0.self_attn.9": 1.0}}, "encoder.0.self_attn"),
        ({"nodes": {"encoder.0.mlp": float("inf")}}, "finite"),
        ({"nodes": {"encoder.0.mlp": "much"}}, "encoder.0.mlp"),
        ({"nodes": {"encoder.0.mlp": True}}, "encoder.0.mlp"),
        ({"nodes": {"encoder.0.mlp": "1"}}, "encoder.0.mlp"),
        ({"edges": {"decoder.0.mlp->encoder.0.mlp": 1.0}}, "edges"),
        ({"inputs": {"99:0": 1.0}}, "inputs"),
        ({"claims": ["encoder.0.mlpp"]}, "claims"),
        ({"claims": ["encoder.0.mlp->output"]}, "claims"),
        ({"forwards": -1}, "forwards"),
        ({"method": ""}, "method"),
    ],
)
def test_wrong_files_are_refused(
    changes: dict[str, Any], words: str, content: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({**content, **changes}))
    with pytest.raises(InputError, match=words) as caught:
        score_files([file], SEED)
    assert "mine.json" in str(caught.value)


def test_what_is_no_answer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.json").write_text("{")
    (tmp_path / "list.json").write_text("[]")
    expect_error("no JSON", read_submission, tmp_path / "text.json")
    expect_error("fields", read_submission, tmp_path / "list.json")
    expect_error("list.json", read_submission, tmp_path / "lost.json")
    expect_error("directory", read_submission, tmp_path)
    expect_error("no files to score", score_files, [], SEED)
    expect_error("seed is", score_files, ["text.json"], float(SEED))


def test_a_key_that_stands_twice_is_refused(
    content: dict[str, Any], tmp_path: Path
) -> None:
    """Python would take the last of both, and say nothing."""
    file = tmp_path / "mine.json"
    text = json.dumps(content)
    name = next(iter(content["nodes"]))
    file.write_text(text.replace(f'"{name}"', f'"{name}": 9.0, "{name}"', 1))
    expect_error(f"{name}' stands in it twice", read_submission, file)
    file.write_text(text[:-1] + ', "method": "another"}')
    expect_error("method' stands in it twice", read_submission, file)


def test_a_mark_at_the_beginning_of_a_file_is_none(
    content: dict[str, Any], tmp_path: Path
) -> None:
    """Editors of Windows write one; a single path is a list of one."""
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(content), encoding="utf-8-sig")
    assert len(score_files(file, SEED)) == 1


def test_a_folder_of_another_model_is_not_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does a card stay beside weights that were not written to the end."""
    (tmp_path / "config.json").write_text("{}")
    expect_error("holds another model", fetch, NAME, SEED, tmp_path)
    assert (tmp_path / "config.json").read_text() == "{}"
    folder = tmp_path / "new"
    fetch(NAME, SEED, folder)
    monkeypatch.setattr(np, "savez", _interrupt)
    with pytest.raises(KeyboardInterrupt):
        fetch(NAME, SEED, folder)
    cards = [folder / PUBLIC_CARD, folder / "untrained" / PUBLIC_CARD]
    assert not any(card.exists() for card in cards)


def _interrupt(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def test_importances_of_mib_become_an_answer(tmp_path: Path) -> None:
    """Each node and edge of MIB is one of ours, ranked by the size of its score."""
    nodes = [f"{layer}.self_attn.{head}" for layer in (0, 1) for head in (0, 1)]
    card = {"model": "m", "seal": "s", "nodes": [*nodes, "0.mlp", "1.mlp"]}
    (tmp_path / PUBLIC_CARD).write_text(json.dumps(card))
    entry = {"score": -2.0, "in_graph": True}
    idle = {"score": 0.5, "in_graph": False}
    file = tmp_path / "importances.json"
    importances = {
        "cfg": {},
        "nodes": {"input": entry, "a0.h1": entry, "m1": idle, "logits": {}},
        "edges": {
            "input->m0": entry,
            "a0.h1->m0": entry,
            "m0->a1.h0<q>": idle,
            "m0->a1.h0<v>": {"score": -3.0, "in_graph": False},
            "m1->logits": idle,
        },
    }
    file.write_text(json.dumps(importances))
    given = from_importances(file, tmp_path, "EAP")
    assert given.nodes == {"0.self_attn.1": 2.0, "1.mlp": 0.5}
    assert given.edges == {
        "0.self_attn.1->0.mlp": 2.0,
        "0.mlp->1.self_attn.0": 3.0,
        "1.mlp->output": 0.5,
    }
    assert given.claims == ("0.self_attn.1", "0.self_attn.1->0.mlp")
    importances["nodes"] = {"a7.h1": entry}
    file.write_text(json.dumps(importances))
    expect_error("a7.h1", from_importances, file, tmp_path, "EAP")
    for wrong, words in (
        ({}, "nodes"),
        ({"nodes": [], "edges": {}}, "nodes"),
        ({"nodes": {"m1": {"score": "big"}}, "edges": {}}, "nodes.m1.score"),
        ({"nodes": {}, "edges": {"m1": entry}}, "edges.m1"),
    ):
        file.write_text(json.dumps(wrong))
        expect_error(words, from_importances, file, tmp_path, "EAP")


def test_commands_list_fetch_and_score(
    fetched: Path, content: dict[str, Any], tmp_path: Path
) -> None:
    listed = RUNNER.invoke(app, ["bench", "list"]).stdout.split()
    assert listed == list(bench_names())
    folder = tmp_path / "again"
    made = RUNNER.invoke(
        app, ["bench", "fetch", NAME, "--seed", str(SEED), "--out", str(folder)]
    )
    assert made.exit_code == 0
    cards = [(one / PUBLIC_CARD).read_text() for one in (folder, fetched)]
    assert cards[0] == cards[1]
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({**content, "forwards": 3}))
    options = ["bench", "score", str(file), "--seed", str(SEED)]
    rows = json.loads(RUNNER.invoke(app, [*options, "--json"]).stdout)
    assert pd.DataFrame(rows)["forwards"].tolist() == [3]
    # all scores are the same, so that nothing is told apart
    assert rows[0]["auroc"] == 0.5
    # a seed that --draw takes, with all its digits
    draw = str(rows[0]["draw"])
    table = RUNNER.invoke(app, [*options, "--draw", draw]).stdout
    assert draw in table.split()
    assert NAME in RUNNER.invoke(app, options).stdout
    importances = tmp_path / "importances.json"
    node = content["nodes"]
    importances.write_text(
        json.dumps({"nodes": {one: {"score": 1.0} for one in node}, "edges": {}})
    )
    out = tmp_path / "converted.json"
    done = RUNNER.invoke(
        app,
        [
            *("bench", "convert", str(importances), str(fetched)),
            *("--method", "EAP", "--out", str(out)),
        ],
    )
    assert done.exit_code == 0, done.stderr
    assert set(read_submission(out).nodes) == set(node)
    refused = RUNNER.invoke(app, [*options[:-1], "1"])
    assert refused.exit_code == 1
    assert "--seed 1" in refused.stderr


def test_areas_of_circuits_are_those_of_the_probe(sealed: SealedModel) -> None:
    """CPR and CMD of a file are what the probe measures of its ranking."""
    true = sealed.case.card.components("mechanism")
    given = Submission(
        model=NAME, seal=sealed.seal, method="card", nodes=dict.fromkeys(true, 1.0)
    )
    row = score_submission(given, sealed).iloc[0]
    ranking = {name: float(name in true) for name in sealed.case.nodes}
    data = probes.circuit_curve(
        sealed.case.clean, ranking, sealed.case.corrupted, draws=0
    )
    for name in ("cpr", "cmd"):
        areas = data[name].mean("series")
        assert row[name] == areas.sel(direction="best kept")
        assert row[f"{name}_removed"] == areas.sel(direction="best removed")
    # the true parts alone give the forecast back, so that little is left to gain
    share = len(true) / len(sealed.case.nodes)
    assert row["cpr"] > 1 - share > share > row["cpr_removed"]


def test_rivals_differ_on_what_tells_them_apart(tmp_path: Path) -> None:
    """Pairs that cancel defeat ablation and not a search that removes pairs."""
    file = tmp_path / "table.csv"
    methods = ["random", "zero ablation", "greedy with pairs"]
    first = fill_table(file, [NAME], [SEED], methods[:2])
    lines: list[str] = []
    table = fill_table(file, [NAME], [SEED], methods, log=lines.append)
    # cells that are there are not made again
    assert len(lines) == 1
    assert len(table) == len(first) + 1
    assert table["date"].notna().all()
    means = summarise(table)
    assert list(means.columns) == ["cancelling", "all"]
    assert means.index[0] == methods[2]
    assert means.loc[methods[2], "all"] == 1.0 > means.loc[methods[1], "all"]
    expect_error("zero ablation", fill_table, file, [NAME], [0], ["zero ablatoin"])
    expect_error("since is", fill_table, file, [NAME], [SEED], since="yesterday")
    for text in ("", "a,b\n"):
        file.write_text(text)
        expect_error("another table", fill_table, file, [NAME], [SEED], methods)
        assert file.read_text() == text


@pytest.mark.parametrize(
    "name",
    [
        # masks are trained, and have tests of their own
        pytest.param(
            name, marks=[pytest.mark.exhaustive] if name == "learned masks" else []
        )
        for name in RIVALS
    ],
)
def test_every_rival_scores_candidates(name: str, sealed: SealedModel) -> None:
    """A rival answers for each level at most once, and every score has a candidate."""
    levels = [method.level for method in RIVALS[name]]
    assert PARTS in levels
    assert len(set(levels)) == len(levels)
    cheap = [method for method in RIVALS[name] if method.level == PARTS]
    given = answer_by(sealed, name, cheap)
    assert set(given.nodes) == set(sealed.case.nodes)
    assert len(score_answer(given, sealed)) == 1


def test_masks_of_edges_have_names_of_candidates(sealed: SealedModel) -> None:
    """What is learned for an edge can be handed in under the name it was given."""
    case = sealed.case
    sites = parse_sites(case.lens, list(map(str, case.components)))
    coords = edge_coords(sites, list_edges(case.lens, sites))
    assert len(coords["edge"]) > len(sites)
    assert set(coords["edge"]) <= set(CANDIDATES[EDGES](case))


def test_models_are_in_two_architectures_and_sizes() -> None:
    for large in (False, True):
        names = separating_names(large=large)
        assert set(names) <= set(bench_names())
        mechanisms = pd.Series(names).map(mechanism_of).value_counts()
        assert len(mechanisms) == 8
        assert (mechanisms == 2).all()


def test_the_page_shows_the_table_beside_it() -> None:
    """The tables of the page are made of the file; methods differ by 0.3 or more."""
    docs = Path(__file__).parents[3] / "docs" / "howto"
    table = pd.read_csv(docs / "rivals.csv")
    small = table[table["model"].isin(separating_names(large=False))]
    means = summarise(small).round(2)
    claimed = summarise(small, measure="claimed", condition="untrained")
    page = (docs / "score-your-method.md").read_text()
    for method, row in means.iterrows():
        cells = " | ".join(f"{value:.2f}" for value in row)
        assert f"| {method} | {cells} |" in page
        mechanisms = row.drop("all")
        worst = f"{mechanisms.idxmin()} ({mechanisms.min():.2f})"
        wrong = ""
        if method in claimed.index:
            wrong = f"{100 * claimed.loc[method, 'all']:.0f} %"
        if method != "random":
            assert f"| {method} | {row['all']:.2f} | {worst} | {wrong} |" in page
    assert len(means) >= 10
    edges = summarise(small, EDGES).round(2)
    found = summarise(small, EDGES, measure="precision").round(2)
    assert "learned masks" in edges.index
    for method, rank in edges["all"].items():
        assert f"| {method} | {rank:.2f} | {found.loc[method, 'all']:.2f} |" in page
    assert means["all"].max() - means["all"].min() >= 0.3
    assert table["date"].notna().all()


def test_architectures_have_equal_weight() -> None:
    """The mean of a mechanism is over architectures, however many seeds each has."""
    models = ["split-chronos", "split-chronos-bolt", "split-chronos-bolt"]
    rows = {"model": models, "auroc": [0.0, 1.0, 1.0], "level": PARTS}
    table = pd.DataFrame(rows).assign(method="one", condition="planted")
    assert summarise(table).loc["one", "split"] == 0.5
