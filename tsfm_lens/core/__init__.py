"""Foundation that every package stands on: the registry of measurements and figures, and extensions."""

VERSION = "0.1.0"
