"""llms.txt: models, commands and measurements on one plain page, for language models
and for search.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from typer.main import get_command

from sitepages.drawing import CACHE
from sitepages.writing import DOCS, code, write_bytes
from tsfm_lens.cli import app
from tsfm_lens.cli.listings import list_measurement_fields
from tsfm_lens.core.registry import THEMES
from tsfm_lens.models.architecture import architectures
from tsfm_lens.zoo import checkpoint_names

EXTRA = CACHE / "extra"  # copied into the site as it is
COMMANDS = """\
tsfm-lens report chronos-nano --data bundled:co2 --horizon 12 --sections forecast,attribution --out report
tsfm-lens forecast bolt-nano --data bundled:co2 --horizon 12 --csv
tsfm-lens ablate bolt-nano --data bundled:co2 --horizon 12 --components 'decoder.*.cross_attn.*' --json
tsfm-lens attribute bolt-nano --data bundled:co2 --horizon 12 --json
tsfm-lens explain bolt-nano --data bundled:nile --horizon 4 --out explanation
tsfm-lens compare bolt-nano bolt-nano --data bundled:nile --horizon 4
tsfm-lens compress bolt-nano --keep 0.5 --data bundled:co2,nile --horizon 4 --calibration-windows 1 --out small
tsfm-lens figure attention_map chronos-nano --data bundled:co2 --horizon 12 --format html --out figures
tsfm-lens figure --list
tsfm-lens models --json
tsfm-lens hooks bolt-nano --components
tsfm-lens data --json
tsfm-lens measurements --json
tsfm-lens doctor --json
tsfm-lens reproduce --list
tsfm-lens sweep sweep.yaml --plan
tsfm-lens sweep --help
tsfm-lens train --help
tsfm-lens serve --help
"""
"""One call of every command, each of which runs as it stands."""
SWEEP = """\
models: [{source: bolt-nano}]
data: [{source: bundled, names: [co2, nile], horizon: 4}]
variants: {heads: {}}
"""
"""The file sweep.yaml of the commands."""
PAGES = {
    "start/index": "Start in five minutes",
    "reference/generated/questions": "Which probe answers my question?",
    "reference/generated/api": "API reference: Python",
    "reference/generated/commands": "Command line reference",
    "concepts/findings": (
        "What *acts*, *size*, *significant*, *learned* mean in results"
    ),
    "data": "Reading your own data",
    "models": "Models, and which probe runs on which",
    "gallery/index": "Every figure: code, function, result",
    "calibration": "How often a result is wrong",
    "planted": "Which method finds what is known to be there",
    "dictionaries": "Sparse dictionaries beside random directions",
    "howto/own-model": "Wiring a model of your own",
    "howto/own-probe": "Writing a probe and a figure",
    "reference/glossary": "Glossary, with words of other fields",
}


def write_agents() -> None:
    """Write llms.txt into the root of the site."""
    write_bytes(EXTRA / "llms.txt", text().encode())


def text() -> str:
    """The page."""
    parts = [
        "# tsfm-lens",
        (
            "> Interpretability of time-series foundation models: ablation, patching,"
            " attribution, circuits, and explanations of single forecasts. Forecasts"
            " equal those of the native library to the last bit."
        ),
        (
            "Distribution: tsfm-lens-toolbox, installed from a clone (pip install -e"
            " .). The packages tsfm-lens and tslens on PyPI are other software; do not"
            " install them."
        ),
        (
            "A lens is a model with hook points. A run is one forecast. A probe takes a"
            " run and returns an xarray.Dataset. A figure takes that dataset and"
            " returns a plotly figure."
        ),
        "## Pages",
        "\n".join(f"- [{title}]({page}.html)" for page, title in PAGES.items()),
        "## Python",
        code(_first_code()),
        "## Models",
        "\n".join(_models()),
        "## Commands",
        "\n".join(_commands()),
        "Calls that run as they stand, with this sweep.yaml:",
        code(SWEEP, "yaml"),
        code(COMMANDS, "console"),
        "## Measurements",
        (
            "Probes are in tsfm_lens.probes unless another package is named, figures in"
            " tsfm_lens.viz; plot(result, NAME) draws a figure or any variable. On the"
            " command line: tsfm-lens figure NAME MODEL --data FILE."
        ),
    ]
    metadata = list_measurement_fields()
    for theme in THEMES:
        rows = [_measurement(item) for item in metadata if item["theme"] == theme]
        parts += [f"### {theme}", "\n".join(rows)] if rows else []
    return "\n\n".join(parts) + "\n"


def _first_code() -> str:
    """The first Python of the start page, which the tests run."""
    return re.findall(
        r"```python\n(.*?)```",
        (DOCS / "start" / "index.md").read_text(),
        flags=re.DOTALL,
    )[0]


def _models() -> Iterator[str]:
    yield f"- embedded, offline: {', '.join(checkpoint_names())}"
    for entry in architectures().values():
        yield (
            f"- {entry.title}: {', '.join(entry.published.values()) or 'local folders'}"
        )


def _commands() -> Iterator[str]:
    group = get_command(app)
    for name, command in getattr(group, "commands").items():  # noqa: B009
        yield (
            f"- tsfm-lens {name}:"
            f" {' '.join((command.help or '').split(chr(10) * 2)[0].split())}"
        )


def _measurement(each: dict[str, object]) -> str:
    probes, figures = (
        ", ".join(f"`{name}`" for name in each[key]) for key in ("probes", "figures")
    )  # type: ignore[attr-defined]
    by = ""
    if probes:
        by = f" Probe {probes}."
    return (
        f"- `{each['kind']}`: {each['summary']}.{by} Figures {figures}. For"
        f" {each['models']}."
    )
