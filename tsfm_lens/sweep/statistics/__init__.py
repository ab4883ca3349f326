"""What is kept of forecasts, how it is pooled into metrics, and which changes stand."""
