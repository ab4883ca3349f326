"""What each figure of the gallery is drawn of, as code that a reader can run."""

from __future__ import annotations

import doctest
import re
from dataclasses import dataclass, replace
from functools import cache

from tsfm_lens.core.needs import NEEDS
from tsfm_lens.core.registry import Figure, Measurement, find
from tsfm_lens.models import Lens, load
from tsfm_lens.viz.generic import draw_variable

HORIZON = 24

CHRONOS = f"""\
import tsfm_lens
from tsfm_lens import viz

lens = tsfm_lens.load("chronos-nano")
run = lens.run(tsfm_lens.bundled("elnino", "co2"), {HORIZON}, holdout=True)
"""
DRIVEN = f"""\
import pandas as pd
import tsfm_lens
from tsfm_lens import data, viz

series = tsfm_lens.bundled("pedestrians")
table = pd.DataFrame({{"hour": series.timestamps(0), "people": series.values[0]}})
table["weekend"] = table["hour"].dt.dayofweek >= 5  # a covariate whose future is known
end = table["hour"].searchsorted(pd.Timestamp("2016-12-07"))
days = [table.iloc[stop - 216 : stop].assign(day=str(stop)) for stop in range(end, end + 20 * {HORIZON}, {HORIZON})]
items = data.as_series(
    pd.concat(days), targets=["people"], known=["weekend"], id_column="day", time_column="hour"
)
lens = tsfm_lens.load("chronos2-nano")
run = lens.run(items, {HORIZON}, holdout=True)
"""
PAIR = f"""\
import tsfm_lens
from tsfm_lens import viz

series, models = tsfm_lens.bundled("elnino", "co2"), ["chronos-nano", "bolt-nano"]
runs = [tsfm_lens.load(model).run(series, {HORIZON}, holdout=True) for model in models]
"""
PAIRED = (
    "forecast_fan",
    "head_entropy_map",
    "head_spectra_stable_rank",
    "layer_similarity_cka",
)
"""Renderers whose figures of two models the gallery shows side by side."""
SWEEP = """\
from tsfm_lens import sweep, viz

config = sweep.parse_config(
    {
        "name": "gallery",
        "models": [{"source": "bolt-nano"}],
        "data": [{"source": "bundled", "names": ["co2", "elnino", "nile", "pedestrians"], "horizon": 24, "windows": 2}],
        "variants": {
            "layers": {"sizes": [1, 2, "all"]},
            "ranges": {},
            "heads": {},
            "heads_at": {"tolerance": 0.01, "orders": ["stable_rank"]},
            "recipes": ["timesfm-28", "bolt-60"],
            "scale_recipes": True,
            "random_seeds": 3,
        },
    }
)
sweep.run_sweep(config, "gallery.store")
tables = sweep.gather("gallery.store").results
"""
WATCHED = """\
import torch
from tsfm_lens import training, viz

torch.manual_seed(0)
model = torch.nn.MultiheadAttention(8, 2, batch_first=True)
head = torch.nn.Linear(8, 1)
weights = [*model.parameters(), *head.parameters()]
inputs, wanted = torch.randn(32, 12, 8), torch.randn(32, 12, 1)


def forward():
    out, pattern = model(inputs, inputs, inputs, average_attn_weights=False)
    return head(out), pattern


def loss():
    return (forward()[0] - wanted).square().mean()


def patterns():
    return {"attention": forward()[1][0].detach()}


watched = torch.nn.ModuleList([model, head])
watch = training.Watch(watched, every=5, loss=loss, patterns=patterns, snapshots=10)
optimiser = torch.optim.Adam(weights, lr=0.01)
for step in range(60):
    optimiser.zero_grad()
    now = loss()
    now.backward()
    optimiser.step()
    watch(step, loss=now.item())
"""
ASKED = {
    "weight_effects": (
        (
            "import copy\n\nimport torch\nfrom tsfm_lens import probes\n\ntuned ="
            " copy.deepcopy(lens)\nlayer ="
            " tuned.adapter.model.encoder.block[1].layer[0].self_attention\nwith"
            " torch.no_grad():\n    layer.v.weight.mul_(1.1)  # stands for a"
            " training\nagain = lens.run(items, 24,"
            " holdout=True)\nviz.plot(probes.weight_effects(lens, tuned, again),"
            ' "share")'
        ),
        (
            "tsfm-lens compare chronos2-nano ./tuned --data people.csv --targets people"
            " --known weekend"
        ),
    ),
    "reset_slopes": (
        (
            "import copy\n\nimport torch\nfrom tsfm_lens import probes\n\ntuned ="
            " copy.deepcopy(lens)\nlayer ="
            " tuned.adapter.model.encoder.block[1].layer[0].self_attention\nwith"
            " torch.no_grad():\n    layer.v.weight.mul_(1.1)  # stands for a"
            " training\nagain = lens.run(items, 24,"
            " holdout=True)\nviz.reset_slopes(probes.weight_effects(lens, tuned, again))"
        ),
        (
            "tsfm-lens compare chronos2-nano ./tuned --data people.csv --targets people"
            " --known weekend"
        ),
    ),
    "compare_models": (
        (
            "from tsfm_lens import probes\n\nseveral ="
            ' tsfm_lens.bundled("co2", "elnino", "nile")\nruns = [\n'
            "    tsfm_lens.load(name).run(several, 12, holdout=True)\n    for name in"
            ' ("bolt-nano", "chronos2-nano")\n]\n'
            "viz.removal_curves(probes.compare_models(runs, draws=3))"
        ),
        (
            "tsfm-lens figure removal_curves bolt-nano chronos2-nano --data"
            " bundled:co2 --data bundled:nile --horizon 12 --holdout"
        ),
    ),
    "what_if": (
        'viz.what_if_lines(run.what_if(item=0, weekend="=1"))',
        (
            "tsfm-lens explain chronos2-nano --data people.csv --targets people --known"
            " weekend --set weekend=1"
        ),
    ),
    "forecast_change": (
        (
            "earlier, later = (\n    lens.run(table[stop - 216 : stop], 24,"
            ' future=table[stop : stop + 24].drop(columns="people"))\n    for stop in'
            " (end - 6, end)\n)\nviz.change_bars(tsfm_lens.explain_change(earlier, later))"
        ),
        (
            "tsfm-lens explain chronos2-nano --data people.csv --targets people --known"
            " weekend --since earlier.csv"
        ),
    ),
}
"""Drawing and command of results that somebody asks for, by kind."""
MADE = {
    "low_rank_training": (
        'viz.plot(recipes.low_rank_record("attention"), "mase_rise_size")'
    ),
    "attention_norms": (
        "even, sharp = (dict(a=torch.eye(3)[None, None] * s + (1 - s) / 3) for s in"
        " (0.0, 0.9))\nnorms = {name: training.attention_norms(each) for name, each in"
        ' (("even", even), ("sharp", sharp))}\nviz.plot(training.together(norms),'
        ' "nuclear_norm")'
    ),
    "learned_scores": (
        'lens = tsfm_lens.load("bolt-nano")\nrun = lens.run(tsfm_lens.bundled("co2",'
        ' "elnino", "nile"), 12)\nviz.plot(probes.learned_scores(run, steps=20),'
        ' "kept")'
    ),
    "tuned_weights": (
        'import copy\n\nlens = tsfm_lens.load("bolt-nano")\ntuned ='
        " copy.deepcopy(lens)\nlayer ="
        " tuned.adapter.model.encoder.block[1].layer[0].SelfAttention\nwith"
        " torch.no_grad():\n    layer.v.weight.mul_(1.1)  # stands for a"
        ' training\nrun = lens.run(tsfm_lens.bundled("co2", "elnino", "nile"), 12,'
        " holdout=True)\nviz.plot(probes.tuned_weights(lens, tuned, run, steps=20),"
        ' "kept")'
    ),
}
"""Drawing of results that are made in Python, by kind."""
# renderers of a sweep's tables, by the table
_TABLES = {
    "sweep_costs": "costs",
    "sweep_effects": "effects",
    "sweep_curves": "curves",
    "sweep_heads": "heads",
    "sweep_heads_at": "heads_at",
    "sweep_datasets": "datasets",
    "sweep_recipes": "recipes",
    "sweep_selection": "selection",
}
_PACKAGES = (
    "import torch\nimport tsfm_lens\nfrom tsfm_lens import compress, probes, training,"
    " viz, zoo\nfrom tsfm_lens.core import ranks\nfrom tsfm_lens.studies import"
    " experiments, rank_theory, recipes\n"
)


@dataclass(frozen=True)
class Scene:
    """Code that ends in a figure.

    Attributes:
        opening: what it stands on, shared by many figures.
        drawing: lines that draw it.
        command: the same on the command line, if there is one.
    """

    opening: str
    drawing: str
    command: str = ""


def write_call(figure: Figure, results: str, options: str = "") -> str:
    """Code that draws a figure of results: by a function of viz or of a study, or by
    the name of a variable.
    """
    if figure.variable:
        return f'viz.plot({results}, "{figure.variable}"{options})'
    return f"{find_home(figure)}.{figure.name}({results}{options})"


def find_home(figure: Figure) -> str:
    """The module that a figure is called from."""
    if of_core(figure):
        return "viz"
    return "figures"


def find_function(figure: Figure) -> str:
    """The name of the function that draws a figure."""
    if figure.variable or figure.function is draw_variable:
        return "plot"
    return figure.name


def of_core(figure: Figure) -> bool:
    """Whether a function of viz draws it, and not one of a study."""
    return figure.function.__module__.startswith("tsfm_lens.viz")


def write_import(figure: Figure) -> str:
    """The line that imports the figures of a study; "" for those of viz."""
    if of_core(figure):
        return ""
    package, _, module = figure.function.__module__.rpartition(".")
    return (
        f"from {package} import"
        f" {module}{'' if module == 'figures' else ' as figures'}\n"
    )


def find_scene(measurement: Measurement, figure: Figure) -> Scene:
    """How a figure is drawn in the gallery."""
    scene = _find_scene(measurement, figure)
    return replace(scene, opening=scene.opening + write_import(figure))


def _find_scene(measurement: Measurement, figure: Figure) -> Scene:
    if measurement.of_run:
        return _of_run(measurement, figure)
    asked = ASKED.get(figure.name) or ASKED.get(measurement.kind)
    if asked:
        return Scene(DRIVEN, *asked)
    if measurement.kind in MADE:
        return Scene(_PACKAGES, MADE[measurement.kind])
    if measurement.theme == "Sweeps":
        table = f'tables["{_TABLES[measurement.kind]}"]'
        return Scene(
            SWEEP, write_call(figure, table), "tsfm-lens sweep report gallery.store"
        )
    return _of_docstring(measurement, figure)


def _of_run(measurement: Measurement, figure: Figure) -> Scene:
    allowed = all(
        not needs or NEEDS[needs].met(_chronos())
        for needs in (measurement.needs, figure.needs)
    )
    driven = measurement.theme == "Inputs" or not allowed
    asked = "".join(
        f", {name}={value!r}" for name, value in dict(figure.probe_options).items()
    ).replace("'", '"')
    of = {
        kind: asked if kind == measurement.kind else ""
        for kind in (measurement.kind, *figure.beside)
    }
    for kind in of:
        # the runs of the gallery have several items
        if find(kind).of_one_item:
            of[kind] += ", item=0"
    results = ", ".join(
        f'run.measure("{kind}"{options})' for kind, options in of.items()
    )
    options = "".join(f", {name}={value!r}" for name, value in figure.options.items())
    model, data = (
        ("chronos2-nano", "people.csv --targets people --known weekend")
        if driven
        else ("chronos-nano", "bundled:elnino,co2")
    )
    return Scene(
        DRIVEN if driven else CHRONOS,
        write_call(figure, results, options),
        f"tsfm-lens figure {figure.name} {model} --data {data} --horizon {HORIZON}",
    )


def scene_of_pair(measurement: Measurement, figure: Figure) -> Scene:
    """How a figure of two models is drawn in the gallery."""
    each = write_call(figure, f'run.measure("{measurement.kind}")')
    command = (
        f"tsfm-lens figure {figure.name} chronos-nano bolt-nano --data"
        f" bundled:elnino,co2 --horizon {HORIZON}"
    )
    title = figure.title.rstrip(".")
    return Scene(
        PAIR, f'viz.compare([{each} for run in runs], models, "{title}")', command
    )


@cache
def _chronos() -> Lens:
    return load("chronos-nano")


def _of_docstring(measurement: Measurement, figure: Figure) -> Scene:
    """The example of the renderer, which the tests run; what it is drawn of is the
    renderer's argument.
    """
    if measurement.kind == "training_watch":
        return Scene(WATCHED, write_call(figure, "watch.dataset()"))
    if measurement.function is not None:
        models = (
            'tsfm_lens.load(name) for name in ("chronos-nano", "bolt-nano",'
            ' "chronos2-nano")'
        )
        command = (
            f"tsfm-lens figure {figure.name} chronos-nano bolt-nano chronos2-nano"
            " --data bundled:elnino"
        )
        return Scene(
            _PACKAGES,
            write_call(
                figure,
                f"{measurement.function_name.removeprefix('studies.')}([{models}])",
            ),
            command,
        )
    lines = [
        example.source
        for example in doctest.DocTestParser().get_examples(figure.function.__doc__)
    ]
    if not lines:
        raise ValueError(
            f"{figure.name} has no example in its docstring, and {measurement.kind!r} no"
            " drawing in ASKED or MADE"
        )
    # what the test compares is the title, or a number of marks
    return Scene(
        _PACKAGES,
        re.sub(r"\.layout\.meta.*|\.(frames|data)\b", "", "".join(lines)).rstrip(),
    )


def described(kind: str) -> str:
    """What makes results of this kind, in words."""
    measurement = find(kind)
    if measurement.of_run:
        return measurement.computes
    return measurement.origin
