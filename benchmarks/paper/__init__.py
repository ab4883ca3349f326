"""The paper's reported numbers, on the checkpoints that can be reached."""
