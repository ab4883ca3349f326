"""Command that builds one planted model, whose weights are set and not trained.

``python -m tsfm_lens.zoo.planted MECHANISM ARCHITECTURE --out DIR``
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tsfm_lens.core.console import console
from tsfm_lens.core.io import check_writable
from tsfm_lens.training.command import run_command
from tsfm_lens.zoo.planted import plant
from tsfm_lens.zoo.planted.rules import Reads


def main(
    mechanism: Annotated[
        str, typer.Argument(help="what is planted, like seasonal-copy")
    ],
    architecture: Annotated[
        str, typer.Argument(help="the format that holds it, like chronos")
    ],
    out: Annotated[
        Path,
        typer.Option(file_okay=False, help="folder of the checkpoint and its card"),
    ],
    *,
    reads: Annotated[
        Reads, typer.Option(help="part of the context that the mechanism reads")
    ] = "recent",
    seed: Annotated[int, typer.Option(min=0, help="of everything drawn")] = 0,
    rotate: Annotated[
        bool, typer.Option(help="turn the residual basis at random")
    ] = True,
    weight_noise: Annotated[
        float,
        typer.Option(min=0.0, help="noise on every weight, relative to its matrix"),
    ] = 0.0,
) -> None:
    """Set the weights of a model so that its mechanism is known.

    Checkpoint and card are written.
    """
    # a folder that cannot be written is refused before the model is built, which
    # takes longer than this check
    check_writable(out)
    model = plant(
        mechanism,
        architecture,
        reads=reads,
        seed=seed,
        rotate=rotate,
        weight_noise=weight_noise,
    )
    model.save(out)
    console().print(
        f"{model.card.name}: error {model.card.error:.2g} mean absolute values, in"
        f" {out}"
    )


if __name__ == "__main__":
    run_command(main)
