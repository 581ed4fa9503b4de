"""Is a result right, and is it good enough: numerics against a reference."""
