"""A model in the form in which it is served: a runtime and a precision, one file, opened from disk.

:class:`Form` names a form, :class:`Files` writes the file of a model in it and opens that file. All
files are made from one ONNX graph in float32.

=============  ==============  ====================================================================
runtime        precision       how it is made
=============  ==============  ====================================================================
torch          float32         the model itself, attention by SDPA
onnxruntime    float32         one ONNX graph, pooling or task head in it
onnxruntime    int8 dynamic    weights in 8 bits, activations rounded while it runs; no text needed
openvino       float32         the ONNX graph, converted; told to compute in float32
openvino       bfloat16        the same file, with openvino's default: bfloat16 where the processor
                               has it
openvino       int8            weights and activations in 8 bits by nncf, ranges of activations
                               taken from calibration text; the rest with openvino's default
=============  ==============  ====================================================================
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from headscope.artefacts.onnx_graph import quantize, write_graph
from headscope.artefacts.runtime_files import (
    OnnxFile,
    OpenVinoFile,
    RuntimeFile,
    without_telemetry,
)
from headscope.artefacts.saving import bytes_in_memory, bytes_of_weights
from headscope.core.disk import writing
from headscope.core.errors import HeadscopeError, InputError, UnsupportedModelError, reason
from headscope.data.token_rows import Padded
from headscope.models.run.loaded import LoadedModel
from headscope.shrinking.options import RUNTIMES

#: Packages that each runtime needs, and the extras of headscope that bring them.
_NEEDS = {
    "onnxruntime": (("onnx", "onnxscript", "onnxruntime"), "export"),
    "openvino": (("onnx", "onnxscript", "openvino", "nncf"), "export,openvino"),
}
CALIBRATION = 300  # Texts that ranges of activations are taken from
#: Bytes that say how a layer of a graph computes, its weights apart, at most.
_BYTES_OF_LAYER = 100_000
#: The file of each form in a folder, where sentence-transformers' backends look for it.
_FILES = {
    ("torch", "float32"): "model.safetensors",
    ("onnxruntime", "float32"): "onnx/model.onnx",
    ("onnxruntime", "int8 dynamic"): "onnx/model_qint8_dynamic.onnx",
    ("openvino", "float32"): "openvino/openvino_model.xml",
    ("openvino", "bfloat16"): "openvino/openvino_model.xml",
    ("openvino", "int8"): "openvino/openvino_model_qint8_quantized.xml",
}


@dataclass(frozen=True, order=True)
class Form:
    """What runs a model, and in which numbers."""

    runtime: str
    precision: str  # As in the table above: ``float32``, ``bfloat16``, ``int8``, ``int8 dynamic``

    def __str__(self) -> str:
        return f"{self.runtime} {self.precision}"

    @property
    def file(self) -> str:
        """Its path in a folder."""
        return _FILES[self.runtime, self.precision]

    @property
    def default_file(self) -> str:
        """The path of its file in a saved folder, which has one form only.

        There even an int8 file has the name of the float32 one: sentence-transformers opens that
        name unless it is told another.
        """
        return Form(self.runtime, "float32").file


#: Every form that a model may have, in the order in which they are measured.
FORMS = tuple(Form(runtime, precision) for runtime, precision in _FILES)
TORCH = Form("torch", "float32")
GRAPH = Form("onnxruntime", "float32")  # Every other file is made from its graph


# --- which runtimes there are ---------------------------------------------------------------------


def _missing_packages(runtime: str) -> list[str]:
    """Name the packages of a runtime that are not installed."""
    packages, _ = _NEEDS.get(runtime, ((), ""))
    return [name for name in packages if importlib.util.find_spec(name) is None]


def need_runtimes(runtimes: Sequence[str]) -> None:
    """Refuse a runtime whose packages are missing, before anything is measured."""
    for runtime in runtimes:
        if missing := _missing_packages(runtime):
            _, extra = _NEEDS[runtime]
            raise InputError(
                f"The runtime {runtime} needs {' and '.join(missing)}; install the extra with "
                f"pip install 'headscope[{extra}]', or leave the runtime out with --runtime."
            )


def lacks_vnni() -> bool:
    """Whether this is an x86 processor without instructions for products of 8-bit numbers."""
    get_capabilities = getattr(torch.cpu, "get_capabilities", dict)  # not in every torch
    capabilities: dict[str, Any] = get_capabilities()
    if capabilities.get("architecture") != "x86_64":
        return False
    return not any(capabilities.get(name) for name in ("avx512_vnni", "avx_vnni", "amx_int8"))


def installed_runtimes() -> tuple[str, ...]:
    """List the runtimes whose packages are there."""
    return tuple(runtime for runtime in RUNTIMES if not _missing_packages(runtime))


# --- the files of a model -------------------------------------------------------------------------

Served = LoadedModel | RuntimeFile  # A model as it is run in one form


class Files:
    """One model, and its files in every form, each written into a folder when first asked for.

    ``texts`` calibrate 8 bits: batches of one text, from which ranges of activations are taken.
    ``written`` names files that are there already, in a saved folder.
    """

    def __init__(
        self,
        model: LoadedModel,
        folder: Path,
        texts: Sequence[Padded],
        *,
        written: Mapping[Form, Path] | None = None,
    ) -> None:
        self.model = model
        self._folder = folder
        self._texts = texts
        self._written = written or {}
        self._open: dict[Form, Served] = {TORCH: model}

    def path(self, form: Form) -> Path:
        """Return the file of a form; raises UnsupportedModelError where a runtime refuses."""
        path = self._written.get(form, self._folder / form.file)
        if path.exists() or form == TORCH:
            return path
        graph = self._folder / GRAPH.file
        if not graph.exists():
            with _whole(graph):
                typed = self._texts[0].token_type_ids is not None
                write_graph(self.model, graph, typed=typed)
        if form == GRAPH:
            return graph
        with _refusals(self.model, form), _whole(path), quietly():
            _WRITERS[form](graph, path, self._texts)
        return path

    def served(self, form: Form) -> Served:
        """Return the model as a form runs it: opened from its file, or in memory for torch."""
        if form not in self._open:
            path = self.path(form)
            # a file that a full disk cut off fails only when it is opened
            with _refusals(self.model, form), writing(path):
                if form.runtime == "onnxruntime":
                    self._open[form] = OnnxFile(path)
                else:
                    self._open[form] = OpenVinoFile(path, form.precision)
        return self._open[form]

    def megabytes(self, form: Form) -> float:
        """Return the size of a form's file in megabytes (1e6 bytes); of torch's as it is saved."""
        if form == TORCH:
            return bytes_of_weights(self.model) / 1e6
        return sum(file.stat().st_size for file in files_of_graph(self.path(form))) / 1e6

    def release(self) -> None:
        """Close every open file; a form that is asked for again is opened again."""
        self._open = {TORCH: self.model}

    def close(self) -> None:
        """Close every open file, and delete the files."""
        self.release()
        shutil.rmtree(self._folder, ignore_errors=True)


def megabytes_of(loaded: LoadedModel) -> float:
    """Return the size of a model's parameters in memory, in megabytes (1e6 bytes); tied ones once.

    So large is the file of a model that was trained, whose weights float16 does not hold.
    """
    return bytes_in_memory(loaded) / 1e6


def room_of_forms(loaded: LoadedModel, forms: Iterable[Form]) -> float:
    """Return how many bytes a model's files take in every form but torch's, at most.

    All are made from the graph in float32, which lies beside them meanwhile; so does a copy of it
    while onnxruntime quantises.
    """
    form_of_file = {form.file: form for form in forms if form != TORCH}
    if not form_of_file:
        return 0.0
    form_of_file[GRAPH.file] = GRAPH
    n_bytes = sum(bytes_of_form(loaded, form) for form in form_of_file.values())
    quantises = any(form.precision == "int8 dynamic" for form in form_of_file.values())
    return max(n_bytes, 2 * bytes_of_form(loaded, GRAPH)) if quantises else n_bytes


def bytes_of_form(loaded: LoadedModel, form: Form) -> float:
    """Return how many bytes the file of a form takes besides torch's weights, at most.

    A weight in 8 bits takes one byte, and scales add less than a tenth to them.
    """
    if form == TORCH:
        return 0.0
    n_parameters: int = sum(parameter.numel() for parameter in loaded.network.parameters())
    bytes_per_weight = 1.1 if form.precision.startswith("int8") else 4.1
    return bytes_per_weight * n_parameters + _BYTES_OF_LAYER * (1 + loaded.n_layers)


def files_of_graph(path: Path) -> list[Path]:
    """List the files of one graph: its own, and those with weights beside it."""
    candidates = (path, path.with_suffix(".bin"), path.with_name(f"{path.name}.data"))
    return [file for file in candidates if file.is_file()]


def _write_int8_dynamic(graph: Path, path: Path, texts: Sequence[Padded]) -> None:
    quantize(graph, path)


def _write_openvino(graph: Path, path: Path, texts: Sequence[Padded]) -> None:
    openvino = without_telemetry("openvino")
    openvino.save_model(openvino.convert_model(str(graph)), str(path), compress_to_fp16=False)


def _write_openvino_int8(graph: Path, path: Path, texts: Sequence[Padded]) -> None:
    """Quantise by nncf, with ranges of activations from ``texts``."""
    openvino = without_telemetry("openvino")
    nncf = without_telemetry("nncf")
    onnx_file = OnnxFile(graph)  # it knows which inputs the graph takes
    inputs = [onnx_file.feed(*batch.inputs) for batch in texts]
    small = nncf.quantize(
        openvino.convert_model(str(graph)),
        nncf.Dataset(inputs),
        model_type=nncf.ModelType.TRANSFORMER,
        subset_size=len(inputs),
    )
    openvino.save_model(small, str(path), compress_to_fp16=False)


#: The function that writes the file of a form: from the ONNX graph, to a path, with calibration
#: texts.
_WRITERS: dict[Form, Callable[[Path, Path, Sequence[Padded]], None]] = {
    Form("onnxruntime", "int8 dynamic"): _write_int8_dynamic,
    Form("openvino", "float32"): _write_openvino,
    Form("openvino", "bfloat16"): _write_openvino,
    Form("openvino", "int8"): _write_openvino_int8,
}


@contextmanager
def _whole(graph: Path) -> Iterator[None]:
    """Make the folder of a graph that the block writes; if the block fails, no part of it stays."""
    try:
        with writing(graph):
            graph.parent.mkdir(parents=True, exist_ok=True)
            yield
    except BaseException:
        for file in files_of_graph(graph):
            file.unlink()
        raise


@contextmanager
def _refusals(model: LoadedModel, form: Form) -> Iterator[None]:
    """Turn whatever a runtime raises into an UnsupportedModelError of one sentence."""
    try:
        yield
    except HeadscopeError:
        raise
    except Exception as error:
        raise UnsupportedModelError(
            f"{form.runtime} refuses {model.name} in {form.precision}: {reason(error)}"
        ) from error


@contextmanager
def quietly() -> Iterator[None]:
    """Keep the remarks and progress bars of converters off the terminal."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
