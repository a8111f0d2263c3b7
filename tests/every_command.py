"""Every command that takes a model, in its smallest form, on a tiny model of any family or size."""

import itertools
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from families import Family
from tiny_models import VOCABULARY, framed_tokenizer, tiny_tokenizer
from transformers import AutoConfig, AutoModelForMaskedLM

import headscope
from headscope.core.errors import HeadscopeError
from headscope.models.run.loaded import LoadedModel

NAME = "This model"
_LINE = "the big dog saw a red cat on the mat and she ran to the house"
_WHO = ("the cat", "a dog", "the big mat", "he")
_DOES = ("sat on", "ran to", "was in")
_WHERE = ("it", "the mat", "a red house")
_LINES = [" ".join(phrases) for phrases in itertools.product(_WHO, _DOES, _WHERE)]
_PAIRS = [*zip(_LINES, reversed(_LINES), strict=True)]
_IDS = {
    **{"pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3, "mask_token_id": 4},
    **{"bos_token_id": 2, "eos_token_id": 3, "decoder_start_token_id": 2},
}
#: One layer less than the parity tests have; encoder and decoder still differ.
_LAYERS: dict[bool, dict[str, Any]] = {  # by whether there is a decoder that reads an encoder
    False: {"num_hidden_layers": 2, "n_layers": 2},
    True: {
        **{"num_layers": 1, "num_decoder_layers": 2, "encoder_layers": 1, "decoder_layers": 2},
        "max_position_embeddings": 64,  # what random weights write has no end
    },
}
_SIZES = {"vocab_size": len(VOCABULARY), "max_position_embeddings": 130, **_IDS}


@dataclass(frozen=True)
class Files:
    """What tasks read: rows by the name of their kind, and the same rows with another word."""

    folder: Path

    def of(self, kind: str, *, other: bool = False) -> Path:
        """Write the rows of ``texts``, ``pairs`` or ``scored`` once; returns the file."""
        suffix = "txt" if kind == "texts" else "tsv"
        path = self.folder / f"{kind}{other}.{suffix}"
        if not path.exists():
            more = " and" if other else ""
            texts = []
            for line in _LINES:
                texts += [f"{line} he{more}", f"{line} she{more}"]
            pairs = [f"{a}{more}\t{b}" for a, b in _PAIRS]
            scored = [f"{pair}\t{i % 6}" for i, pair in enumerate(pairs)]
            path.write_text("\n".join({"texts": texts, "pairs": pairs, "scored": scored}[kind]))
        return path


@dataclass(frozen=True)
class Command:
    """One way to call a command; ``run`` gets the model and the files."""

    name: str
    run: Callable[[LoadedModel, Files], Any]
    #: Hangs on how a layer is built, and is quick: run on a family of every row of the table.
    everywhere: bool = False
    #: Long, or a part of another one: left to ``--recompute-oracles``, once a week.
    weekly: bool = False


_FEW: dict[str, Any] = {"draws": 5, "calibration_limit": 6}
_TRAIN: dict[str, Any] = {
    **{"sizes": [16], "variants": ["layernorm"], "random": [], "seeds": 1, "spread_seeds": 1},
    **{"steps": 2, "train_limit": 40, "test_limit": 20},
}


def _attribute(loaded: LoadedModel, files: Files) -> Any:
    if not loaded.encoder_decoder:
        return headscope.attribute(loaded, _LINES[0], _LINES[-1], calibration=_LINES[:8])
    options: dict[str, Any] = {"target": _LINES[-1], "calibration": files.of("pairs")}
    return headscope.attribute(loaded, _LINES[0], **options)


def _classify(loaded: LoadedModel, files: Files) -> Any:
    return headscope.classify(loaded, (_PAIRS if loaded.encoder_decoder else _LINES)[:8])


def _ablate(loaded: LoadedModel, files: Files) -> Any:
    few: dict[str, Any] = {"ablate": True, "ablate_limit": 3}
    if loaded.encoder_decoder:
        few |= {"task": "seq2seq", "data": files.of("pairs"), "stack": "cross"}
        return headscope.classify(loaded, _PAIRS[:8], **few)
    return headscope.classify(loaded, _LINES[:8], data=files.of("texts"), **few)


def _spectrum(loaded: LoadedModel, files: Files) -> Any:
    text: Any = _PAIRS if loaded.encoder_decoder else _LINES
    return headscope.spectrum(loaded, text, length=12, sequences=2)


def _depth(loaded: LoadedModel, files: Files) -> Any:
    few: dict[str, Any] = {"length": 12, "sequences": 2, "control": False}
    return headscope.depth(loaded, [_LINE] * 4, dtype="float64", **few)  # as a folder is opened


def _prune(**options: Any) -> Callable[[LoadedModel, Files], Any]:
    """Prune, with ``task`` and the kinds of files that it reads."""
    kind = options.pop("kind", "texts")

    def run(loaded: LoadedModel, files: Files) -> Any:
        read = {"data": files.of(kind), "calibration": files.of(kind, other=True)}
        return headscope.prune(loaded, **{**_FEW, "limit": 6, **read, **options})

    return run


_ONCE: dict[str, Any] = {"fractions": [0.5], "repairs": ["none"]}


def _own_head(loaded: LoadedModel, files: Files) -> Any:
    if loaded.encoder_decoder:  # decoding is slow: one method, one stack
        one: dict[str, Any] = {"methods": ["magnitude"], "stack": "cross"}
        return _prune(**_ONCE, task="seq2seq", kind="pairs", **one)(loaded, files)
    return _prune(**_ONCE, task="mlm")(loaded, files)


def _save(loaded: LoadedModel, files: Files) -> Any:
    folder = files.folder / re.sub(r"\W", "_", f"{loaded.family}{id(loaded)}")
    _prune(**_ONCE, save=folder)(loaded, files)
    again = headscope.validate(str(folder))
    assert again.passed, again.reasons


def _report(loaded: LoadedModel, files: Files) -> Any:
    """Run all sections; one that the family does not allow has a column of its own."""
    settings: dict[str, dict[str, Any]] = {
        "classify": {"limit": 8, "control": False, "ablate_limit": 8},
        "rank": {"limit": 4, "control_seeds": 2},
        "spectrum": {"length": 12, "sequences": 2, "control": False},
        "depth": {"length": 12, "sequences": 2, "control": False},
        "flow": {"limit": 16, "control": False},
        "linear": {"sentences": 2, "control": False},
        "symmetric": {"sentences": 2},
        "transfer": _TRAIN,
        "prune": {**_ONCE, "limit": 8, "calibration_limit": 8},
    }
    return headscope.report(loaded, settings=settings)


def _shrink(loaded: LoadedModel, files: Files) -> Any:
    """Leave out a layer; nothing is trained, and nothing exported."""
    kind, task = ("pairs", "seq2seq") if loaded.encoder_decoder else ("texts", "fidelity")
    megabytes = sum(p.nbytes for p in loaded.network.parameters()) / 1e6
    few: dict[str, Any] = {"runtimes": ["torch"], "mb": megabytes - 1e-6, "minutes": 0}
    read = {"data": files.of(kind), "text": [files.of(kind, other=True)]}
    return headscope.shrink(loaded, task=task, limit=6, **read, **few)


#: Largest losses with which the search ends at once, whatever random heads do.
_DROP: dict[str, Any] = {
    "max_drop": 1.0,
    "methods": ["magnitude"],
    "repairs": ["none"],
    "limit": 60,
}
_similarity = _prune(**_ONCE, task="similarity", kind="scored", limit=12)
#: In the order of README's table.
COMMANDS = (
    Command("validate", lambda m, f: headscope.validate(m), everywhere=True),
    Command("explain", lambda m, f: headscope.explain(m, _LINES[2]), everywhere=True),
    Command("attribute", _attribute, everywhere=True),
    Command("classify", _classify, weekly=True),  # the first half of the next
    Command("classify --ablate", _ablate),
    Command("rank", lambda m, f: headscope.rank(m, control_seeds=2, text=_LINES[:4])),
    Command("spectrum", _spectrum),
    Command("depth", _depth, everywhere=True),
    Command("flow", lambda m, f: headscope.flow(m, _LINES[:12], control=False)),
    Command("symmetric", lambda m, f: headscope.symmetric(m, _LINES, sentences=2)),
    Command("linear", lambda m, f: headscope.linear(m, _LINES, sentences=2, control=False)),
    Command("prune", _prune(**_ONCE)),
    Command("prune --task mlm, seq2seq", _own_head),
    Command("prune --task similarity", _similarity, weekly=True),
    Command("prune --max-drop", _prune(**_DROP), weekly=True),
    Command("prune --save", _save, weekly=True),
    Command("shrink", _shrink),
    Command("transfer", lambda m, f: headscope.transfer(m, **_TRAIN), weekly=True),
    Command("report", _report, weekly=True),
)


def opened(family: Family, **sizes: Any) -> LoadedModel:
    """Build a tiny model with a tokenizer, and with a head for masked words if there is one."""
    crossed = "cross" in family.stacks
    masked = type(AutoConfig.for_model(family.kind)) in AutoModelForMaskedLM._model_mapping
    auto = AutoModelForMaskedLM if masked and not crossed else None
    tokenizer = framed_tokenizer("$A [SEP]") if crossed else tiny_tokenizer(128)
    network = family.model(auto=auto, **{**_SIZES, **_LAYERS[crossed], **sizes})
    return headscope.wrap(network, tokenizer, name=NAME)


def outcome(loaded: LoadedModel, command: Command, files: Files) -> tuple[bool, str]:
    """Whether a command works, and the reason if not, or what it does not cover.

    Anything but one of headscope's own sentences is raised: warnings too.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            result = command.run(loaded, files)
    except HeadscopeError as error:
        return False, _general(str(error), loaded)
    if command.name == "validate":
        return result.passed, "; ".join(result.reasons)
    missing = getattr(result, "not_covered", ())
    return True, f"W_QW_Kᵀ does not cover {', '.join(missing)}" if missing else ""


def _general(reason: str, loaded: LoadedModel) -> str:
    """Say it of any model: families with one reason share a footnote."""
    reason = reason.replace(f"{NAME} ({loaded.family})", NAME)
    reason = reason.replace(type(loaded.network).__name__, "its base model")
    reason = re.sub(rf"\ban? {re.escape(loaded.family)} model", "such a model", reason)
    reason = re.sub(rf"\bof {NAME}\b", "of this model", reason)
    reason = reason.replace(f"this {loaded.family} layer", "this layer")
    return re.sub(r" \(they differ by [^)]*\)", "", reason).removesuffix(".")
