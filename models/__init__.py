"""Target models: configuration, the decoder, reading weights into 4 bits, and the catalog."""
