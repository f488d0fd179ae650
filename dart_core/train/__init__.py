"""Training draft heads and n-gram models for a target, from text the target writes itself."""
