"""Makes the model of ``own_models`` known to ``load`` and to every suite, as a package of one's own would."""

from own_models import Forecaster, Wired
from tsfm_lens.models import Architecture, register

register(Architecture(title="Homemade", adapter=Wired, classes=(Forecaster.__name__,)))
