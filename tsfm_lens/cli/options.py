"""Options for reading a file of series, by their names in Python."""

from __future__ import annotations

from typing import Annotated, Any

import typer

PANEL = "Reading a file"
OPTIONS: dict[str, Any] = {
    "id_column": Annotated[
        str | None,
        typer.Option("--id-column", metavar="NAME", rich_help_panel=PANEL, help="Column that tells series apart."),
    ],
    "time_column": Annotated[
        str | None, typer.Option("--time-column", metavar="NAME", rich_help_panel=PANEL, help="Column of timestamps.")
    ],
    "time_format": Annotated[
        str | None,
        typer.Option(
            "--time-format", metavar="FORMAT", rich_help_panel=PANEL, help="Such as %d.%m.%Y, or s since 1970; else ISO"
        ),
    ],
    "targets": Annotated[
        list[str] | None,
        typer.Option(
            "--target", "-t", metavar="NAME", rich_help_panel=PANEL, help="Column that is a series; repeatable."
        ),
    ],
    "variates": Annotated[
        list[str] | None,
        typer.Option(
            "--variate", metavar="NAME", rich_help_panel=PANEL, help="Column that is a variate of one item; repeatable."
        ),
    ],
    "known": Annotated[
        list[str] | None,
        typer.Option(
            "--known",
            metavar="NAME[,NAME…]",
            rich_help_panel=PANEL,
            help="Column of a covariate whose future is known; repeatable. Commas part names, but for those in a name.",
        ),
    ],
    "past": Annotated[
        list[str] | None,
        typer.Option(
            "--past",
            metavar="NAME[,NAME…]",
            rich_help_panel=PANEL,
            help="Column of a covariate that is seen up to the forecast; repeatable, commas as in --known.",
        ),
    ],
    "freq": Annotated[
        str | None,
        typer.Option(
            "--freq", metavar="ALIAS", rich_help_panel=PANEL, help="h, D, W, MS, …; else from the timestamps."
        ),
    ],
    "units": Annotated[
        str | None,
        typer.Option("--unit", metavar="TEXT", rich_help_panel=PANEL, help="Of the series' values, such as kWh."),
    ],
    "delimiter": Annotated[
        str | None,
        typer.Option("--delimiter", metavar="SIGN", rich_help_panel=PANEL, help="What parts columns; tab and space."),
    ],
    "decimal": Annotated[
        str | None, typer.Option("--decimal", metavar="SIGN", rich_help_panel=PANEL, help="Decimal sign: . or ,")
    ],
    "encoding": Annotated[
        str | None,
        typer.Option("--encoding", metavar="NAME", rich_help_panel=PANEL, help="Such as cp1252; else UTF-8."),
    ],
    "header": Annotated[
        bool | None,
        typer.Option("--header/--no-header", rich_help_panel=PANEL, help="Whether the first line has names."),
    ],
}
