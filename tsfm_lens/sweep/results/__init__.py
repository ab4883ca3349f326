"""Results of a sweep: one tidy table for each question.

Figures, tables and reports are made of them.
"""
