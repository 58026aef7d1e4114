"""What runs in the ranks of a distributed check: one file each, under torchrun (`launch.py`)."""
