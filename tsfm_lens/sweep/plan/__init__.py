"""What a sweep is asked for: configuration, variants, orders of heads, recipes, and in which stages they run."""
