"""What the definitions of measurements and figures require of a model.

A :class:`Needs` is one requirement: traits that a model must have, such as
"cross_attention". Its wiring and its adapter tell which traits a model has.
:data:`NEEDS` holds all requirements, by the names that measurements and figures are
registered with (``needs="heads"``).
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
    """Requirement on a model; it can be tested before the model is loaded.

    Attributes:
        words: what the measurement is defined by, as error messages say it.
        traits: traits that the model must have, all of them; see ``Lens.traits`` and
            ``Architecture.traits``.
        models: text that says which models meet the requirement, if that depends on
            the checkpoint; "" if it depends on the architecture alone.
    """

    words: str
    traits: frozenset[str]
    models: str = ""

    def met(self, model: Any) -> bool:
        """Test if a lens has the traits, or models of an architecture can have them."""
        # Any, since lenses and architectures are defined in packages above this one
        result: bool = self.traits <= model.traits
        return result

    def check(self, lens: Any, name: str, instead: str = "") -> None:
        """Raise InputError for a lens without the traits.

        The message begins with ``name``, that of the measurement or figure, and ends
        with ``instead``, a hint at another one.
        """
        self.check_architecture(lens, lens.model_id, name, instead)

    def check_architecture(
        self, architecture: Any, model: str, name: str, instead: str = ""
    ) -> None:
        """Raise InputError for a model by its architecture, before it is loaded.

        ``model`` is the model's name in the message; see :meth:`check`.
        """
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
"""Requirements by name."""
