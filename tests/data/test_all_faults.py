"""A file that cannot be read is refused once: with all its faults, and with what reads
it.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from tsfm_lens.cli import app
from tsfm_lens.core.errors import InputError, LensError
from tsfm_lens.data import SeriesBatch, read_series
from tsfm_lens.data.faults import find_faults, list_arguments

SHOPS = ("Nürnberg", "Köln")
DAYS = 30
# above a thousand, with decimals, and no multiple of a thousand apart
VALUES = {
    shop: 1000.25 + 977.5 * np.arange(DAYS) + 10 * i for i, shop in enumerate(SHOPS)
}


def english(value: float) -> str:
    return f"{value:,.2f}"


def german(value: float) -> str:
    return english(value).translate(str.maketrans(",.", ".,"))


def plain(value: float) -> str:
    return f"{value:.2f}"


def written(
    form: Callable[[float], str], date: str, names: tuple[str, str, str], sign: str
) -> str:
    lines = [sign.join(names)]
    for shop in SHOPS:
        for day in range(DAYS):
            cell = form(VALUES[shop][day])
            if sign in cell:
                cell = f'"{cell}"'
            stamp = date.format(day=day + 1, off=day % 3)
            lines.append(sign.join((stamp, shop, cell)))
    return "\n".join(lines) + "\n"


# content, encoding, and the options that have to be found
FILES: dict[str, tuple[str, str, set[str]]] = {
    "German": (
        written(german, "{day:02d}.01.2021", ("Tag", "Laden", "Umsatz"), ";"),
        "cp1252",
        {"encoding", "thousands", "decimal", "time_column", "time_format", "id_column"},
    ),
    "English": (
        written(english, "01/{day:02d}/2021 00:00", ("when", "shop", "sales"), ","),
        "utf-8",
        {"thousands", "time_column", "time_format", "id_column"},
    ),
    "digits": (
        written(
            lambda value: plain(value).replace(".", ","),
            "202101{day:02d}",
            ("date", "shop", "sales"),
            "\t",
        ),
        "utf-8",
        {"decimal", "time_format", "id_column"},
    ),
    "two delimiters": (
        written(plain, "2021-01-{day:02d}", ("date", "shop", "sales, EUR"), "|"),
        "cp1252",
        {"encoding", "delimiter", "id_column"},
    ),
    "shifted clock": (
        written(plain, "2021-01-{day:02d} 00:0{off}:00", ("date", "shop", "y"), ";"),
        "utf-8",
        {"round_time", "id_column"},
    ),
}


@pytest.fixture(params=FILES)
def messy(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, set[str]]:
    text, encoding, options = FILES[request.param]
    file = tmp_path / "messy file.csv"
    file.write_bytes(text.encode(encoding))
    return file, options


def check_values(batch: SeriesBatch) -> None:
    assert batch.ids == SHOPS
    assert batch.freq == "D"
    for values, shop in zip(batch.values, SHOPS, strict=True):
        assert values.tolist() == VALUES[shop].tolist()


def refusal(file: Path, **options: Any) -> LensError:
    with pytest.raises(LensError) as caught:
        read_series(file, **options)
    return caught.value


def test_one_call_reads_a_messy_file(messy: tuple[Path, set[str]]) -> None:
    """The call that the message ends with reads the values that were written."""
    file, options = messy
    error = refusal(file)
    assert set(error.faults.changes) == options
    call = str(error).partition("This reads it: ")[2]
    arguments = ast.parse(call, mode="eval").body
    assert isinstance(arguments, ast.Call)
    path = ast.literal_eval(arguments.args[0])
    keywords = {
        str(item.arg): ast.literal_eval(item.value) for item in arguments.keywords
    }
    check_values(read_series(path, **keywords))


def test_every_fault_is_said_with_its_option(messy: tuple[Path, set[str]]) -> None:
    file, options = messy
    faults = refusal(file).faults
    said = [name for fault in faults.found for name in fault.options]
    assert sorted(said) == sorted(options)


def test_no_option_is_said_twice(messy: tuple[Path, set[str]]) -> None:
    """The list of faults has each option once: the words of an error would repeat it.

    The call and the command after the list have them all.
    """
    file, _ = messy
    error = refusal(file)
    words = ["forecast", "bolt-nano", "--data", str(file)]
    listed = CliRunner().invoke(app, words).stderr.partition("This reads it")[0]
    said = str(error).partition("This reads it")[0]
    for fault in error.faults.found:
        for argument in list_arguments(fault.options):
            assert said.count(argument) == 1
        for name in fault.options:
            option = f"--{name.replace('_', '-')} "
            alternatives = [fault.options, *fault.others]
            count = sum(name in options for options in alternatives)
            assert listed.count(option) == count


def test_one_command_reads_a_messy_file(messy: tuple[Path, set[str]]) -> None:
    """The command that the message ends with forecasts every series of the file."""
    file, _ = messy
    words = ["forecast", "bolt-nano", "--data", str(file), "--horizon=2", "--csv"]
    refused = CliRunner().invoke(app, words)
    assert refused.exit_code == 1
    command = shlex.split(refused.stderr.partition("This reads it:")[2])
    assert command[: len(words) + 1] == ["tsfm-lens", *words]
    done = CliRunner().invoke(app, command[1:])
    assert done.exit_code == 0, done.output
    rows = [line.split(",")[:3] for line in done.stdout.splitlines()[1:]]
    dates = ("2021-01-31", "2021-02-01")
    assert rows == [
        [shop, str(step), date] for shop in SHOPS for step, date in enumerate(dates)
    ]


def test_wrong_options_are_replaced_in_the_command(tmp_path: Path) -> None:
    """Options that were given wrongly do not stay in the command."""
    file = tmp_path / "load.csv"
    rows = [f"2021-01-{day:02d},{day},{day % 7}" for day in range(1, 29)]
    file.write_text("\n".join(["Day,Load,Heat", *rows]))
    words = f"forecast bolt-nano --data {file} --horizon 2 --csv"
    wrong = "--time-column=Dya -tLaod --past Heet --freq often"
    refused = CliRunner().invoke(app, f"{words} {wrong}".split())
    text = refused.stderr
    assert "4 things are wrong" in text
    command = text.partition("This reads it:")[2]
    assert set(shlex.split(command)) == {
        *("tsfm-lens", *words.split()),
        *("--time-column", "Day", "--targets", "Load", "--past", "Heat"),
    }


def test_a_call_may_need_no_option(tmp_path: Path) -> None:
    file = tmp_path / "load.csv"
    file.write_text("date,load\n2021-01-01,1\n2021-01-02,2\n")
    text = str(refusal(file, freq="often"))
    assert text.endswith(f"This reads it: tsfm_lens.data.read_series({str(file)!r})")


def test_both_readings_of_a_date_are_said(tmp_path: Path) -> None:
    """Where day and month cannot be told apart, the message has both orders."""
    file = tmp_path / "few.csv"
    rows = [f"0{day}/0{day}/2021;{day}.5" for day in range(1, 4)]
    file.write_text("\n".join(["day;load", *rows, "04/01/2021;x"]))
    error = refusal(file, time_column="day")
    assert not error.faults.readable
    file.write_text("\n".join(["day;load", "01/02/2021;1.5", "02/02/2021;2.5"]))
    found = refusal(file, time_column="day")
    (fault,) = found.faults.found
    forms = [fault.options, *fault.others]
    assert forms == [{"time_format": "%d/%m/%Y"}, {"time_format": "%m/%d/%Y"}]
    for form in ("time_format='%d/%m/%Y'", "time_format='%m/%d/%Y'"):
        assert form in str(found)
    words = f"forecast bolt-nano --data {file} --time-column day"
    text = CliRunner().invoke(app, words.split()).stderr
    for form in ("--time-format %d/%m/%Y", "--time-format %m/%d/%Y"):
        assert form in text


def test_a_cure_that_does_not_help_is_passed_over() -> None:
    """Of two cures, the one is taken after which the same error does not come again."""
    wrong, right = {"decimal": "."}, {"decimal": ","}

    def read(decimal: str = "") -> None:
        if decimal == ",":
            raise InputError("a word is no number")
        raise InputError("numbers are unclear").with_cures(wrong, right)

    with pytest.raises(InputError) as caught:
        read()
    first, second = find_faults("load.csv", read, {}, caught.value).found
    assert (first.options, first.others) == (right, (wrong,))
    assert (second.message, second.options) == ("a word is no number", {})


def test_a_fault_without_a_cure_is_said_last(tmp_path: Path) -> None:
    """A cell that no option makes a number ends the list, and no call is promised."""
    file = tmp_path / "broken.csv"
    file.write_text("Tag;Last\n01.01.2021;1,5\n02.01.2021;zwei\n03.01.2021;3,5\n")
    error = refusal(file, time_column="Tag")
    assert isinstance(error, InputError)
    assert "zwei" in error.faults.found[-1].message
    assert not error.faults.found[-1].options
    assert "This reads it" not in str(error)


def test_large_files_are_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a file that takes long to read, the first fault is said alone."""
    file = tmp_path / "large.csv"
    file.write_bytes(FILES["German"][0].encode("cp1252"))
    monkeypatch.setattr("tsfm_lens.data.files.LARGE", 10)
    error = refusal(file)
    assert len(error.faults.found) == 1
    assert re.search("encoding='cp1252'", str(error))


@pytest.mark.parametrize("columns", [("load",), ("load", "heat")])
def test_roles_of_columns_are_said_beside_the_command(
    columns: tuple[str, ...], tmp_path: Path
) -> None:
    """Where several columns would be forecast, the options that choose are named."""
    file = tmp_path / "load.csv"
    days = pd.date_range("2024-01-13", periods=20).strftime("%d.%m.%Y")
    table = pd.DataFrame({"day": days} | {name: range(20) for name in columns})
    table.to_csv(file, index=False)
    words = ["forecast", "chronos2-nano", "--data", str(file)]
    refused = CliRunner().invoke(app, words).stderr.partition("This reads it:")
    assert refused[1]
    for option in ("--targets", "--known", "--past"):
        assert (option in refused[0]) == (len(columns) > 1)
