"""How much of a kernel's time waits for memory: one module a method, never compared with each other."""
