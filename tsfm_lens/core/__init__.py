"""What every package stands on.

It holds errors, statistics, ranks, effect estimates, safe writing, and the registry of
measurements. Nothing in it knows a model.
"""

VERSION = "0.1.0"
