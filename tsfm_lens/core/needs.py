"""Requirements of definitions on a model.

A :class:`Needs` names traits that a model must have; its wiring and its adapter give a
model its traits. :data:`NEEDS` lists all requirements that a declaration can name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tsfm_lens.core.errors import InputError

TABLE_TRAITS = frozenset({"attention", "cross_attention", "additive", "gradients"})
"""Traits that the table of a wiring can give a model.

``tsfm_lens.hooks.Wiring.traits`` has those of one table.
"""


@dataclass(frozen=True)
class Needs:
    """Requirement of a definition on a model, open or not.

    Attributes:
        words: what the definition is of.
        traits: of a lens or an architecture, all of which the model must have.
        models: which models meet it, where their architectures do not tell.
    """

    words: str
    traits: frozenset[str]
    models: str = ""

    def met(self, model: Any) -> bool:
        """Test if a lens has the traits, or an architecture can have them."""
        result: bool = self.traits <= model.traits
        return result

    def check(self, lens: Any, name: str, instead: str = "") -> None:
        """Refuse a lens that does not have it, naming what can be had ``instead``."""
        self.check_architecture(lens, lens.model_id, name, instead)

    def check_architecture(
        self, architecture: Any, model: str, name: str, instead: str = ""
    ) -> None:
        """Refuse a model that is not open yet by its architecture."""
        if not self.met(architecture):
            hint = ""
            if instead:
                hint = f"; {instead}"
            raise InputError(
                f"{name} is defined by {self.words}, which {model} does not have{hint}"
            )


NEEDS = {
    "tokens": Needs("logits over a vocabulary", frozenset({"token_logits"})),
    "sequences": Needs(
        "an encoder and a decoder over value tokens",
        frozenset({"decoder_tokens", "cross_attention"}),
    ),
    "cross_attention": Needs(
        "cross-attention without rotary embeddings or norms of queries and keys",
        frozenset({"cross_attention"}),
    ),
    "gradients": Needs("derivatives of the forecast", frozenset({"gradients"})),
    "heads": Needs("heads", frozenset({"attention"})),
    "sums": Needs("a stream that is the sum of its writes", frozenset({"additive"})),
    "vocabulary": Needs("tokens from an embedding table", frozenset({"vocabulary"})),
    "series": Needs("numeric series, not text", frozenset({"numeric_series"})),
    "covariates": Needs("covariates", frozenset({"covariates"})),
    "training_record": Needs(
        "a record of its training",
        frozenset({"training_record"}),
        models="reference checkpoints",
    ),
}
"""Requirements by the name that a declaration gives."""
