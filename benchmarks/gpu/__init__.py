"""The engine on an NVIDIA GPU: what ``benchmarks.gpu_run`` proves and measures, part by part.

parts              which parts there are, in which order, and what each costs   (read first)
part               one of them, in a process of its own
place              the GPU, or a CPU for a rehearsal, and the sizes of models and work there
goals, limits      what a figure must reach, and what the GPU itself reaches in the same minute
preflight, proofs, speed, sampling, layers, memory, served, moves, traces     the parts
steps              the time of single steps, for those that measure engines
wheels             the packages that a machine without a network lacks
"""
