"""The one index that the engines see."""
