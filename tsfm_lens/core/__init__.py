"""What every package stands on: errors, statistics, ranks, estimates, safe writing, the
registry.
"""

VERSION = "0.1.0"
