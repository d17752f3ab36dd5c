"""Dense models on a CPU: one call of compiled C++ runs a whole step. No torch."""
