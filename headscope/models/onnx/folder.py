"""The folder of an exported model: graphs, the tokenizer's files, config and a manifest."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path
from typing import Any

from headscope.models.compact import origin_of
from headscope.models.loaded import LoadedModel
from headscope.models.manifest import MANIFEST, SCHEMA
from headscope.models.onnx.graph import OPSET
from headscope.models.onnx.session import Graph
from headscope.models.routing import quiet_transformers

__all__ = ["FLOAT32", "INT8", "describe_folder"]

#: The graphs of a folder, by what their weights are.
FLOAT32, INT8 = "model.onnx", "model.int8.onnx"
#: What ``form`` says in the manifest.
FORM = "onnx"


def describe_folder(loaded: LoadedModel, folder: Path, graph: Graph, **record: Any) -> None:
    """Write beside a graph what a program needs to feed it, and where it comes from."""
    with quiet_transformers():
        loaded.network.config.save_pretrained(folder)
        if loaded.tokenizer is not None:
            loaded.tokenizer.save_pretrained(folder)
    manifest = {
        "schema": SCHEMA,
        "form": FORM,
        "headscope": importlib.metadata.version("headscope"),
        "opset": OPSET,
        "inputs": list(graph.inputs),
        "outputs": list(graph.outputs),
        "pooling": str(loaded.pooling),
        "attention": [
            {
                "stack": site.stack,
                "layer": site.layer,
                "kept": list(site.head_ids),
                "removed": [h for h in range(site.heads_before) if h not in site.head_ids],
            }
            for site in (loaded.whole or loaded).sites
        ],
        "source": origin_of(loaded),
        **record,
    }
    text = json.dumps(manifest, indent=1, ensure_ascii=False, allow_nan=False)
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")
