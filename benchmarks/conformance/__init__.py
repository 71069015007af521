"""The conformance suite: timelines with their truth, and what each tool makes of them."""
