"""Receipts: what ran where with which results, and what differs between receipts.

results.json + what the host knows -> build.receipt -> Receipt -> report.write_receipt
Receipt, Receipt, ... -> compare.compare -> Comparison
"""
