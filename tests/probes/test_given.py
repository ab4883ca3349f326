"""A probe that is given the wrong object says what it takes, and is otherwise what it was."""

from __future__ import annotations

import inspect
import pickle

import numpy as np
import pytest
import xarray as xr

from contrasted import centred
from tiny_lenses import lens_of
from tsfm_lens import explain, probes
from tsfm_lens.errors import InputError
from tsfm_lens.models import Run

ROOMS = {"probes": probes, "explain": explain}
OF_RUNS = [
    (room, name, parameter.annotation, place)
    for room, module in ROOMS.items()
    for name in module.__all__
    if inspect.isfunction(getattr(module, name))
    for place, parameter in enumerate(inspect.signature(getattr(module, name)).parameters.values())
    if place == 0 and ("Run" in str(parameter.annotation) or "Lens" in str(parameter.annotation))
]


@pytest.fixture(scope="module")
def run() -> Run:
    return lens_of("chronos-bolt").run(centred("co2"), 4)


@pytest.mark.parametrize(("room", "name", "asked", "place"), OF_RUNS)
def test_every_probe_says_what_it_takes(room: str, name: str, asked: str, place: int, run: Run) -> None:
    if asked == "Run | SeriesBatch":
        pytest.skip("takes series, too")
    probe = getattr(ROOMS[room], name)
    wrong = [run.batch, run.batch.values[0], run.forecast, None, "co2", run.lens if "Run" in asked else run]
    for given in wrong:
        others = [given] * (2 if name in ("activation_patching", "path_patching") else 1)
        with pytest.raises(InputError) as refused:
            probe(*others) if name != "compared_to_null" else probe(probes.attribute, *others)
        assert str(refused.value).startswith(f"{room}.{name} takes ")
        assert str(refused.value).endswith("None" if given is None else type(given).__name__) or given is run


def test_the_second_run_of_a_contrast_is_named(run: Run) -> None:
    with pytest.raises(InputError, match=r"takes as corrupted a Run.*; this is a Lens"):
        probes.activation_patching(run, run.lens)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"this is a Run; its \.lens is one"):
        probes.weight_ranks(run)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["layer_gain", "trace_lines", "sharp_heads", "induction_overlap"])
def test_a_probe_of_a_result_names_the_kind_that_it_goes_on_from(name: str, run: Run) -> None:
    for given in (run, np.zeros(3), None, run.forecast.to_dataset()):
        with pytest.raises(InputError, match=r"probes\.(logit_lens|head_entropy|induction_scores)") as refused:
            getattr(probes, name)(given)
        told = "of kind 'forecast'" if isinstance(given, xr.Dataset) else "None" if given is None else ""
        assert str(refused.value).endswith(told or type(given).__name__)


def test_a_probe_keeps_its_name_signature_and_place() -> None:
    inner = inspect.unwrap(probes.attribute)
    assert inner is not probes.attribute
    assert inspect.signature(probes.attribute) == inspect.signature(inner)
    assert probes.attribute.__doc__ == inner.__doc__
    assert pickle.loads(pickle.dumps(probes.attribute)) is probes.attribute
    with pytest.raises(TypeError, match="run"):
        probes.attribute()  # type: ignore[call-arg]
