"""Read-only answers about locks and machines: explain, fit, doctor."""
