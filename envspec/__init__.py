"""envspec: reproducible GPU environments from one TOML spec."""

__version__ = "0.1.0"
