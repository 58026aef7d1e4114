"""An environment on this machine from a lock alone: conda's packages by rattler, wheels by uv, whole or not at all."""
