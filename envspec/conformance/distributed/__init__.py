"""Distributed checks: torchrun (`launch.py`), and the code of their ranks."""
