"""What sentence-transformers makes of a folder, compared with what headscope makes of it.

- :func:`check_embeds` opens a written folder with the real package, and compares its embeddings
  with headscope's, or a cross-encoder's scores of pairs. A model's ``pooling`` says how headscope
  makes an embedding of its last states.
- :func:`compare_embeddings` and :func:`compare_scores` compare them for a model's certificate.
"""

from __future__ import annotations

import importlib
import logging
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headscope.artefacts.compact_classes import register
from headscope.core.errors import ArtefactError, reason
from headscope.data.token_rows import encode_rows, padded
from headscope.models.certificate.validation import EmbeddingCheck
from headscope.models.load.loading import load
from headscope.models.load.reranker import pair_reading, score_tokens
from headscope.models.load.safe_files import read_json
from headscope.models.load.sentence_files import MODULES, SETTINGS, SentenceFiles
from headscope.models.load.sentence_folder import lower_cases
from headscope.models.run.implementation import quiet_transformers
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.outputs import TEXTS, TOLERANCES, agree
from headscope.models.run.pooling import Pooling

#: Texts on which a certificate compares embeddings, besides those that every written folder reads.
_MORE_TEXTS = (TEXTS[0].upper(), "  Na\u00efve caf\u00e9s: 3.50 EUR each, and 2 teas!  ", "x")
#: Largest difference of a number of an embedding, in units of the embedding's length.
_TOLERANCE = 1e-5
#: Largest difference of a score, relative to the largest if that exceeds 1: ten times as much, as a
#: score is a difference of logits that are far larger than it is.
_SCORE_TOLERANCE = 1e-4
_LONGEST = 8192  # Most tokens that a text is read to, to see where it is cut

# --- a written folder, opened again ---------------------------------------------------------------


def check_embeds(loaded: LoadedModel, folder: Path) -> bool:
    """Open a written folder by sentence-transformers, and compare its embeddings with ours.

    Of a CrossEncoder, its scores of pairs are compared. Returns False where the folder is none of
    sentence-transformers', or the package is missing.
    """
    embeds = loaded.pooling.problem is None and loaded.task_head is None
    scores = is_cross_encoder(loaded, folder)
    comparable = embeds or scores
    if not comparable or not (folder / MODULES).is_file() or not find_spec("sentence_transformers"):
        return False
    try:
        with _silent():
            if scores:
                outputs = _predicted(loaded, folder)
            else:
                outputs = _encode(_opened(loaded, folder), TEXTS, batch_size=1)
    except Exception as error:  # it raises many kinds
        raise ArtefactError(
            f"sentence-transformers does not open what was written ({reason(error)}), so the "
            "folder was not kept; delete modules.json from the model's folder if it is not needed."
        ) from error
    expected = _scored(loaded) if scores else embedded(loaded, read_as_cut(loaded, TEXTS))
    if not agree([expected], [outputs], TOLERANCES[loaded.dtype]):
        otherwise = "scores pairs" if scores else "embeds texts"
        raise ArtefactError(
            f"sentence-transformers {otherwise} otherwise than headscope with what was written, so "
            "the folder was not kept; please report this."
        )
    return True


@contextmanager
def _silent() -> Iterator[None]:
    """Hide the package's warnings, such as of old names of its modules and of long texts."""
    logger = logging.getLogger("sentence_transformers")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with quiet_transformers(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _opened(loaded: LoadedModel, folder: Path, name: str = "SentenceTransformer") -> Any:
    """Open a folder by a class of the real package."""
    register()
    package: Any = importlib.import_module("sentence_transformers")
    return getattr(package, name)(
        str(folder),
        device=loaded.device,
        local_files_only=True,
        model_kwargs={"dtype": getattr(torch, loaded.dtype)},
    )


def _encode(model: Any, texts: Sequence[str], **options: Any) -> Tensor:
    """Embed texts by the real package, (texts, d); without a ``prompt`` after the default one."""
    embeddings: Tensor = model.encode(
        list(texts), convert_to_tensor=True, show_progress_bar=False, **options
    )
    return embeddings


def read_as_cut(
    loaded: LoadedModel, texts: Sequence[str], prompt: str | None = None
) -> list[list[int]]:
    """Return token ids of texts after a prompt (None: the default), cut where its folder says."""
    longest = min(loaded.pooling.max_length or loaded.max_length, loaded.max_length)
    before = loaded.pooling.prompt if prompt is None else prompt
    prompted = [before + text for text in texts]
    cut = loaded.tokenizer(prompted, truncation=True, max_length=longest)
    ids: list[list[int]] = cut["input_ids"]
    return ids


def embedded(loaded: LoadedModel, ids: Sequence[Sequence[int]]) -> Tensor:
    """Embed token ids of texts by headscope's own pooling, (texts, d)."""
    padded, mask = loaded.pad(ids)
    with torch.no_grad():
        return loaded.pooling.embed(loaded.forward(padded, mask), mask)


# --- scores of pairs ------------------------------------------------------------------------------

#: Pairs of texts on which scores are compared.
_PAIRS = tuple(pairwise((*TEXTS, *_MORE_TEXTS)))


def is_cross_encoder(loaded: LoadedModel, folder: Path) -> bool:
    """Whether a model has a head that scores pairs, and its folder is one of a CrossEncoder."""
    if loaded.task_head != "classification" or not (folder / SETTINGS).is_file():
        return False
    settings = read_json(folder / SETTINGS)
    return isinstance(settings, dict) and settings.get("model_type") == "CrossEncoder"


def compare_scores(loaded: LoadedModel) -> EmbeddingCheck | None:
    """Compare a reranker's scores of pairs with those of ``CrossEncoder.predict`` on its folder.

    None for a folder that is none of a CrossEncoder, and for a model whose head is not one score.
    """
    folder = loaded.folder
    files = None if folder is None else SentenceFiles.of(folder)
    if folder is None or files is None or pair_reading(files) is None:
        return None
    if why := _not_comparable(loaded):
        return EmbeddingCheck(
            settings=(), tolerance=_SCORE_TOLERANCE, scores=True, not_compared=why
        )
    scoring = load(str(folder), dtype=loaded.dtype, device=loaded.device, task_head="auto")
    if not is_cross_encoder(scoring, folder):
        return None
    check = EmbeddingCheck(
        settings=tuple(_score_settings(scoring, files)), tolerance=_SCORE_TOLERANCE, scores=True
    )
    try:
        with _silent():
            expected = _predicted(scoring, folder)
    except Exception as error:  # it raises many kinds
        why = f"sentence-transformers does not open the folder ({reason(error)})"
        return replace(check, not_compared=why)
    ours = _scored(scoring)
    gap = math.inf
    if expected.shape == ours.shape:
        largest = expected.abs().max().clamp(min=1)
        gap = float((ours - expected.to(ours)).abs().max() / largest)
    return replace(check, texts=len(_PAIRS), max_abs=gap)


def _score_settings(loaded: LoadedModel, files: SentenceFiles) -> Iterator[str]:
    """Say what a score is, and how a pair is read."""
    tokens = score_tokens(files)
    if tokens is not None:
        against = ""
        if tokens.false is not None:
            against = f" minus that of {loaded.tokenizer.decode([tokens.false])!r}"
        true = loaded.tokenizer.decode([tokens.true])
        yield f"A pair's score is the logit of {true!r} as its next token{against}."
    reading = pair_reading(files)
    assert reading is not None
    after = f", after the prompt {reading.prompt!r}" if reading.prompt else ""
    if reading.templated:
        yield f"A pair is read in the tokenizer's chat template{after}."
    elif after:
        yield f"A pair is read{after[1:]}."  # without the comma


def _predicted(loaded: LoadedModel, folder: Path) -> Tensor:
    """Score pairs by the real package, before its activation: (pairs, outputs)."""
    model = _opened(loaded, folder, "CrossEncoder")
    scores: Tensor = model.predict(
        [list(pair) for pair in _PAIRS],
        activation_fn=torch.nn.Identity(),
        convert_to_tensor=True,
        show_progress_bar=False,
    )
    return scores.reshape(len(_PAIRS), -1)


def _scored(loaded: LoadedModel) -> Tensor:
    """Score pairs by headscope: (pairs, outputs)."""
    firsts, seconds = zip(*_PAIRS, strict=True)
    rows = [row for row in encode_rows(loaded, firsts, seconds) if row is not None]
    batch = padded(rows, loaded.pad_id, loaded.device)
    with torch.no_grad():
        _, logits = loaded.run(*batch.inputs)
    assert logits is not None
    return logits


# --- for the certificate of a model ---------------------------------------------------------------


def compare_embeddings(loaded: LoadedModel) -> EmbeddingCheck | None:
    """Compare a model's embeddings with those that sentence-transformers makes of its folder.

    Texts are read after the default prompt, and after those of queries and documents. For a text
    that is too long, only the token ids after cutting are compared: running it would cost as much
    as the rest of the certificate. None for a folder that says nothing about embeddings.
    """
    pooling = loaded.pooling
    folder = loaded.folder
    if pooling.origin != MODULES or folder is None:
        return None
    check = EmbeddingCheck(settings=tuple(_settings(loaded, folder)), tolerance=_TOLERANCE)
    why = _not_comparable(loaded)
    if why is not None:
        return replace(check, not_compared=why)

    # The package's, and how far ours are from them.
    texts = (*TEXTS, *_MORE_TEXTS)
    limit = min(pooling.max_length or loaded.max_length, loaded.max_length, _LONGEST)
    too_long = f"{TEXTS[0]} " * (1 + limit // 8)  # its 12 words are 8 tokens or more
    try:
        with _silent():
            model = _opened(loaded, folder)
            # ``preprocess`` from version 5.3 on, ``tokenize`` before
            tokenise = getattr(model, "preprocess", model.tokenize)
            prompt = model.prompts.get(model.default_prompt_name) or ""
            cut_ids = tokenise([prompt + too_long])["input_ids"][0]
            gap = _gap(loaded, model, texts)
            # Padding on the left may shift a text's absolute positions in the package. If texts
            # alone, without padding, agree, the gap of padded ones is only reported.
            padding_shifts = None
            if gap > _TOLERANCE and loaded.tokenizer.padding_side == "left":
                gap_unpadded = _gap(loaded, model, texts, batch_size=1)
                if gap_unpadded <= _TOLERANCE:
                    padding_shifts = gap
                    gap = gap_unpadded
    except Exception as error:  # it raises many kinds
        why = f"sentence-transformers does not open the folder ({reason(error)})"
        return replace(check, not_compared=why)
    return replace(
        check,
        texts=len(texts),
        max_abs=gap,
        padding_shifts=padding_shifts,
        cut_alike=list(map(int, cut_ids)) == read_as_cut(loaded, [too_long])[0],
    )


def _other_prompts(pooling: Pooling) -> tuple[str, ...]:
    """Return the prompts of queries and documents, where they are read and not the default."""
    if not pooling.pools_prompt:  # a prompt's states do not count in the embedding
        return ()
    prompts = dict.fromkeys((pooling.query_prompt, pooling.document_prompt))
    return tuple(prompt for prompt in prompts if prompt != pooling.prompt)


def _gap(loaded: LoadedModel, model: Any, texts: Sequence[str], **options: Any) -> float:
    """Return the largest difference of a number of an embedding, in units of its length.

    ``model`` is the package's, with options of its ``encode``; texts are read after each prompt.
    """
    default = loaded.pooling.prompt
    largest = 0.0
    for prompt in (default, *_other_prompts(loaded.pooling)):
        named = {} if prompt == default else {"prompt": prompt}
        ours = embedded(loaded, read_as_cut(loaded, texts, prompt))
        expected = _encode(model, texts, **named, **options).to(ours)
        if expected.shape != ours.shape:
            return math.inf
        length = expected.norm(dim=-1).clamp(min=torch.finfo(ours.dtype).tiny)
        gap = float(((ours - expected).abs().amax(dim=-1) / length).max())
        largest = max(largest, gap)
    return largest


def _not_comparable(loaded: LoadedModel) -> str | None:
    """Say why a model's embeddings cannot be compared, if they cannot."""
    if loaded.pooling.problem is not None:
        return loaded.pooling.problem.rstrip(".")
    if loaded.dtype not in ("float32", "float64"):
        return f"that takes float32, and the model was opened in {loaded.dtype}"
    if loaded.tokenizer is None or loaded.weights_sha256 is None:
        return "there is no tokenizer, or the weights in memory are not those of the folder"
    if loaded.class_reads_otherwise:  # the class of tokenizer that the package builds
        return "SentenceTransformer reads texts of the folder otherwise than its tokenizer.json"
    if not find_spec("sentence_transformers"):
        return "the package sentence-transformers is not installed"
    return None


def _settings(loaded: LoadedModel, folder: Path) -> Iterator[str]:
    """Say how texts become embeddings, according to the folder's own settings."""
    pooling = loaded.pooling
    yield f"Embeddings as {MODULES} has them: {pooling}."
    # ``reads_after`` is "Every text is read after the default prompt ...", and of ``retrieves``
    # "A query is read after the prompt ..., a document ...".
    if default := pooling.reads_after(retrieves=False):
        yield f"{default}."
    if _other_prompts(pooling):
        yield f"{pooling.reads_after(retrieves=True)}."
    if lower_cases(SentenceFiles.of(folder)):
        yield "Every text is read in lower case, as the folder says."
    if pooling.max_length is not None and pooling.max_length < loaded.max_length:
        yield (
            f"SentenceTransformer cuts a text of this model at {pooling.max_length} tokens; "
            f"headscope reads it whole, up to {loaded.max_length}."
        )
    yield from pooling.notes
