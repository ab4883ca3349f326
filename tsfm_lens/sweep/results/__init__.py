"""Results of a sweep: one tidy table for each question that figures, tables and reports
answer.
"""
