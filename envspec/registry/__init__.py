"""Container images and the registries that keep them."""
