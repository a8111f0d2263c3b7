"""Two steps of ``prune`` on their own: the scores of one method, and the worth of one model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headscope import classify
from headscope.analyses.classify.known_roles import Classification, find_roles, read_classification
from headscope.models.run.loaded import LoadedModel
from headscope.pruning.curves import scores_grid, units_by_hand
from headscope.pruning.methods import rank
from headscope.pruning.options import CALIBRATION_LIMIT, DEFAULT, METHODS, check_methods
from headscope.pruning.ranking import Context, Repaired
from headscope.pruning.result import Baseline, HeadScores
from headscope.session.entry import public
from headscope.session.opening import Model, open_for_tasks
from headscope.session.validate import require_valid
from headscope.tasks.calibration import chosen_stack, open_calibration, pick
from headscope.tasks.making import make_task, read_examples
from headscope.tasks.units import units_of


@public
def scores(
    model: Model,
    method: str = DEFAULT,
    *,
    task: str = "fidelity",
    calibration: str | Path | None = None,
    stack: str | None = None,
    normalise: bool | None = None,
    labels: bool = False,
    roles: Classification | None = None,
    limit: int = CALIBRATION_LIMIT,
    seed: int = 0,
    **options: Any,
) -> HeadScores:
    """Score every head of a model by one method.

    Parameters
    ----------
    model : str, path, LoadedModel
        As :func:`headscope.prune` takes it.
    method : str
        One of :data:`headscope.pruning.options.METHODS`.
    task, calibration, stack, normalise, labels, seed, **options
        As :func:`headscope.prune` takes them; the built-in sample without ``calibration``.
    roles : path or ClassifyResult, optional
        A result of ``headscope classify``, for methods that need to know what heads do; by default
        the model is classified on the built-in sample (not for ``seq2seq``).
    limit : int
        Calibration sentences, drawn at random.

    Returns
    -------
    HeadScores
        (n_layers, n_heads), higher is rather kept; of all stacks, the encoder's layers come first,
        then those of the decoder and of cross-attention.

    Raises
    ------
    InputError
        For a model, file or option that cannot be used.
    ValidationFailedError
        If our attention is not the model's.

    Examples
    --------
    >>> import headscope
    >>> found = headscope.scores("demo", "magnitude", limit=16)
    >>> len(found.values), len(found.values[0])
    (6, 12)
    """
    check_methods((method,))
    needs_labels = (method,) if METHODS[method].needs_labels else ()
    examples, kind = open_calibration(task, calibration, needs_labels)
    loaded = chosen_stack(open_for_tasks(model, task=task, **options), stack, task)
    chosen = make_task(kind, pick(examples, limit, kind, seed), loaded, seed=seed, limit=limit // 2)
    require_valid(loaded, True)
    units = units_of(loaded)
    classified = None if roles is None else read_classification(roles)
    if classified is None and METHODS[method].needs_roles and task != "seq2seq":
        classified = classify(loaded, validate=False, seed=seed)
    context = Context.of_task(
        loaded,
        chosen,
        roles=find_roles(loaded, classified).by_place if classified else {},
        use_labels=labels,
        largest=len(units),
        seed=seed,
    )
    return scores_grid(method, rank(method, context, normalise=normalise), loaded, units)


@public
def measure(
    model: Model,
    task: str = "fidelity",
    data: str | Path | None = None,
    *,
    without: str | None = None,
    reference: LoadedModel | None = None,
    limit: int | None = None,
    seed: int = 0,
    **options: Any,
) -> Baseline:
    """Measure a model on a task, with all heads or without some.

    Parameters
    ----------
    model : str, path, LoadedModel
        As :func:`headscope.prune` takes it.
    task : str
        As ``headscope prune --task`` takes it: ``fidelity``, ``mlm``, ``retrieval`` and so on.
    data : path, optional
        The built-in sample if missing.
    without : str, optional
        Heads to switch off, such as ``L0H1,L3H*``.
    reference : LoadedModel, optional
        For ``fidelity``: the model whose outputs are the target; ``model`` itself with all heads if
        missing.
    limit : int, optional
        Examples, chosen at random (``mlm``: the first windows).
    seed : int
        Of that choice, of masks and bootstrap.

    Returns
    -------
    Baseline
        Value, 95% interval, and every metric of the task.

    Raises
    ------
    InputError
        For a model, file or option that cannot be used.
    ValidationFailedError
        If our attention is not the model's, or the reference's.

    Examples
    --------
    >>> import headscope
    >>> headscope.measure("demo", limit=20, without="L5H*").value.value < 1.0
    True
    """
    examples = read_examples(task, data, limit, seed)
    loaded = chosen_stack(open_for_tasks(model, task=task, **options), None, task)
    if reference is not None:
        reference = open_for_tasks(reference, pooling=options.get("pooling"))
        reference = chosen_stack(reference, None, task)
    for measured in (loaded, reference or loaded):
        require_valid(measured, True)
    job = make_task(task, examples, reference or loaded, seed=seed, limit=limit)
    gates = None
    if without is not None:
        units = units_of(loaded)
        removed = units_by_hand(loaded, units, without, {}, ())
        gates = Repaired.bare(units, removed).gates.to(loaded.device)
    outputs = job.outputs(loaded, gates, all_metrics=True)
    return Baseline(job.interval(outputs, seed=seed), job.metrics(outputs))
