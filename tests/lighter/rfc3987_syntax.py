"""A module that jsonschema looks for and does without."""

raise ImportError("not in tests")
