"""Chapters about routes of the input through a model, and about the proof of an explanation."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import numpy as np
import xarray as xr

from tsfm_lens.catalogue.computing import Compute, Options, Work
from tsfm_lens.catalogue.entry import Figure, Measurement, Plate
from tsfm_lens.catalogue.explaining import THEME
from tsfm_lens.catalogue.needs import SERIES
from tsfm_lens.catalogue.standing import Standing
from tsfm_lens.catalogue.tables import frame
from tsfm_lens.catalogue.words import capital, listed, measured
from tsfm_lens.models.run import Run
from tsfm_lens.viz import carried_dots, deletion_lines, proof_dots, route_map, route_river
from tsfm_lens.viz.explain_routes import past_attention
from tsfm_lens.viz.select import array, kind_word, names, unit_of
from tsfm_lens.viz.theme import percent

_PARTS, _FEW = 6, 3  # segments of a report's chapters, and of one about all series
_MAX_NAMES = 3
_HOW: dict[str, Any] = {"reference": "mean"}


def explained(run: Run) -> Run:
    """Return the run in one pass, which takes no draw, over as many steps as it has, if its model draws samples."""
    if run.rollout and run.lens.emits != "quantile":
        return run.shortened(run.lens.longest_pass).in_one_pass()
    return run


def _routes(work: Work, more: Options) -> xr.Dataset:
    return work.call("explain.input_routes", explained(work.first), **{"parts": _PARTS, **_HOW, **more})


def _curves(work: Work, more: Options) -> xr.Dataset:
    """Put the attribution of the chapter on inputs on trial, with attention for a rival."""
    attribution = work.result("input_attribution")
    # masked as it was explained
    reference = more.get("reference", attribution.attrs["reference"])
    explain, parts = (
        import_module("tsfm_lens.explain"),
        import_module("tsfm_lens.explain.curves").segments_in(attribution),
    )
    rival = "attention roll-out"
    explanations = {str(attribution.attrs["method"]): attribution}
    if rival not in explanations:
        explanations[rival] = explain.attribute_inputs(work.first, method=rival, reference=reference, parts=parts)
    return work.call("explain.deletion_curves", work.first, explanations, **{**more, "reference": reference})


def _proof(work: Work, more: Options) -> xr.Dataset:
    return work.call("explain.prove_routes", explained(work.first), work.result("input_routes"), **{**_HOW, **more})


def _carried(work: Work, more: Options) -> xr.Dataset:
    return work.call("explain.route_effects", explained(work.run), **{"parts": _FEW, **_HOW, **more})


def read_carried(ds: xr.Dataset) -> list[str]:
    """Name the components that carry most of the input's influence over all series, against a null if there is one."""
    against = str(ds.attrs.get("against", ""))
    carried = Standing(ds, "carried_share" if against else "carried", "component")
    labels = names(ds, "component")
    most = [f"{labels[place]} ({carried.told(place, percent)})" for place in carried.named(_MAX_NAMES)]
    null = {"untrained": "components of untrained twins", "shuffled series": "itself on shuffled series"}
    beyond = f"than {null.get(against, 'random components of its kind')}" if against else "than the noise"
    if not most:
        return [f"No component carries more of the input's influence {beyond}."]
    return [f"Most of the input's influence goes through {listed(most)}; each carries more {beyond}."]


def read_routes(ds: xr.Dataset) -> list[str]:
    """Describe through which components the most influential segments act, and what the parts sum to."""
    amount, segments, components = measured(unit_of(ds)), names(ds, "segment"), names(ds, "component")
    size, total = array(ds, "size", "segment", "component"), array(ds, "total", "segment", "step")
    stands = array(ds, "size_stands_out", "segment", "component") > 0
    movement = np.abs(total).mean(1)
    out = []
    for place in np.argsort(-movement, kind="stable")[:_MAX_NAMES]:
        if movement[place] <= float(ds["total_floor"]):
            continue
        order = [i for i in np.argsort(-np.nan_to_num(size[place]), kind="stable") if stands[place, i]][:_MAX_NAMES]
        leading = [f"{components[i]} ({amount(size[place, i])})" for i in order]
        through = f" The most of it goes through {listed(leading)}." if leading else " No component stands out in it."
        words = past_attention(float(array(ds, "no_attention_share", "segment")[place]))
        past = f" {capital(words)}." if words else ""
        out.append(
            f"Masking {segments[place]} moves the forecast by {amount(movement[place])} on average.{through}{past}"
        )
    if not out:
        return ["No segment moves the forecast by more than the noise."]
    rest = np.abs(array(ds, "rest", "segment", "step")).mean(1).sum() / movement.sum()
    out.append(
        "What branches hand to the readout and what needs no component sum to these effects but for "
        f"{percent(rest)}, which the readout makes of them together."
    )
    if ds.attrs.get("search") == "gradient":
        rate, high = (percent(float(ds.attrs[name])) for name in ("miss_rate", "miss_rate_high"))
        out.append(
            f"Gradients chose the {ds.attrs['top']} components that were tried; of those drawn at random beside them "
            f"{rate} had been missed (at most {high})."
        )
    return out


def read_kinds(ds: xr.Dataset) -> list[str]:
    """Name the component that carries most of all segments, and the kinds of component by what they carry."""
    size = np.nan_to_num(array(ds, "size", "segment", "component")).sum(0)
    if not (array(ds, "size_stands_out", "segment", "component") > 0).any():
        return ["No component carries more than the noise."]
    kinds = [f"{stack} {kind_word(str(kind))}".strip() for stack, kind in zip(*_places(ds), strict=True)]
    by_kind = {kind: float(size[[each == kind for each in kinds]].max()) for kind in dict.fromkeys(kinds)}
    amount = measured(unit_of(ds))
    largest = [f"{kind} {amount(value)}" for kind, value in sorted(by_kind.items(), key=lambda item: -item[1])]
    return [
        f"Of all segments together, most goes through {names(ds, 'component')[int(size.argmax())]}. The largest of "
        f"each kind: {listed(largest)}."
    ]


def _places(ds: xr.Dataset) -> tuple[list[str], list[str]]:
    return [str(stack) for stack in ds["stack"].values], [str(kind) for kind in ds["component_kind"].values]


def read_proof(ds: xr.Dataset) -> list[str]:
    """State the verdict, by the rules of :mod:`tsfm_lens.explain.verdict`."""
    rules = import_module("tsfm_lens.explain.verdict")
    word, sentences = rules.verdict(ds)
    # the first is also said alone, at a glance: what was tried first is not all that was
    return [f"By the rules below the explanation {word}. {sentences[0]}", *sentences[1:], *rules.rules_of(ds)]


def _route_plates(ds: xr.Dataset) -> Iterator[Plate]:
    words = read_routes(ds)
    yield Plate(route_river(ds), frame(ds, "size", "share").dropna(ignore_index=True), words)
    table = frame(ds, "total", "no_component", "no_attention", "rest")
    yield Plate(route_map(ds), table, read_kinds(ds))


def _carried_plates(ds: xr.Dataset) -> Iterator[Plate]:
    yield Plate(carried_dots(ds), frame(ds, "carried"), read_carried(ds))


def _curve_plates(ds: xr.Dataset) -> Iterator[Plate]:
    table = frame(ds, "deletion", "insertion").merge(frame(ds, "area", "p"), on="explanation")
    yield Plate(deletion_lines(ds), table, read_proof(ds))


def _proof_plates(ds: xr.Dataset) -> Iterator[Plate]:
    table = frame(ds, "necessity", "sufficiency", "necessity_p", "sufficiency_p", "prediction_error", "overlap")
    yield Plate(proof_dots(ds), table, read_proof(ds))


MEASUREMENTS = (
    Measurement(
        kind="input_routes",
        theme=THEME,
        about="effect of each segment of the input through each head and MLP, total and direct, with what it sums to",
        heading="Routes of the input",
        guide="The model sees the series with and without a segment. The effect through a component is the change of "
        "the forecast when that component alone writes what it writes without the segment; a chain of components "
        "carries one effect, and each of them has it in full. The first number in a component's name is its layer, "
        "and one at its end the head, both counted from 0.",
        compute=Compute("explain.input_routes", "input_routes of the first item", _routes),
        plates=_route_plates,
        figures=(
            Figure("route_river", "Through which components stretches of the input reach the forecast."),
            Figure("route_map", "How much of each stretch's influence goes through each component."),
        ),
        helpers=("explain.missed_by_search",),
        source="Wang et al. 2022; Goldowsky-Dill et al. 2023",
        needs=SERIES,
    ),
    Measurement(
        kind="route_effects",
        theme=THEME,
        about="part of the input's influence that each component carries over many series, and against nulls",
        heading="What carries the input",
        guide="Of every series, the effects of all segments through a component, over their effects in total. Hollow "
        "points are within the noise. A null (untrained twins, random components, shuffled series) says what a "
        "component carries where there is nothing to find.",
        compute=Compute("explain.route_effects", "route_effects of all items", _carried),
        plates=_carried_plates,
        figures=(Figure("carried_dots", "What part of the input's influence each component carries."),),
        helpers=("explain.held_against", "explain.untrained_twin"),
        source="Wang et al. 2022; Adebayo et al. 2018",
        needs=SERIES,
    ),
    Measurement(
        kind="deletion_curves",
        theme=THEME,
        about="deletion and insertion curves of input attributions against random orders and attention",
        heading="Proof by masking",
        guide="Segments are masked, and shown, in the order in which an explanation names them. A true one moves the "
        "forecast sooner than random orders do; the band holds 95 % of those.",
        compute=Compute("explain.deletion_curves", "deletion_curves of attributions of the first item", _curves),
        plates=_curve_plates,
        figures=(Figure("deletion_lines", "How soon the forecast moves in the order of an explanation."),),
        helpers=("explain.verdict",),
        source="Samek et al. 2017; Petsiuk et al. 2018",
        needs=SERIES,
    ),
    Measurement(
        kind="route_proof",
        theme=THEME,
        about="necessity and sufficiency of named routes against matched random components",
        heading="Proof by cutting routes",
        guide="The routes that are named for a segment are cut together, and restored together in the forecast without "
        "it. They explain its effect if it goes and comes back with them, more than with random components.",
        compute=Compute("explain.prove_routes", "prove_routes of input_routes", _proof),
        plates=_proof_plates,
        figures=(Figure("proof_dots", "What cutting and restoring the named routes does."),),
        helpers=("explain.named_routes",),
        source="Geiger et al. 2021; Wang et al. 2022",
        needs=SERIES,
    ),
)
