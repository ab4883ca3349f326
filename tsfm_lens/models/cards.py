"""Cards of the architectures of this package: what is known before a library loads.

A :class:`ModelCard` has the names, published sizes and traits of an architecture.
Commands list and check models by :data:`CARDS`, since importing torch takes longer than
anything that they refuse; the wiring of an architecture takes its card over.
Architectures of other packages have no card, and are known once their wirings are
imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field, fields
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from tsfm_lens.core.needs import TABLE_TRAITS
from tsfm_lens.models.extras import Extra

Readout = Literal["token", "quantile", "distribution"]
"""Kind of a head's output."""


def _stand_in_for_pytree() -> None:
    """Give jaxtyping a ``PyTree`` where there is no jax.

    Uni2ts names it in annotations only.
    """
    jaxtyping: Any = import_module("jaxtyping")
    try:
        _ = jaxtyping.PyTree
    except (ImportError, AttributeError):
        jaxtyping.PyTree = tuple


TOTO = Extra(
    name="toto",
    title="Toto",
    imports=("toto",),
    distributions={"timecopilot-toto": "0.1.7"},
    proofs=("toto.model.toto:Toto",),
    needs=("lightning", "rotary-embedding-torch"),
)
TOTO_2 = Extra(
    name="toto2",
    title="Toto 2",
    imports=("toto2", "dd_unit_scaling"),
    distributions={
        "timecopilot-toto-2": "0.1.1",
        "timecopilot-dd-unit-scaling": "0.1.0",
    },
    proofs=("dd_unit_scaling:LinearReadout", "toto2:Toto2Model"),
    needs=("lightning", "unit-scaling"),
)
MOIRAI = Extra(
    name="moirai",
    title="Moirai",
    imports=("uni2ts",),
    distributions={"timecopilot-uni2ts": "0.1.3"},
    proofs=(
        "uni2ts.model.moirai:MoiraiModule",
        "uni2ts.model.moirai2:Moirai2Module",
    ),
    needs=("lightning", "hydra-core"),
    before=_stand_in_for_pytree,
)
TIMESFM = Extra(
    name="timesfm",
    title="TimesFM",
    imports=("timesfm", "timesfm3"),
    distributions={"timesfm": "3.0.2"},
    proofs=("timesfm:TimesFM_2p5_200M_torch", "timesfm3:TimesFM3Torch"),
    alone=False,
)
TIMESTRAL = Extra(
    name="timestral",
    title="Timestral",
    imports=("timestral",),
    distributions={"timecopilot-timestral": "0.1.0"},
    proofs=("timestral:TimestralForecaster",),
    alone=False,
)
TIREX = Extra(
    name="tirex",
    title="TiRex",
    imports=("tirex",),
    distributions={"tirex-ts": "1.4.2"},
    proofs=("tirex.models.tirex:TiRexZero",),
    alone=False,
)
TTM = Extra(
    name="ttm",
    title="TinyTimeMixer",
    imports=("tsfm_public",),
    distributions={"granite-tsfm": "0.3.11"},
    proofs=("tsfm_public.models.tinytimemixer:TinyTimeMixerForPrediction",),
    needs=("datasets", "deprecated"),
)
FRACAST = Extra(
    name="fracast",
    title="Fracast",
    imports=("fracast",),
    distributions={"fracast": "0.1.0"},
    proofs=("fracast:FracastModel",),
    alone=False,
)
FRACAST_HUB = "ztxtech/fracast-0"
TTM_HUB = "ibm-granite/granite-timeseries-ttm-r2"


# defaults with names, since `register` tells by identity whether an entry has a
# function of its own
def no_config(config: Mapping[str, Any]) -> bool:
    """Claim no configuration."""
    return False


def ships_nothing(name: str) -> Path | None:
    """Return None: no library ships the weights of any checkpoint."""
    return None


def _fracast_weights(name: str) -> Path | None:
    """Find the weights that the library's wheel has."""
    spec = None
    if name == FRACAST_HUB:
        spec = find_spec("fracast")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "weights"


@dataclass(frozen=True, kw_only=True)
class KnownArchitecture:
    """What is known of any architecture before its models are opened.

    The attributes are those of :class:`tsfm_lens.models.Architecture`.
    """

    title: str
    published: Mapping[str, str] = field(default_factory=dict)
    claims: Callable[[Mapping[str, Any]], bool] = no_config
    notes: str = ""
    library: Extra | None = None
    table_traits: Set[str] = TABLE_TRAITS
    inside: Callable[[str], Path | None] = ships_nothing

    @property
    def extra(self) -> str:
        """Name of the extra of its optional library, "" if it needs none."""
        if self.library is None:
            return ""
        return self.library.name

    @property
    def importable(self) -> bool:
        """True if its library is installed; nothing is imported."""
        return self.library is None or self.library.importable

    @property
    def reading_traits(self) -> frozenset[str]:
        """Traits that say what series, tokens and covariates its models take."""
        raise NotImplementedError

    @property
    def traits(self) -> frozenset[str]:
        """Traits that a model of this architecture can have before it is open.

        An open model has ``lens.traits``.
        """
        # whether a training was recorded depends on the checkpoint
        return self.reading_traits | self.table_traits | {"training_record"}


@dataclass(frozen=True, kw_only=True)
class ModelCard(KnownArchitecture):
    """What is known of an architecture before its library is imported.

    Attributes:
        name: key of the architecture in the registry.
        readout, covariates, integers: see :class:`tsfm_lens.models.Adapter`.
        takes_tokens: whether its adapter encodes ids of tokens.
    """

    name: str
    readout: Readout = "quantile"
    covariates: tuple[str, ...] = ()
    integers: bool = False
    takes_tokens: bool = False

    @property
    def reading_traits(self) -> frozenset[str]:
        """Traits that say what series, tokens and covariates its models take."""
        return reading_traits(
            self.readout, self.covariates, self.integers, self.takes_tokens
        )

    @property
    def fields(self) -> dict[str, Any]:
        """Arguments of the :class:`tsfm_lens.models.Architecture` of this card."""
        shared = fields(KnownArchitecture)
        return {item.name: getattr(self, item.name) for item in shared}


def reading_traits(
    readout: Readout, covariates: tuple[str, ...], integers: bool, takes_tokens: bool
) -> frozenset[str]:
    """Return the traits that say what series, tokens and covariates a model takes."""
    conditions = {
        "token_logits": readout == "token",
        "decoder_tokens": takes_tokens,
        "vocabulary": takes_tokens or integers,
        "numeric_series": not integers,
        "covariates": bool(covariates),
    }
    return frozenset(name for name, is_met in conditions.items() if is_met)


def _sized(prefix: str, *sizes: str) -> dict[str, str]:
    return {size: f"{prefix}{size}" for size in sizes}


def _is_fracast(config: Mapping[str, Any]) -> bool:
    model = config.get("model")
    return isinstance(model, Mapping) and model.get("family") == "fracast"


_DECODER = frozenset({"attention", "additive", "gradients"})
"""Traits of the tables of models that have attention and no cross-attention."""

_ALL = (
    ModelCard(
        name="chronos",
        title="Chronos (T5)",
        published=_sized(
            "amazon/chronos-t5-", "tiny", "mini", "small", "base", "large"
        ),
        claims=lambda config: (
            "chronos_config" in config
            and config.get("chronos_pipeline_class", "ChronosPipeline")
            == "ChronosPipeline"
        ),
        readout="token",
        takes_tokens=True,
    ),
    ModelCard(
        name="chronos-2",
        title="Chronos-2",
        published={"base": "amazon/chronos-2"},
        claims=lambda config: (
            config.get("chronos_pipeline_class") == "Chronos2Pipeline"
        ),
        table_traits=_DECODER,
        covariates=("past", "known", "categories"),
    ),
    ModelCard(
        name="chronos-bolt",
        title="Chronos-Bolt",
        published=_sized("amazon/chronos-bolt-", "tiny", "mini", "small", "base"),
        claims=lambda config: (
            config.get("chronos_pipeline_class") == "ChronosBoltPipeline"
        ),
    ),
    ModelCard(
        name="fracast",
        title="Fracast",
        published={"0": FRACAST_HUB},
        claims=_is_fracast,
        library=FRACAST,
        table_traits=frozenset({"gradients"}),
        inside=_fracast_weights,
    ),
    ModelCard(
        name="moirai-1.1",
        title="Moirai 1.1-R",
        published=_sized("Salesforce/moirai-1.1-R-", "small", "base", "large"),
        claims=lambda config: "patch_sizes" in config and "distr_output" in config,
        notes="one fixed patch size, 32 if the model has it",
        library=MOIRAI,
        table_traits=_DECODER,
        readout="distribution",
        covariates=("past", "known"),
    ),
    ModelCard(
        name="moirai-2",
        title="Moirai 2.0-R",
        published={"small": "Salesforce/moirai-2.0-R-small"},
        claims=lambda config: (
            "num_predict_token" in config and "quantile_levels" in config
        ),
        library=MOIRAI,
        table_traits=_DECODER,
        covariates=("past", "known"),
    ),
    ModelCard(
        name="t5",
        title="T5 (language model)",
        published=_sized("google-t5/t5-", "small", "base", "large"),
        claims=lambda config: (
            config.get("model_type") == "t5"
            and "chronos_config" not in config
            and "chronos_pipeline_class" not in config
        ),
        notes="series are token ids",
        readout="token",
        integers=True,
    ),
    ModelCard(
        name="timesfm-2.5",
        title="TimesFM 2.5 (timesfm)",
        published={"200m": "google/timesfm-2.5-200m-pytorch"},
        notes=(
            "forecasts run without flip invariance unless the object was compiled with"
            " it; the library's covariates are a regression outside the model"
        ),
        library=TIMESFM,
        table_traits=_DECODER,
    ),
    ModelCard(
        name="timesfm-2.5-transformers",
        title="TimesFM 2.5 (transformers)",
        published={"200m": "google/timesfm-2.5-200m-transformers"},
        claims=lambda config: config.get("model_type") == "timesfm2_5",
        notes="forecasts run without flip invariance",
        table_traits=_DECODER,
    ),
    ModelCard(
        name="timesfm-3",
        title="TimesFM 3",
        published={"330m": "google/timesfm-3.0-pytorch"},
        claims=lambda config: (
            "residual_block_config" in config and "transformer_config" in config
        ),
        notes=(
            "weights for non-commercial use only; forecasts are decode's: gaps masked,"
            " quantiles as they are"
        ),
        library=TIMESFM,
        table_traits=_DECODER,
        covariates=("past", "known"),
    ),
    ModelCard(
        name="timestral",
        title="Timestral",
        published=_sized("mistralai/Timestral-", "5M", "28M", "123M", "209M"),
        claims=lambda config: "block_schedule" in config and "quantile_knots" in config,
        notes=(
            "forecasts run without the library's averaging over x and -x and its"
            " clipping at 0 unless lens.adapter.clampsym = True"
        ),
        library=TIMESTRAL,
        table_traits=_DECODER,
        covariates=("past", "known", "categories"),
    ),
    ModelCard(
        name="tirex",
        title="TiRex",
        published={"35m": "NX-AI/TiRex"},
        claims=lambda config: (
            "train_ctx_len" in config
            and "block_kwargs" in config.get("model_config", {})
        ),
        notes=(
            "published as a pickle: open it by `tirex.load_model`, and pass the model"
        ),
        library=TIREX,
        table_traits=frozenset({"additive"}),
    ),
    ModelCard(
        name="toto-1",
        title="Toto 1.0",
        published={"Open-Base-1.0": "Datadog/Toto-Open-Base-1.0"},
        claims=lambda config: (
            "spacewise_every_n_layers" in config and "embed_dim" in config
        ),
        library=TOTO,
        table_traits=_DECODER,
        readout="distribution",
        covariates=("past", "known"),
    ),
    ModelCard(
        name="toto-2",
        title="Toto 2.0",
        published=_sized("Datadog/Toto-2.0-", "4m", "22m", "313m", "1B", "2.5B"),
        claims=lambda config: "num_variate_layers_per_group" in config,
        library=TOTO_2,
        table_traits=frozenset({"attention", "additive"}),
    ),
    ModelCard(
        name="ttm",
        title="TinyTimeMixer",
        # all sizes are revisions of one repository
        published=dict.fromkeys(("512-96", "1024-96", "1536-96"), TTM_HUB),
        claims=lambda config: config.get("model_type") == "tinytimemixer",
        library=TTM,
        table_traits=frozenset({"additive", "gradients"}),
    ),
)
CARDS = {card.name: card for card in _ALL}
"""Cards of the architectures of this package, by name."""
