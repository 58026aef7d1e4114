"""Container images, assembled directly from a lock."""
