"""What goes into images with services: programs of their own, which know nothing of envspec."""
