"""Tensor operations: each file holds a plain reference, a CPU form where it pays, and a Triton form."""
