"""What several kernels share: parts of their pipelines, and the host's arithmetic of them."""
