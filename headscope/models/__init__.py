"""The boundary to transformers: everything that knows what a model is made of.

From the ground up: ``layouts/`` says where each family keeps its attention; ``run/`` is a model in
memory and what runs it; ``certificate/`` proves that our attention is the model's; ``anatomy/``
takes layers apart; ``surgery/`` takes parts out of a model; ``load/`` opens a checkpoint.
"""
