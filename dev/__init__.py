"""What surrounds the product: benchmarks, generated documents, releases, fault tests, the model."""
