"""The model card of a folder that ``shrink --save`` writes: README.md and a picture.

Its headline speaks of the one file that the folder is served from; :func:`snippets` is the code
that opens that file. FOLDER, OUTPUT and SETTING in code are filled in.
"""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import ModelCardData

from headscope.core.safe_text import markdown, visible
from headscope.models.run.head_outputs import gives_one_score
from headscope.models.run.loaded import LoadedModel
from headscope.removal.card import (
    MADE_BY,
    base_model,
    card_text,
    hub_task,
    inherited_header,
    sentence_code,
    table,
    transformers_code,
    without_folders,
)
from headscope.show import blocks as b
from headscope.show.figures import figure_files, figures_of
from headscope.shrinking.result import ShrinkResult
from headscope.shrinking.serving import TORCH, Form
from headscope.shrinking.view import answer, blocks, picture

#: The runtimes that sentence-transformers opens a folder in, by its own name and extra for them.
_BACKENDS = {"onnxruntime": "onnx", "openvino": "openvino"}
#: Why the code of a backend may not run beside headscope.
_OWN_ENVIRONMENT = """# pip install 'sentence-transformers[EXTRA]', in an environment of its own:
# optimum, which it brings, excludes the transformers that headscope needs
"""
#: Code that opens a runtime's file without sentence-transformers.
_ALONE = {
    "onnxruntime": """# pip install onnxruntime transformers
import onnxruntime
import transformers

session = onnxruntime.InferenceSession("FOLDER/FILE")
tokenizer = transformers.AutoTokenizer.from_pretrained("FOLDER")
inputs = tokenizer(TEXTS, padding=True, truncation=True, return_tensors="np")
asked = {item.name: inputs[item.name].astype("int64") for item in session.get_inputs()}
OUTPUT = session.run(None, asked)[0]
print(OUTPUT)""",
    "openvino": """# pip install openvino transformers
import openvino
import transformers

model = openvino.Core().compile_model("FOLDER/FILE", "CPU"SETTING)
tokenizer = transformers.AutoTokenizer.from_pretrained("FOLDER")
inputs = tokenizer(TEXTS, padding=True, truncation=True, return_tensors="np")
names = [port.get_any_name() for port in model.inputs]
OUTPUT = model({name: inputs[name].astype("int64") for name in names})[0]
print(OUTPUT)""",
}
#: Tells openvino to compute in float32: by default it uses bfloat16 where the processor can.
_FLOAT32 = '{"INFERENCE_PRECISION_HINT": "f32"}'


def model_card(result: ShrinkResult, loaded: LoadedModel, *, sentences: bool) -> tuple[str, bytes]:
    """Return the card's text and its picture, the bytes of a PNG file.

    ``loaded`` is the whole model; ``sentences``: whether sentence-transformers opens the folder.
    """
    best = result.best
    saved = result.saved
    assert best is not None
    assert saved is not None
    source = str(result.provenance["model"]["id"])
    picture_text = "![The metric of every model against milliseconds](shrink.png)"
    text = card_text(
        _header(result, loaded, source, sentences=sentences),
        f"{markdown(Path(source).name)}, smaller",
        f"**{markdown(without_folders(answer(result)))}**",
        f"The headline is that of `{saved.file}`. {MADE_BY}",
        codes=snippets(
            Form(best.runtime, best.precision),
            loaded,
            sentences=sentences,
            opens=saved.opens,
        ),
        sections={
            "What was measured": "\n\n".join([picture_text, *_tables(result)]),
            "How it was made": "\n\n".join(_remarks(result)),
        },
        command=str(result.provenance["command"]),
    )
    files = figure_files(dict(figures_of([picture(result)])))
    return text, files["shrink.png"]


def _header(
    result: ShrinkResult, loaded: LoadedModel, source: str, *, sentences: bool
) -> ModelCardData:
    """Make the card's header, which the hub reads: base model, libraries and tags."""
    tags = ["headscope"]
    if sentences:
        tags.insert(0, "sentence-transformers")
    if result.best is not None and result.best.training is not None:
        tags.append("distilled")
    inherited = inherited_header(loaded)
    inherited.pop("pipeline_tag", None)
    return ModelCardData(
        base_model=base_model(source),
        tags=tags,
        library_name="sentence-transformers" if sentences else "transformers",
        pipeline_tag=hub_task(result.task, loaded),
        **inherited,
    )


def _tables(result: ShrinkResult) -> list[str]:
    """Write the result's tables, each under its title."""
    written: list[str] = []
    for block in blocks(result):
        if isinstance(block, b.Table):
            if block.title:
                written.append(markdown(without_folders(block.title)))
            rows = [[markdown(cell) for cell in row] for row in b.table_cells(block)]
            written.append(table([title for title, *_ in block.columns], rows))
    return written


def _remarks(result: ShrinkResult) -> list[str]:
    """Write how it was measured and trained, and every warning."""
    return [
        markdown(visible(without_folders(block.text)))
        for block in blocks(result)
        if isinstance(block, b.Text) and block.style in ("control", "warning")
    ]


def snippets(
    form: Form, model: LoadedModel, *, sentences: bool, opens: str = "", file: str = ""
) -> list[str]:
    """Return one or two pieces of Python that open a folder's file in some form.

    Of another runtime than torch the first piece needs that runtime alone.

    ``sentences``: whether sentence-transformers opens the folder, as one piece then does.
    ``opens`` says what opens ``model.safetensors``: transformers alone, with the folder's own code,
    or with headscope. ``file`` is the path in the folder, where that is not the one that a saved
    folder has.
    """
    if form == TORCH:
        by_sentences = [sentence_code(model)] if sentences else []
        return [*by_sentences, transformers_code(model, opens)]
    codes = [_runtime_code(form, model, file or form.default_file)]
    if sentences:
        codes.append(_backend_code(form, model, file))
    return codes


def _runtime_code(form: Form, model: LoadedModel, file: str) -> str:
    """Return the Python that opens FOLDER by the runtime of a form and runs a text."""
    code = _ALONE[form.runtime].replace("FILE", file)
    code = code.replace("SETTING", f", {_FLOAT32}" if _asks_for_float32(form) else "")
    texts = '["A sentence."]'
    if gives_one_score(model):
        texts = f'{texts}, ["Another one."]'
    code = code.replace("TEXTS", texts)
    return code.replace("OUTPUT", "logits" if model.task_head else "embeddings")


def _backend_code(form: Form, model: LoadedModel, file: str) -> str:
    """Return the Python that opens FOLDER by sentence-transformers in the runtime of a form."""
    backend = _BACKENDS[form.runtime]
    settings: list[str] = []
    if file:
        settings.append(f'"file_name": "{file}"')
    if _asks_for_float32(form):
        settings.append(f'"ov_config": {_FLOAT32}')
    options = f', backend="{backend}"'
    if settings:
        options += f", model_kwargs={{{', '.join(settings)}}}"
    return _OWN_ENVIRONMENT.replace("EXTRA", backend) + sentence_code(model, options)


def _asks_for_float32(form: Form) -> bool:
    """Whether openvino is to be told to compute as the file is written."""
    return form == Form("openvino", "float32")
