"""The queue of long experiments: it goes on after any stop, keeps every cell once, and
the records say what is done.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from tsfm_lens.core.errors import InputError
from tsfm_lens.studies.experiments.grids import toy_arms
from tsfm_lens.studies.queue.driver import (
    RECORDS,
    Queue,
    QueueCell,
    Workplace,
    added,
    joined,
    read_record,
    unfinished,
)
from tsfm_lens.studies.queue.language import WIDE
from tsfm_lens.studies.queue.orders import all_cells
from tsfm_lens.studies.queue.text import SAVED, Text, find_text, save_text
from tsfm_lens.studies.queue.trainings import training_cells

SIZES = {"a": 2, "b": 4, "c": 3}


def make_part(arm: str, seed: int) -> xr.Dataset:
    """A part as training runs have it: an arm, a seed, and a curve whose length differs
    between runs.
    """
    size = SIZES[arm]
    return xr.Dataset(
        {
            "error": (("arm", "seed"), [[seed + size / 10]]),
            "curve": (
                ("arm", "seed", "epoch"),
                np.full((1, 1, size), float(seed), np.float32),
            ),
            "row": (("arm", "seed", "query"), np.arange(size, dtype=float)[None, None]),
        },
        coords={"arm": [arm], "seed": [seed], "horizon": ("arm", [96 + size])},
        attrs={"kind": "toy"},
    )


def cell(
    arm: str,
    seed: int,
    run: Callable[[Workplace], xr.Dataset | None] | None = None,
    **more: object,
) -> QueueCell:
    return QueueCell(
        1,
        "toy",
        f"{arm}, seed {seed}",
        run or (lambda workplace: make_part(arm, seed)),
        arm,
        7200.0,
        **more,
    )


def queue(tmp_path: Path, *cells: QueueCell) -> Queue:
    records = tmp_path / "records"
    records.mkdir(exist_ok=True)
    return Queue(cells, records, tmp_path / "state")


def record(tmp_path: Path) -> xr.Dataset:
    found = read_record(tmp_path / "records" / "toy.nc")
    assert found is not None
    return found


def quiet(line: str) -> None:
    return None


def test_records_hold_results_in_any_order(
    tmp_path: Path,
) -> None:
    """A record holds what each cell computed, in whatever order the cells came."""
    runs = [("c", 1), ("a", 0), ("b", 0), ("a", 1)]
    assert queue(tmp_path, *(cell(*run) for run in runs)).work(quiet) == 4
    found = record(tmp_path)
    for arm, seed in runs:
        stored = found.sel(arm=arm, seed=seed)
        part = make_part(arm, seed).isel(arm=0, seed=0)
        assert float(stored["error"]) == float(part["error"])
        assert int(stored["horizon"]) == int(part["horizon"])
        for name in ("curve", "row"):
            values = stored[name].values
            np.testing.assert_array_equal(
                values[np.isfinite(values)], part[name].values
            )
    assert np.isnan(found["error"].sel(arm="c", seed=0))
    assert found["curve"].dtype == np.float32
    # in the order in which they came, and the attributes stay
    assert found["arm"].values.tolist() == ["c", "a", "b"]
    assert found.attrs["kind"] == "toy"
    assert found["cell"].values.tolist() == [
        f"{arm}, seed {seed}" for arm, seed in runs
    ]
    assert (found["processor_seconds"] >= 0).all()


def test_a_cell_is_not_added_twice(tmp_path: Path) -> None:
    cells = [cell("a", 0), cell("b", 0)]
    assert queue(tmp_path, *cells).work(quiet) == 2
    before = (tmp_path / "records" / "toy.nc").read_bytes()
    again = queue(tmp_path, *cells)
    assert again.work(quiet) == 0
    assert again.failures() == {}
    assert (tmp_path / "records" / "toy.nc").read_bytes() == before
    with pytest.raises(InputError, match=r"a, seed 0"):
        added(record(tmp_path), make_part("a", 0), "a, seed 0", 1.0)
    with pytest.raises(InputError, match=r"a, seed 0.*2 times"):
        queue(tmp_path, cells[0], cells[0])


def test_interrupted_writes_leave_the_record_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue(tmp_path, cell("a", 0)).work(quiet)
    before = (tmp_path / "records" / "toy.nc").read_bytes()

    def broken(data: xr.Dataset, file: Path, **options: object) -> None:
        Path(file).write_bytes(b"half")
        raise OSError("no space left")

    with monkeypatch.context() as full:
        full.setattr(xr.Dataset, "to_netcdf", broken)
        work = queue(tmp_path, cell("a", 0), cell("b", 0))
        assert work.work(quiet) == 0
    assert "no space left" in work.failures()["toy", "b, seed 0"]
    assert [item.name for item in (tmp_path / "records").iterdir()] == ["toy.nc"]
    assert (tmp_path / "records" / "toy.nc").read_bytes() == before


def test_records_alone_tell_what_is_done(tmp_path: Path) -> None:
    cells = [
        cell("a", 0),
        cell("a", 1),
        cell("b", 0),
        cell("b", 1, files=(tmp_path / "ETTh1.csv",)),
    ]
    queue(tmp_path, cells[0], cells[2]).work(quiet)
    fresh = Queue(cells, tmp_path / "records", tmp_path / "another state")
    assert [item.name for item in unfinished(fresh)] == ["a, seed 1", "b, seed 1"]
    row = fresh.status().loc[(1, "toy")]
    assert (row["cells"], row["done"], row["failed"], row["no file"]) == (4, 2, 0, 1)
    # what remains is what cells of the same group took, not what was expected of them
    assert 0 <= row["hours left"] < 0.1
    assert (
        Queue(cells, tmp_path / "none", tmp_path / "state")
        .status()
        .loc[(1, "toy"), "hours left"]
        == 8.0
    )
    # a cell whose file is missing waits, and the others run
    assert fresh.work(quiet) == 1
    assert [item.name for item in unfinished(fresh)] == ["b, seed 1"]


def test_failing_cells_do_not_stop_others(tmp_path: Path) -> None:
    """A cell that fails is noted, and the next one runs."""
    tries = []

    def fail(workplace: Workplace) -> xr.Dataset:
        tries.append(workplace.folder)
        raise ValueError("no such number")

    messages: list[str] = []
    work = queue(tmp_path, cell("a", 0, fail), cell("b", 0))
    assert work.work(messages.append) == 1
    assert "no such number" in messages[0]
    assert "no such number" in work.failures()["toy", "a, seed 0"]
    assert int(work.status().loc[(1, "toy"), "failed"]) == 1
    # not again by itself, but when asked
    assert work.work(quiet) == 0
    assert len(tries) == 1
    work.forget_failures()
    assert work.work(quiet) == 0
    assert len(tries) == 2


def test_a_stop_file_ends_between_cells(tmp_path: Path) -> None:
    """A stop file ends the queue between two cells."""
    work = queue(
        tmp_path,
        cell("a", 0, lambda workplace: (work.stop_file.touch(), make_part("a", 0))[1]),
        cell("b", 0),
    )
    assert work.work(quiet) == 1
    assert record(tmp_path)["arm"].values.tolist() == ["a"]
    work.stop_file.unlink()
    assert work.work(quiet) == 1


def test_stopped_cells_go_on(tmp_path: Path) -> None:
    def by_halves(workplace: Workplace) -> xr.Dataset | None:
        half = workplace.folder / "half"
        if not half.exists():
            half.touch()
            return None
        return make_part("a", 0)

    assert queue(tmp_path, cell("a", 0, by_halves), cell("b", 0)).work(quiet) == 0
    assert queue(tmp_path, cell("a", 0, by_halves), cell("b", 0)).work(quiet) == 2
    assert not any((tmp_path / "state" / "work").iterdir())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_kill_loses_no_finished_cell(tmp_path: Path, number: int) -> None:
    """A kill loses no finished cell, and none is computed again."""
    runs = tmp_path / "runs"
    killed = tmp_path / "killed"

    def run(seed: int, workplace: Workplace) -> xr.Dataset:
        with runs.open("a") as file:
            file.write(f"{seed}\n")
        if seed == 2 and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), number)
        return make_part("a", seed)

    cells = [cell("a", seed, partial(run, seed)) for seed in range(4)]
    for _ in range(2):
        child = multiprocessing.get_context("fork").Process(
            target=queue(tmp_path, *cells).work, args=(quiet,)
        )
        child.start()
        child.join(120)
    # SIGKILL takes the cell at hand with it; SIGTERM lets it end
    assert runs.read_text().split() == (
        ["0", "1", "2", "2", "3"] if number == signal.SIGKILL else ["0", "1", "2", "3"]
    )
    assert record(tmp_path)["seed"].values.tolist() == [0, 1, 2, 3]
    assert not list((tmp_path / "records").glob("*.part"))


def test_one_queue_works_on_a_state(tmp_path: Path) -> None:
    other = queue(tmp_path, cell("b", 0))

    def second(workplace: Workplace) -> xr.Dataset:
        with pytest.raises(InputError, match="another queue"):
            other.work(quiet)
        return make_part("a", 0)

    assert queue(tmp_path, cell("a", 0, second)).work(quiet) == 1


def test_cells_have_names_and_missing_files(
    tmp_path: Path,
) -> None:
    """Each cell of the plan has a name of its own and says which files it lacks."""
    cells = all_cells(tmp_path)
    assert len({item.key for item in cells}) == len(cells)
    assert len({item.folder for item in cells}) == len(cells)
    assert all(item.seconds > 0 for item in cells)
    assert {name for item in cells for name in item.missing} == {
        "ETTh1.csv",
        "ETTh2.csv",
        "exchange_rate.txt.gz",
        "a CUDA device",
    }
    waiting = Queue(cells, tmp_path, tmp_path / "state").status()["no file"]
    assert waiting.xs("samformer_runs", level="record").tolist() == [220, 100]


def test_shipped_records_are_planned_and_described(tmp_path: Path) -> None:
    planned = {all_cell.key for all_cell in all_cells(tmp_path)}
    card = (RECORDS / "README.md").read_text(encoding="utf-8")
    for name in {record for record, _ in planned}:
        model = name.removeprefix("lens_ablations_")
        text = "lens_ablations_MODEL"
        if model == name:
            text = name
        assert f"`{text}.nc`" in card
    for file in RECORDS.glob("*.nc"):
        found = read_record(file)
        assert found is not None
        assert {(file.stem, str(value)) for value in found["cell"].values} <= planned


def test_cells_are_the_same_in_processes(tmp_path: Path) -> None:
    """A cell computes the same however many run at a time, also beside one that
    fails.
    """
    sizes = {"length": 8, "horizon": 2, "channels": 2}
    arms = toy_arms(epochs=2, **sizes, training=64, validation=32, watch=True)
    plan = {"seeds": [0, 1], "seconds": 1.0}
    cells = list(training_cells(0, "toy", arms, plan, oracle=1.0))
    wrong = arms["transformer"].model_copy(update={"device": "nowhere"})
    (failing,) = training_cells(0, "toy", {"a": wrong}, {**plan, "seeds": [0]})
    found = []
    for processes in (1, 2):
        folder = tmp_path / f"{processes}"
        work = Queue([failing, *cells], folder, folder / "state")
        assert work.work(quiet, processes=processes) == len(cells)
        assert "nowhere" in work.failures().pop(("toy", "a, seed 0"))
        found.append(read_record(folder / "toy.nc"))
    one, two = found
    assert set(one["device"].values) == {"cpu"}
    assert set(two["cell"].values) == {item.name for item in cells}
    # as the record that ships
    shipped = read_record(RECORDS / "toy.nc")
    assert shipped is not None
    assert {name: shipped[name].dims for name in shipped.variables} == {
        name: one[name].dims for name in one.variables
    }
    assert one.attrs["oracle"] == 1.0
    assert int(one["validation_mse"].count()) == len(cells)
    # the layout follows the order in which the cells ended
    two = two.reindex_like(one)
    durations = ["seconds", "processor_seconds"]
    xr.testing.assert_identical(one.drop_vars(durations), two.drop_vars(durations))


def test_records_of_two_machines_are_joined(tmp_path: Path) -> None:
    """Records of disjoint cells join to what one queue would have kept."""
    parts = [
        added(None, make_part("a", 0), "a, seed 0", 1.0, "cuda"),
        added(None, make_part("b", 1), "b, seed 1", 2.0).drop_vars("device"),
    ]
    found = joined(*parts)
    assert found["device"].values.tolist() == ["cuda", "cpu"]
    assert float(found["error"].sel(arm="b", seed=1)) == 1.4
    with pytest.raises(InputError, match="a, seed 0"):
        joined(found, parts[0])


def test_a_saved_text_is_the_one_beside_the_records(tmp_path: Path) -> None:
    text = Text(np.arange(4, dtype=np.uint8), np.ones(2, np.uint8), "a saved text")
    save_text(text, tmp_path / SAVED)
    assert find_text(tmp_path).facts == text.facts


def test_wide_models_wait_for_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = [item for item in all_cells(tmp_path) if item.needs_cuda]
    assert {item.record for item in wide} == {WIDE}
    for there, missing in ((False, ["a CUDA device"]), (True, [])):
        monkeypatch.setattr("torch.cuda.is_available", lambda there=there: there)
        assert wide[0].missing == missing
