"""The card of a saved folder: its headline is that of its file, its snippets run as they stand."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import ModelCardData

from headscope.core.safe_text import markdown, visible
from headscope.models.run.loaded import LoadedModel
from headscope.removal.card import (
    MADE_BY,
    base_model,
    card_text,
    hub_task,
    inherited_header,
    nameless,
    sentence_code,
    table,
    transformers_code,
)
from headscope.show import blocks as b
from headscope.show.figures import figure_files, figures_of
from headscope.shrinking.result import ShrinkResult
from headscope.shrinking.serving import Form
from headscope.shrinking.view import answer, blocks, picture

#: What sentence-transformers is told of each runtime.
_BACKENDS = {
    "torch": "",
    "onnxruntime": ', backend="onnx"',
    "openvino": ', backend="openvino"',
}
_TOKENS = """
inputs = transformers.AutoTokenizer.from_pretrained("FOLDER")(["A sentence."], return_tensors="np")
"""
_ALONE = {
    "onnxruntime": f"""import onnxruntime
import transformers

session = onnxruntime.InferenceSession("FOLDER/onnx/model.onnx")
{_TOKENS.strip()}
asked = {{item.name: inputs[item.name].astype("int64") for item in session.get_inputs()}}
OUTPUT = session.run(None, asked)[0]
print(OUTPUT)""",
    "openvino": f"""import openvino
import transformers

model = openvino.Core().compile_model("FOLDER/openvino/openvino_model.xml", "CPU"SETTING)
{_TOKENS.strip()}
names = [port.get_any_name() for port in model.inputs]
OUTPUT = model({{name: inputs[name].astype("int64") for name in names}})[0]
print(OUTPUT)""",
}


#: Unasked openvino computes in bfloat16 where the processor can.
_FLOAT32 = '{"INFERENCE_PRECISION_HINT": "f32"}'


def model_card(result: ShrinkResult, loaded: LoadedModel, *, sentences: bool) -> tuple[str, bytes]:
    """Return the card and its picture, a PNG file."""
    best = result.best
    saved = result.saved
    assert best is not None
    assert saved is not None
    source = str(result.provenance["model"]["id"])
    name = markdown(Path(source).name)
    tags = ["sentence-transformers"] if sentences else []
    tags.append("headscope")
    if best.training is not None:
        tags.append("distilled")
    header = ModelCardData(
        base_model=base_model(source),
        tags=tags,
        library_name="sentence-transformers" if sentences else "transformers",
        pipeline_tag=hub_task(result.task, loaded),
        **{key: v for key, v in inherited_header(loaded).items() if key != "pipeline_tag"},
    )
    tables = []
    texts = []
    for block in blocks(result):
        if isinstance(block, b.Table):
            rows = ([*map(markdown, row)] for row in b.table_cells(block))
            caption = [markdown(nameless(block.title))] if block.title else []
            tables += [*caption, table([column for column, *_ in block.columns], rows)]
        elif isinstance(block, b.Text) and block.style in ("control", "warning"):
            texts.append(markdown(visible(nameless(block.text))))
    picture_text = "![The metric of every model against milliseconds](shrink.png)"
    text = card_text(
        header,
        f"{name}, smaller",
        f"**{markdown(nameless(answer(result)))}**",
        f"The headline is that of `{saved.file}`. {MADE_BY}",
        codes=snippets(
            Form(best.runtime, best.precision),
            loaded,
            sentences=sentences,
            opens=saved.opens,
        ),
        sections={
            "What was measured": "\n\n".join([picture_text, *tables]),
            "How it was made": "\n\n".join(texts),
        },
        command=str(result.provenance["command"]),
    )
    files = figure_files(dict(figures_of([picture(result)])))
    return text, files["shrink.png"]


def snippets(form: Form, model: LoadedModel, *, sentences: bool, opens: str = "") -> list[str]:
    """Return code that opens the file of a form; FOLDER stands for the folder's path.

    ``sentences``: whether sentence-transformers opens it, then by the first; ``opens`` is what
    opens the weights.
    """
    codes = []
    exact = form == Form("openvino", "float32")
    if sentences:
        kwargs = f', model_kwargs={{"ov_config": {_FLOAT32}}}' if exact else ""
        codes.append(sentence_code(model, _BACKENDS[form.runtime] + kwargs))
    if form.runtime in _ALONE:
        config = f", {_FLOAT32}" if exact else ""
        code = _ALONE[form.runtime].replace("SETTING", config)
        codes.append(code.replace("OUTPUT", "logits" if model.task_head else "embeddings"))
    else:
        codes.append(transformers_code(model, opens))
    return codes
