"""Container engines, by the Docker SDK."""
