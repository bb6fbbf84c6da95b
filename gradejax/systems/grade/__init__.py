"""GRADE (arXiv 2607.10836): gates, messages and answers over a pool of frozen experts.

`config` settings · `network` parameters and what depends on them · `policy` sampling and scoring
of decisions · `objective` reward and loss · `learner` the training step · `infer` decisions and
answers without sampling.
"""
