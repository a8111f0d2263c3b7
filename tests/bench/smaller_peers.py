"""What other tools make of the demo model: Spearman on STS-B dev, processor time, megabytes.

``python tests/bench/smaller_peers.py MODEL STSB-DEV.csv FOLDER FORM...`` with the forms torch,
onnx, onnx-int8, openvino, openvino-int8 (sentence-transformers' own) and model2vec, in an
environment that has sentence-transformers[onnx,openvino] or model2vec[distill], which need not be
headscope's. Times are of one thread, so that other programs disturb them least; they tell tools
apart that differ by much.
"""

import csv
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import torch
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer


def sentence_transformer(form: str, folder: Path):
    """Open the model in a form of sentence-transformers; return what encodes texts."""
    if form == "torch":
        return SentenceTransformer(str(folder), device="cpu").encode
    backend, _, int8 = form.partition("-")
    model = SentenceTransformer(str(folder), backend=backend, device="cpu")
    if int8 and backend == "onnx":
        from sentence_transformers import export_dynamic_quantized_onnx_model

        export_dynamic_quantized_onnx_model(model, "avx512_vnni", str(folder))
        chosen = {"file_name": "model_qint8_avx512_vnni.onnx"}
        model = SentenceTransformer(str(folder), backend=backend, model_kwargs=chosen)
    elif int8:
        from sentence_transformers import export_static_quantized_openvino_model

        export_static_quantized_openvino_model(model, None, str(folder))
        chosen = {"file_name": "openvino/openvino_model_qint8_quantized.xml"}
        model = SentenceTransformer(str(folder), backend=backend, model_kwargs=chosen)
    else:
        model.save_pretrained(str(folder))
    return model.encode


def model2vec(folder: Path):
    """Distil a static model; return what encodes texts."""
    from model2vec.distill import distill

    model = distill(model_name=str(folder), pca_dims=256)
    model.save_pretrained(str(folder / "model2vec"))
    return model.encode


def measured(encode, pairs):
    """Return Spearman's correlation of cosines with scores, and seconds of processor time."""
    start = time.process_time()
    first, second = (np.asarray(encode([pair[side] for pair in pairs])) for side in (0, 1))
    seconds = time.process_time() - start
    lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    cosines = (first * second).sum(1) / lengths
    return 100 * spearmanr(cosines, [float(pair[2]) for pair in pairs])[0], seconds


def main(model: Path, data: Path, folder: Path, forms: list[str]) -> None:
    """Print a row for each form; one that fails says why."""
    torch.set_num_threads(1)
    with data.open(encoding="utf-8", newline="") as file:
        pairs = list(csv.reader(file))
    print("| form | Spearman | processor s | MB |\n| --- | --- | --- | --- |")
    for form in forms:
        copy = folder / form
        shutil.copytree(model, copy, dirs_exist_ok=True)
        before = set(copy.rglob("*"))
        try:
            opened = model2vec(copy) if form == "model2vec" else sentence_transformer(form, copy)
            spearman, seconds = measured(opened, pairs)
        except Exception as error:  # another tool's: whatever it is, the others go on
            print(f"| {form} | {type(error).__name__}: {error} | | |", flush=True)
            continue
        written = {*copy.rglob("*")} - before or before  # torch writes nothing
        size = max(path.stat().st_size for path in written if path.is_file()) / 1e6
        print(f"| {form} | {spearman:.2f} | {seconds:.2f} | {size:.1f} |", flush=True)


if __name__ == "__main__":
    if len(sys.argv) < 5:
        sys.exit(__doc__)
    main(*map(Path, sys.argv[1:4]), forms=sys.argv[4:])
