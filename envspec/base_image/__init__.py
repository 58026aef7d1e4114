"""From resolved pins to CUDA release, base image, driver and GPU code: pure functions over the facts."""
