"""What a sweep found: one tidy table for each question that figures, tables and reports answer."""
