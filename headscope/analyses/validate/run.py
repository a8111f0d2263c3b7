"""``headscope validate``: the certificate as a result, with what it was made with (provenance).

The certificate itself is made in :mod:`headscope.models.certificate`; other commands ask for it
before they measure.
"""

from __future__ import annotations

import dataclasses

from headscope.analyses.validate import ValidateOptions
from headscope.artefacts.sentence_outputs import compare_embeddings, compare_scores
from headscope.models.certificate.certificate import validate_model
from headscope.models.certificate.validation import ValidationResult
from headscope.session.opening import Model, open_model
from headscope.session.provenance import provenance


def run(model: Model, options: ValidateOptions) -> ValidationResult:
    """Prove that headscope's attention equals the model's, layer by layer, padded and not.

    The embeddings, or a reranker's scores, of a sentence-transformers folder are compared with
    those of that package.
    """
    loaded = open_model(model, need_tokenizer=False, **options.loading)
    result = validate_model(loaded)
    embedding = compare_embeddings(loaded) or compare_scores(loaded)
    reasons = list(result.reasons)  # why it fails; empty where it passes
    if embedding is not None:
        reasons += embedding.reasons()
    return dataclasses.replace(
        result.concluded(reasons),
        embedding=embedding,
        provenance=provenance(loaded, command=options.command, seed=0),
    )
