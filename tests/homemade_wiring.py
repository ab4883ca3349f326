"""Makes the model of ``homemade_model`` known to ``load`` and to every suite, as a package of one's own would."""

from homemade_model import Forecaster, Wired
from tsfm_lens.models import Architecture, register

register(Architecture(title="Homemade", adapter=Wired, classes=(Forecaster.__name__,)))
