"""N-gram models: build them from text, import published ones, look things up. `python -m dart_core.ngram`."""
