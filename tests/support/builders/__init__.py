"""Makes what envspec reads: wheels, conda archives, locks, images and receipts."""
