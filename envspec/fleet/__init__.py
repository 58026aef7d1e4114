"""The conformance suite on many machines at once, and their receipts: one module a scheduler."""
