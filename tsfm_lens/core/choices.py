"""Words that options take, and their checks before anything is imported.

What a word stands for is defined where it is used: ways of ablation in
:mod:`tsfm_lens.models.ablating`, methods and references in :mod:`tsfm_lens.explain`,
formats in :mod:`tsfm_lens.viz.saving`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Any

from tsfm_lens.core.errors import InputError, UnknownNameError, unknown_name

ABLATIONS = ("zero", "mean", "resample", "noise")
"""Replacements of a component, the values of ``how``."""
WITH_REFERENCE = ("mean", "resample")
"""Replacements that take their values from other activations."""
METHODS = (
    "shapley",
    "occlusion",
    "inclusion",
    "integrated gradients",
    "gradient × input",
    "attention rollout",
    "attention flow",
)
"""Methods of an attribution to inputs."""
REFERENCES = ("missing", "seasonal naive", "mean", "shuffled", "zero")
"""Names of the values of masked steps; see ``tsfm_lens.explain.reference_values``."""
COMPONENTS = "components"
"""Word for the trend, seasons and rest of the past as its parts."""
ADAPTIVE = "adaptive"
"""Word for stretches of the past that are short where the effects are."""
PARTS = (COMPONENTS, ADAPTIVE)
POOLS = ("mean", "max", "first", "last")
"""Ways in which the tokens of a series become one vector."""
FORMATS = ("html", "json", "png", "svg", "pdf", "csv")
"""Formats of a figure's files."""
STATIC = ("svg", "pdf", "png")
"""Formats that a browser draws."""
# parts of a component or hook point: names, numbers, and the signs of globs
_PATTERN = re.compile(r"[\w*?\[\]!-]+(?:\.[\w*?\[\]!-]+)*")
# the label of a head, as figures write it
_LABEL = re.compile(r"\(?L?\d+(?:\.[a-z_]+)?(?:\.H?|H|, )\d+\)?")


def checked_how(how: str) -> bool:
    """Return whether a kind of ablation takes its values from other activations."""
    if how not in ABLATIONS:
        raise InputError(
            f"how={how!r} is not known, choose one of {', '.join(ABLATIONS)}"
        )
    return how in WITH_REFERENCE


def check_explanation(
    method: str | None,
    reference: Any,
    parts: Any = None,
    methods: Collection[str] = METHODS,
) -> None:
    """Raise UnknownNameError for unknown methods, references and parts.

    It is called before anything runs.
    """
    if isinstance(parts, str) and parts not in PARTS:
        raise unknown_name("way to cut the past", parts, PARTS)
    if method is not None and method not in methods:
        raise unknown_name("method", method, methods)
    if isinstance(reference, str) and reference not in REFERENCES:
        raise unknown_name("reference", reference, REFERENCES)


def check_pool(pool: object) -> None:
    """Refuse a way of pooling that does not exist."""
    if pool is not None and pool not in POOLS:
        raise unknown_name("pool", str(pool), POOLS)


def checked_formats(formats: Iterable[str]) -> list[str]:
    """Return the requested formats, each once."""
    kinds = list(dict.fromkeys(formats))
    for kind in kinds:
        if kind not in FORMATS:
            raise unknown_name("format", kind, FORMATS)
    return kinds


def check_patterns(patterns: Iterable[str]) -> None:
    """Refuse names and globs that no component of any model can have.

    Raises:
        UnknownNameError: a part is empty, or has signs that no name has.
    """
    for pattern in patterns:
        if not _PATTERN.fullmatch(pattern) and not _LABEL.fullmatch(pattern):
            raise UnknownNameError(
                f"no component {pattern!r}. A component reads like"
                " decoder.3.cross_attn.5 (a head), decoder.3.mlp (a branch) or"
                " decoder.3 (a layer); a glob like decoder.*.mlp."
            )
