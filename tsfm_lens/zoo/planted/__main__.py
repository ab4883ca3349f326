"""``python -m tsfm_lens.zoo.planted MECHANISM ARCHITECTURE --out DIR`` builds one planted model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tsfm_lens.console import console
from tsfm_lens.errors import LensError
from tsfm_lens.training.command import HELP
from tsfm_lens.zoo.planted import plant


def main(
    mechanism: Annotated[str, typer.Argument(help="what is planted, like seasonal-copy")],
    architecture: Annotated[str, typer.Argument(help="the format that holds it, like chronos")],
    out: Annotated[Path, typer.Option(help="folder of the checkpoint and its card")],
    *,
    seed: Annotated[int, typer.Option(help="of everything drawn")] = 0,
    rotate: Annotated[bool, typer.Option(help="turn the residual basis at random")] = True,
    weight_noise: Annotated[float, typer.Option(min=0.0, help="noise on every weight, relative to its matrix")] = 0.0,
) -> None:
    """Set the weights of a model so that its mechanism is known, and write checkpoint and card."""
    try:
        planted = plant(mechanism, architecture, seed=seed, rotate=rotate, weight_noise=weight_noise)
        planted.save(out)
    except LensError as error:
        console(stderr=True).print(f"error: {error}", soft_wrap=True)
        raise typer.Exit(1) from None
    console().print(f"{planted.card.name}: error {planted.card.error:.2g} mean absolute values, in {out}")


app = typer.Typer(add_completion=False)
app.command(context_settings=HELP)(main)

if __name__ == "__main__":
    app()
