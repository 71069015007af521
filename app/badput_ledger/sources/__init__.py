"""Sources of facts: run folders of the probe, and importers of foreign logs."""
