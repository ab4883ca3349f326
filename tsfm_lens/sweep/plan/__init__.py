"""Request of a sweep: configuration, variants, orders of heads, recipes, and the stages in which they run."""
