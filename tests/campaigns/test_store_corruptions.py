"""A sweep that runs again on a store that something has damaged ends in the undisturbed
table.
"""

from __future__ import annotations

import os
import random
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tsfm_lens.core.errors import LensError, StoreError
from tsfm_lens.sweep.engine.sweeping import run_sweep
from tsfm_lens.sweep.planner import table
from tsfm_lens.sweep.planner.config import SweepConfig, parse_config
from tsfm_lens.sweep.planner.models import open_model
from tsfm_lens.sweep.results.gathering import gather
from tsfm_lens.sweep.store import KEY_COLUMNS, Store

CASES = int(os.environ.get("TSFM_LENS_CASES", "2000"))
pytestmark = [
    pytest.mark.filterwarnings("error::FutureWarning"),
    pytest.mark.filterwarnings("ignore:.* cannot be read:UserWarning"),
]
PARTS = 25
CONTENT: dict[str, Any] = {
    "name": "whole",
    "models": [{"source": "bolt-nano", "context_length": 32}],
    "data": [
        {"source": "bundled", "names": ["co2", "elnino"], "horizon": 4, "windows": 1}
    ],
    "variants": {
        "layers": {"sizes": [1], "parts": ["mlp"]},
        "components": {"a": ["decoder.0.self_attn.0"]},
    },
    "chunk": 1,
    "block": 2,
}


@cache
def config() -> SweepConfig:
    return parse_config(CONTENT)


@pytest.fixture(scope="module", autouse=True)
def opened_once() -> Iterator[None]:
    """Thousands of runs of one sweep read its model and its series once."""
    sets = config().evaluation_sets()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table, "open_model", cache(open_model))
        patch.setattr(SweepConfig, "evaluation_sets", lambda _config: sets)
        yield


@pytest.fixture(scope="module")
def undamaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    path = tmp_path_factory.mktemp("whole") / "store"
    assert not run_sweep(config(), path).failed
    return path


def parse_table(path: Path) -> pd.DataFrame:
    store = Store(path, create=False)
    rows = store.read(store.done()).to_pandas()
    return rows.astype(dict.fromkeys(KEY_COLUMNS[:5], str)).sort_values(
        list(KEY_COLUMNS), ignore_index=True
    )


# --- what can happen to a store
# --------------------------------------------------------------------------------------


def list_files(store: Path) -> list[Path]:
    return sorted(path for path in store.rglob("*") if path.is_file())


def make_tables(store: Path) -> list[Path]:
    return [path for path in list_files(store) if path.suffix in (".parquet", ".plan")]


def spoil_bytes(store: Path, chosen: random.Random) -> None:
    """Flip bits of a Parquet file, cut it short, or go on with other bytes."""
    path = chosen.choice(make_tables(store))
    content = bytearray(path.read_bytes())
    kind = chosen.randrange(3)
    if kind == 0:
        for _ in range(chosen.choice((1, 1, 2, 8))):
            content[chosen.randrange(len(content))] ^= 1 << chosen.randrange(8)
    elif kind == 1:
        del content[chosen.randrange(len(content)) :]
    else:
        content += chosen.randbytes(chosen.randrange(1, 40))
    path.write_bytes(content)


def lose(store: Path, chosen: random.Random) -> None:
    """Empty or delete files, or delete a folder."""
    kind = chosen.randrange(3)
    if kind == 2:
        shutil.rmtree(
            chosen.choice(sorted(path for path in store.rglob("*") if path.is_dir()))
        )
        return
    for path in chosen.sample(list_files(store), chosen.choice((1, 2, 5))):
        path.write_bytes(b"") if kind else path.unlink()


def displace(store: Path, chosen: random.Random) -> None:
    """Swap two files, put one in another's place, rename one, or move it to another
    folder.
    """
    (one, other), kind = chosen.sample(list_files(store), 2), chosen.randrange(4)
    if kind == 0:
        content = one.read_bytes()
        one.write_bytes(other.read_bytes())
        other.write_bytes(content)
    elif kind == 1:
        shutil.copy(one, other)
    elif kind == 2:
        name = chosen.choice(
            [
                f"{one.name}.bak",
                f"copy of {one.name}",
                f"0{one.name[1:]}",
                f".{one.name}",
            ]
        )
        one.rename(one.with_name(name))
    else:
        one.rename(other.parent / one.name)


def edit_table(store: Path, chosen: random.Random) -> None:
    """Of cells or of a plan, as another program would write it, with all that the
    footer said.
    """
    path = chosen.choice(make_tables(store))
    messages = pq.read_metadata(path).metadata
    table = pq.read_table(path)
    kind = chosen.randrange(4)
    if kind == 0:
        table = pa.concat_tables(
            [table, table.slice(0, chosen.randrange(1, table.num_rows + 1))]
        )
    elif kind == 1:
        table = table.slice(1)
    elif kind == 2:
        name = chosen.choice(table.column_names)
        table = table.rename_columns(
            [
                f"{column_name}_" if column_name == name else column_name
                for column_name in table.column_names
            ]
        )
    else:
        table = table.drop_columns([chosen.choice(table.column_names)])
    pq.write_table(
        table.replace_schema_metadata({**(table.schema.metadata or {}), **messages}),
        path,
    )


def block(store: Path, chosen: random.Random) -> None:
    """A file in place of a folder, a folder in place of a file, a link to nowhere."""
    everything = sorted(path for path in store.rglob("*"))
    path = chosen.choice(everything)
    if path.is_dir():
        shutil.rmtree(path)
        path.write_bytes(chosen.choice((b"", b"PAR1")))
    else:
        path.unlink()
        path.mkdir() if chosen.random() < 0.5 else path.symlink_to("nowhere")


def litter(store: Path, chosen: random.Random) -> None:
    """Files that are nobody's."""
    folder = chosen.choice([path for path in store.rglob("*") if path.is_dir()])
    name = chosen.choice(
        [
            "notes.txt",
            "x.parquet",
            "x.json",
            ".x.part",
            "x.about.json",
            "cells",
            "x.lock",
        ]
    )
    (folder / name).write_bytes(
        chosen.choice((b"", b"{}", b"PAR1", chosen.randbytes(100)))
    )


def several(store: Path, chosen: random.Random) -> None:
    for change in chosen.sample([spoil_bytes, spoil_bytes, lose, displace, litter], 3):
        change(store, chosen)


CHANGES = (
    *(spoil_bytes,) * 4,
    *(lose,) * 3,
    *(displace,) * 4,
    edit_table,
    block,
    litter,
    several,
)
"""The more files and bits there are that a change may hit, the more often it stands
here.
"""


# --- what must come of it
# --------------------------------------------------------------------------------------


def mended(error: LensError, store: Path) -> str:
    """Move aside what an error names as standing in the way."""
    message = str(error)
    assert "the same command" in message, message
    *_, blocking = re.findall("'([^']+)'", message)
    path = Path(blocking)
    assert path.is_relative_to(store), message
    path.rename(path.with_name(f"{path.name}.aside"))
    return "moved aside"


def find_outcome(case: int, undamaged: Path, store: Path) -> tuple[str, str]:
    """Damage a copy of a whole store, ask for its report, run the sweep again, and
    compare.
    """
    chosen = random.Random(case)
    change = CHANGES[case % len(CHANGES)]
    shutil.rmtree(store, ignore_errors=True)
    shutil.copytree(undamaged, store)
    change(store, chosen)
    if case % 5 == 0:
        messages = reported(store, undamaged)
        assert not messages or re.search(
            "tsfm-lens sweep|the same command|no sweep 'whole'", messages
        ), messages
    how = "healed"
    for _ in range(3):
        try:
            outcome = run_sweep(config(), store)
            assert not outcome.failed, outcome.failed
            break
        except StoreError as error:
            how = mended(error, store)
    else:
        raise AssertionError("what the error says does not help")
    pd.testing.assert_frame_equal(parse_table(store), parse_table(undamaged))
    if case % 5 == 0:
        assert not reported(store, undamaged)
    return change.__name__, how


def reported(store: Path, undamaged: Path) -> str:
    """The report of a store equals that of the whole one, or says that it is not
    finished; else what the error says.
    """
    try:
        found = gather(store, config().name)
    except LensError as error:
        return str(error)
    if not any("not finished" in note for note in found.notes):
        expected = undamaged_tables(undamaged)
        assert found.results.keys() == expected.keys()
        for name, table in expected.items():
            pd.testing.assert_frame_equal(found.results[name], table)
    return ""


@cache
def undamaged_tables(undamaged: Path) -> dict[str, pd.DataFrame]:
    return gather(undamaged).results


def campaign(
    cases: Sequence[int], undamaged: Path, store: Path
) -> Counter[tuple[str, str]]:
    counts: Counter[tuple[str, str]] = Counter()
    failed = []
    for case in cases:
        try:
            counts[find_outcome(case, undamaged, store)] += 1
        except Exception as error:
            failed.append(
                f"case {case} ({CHANGES[case % len(CHANGES)].__name__}):"
                f" {type(error).__name__}: {error}"
            )
    assert not failed, f"{len(failed)} of {len(cases)}:\n" + "\n".join(failed[:20])
    return counts


def test_damaged_store_gives_undisturbed_table(undamaged: Path, tmp_path: Path) -> None:
    """A damaged store ends in the undisturbed table."""
    # every kind once; every fifth case asks for the report as well
    cases = [0, 5, *range(10, len(CHANGES))]
    assert {CHANGES[case] for case in cases} == set(CHANGES)
    counts = campaign(cases, undamaged, tmp_path / "store")
    assert sum(counts.values()) == len(cases)


@pytest.mark.campaign
@pytest.mark.parametrize("part", range(PARTS))
def test_many_damaged_stores_give_undisturbed_tables(
    part: int, undamaged: Path, tmp_path: Path, capsys: Any
) -> None:
    """Many damaged stores end in the undisturbed table."""
    counts = campaign(range(part, CASES, PARTS), undamaged, tmp_path / "store")
    with capsys.disabled():
        print()  # noqa: T201
        for (kind, how), count in sorted(counts.items()):
            print(f"{kind:14} {how:10} {count}")  # noqa: T201
