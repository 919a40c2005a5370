"""Finds the best configuration of a script: a search space and a judge come in, ranked trials go out.

The space names the knobs, a sampler proposes points, dominance rules spare those whose outcome is known,
and Ray Tune runs the rest; every outcome is journalled, so a killed search resumes where it was.
This room knows nothing of CUDA, traces or simulation: a judge turns a command into a `Prediction`.
"""
