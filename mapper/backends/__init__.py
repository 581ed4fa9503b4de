"""What turns groups into running kernels: one backend a compiler, behind `protocol`."""
