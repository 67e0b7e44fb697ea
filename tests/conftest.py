"""One thread per process: the models are tiny, and two test processes would fight over the cores.

No deadline for examples either: a machine that is busy is no failure.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import hypothesis
import torch

torch.set_num_threads(1)
hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.load_profile("patient")
