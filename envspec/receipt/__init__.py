"""The receipt: what ran where, what came of it, and what differs between receipts.

results.json + what the host knows -> build.receipt -> Receipt -> report.write
Receipt, Receipt, ... -> compare.compare -> Comparison
"""
