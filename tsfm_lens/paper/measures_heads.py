"""Measures of heads: sharp, inducing, both; and forecasts without them."""

from __future__ import annotations

import numpy as np
import xarray as xr

from tsfm_lens.errors import InputError
from tsfm_lens.paper.measuring import Asked, Found, as_numbers
from tsfm_lens.probes import (
    ablation_recipes,
    diffuse_heads,
    head_entropy,
    induction_overlap,
    repeated_tokens,
    sharp_heads,
)
from tsfm_lens.probes.induction import COPY_FROM, frequent_tokens

MOTIF, REPEATS = 32, 4
COMPARED = 64  # first steps of a forecast that the paper measures Spearman distances on


def without_sharp_heads(asked: Asked) -> Found:
    """How far forecasts move without sharp and without diffuse heads (S3-F20)."""
    run = asked.run.shortened(COMPARED)
    windows = len(run.batch)
    of = windows + 4

    def forecast_done(done: int, _: int) -> None:
        asked.tell("forecasts without heads", windows + done, of)

    def attention_read(done: int, _: int) -> None:
        asked.tell("attention of every window", done, of)

    entropy = head_entropy(run.shortened(asked.model.adapter.longest_pass), progress=attention_read)
    count = min(6, entropy["entropy"].size // 2)
    recipes = {
        "sharpest": sharp_heads(entropy),
        "most diffuse": diffuse_heads(entropy),
        "sharpest six": sharp_heads(entropy, count),
        "most diffuse six": diffuse_heads(entropy, count),
    }
    result = ablation_recipes(run, recipes, progress=forecast_done)
    moved = {name: float(result["spearman_distance"].sel(recipe=name).mean()) for name in recipes}
    statements = {
        "the sharpest head moves the forecast more than the most diffuse one": moved["sharpest"]
        > moved["most diffuse"],
        "the six sharpest heads move the forecast more than the six most diffuse": moved["sharpest six"]
        > moved["most diffuse six"],
    }
    share = {"six heads of all": 100 * count / entropy["entropy"].size}
    more = {f"mean Spearman distance without the {name}": value for name, value in moved.items()}
    return Found({**share, **as_numbers(statements), **more}, {**asked.settings(), "steps compared": str(run.horizon)})


def sharp_share(asked: Asked) -> Found:
    """Sharp heads (S3-HENT)."""
    found = head_entropy(asked.run)
    values = {
        "normalised entropy below which a head is sharp": float(found.attrs["sharp_below"]),
        "sharp heads of all": 100 * float(found["sharp"].mean()),
        "heads of the decoder's cross-attention": float(found["sharp"].size),
        "sharp heads": float(found["sharp"].sum()),
    }
    return Found(values, asked.settings())


def induction_share(asked: Asked) -> Found:
    """Induction heads (S3-PREF)."""
    found = _repeated(asked)
    values = {
        "prefix-matching score from which a head matches": float(found.attrs["prefix_from"]),
        "copy score from which a head copies": float(found.attrs["copy_from"]),
        "induction heads of all": 100 * float(found["induction"].mean()),
        "induction heads": float(found["induction"].sum()),
        "tokens copied rightly": 100 * float(found["copy_accuracy"]),
    }
    return Found(values, _repeated_settings(found), {"tokens copied rightly": "%"})


def _repeated(asked: Asked) -> xr.Dataset:
    return repeated_tokens(asked.model, motif=MOTIF, repeats=REPEATS, n_sequences=asked.n_sequences, seed=asked.seed)


def _repeated_settings(found: xr.Dataset) -> dict[str, str]:
    words = {"motif": "motif", "repeats": "repeats", "decoding": "decoding", "n_sequences": "sequences"}
    target = "the token after it" if found.attrs["offset"] else "the instance itself"
    read = {"last": "the last decoder position", "first": "the position after the prompt", "all": "all positions"}
    chosen = {"prefix matching looks at": target, "scores are read at": read[found.attrs["positions"]]}
    return {**{word: str(found.attrs[key]) for key, word in words.items()}, **chosen}


def motif_tokens(asked: Asked) -> Found:
    """Tokens of the repeated-random-tokens test (S3-RRT)."""
    if not hasattr(asked.model.adapter, "encode_tokens"):
        raise InputError(f"{asked.model.model_id} has no value tokens; the repeated-random-tokens test is of Chronos")
    ids = frequent_tokens(asked.model)
    values = {
        "lowest token id": float(ids.min()),
        "highest token id": float(ids.max()),
        "tokens in a motif": float(MOTIF),
        "times it is shown": float(REPEATS),
    }
    return Found(values, {"tokens of the vocabulary": str(asked.model.adapter.settings.n_tokens)})  # type: ignore[attr-defined]


def _overlap_of(asked: Asked) -> tuple[xr.Dataset, dict[str, str]]:
    found = _repeated(asked)
    entropy = head_entropy(asked.run)
    overlap = induction_overlap(found, entropy)
    return overlap, {**_repeated_settings(found), **asked.settings()}


def overlap_values(overlap: xr.Dataset) -> dict[str, float]:
    """Table 5 from a result of :func:`tsfm_lens.probes.induction_overlap`."""
    table = overlap["proportion"]

    def cell(induction: str, sharp: str) -> float:
        return float(table.sel(induction_state=induction, sharp_state=sharp))

    return {
        "proportion induction, sharp": cell("induction", "sharp"),
        "proportion induction, not sharp": cell("induction", "other"),
        "proportion induction": float(overlap["proportion_induction"].sel(induction_state="induction")),
        "proportion not induction, sharp": cell("other", "sharp"),
        "proportion not induction, not sharp": cell("other", "other"),
        "proportion not induction": float(overlap["proportion_induction"].sel(induction_state="other")),
        "proportion sharp": float(overlap["proportion_sharp"].sel(sharp_state="sharp")),
        "proportion not sharp": float(overlap["proportion_sharp"].sel(sharp_state="other")),
        "P(sharp | induction)": float(overlap["p_sharp_given_induction"]),
        "P(induction | sharp)": float(overlap["p_induction_given_sharp"]),
    }


def table_5(asked: Asked) -> Found:
    """Overlap of induction and sharp heads (S3-T5)."""
    overlap, settings = _overlap_of(asked)
    names = {"sharp below": "sharp_below", "prefix from": "prefix_from", "copy from": "copy_from"}
    used = {word: f"{overlap.attrs[key]:g}" for word, key in names.items()}
    return Found(overlap_values(overlap), {**settings, **used})


def thresholds(asked: Asked) -> Found:
    """The same over thresholds, and correlations of the scores (S3-F23)."""
    overlap, settings = _overlap_of(asked)
    rises = overlap["correlation"]

    def correlation(one: str, other: str) -> float:
        return float(rises.sel(score=one, other_score=other))

    prefix, copy, entropy = "prefix_matching", "copy_score", "normalised"
    given = overlap["sweep_sharp_given_induction"].sel(copy_threshold=COPY_FROM)
    half = overlap["entropy_threshold"].values[given.values >= 0.5]
    statements = {
        "prefix-matching and copy scores rise together": correlation(prefix, copy) > 0,
        "prefix-matching score falls with entropy": correlation(prefix, entropy) < 0,
        "copy score falls with entropy": correlation(copy, entropy) < 0,
        "a higher entropy threshold raises P(sharp | induction) to 0.5 or more": len(half) > 0,
    }
    reverse = overlap["sweep_induction_given_sharp"].values
    known = reverse[np.isfinite(reverse)]
    more = {
        "correlation of prefix-matching and copy scores": correlation(prefix, copy),
        "correlation of prefix-matching score and entropy": correlation(prefix, entropy),
        "correlation of copy score and entropy": correlation(copy, entropy),
        "lowest entropy threshold at which P(sharp | induction) is 0.5 or more": float(half.min())
        if len(half)
        else np.nan,
    }
    median = {"P(induction | sharp), median over thresholds": float(np.median(known)) if len(known) else np.nan}
    return Found({**as_numbers(statements), **median, **more}, settings)
