"""Commands of the books beyond report, fsck and sql: one module each."""
