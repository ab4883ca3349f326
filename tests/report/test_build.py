"""The report file: complete, escaped, small, atomic, and its tables true."""

from __future__ import annotations

import base64
import gzip
import io
import json

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import planted
from browsing import Page
from tsfm_lens.core.errors import InputError, UnknownNameError
from tsfm_lens.report import build, build_report
from tsfm_lens.report.build import download
from tsfm_lens.testing import assert_close

PROVENANCE = {"model": "toy", "seed": "3"}


def page(results, tmp_path, **options) -> Page:
    options = {"title": "T", "provenance": PROVENANCE} | options
    return Page(build_report(results, tmp_path, **options).read_text())


@pytest.fixture(scope="module")
def found(whole) -> Page:
    return Page(whole.read_text())


def tables(found: Page, section: int) -> list[pd.DataFrame]:
    """The tables of one section of the report, in order."""
    links = [a for a in found.all("a") if "download" in a]
    return [table(a) for a in links if f"-s{section}-" in (a["download"] or "")]


def table(link: dict[str, str | None]) -> pd.DataFrame:
    kind, _, content = (link["href"] or "").partition(";base64,")
    raw = base64.b64decode(content)
    return pd.read_csv(io.BytesIO(gzip.decompress(raw) if "gzip" in kind else raw))


def test_figures_have_plot_reading_and_table(found, counts, panels):
    """Every figure has a plot, a reading and a table."""
    anchors = [attrs["id"] or "" for attrs in found.all("figure")]
    drawn = {
        name: sum(a.startswith(f"s{i}-") for a in anchors)
        for i, name in enumerate(counts, start=1)
    }
    assert drawn == counts
    figures = len(anchors)
    assert len(found.specs) == figures
    assert all(spec["data"] for spec in found.specs)
    # the first sentence of a chapter stands alone, all of them in the text
    reported = [
        label for item in panels.values() for panel in item for label in panel.sentences
    ]
    # the linked view is the chapter of the states of heads
    chapters = {name: item for name, item in panels.items() if name != "head_states"}
    tables_behind = len(panels["head_states"])
    text = " ".join(found.text.split())
    assert [
        label
        for label in map(build._typeset, reported)
        if " ".join(label.split()) not in text
    ] == []
    # of a chapter with figures of single series, one for each of them
    leading = [
        {panel.series for panel in item} - {""} if item[0].series else {""}
        for item in chapters.values()
    ]
    assert (
        len([p for p in found.all("p") if p.get("class") == "main"])
        == sum(map(len, leading))
        > len(counts)
    )
    links = [a for a in found.all("a") if "download" in a]
    assert len(links) == figures + tables_behind


def test_every_series_has_figures_or_note(tmp_path):
    """Of ten series every chapter draws the first eight, each under its tab, and says
    so of the others.
    """
    ids = [f"river-{position}" for position in range(10)]
    every = planted.in_report(ids)
    kinds = ("forecast", "attribution", "head_states", "attention_patterns")
    found = page({kind: every[kind] for kind in kinds}, tmp_path)
    for position, kind in enumerate(kinds, start=1):
        figures = [
            attrs
            for attrs in found.all("figure")
            if (attrs["id"] or "").startswith(f"s{position}-")
        ]
        drawn = {attrs["data-series"] for attrs in figures if "data-series" in attrs}
        expected = {"forecast": ids, "head_states": [], "attention_patterns": []}.get(
            kind, ids[:8]
        )
        assert drawn == set(expected), kind
    notes = [
        attrs["data-series"]
        for attrs in found.all("p")
        if attrs.get("class") == "note" and "data-series" in attrs
    ]
    # attribution leaves out two series; attention is of one
    assert sorted(notes) == sorted([*ids[8:], *ids[1:]])
    assert found.text.count("it draws 8 series") == 2


def test_shared_statements_appear_once(results, tmp_path):
    """What any chapter may state is stated once."""
    text = page(
        {name: results[name] for name in ("ablation_effects", "attribution", "gain")},
        tmp_path,
    ).text
    assert text.count("Not compared with untrained twins") == 1
    assert "What counts as significant" in text
    # a sentence names the chapters that it is of
    assert "Ablation, Attribution, Gain of each layer: Not compared" in text


def test_file_is_self_contained_and_small(whole, found):
    assert whole.name == "index.html"
    assert whole.stat().st_size < 10_000_000
    assert all(address.startswith(("#", "data:")) for address in found.loads)
    assert not found.all("iframe")
    assert "plotly.js v" in found.unpacked("plotly")


def test_strings_of_users_are_text_everywhere(evil_whole, evil):
    found = Page(evil_whole.read_text())
    # one script per figure, plotly, its settings, the linked view's state and the
    # drawing
    assert len(found.all("script")) == len(found.all("figure")) + 4
    assert not found.all("img")
    assert not [
        attrs for _, attrs in found.tags if any(name.startswith("on") for name in attrs)
    ]
    for text in (evil, "b</script>", "c%{x}"):
        assert text in found.text
    specs = found.specs
    texts = json.dumps(specs, ensure_ascii=False)
    # inside plotly's texts the markup is spelled out in entities; only meta, which
    # nothing draws, has it raw
    for spec in specs:
        spec["layout"].pop("meta")
    assert "<script" in texts
    assert "<script" not in json.dumps(specs, ensure_ascii=False)
    assert "<img" not in json.dumps(specs, ensure_ascii=False)
    links = [a for a in found.all("a") if "download" in a]
    assert all(
        set(a["download"] or "") <= set("abcdefghijklmnopqrstuvwxyz0123456789-.")
        for a in links
    )
    assert table(links[0])["series"][0] == evil


def test_tables_match_their_figures(found, results):
    """Tables hold the numbers of their figures."""
    second = tables(found, 1)[1]
    ds = results["forecast"].isel(series=1)
    np.testing.assert_allclose(
        second[["q0.1", "q0.5", "q0.9"]].values.T, ds["quantile_forecast"].values
    )
    np.testing.assert_allclose(second["truth"], ds["truth"])
    assert (second["series"].unique(), second["timestamp"][0]) == (["b"], "2001-01-25")
    entropy, cells = tables(found, 2)[:2]
    assert entropy.query("layer == 1 and series == 'c'")["entropy"].item() == 1.0
    last = cells.query("layer == 'layer 1' and step == 4").iloc[0]
    assert last["value_from"] <= 14 <= last["value_to"]
    assert last["probability"] == 1.0
    gain = tables(found, 3)[0].query("metric == 'MAE' and layer == 0 and series == 'b'")
    assert gain["gain_percent"].item() == -20
    assert gain["error"].item() == 0.333333
    assert (
        tables(found, 4)[0]
        .set_index("component")
        .loc["decoder.1.cross_attn.1", "spearman_distance: c"]
        == 0.8
    )
    steps = tables(found, 5)[0].set_index("component")
    assert steps.loc["decoder.1.cross_attn.0", "step 4"] == -2.0
    assert "decoder.1" not in steps.index
    heads, weights, _ = tables(found, 6)
    assert heads.query("layer == 1 and head == 0")["special_weight"].item() == 0.9
    assert (weights["query_start"] - weights["key_start"] == 7).all()
    assert tables(found, 7)[0].query("layer == -1 and step == 2")["q0.5"].item() == 20.0


def test_long_tables_are_compressed_and_whole():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=40_000), "name": "a, b"})
    link = download(frame, "long.csv")
    assert link["name"] == "long.csv.gz"
    again = table(link)
    assert_close(again["x"], frame["x"], depth=100, dtype=np.float32)
    assert (again["name"] == "a, b").all()
    assert download(frame, "long.csv") == link


def test_omissions_beyond_limit_are_named(results, tmp_path, monkeypatch):
    """What exceeds the limit is left out and named."""
    some = {name: results[name] for name in ("gain", "attribution")} | {
        "y": results["gain"]
    }
    full = build_report(some, tmp_path, title="T", provenance=PROVENANCE).stat().st_size
    # what the page keeps free for its template, less than the template has
    limit = full + 45_000
    monkeypatch.setattr(build, "LIMIT", limit)
    found = page(some, tmp_path)
    assert (tmp_path / "index.html").stat().st_size <= limit
    assert "Left out to keep the file below 10 MB" in found.text
    # every section keeps its first figure
    anchors = {a["id"] for a in found.all("figure")}
    assert {"s1-1", "s2-1"} <= anchors
    assert "s2-7" not in anchors
    # two results of one kind are told apart
    assert "Gain of each layer (y)" in found.text


def test_paths_and_atomicity(results, tmp_path):
    path = build_report(
        {"g": results["gain"]}, tmp_path / "deep" / "r.html", title="T", provenance={}
    )
    assert path.name == "r.html"
    before = path.read_text()
    results["gain"].attrs["kind"] = "gane"
    with pytest.raises(InputError, match=r"result 'g'.*'gane'.*layer_gain"):
        build_report({"g": results["gain"]}, path, title="T", provenance={})
    assert path.read_text() == before
    assert [p.name for p in path.parent.iterdir()] == ["r.html"]


def test_inputs_are_checked(results, tmp_path):
    with pytest.raises(InputError, match="no results to report"):
        build_report({}, tmp_path, title="T", provenance={})
    with pytest.raises(UnknownNameError, match=r"no result 'gian'. Closest: gain"):
        build_report(results, tmp_path, title="T", provenance={}, remarks={"gian": "x"})
    with pytest.raises(InputError, match=r"result 'd'.*'dict'"):
        build_report({"d": {}}, tmp_path, title="T", provenance={})  # type: ignore[dict-item]
    assert not list(tmp_path.iterdir())


def check_saved(results, panels, tmp_path):
    """Results that were saved and loaded give the page that was drawn of them."""
    loaded = {}
    for name, ds in results.items():
        if isinstance(ds, pd.DataFrame):
            ds.to_parquet(tmp_path / f"{name}.parquet")
            loaded[name] = pd.read_parquet(tmp_path / f"{name}.parquet")
            continue
        ds.to_netcdf(tmp_path / f"{name}.nc", engine="scipy")
        loaded[name] = xr.load_dataset(tmp_path / f"{name}.nc", engine="scipy")
    path = build_report(loaded, tmp_path, title="T", provenance=PROVENANCE)
    drawn = {name: panels[name] for name in results}
    expected = build.render_page(results, drawn, title="T", provenance=PROVENANCE)
    assert path.read_bytes() == expected


def test_saved_results_give_same_file(results, panels, tmp_path):
    """Results that were saved and loaded give the same file; two thirds of them by
    `make exhaustive`.
    """
    check_saved({name: results[name] for name in list(results)[::3]}, panels, tmp_path)


@pytest.mark.exhaustive
def test_all_saved_results_give_same_file(results, panels, tmp_path):
    check_saved(results, panels, tmp_path)
