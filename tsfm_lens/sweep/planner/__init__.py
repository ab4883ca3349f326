"""Request of a sweep: configuration, variants, orders of heads, recipes, and the tables
of cells.
"""
