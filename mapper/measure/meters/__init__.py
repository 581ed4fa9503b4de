"""Energy meters: one module a counter, and the choice between them."""
