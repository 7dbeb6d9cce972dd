"""Megatron-core: all weights of a dense model over tensor, pipeline and data parallel processes.

Only `megatron.core` is used. It needs CUDA; the same code runs on a CPU in tests, under a shim.
"""
