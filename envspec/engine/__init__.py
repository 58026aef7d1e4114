"""Container engines: Docker by its SDK, and buildah."""
