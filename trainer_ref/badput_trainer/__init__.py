"""The reference trainer: a small pipeline-parallel GPT whose runs feed badput."""
