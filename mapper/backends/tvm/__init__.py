"""The TVM backend: lower, build, run and inspect groups; compose them into whole models; probe kernels."""
