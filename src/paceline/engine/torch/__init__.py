"""The reference engine: every model, on whatever device PyTorch runs on."""
