"""conda's packages put into a folder by rattler, in a process of its own."""
