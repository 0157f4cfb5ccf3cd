"""Objects on s3:// and file://, addressed by one Location type."""
