"""Saved folders opened by transformers and sentence-transformers, with headscope and without."""

import copy
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from families import BY_NAME
from tiny_models import tiny_bert
from torch import Tensor
from transformers import AutoModel, AutoModelForSequenceClassification

import headscope
from headscope.artefacts.sentence_outputs import check_embeds
from headscope.core.errors import ArtefactError, CheckpointError
from headscope.models.run.loaded import LoadedModel

TEXTS = ["the big dog ran to the house", "she saw it", "a red cat sat on the mat and it was red"]
#: Of a model of 2 layers and 4 heads: some of one layer, and all of the other.
REMOVED = [(0, 0), (0, 2), (1, 0), (1, 1), (1, 2), (1, 3)]
#: Runs in an interpreter that cannot import headscope: opens folders, compares with stored states;
#: then it imports headscope and opens what was refused.
CHILD = """
import json, sys, warnings
sys.modules["headscope"] = None
warnings.simplefilter("ignore")
import torch, transformers
found = {}

def gaps(folder, auto, trust):
    saved = torch.load(folder + ".pt")
    kind = getattr(transformers, auto)
    try:
        model = kind.from_pretrained(folder, trust_remote_code=trust).eval()
        again = folder + "-again"
        model.save_pretrained(again)
        both = [model, kind.from_pretrained(again, trust_remote_code=trust).eval()]
        with torch.no_grad():
            states = [m(**saved["inputs"], output_hidden_states=True) for m in both]
        states = [getattr(s, "last_hidden_state", getattr(s, "logits", None)) for s in states]
        return [float((s - saved["expected"]).abs().max()) for s in states]
    except Exception as error:
        return f"{type(error).__name__}: {error}"

jobs = json.loads(sys.argv[1])
for job in jobs:
    found[job[0]] = gaps(*job)
del sys.modules["headscope"]
import headscope
headscope.register()
headscope.register()  # once more changes nothing
found["registered"] = gaps(*jobs[-1][:2], False)
print(json.dumps(found))
"""


def inputs_of(loaded: LoadedModel) -> dict[str, Tensor]:
    ids, mask = loaded.pad([[5, 6, 7, 8, 9, 10], [11, 12, 13]])
    inputs = {"input_ids": ids, "attention_mask": mask}
    if loaded.start_id is not None:
        inputs["decoder_input_ids"] = ids[:, :3]
    return inputs


def states(loaded: LoadedModel) -> Tensor:
    """What the network itself puts out, padding included."""
    with torch.no_grad():
        out: Any = loaded.network(**inputs_of(loaded))
    states: Tensor = out.logits if loaded.task_head else out.last_hidden_state
    return states


def cut(name: str, *, even: bool = False) -> LoadedModel:
    """Remove every other head, with ``even`` in every layer, else in all but the second."""
    loaded = headscope.wrap(BY_NAME[name].model())
    first_of_module = {site.module: site for site in reversed(loaded.sites)}
    removed: list[tuple[str, int, int]] = []
    for site in first_of_module.values():
        if even:
            heads = range((site.layer + 1) % 2, site.n_heads, 2)
        else:
            heads = range(1, site.n_heads, 2) if site.layer != 1 else range(0)
        removed += [(site.stack, site.layer, head) for head in heads]
    return headscope.remove_heads(loaded, removed)


#: Families whose modules run with fewer heads by themselves, or with a part of their bias.
STANDALONE = ("bert", "mpnet", "albert", "modernbert", "xlm", "bart")
PLAIN = ("nomic_bert", "eurobert, shared keys")


def all_parts() -> LoadedModel:
    """A BERT without some heads, neurons and a layer."""
    small = cut("bert")
    first, _, last = headscope.feed_forwards(small)
    small = headscope.remove_neurons(small, {first.name: [3], last.name: [0, 9]})
    return headscope.remove_layers(small, [1])


def test_without_headscope(tmp_path):
    """Opened, and saved and opened once more, it computes what it computed with headscope."""
    models = {
        **{f"own code {name}": (cut(name), True) for name in STANDALONE},
        **{f"plain {name}": (cut(name, even=True), False) for name in PLAIN},
        "all parts": (all_parts(), True),
        "deberta": (cut("deberta"), True),
    }
    jobs = []
    for name, (loaded, trust) in models.items():
        folder = tmp_path / name.replace(" ", "_").replace(",", "")
        headscope.save(loaded, folder)
        torch.save({"inputs": inputs_of(loaded), "expected": states(loaded)}, f"{folder}.pt")
        auto = "AutoModelForSeq2SeqLM" if loaded.task_head else "AutoModel"
        jobs.append((str(folder), auto, trust))
    done = subprocess.run(
        [sys.executable, "-c", CHILD, json.dumps(jobs)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HF_MODULES_CACHE": str(tmp_path / "cache")},
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    gaps_of = dict(zip([*models, "registered"], json.loads(done.stdout).values(), strict=True))
    refused = gaps_of.pop("deberta")
    assert "ValueError" in refused
    assert "run 'import headscope; headscope.register()' before you open this folder" in refused
    assert {name: gaps for name, gaps in gaps_of.items() if isinstance(gaps, str)} == {}
    assert {name: gaps for name, gaps in gaps_of.items() if max(gaps) >= 1e-5} == {}


@pytest.mark.parametrize("name", ["nomic_bert", "eurobert, shared keys"])
def test_a_plain_folder_keeps_the_original_numbers(name, tmp_path):
    small = cut(name, even=True)
    folder = headscope.save(small, tmp_path / "x", standalone=True)
    assert not (folder / "modeling_headscope.py").exists()  # no code is needed
    assert json.loads((folder / "config.json").read_text())["num_attention_heads"] == 2
    again = headscope.load(str(folder), need_tokenizer=False)
    assert [site.head_ids for site in again.sites] == [(0, 2), (1, 3), (0, 2)]
    torch.testing.assert_close(states(again), states(small), rtol=0, atol=1e-5)
    # Cut once more, the layers differ, and the plain form is no longer possible.
    less = headscope.remove_heads(again, [(0, 0)])
    config = headscope.save(less, tmp_path / "y") / "config.json"
    assert json.loads(config.read_text())["num_attention_heads"] == 4


def test_automodel_opens_the_family_s_own_with_fewer_heads(tmp_path):
    loaded = headscope.load(str(tiny_bert(tmp_path / "source")))
    small = headscope.remove_heads(loaded, REMOVED)
    folder = headscope.save(small, tmp_path / "small")
    opened = AutoModel.from_pretrained(folder).eval()  # never with the folder's own code
    assert type(opened).__name__ == "BertModel"
    assert opened.config.model_type == "bert"
    assert opened.encoder.layer[0].attention.self.query.out_features == 16
    assert [site.head_ids for site in headscope.wrap(opened).sites] == [(1, 3), ()]
    expected = states(small)
    for network in (opened, copy.deepcopy(opened)):
        with torch.no_grad():
            hidden = network(**inputs_of(small)).last_hidden_state
        torch.testing.assert_close(hidden, expected, rtol=0, atol=1e-5)
    assert pickle.loads(pickle.dumps(opened.config)).kept_heads == opened.config.kept_heads
    opened.save_pretrained(tmp_path / "again")
    again = headscope.load(str(tmp_path / "again"), need_tokenizer=False)
    torch.testing.assert_close(states(again), expected, rtol=0, atol=1e-5)


def test_task_heads_come_along(tmp_path):
    auto = AutoModelForSequenceClassification
    source = tiny_bert(tmp_path / "source", task_head="classification")
    small = headscope.remove_heads(headscope.load(str(source), task_head="auto"), REMOVED[:3])
    folder = headscope.save(small, tmp_path / "small")
    with torch.no_grad():
        logits = auto.from_pretrained(folder).eval()(**inputs_of(small)).logits
    torch.testing.assert_close(logits, states(small), rtol=0, atol=1e-5)
    named = json.loads((folder / "config.json").read_text())["auto_map"]
    assert set(named) == {"AutoConfig", "AutoModel", auto.__name__}


def test_what_opens_otherwise_is_not_kept(tmp_path, monkeypatch):
    small = cut("bert")
    other = copy.deepcopy(small.network)
    other.encoder.layer[0].attention.self.value.weight.data[0] *= 2
    monkeypatch.setattr(small.network, "save_pretrained", other.save_pretrained)
    with pytest.raises(ArtefactError, match="computes something else"):
        headscope.save(small, tmp_path / "x")
    assert not (tmp_path / "x").exists()


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that sentence-transformers wrote: first token, dense, unit length."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules as parts

    root = tmp_path_factory.mktemp("embedder")
    first = parts.Transformer(str(tiny_bert(root / "bert")), max_seq_length=32)
    torch.manual_seed(0)
    modules = [first, parts.Pooling(32, "cls"), parts.Dense(32, 12), parts.Normalize()]
    SentenceTransformer(modules=modules, device="cpu").save(str(root / "model"))
    return root / "model"


def test_sentence_transformers_opens_a_saved_folder_and_saves_it_again(embedder, tmp_path):
    """Embeddings are those with the removed heads' columns of W_O set to zero by hand."""
    from sentence_transformers import SentenceTransformer

    zeroed = SentenceTransformer(str(embedder), device="cpu")
    with torch.no_grad():
        for layer, head in REMOVED:
            output = zeroed[0].auto_model.encoder.layer[layer].attention.output.dense
            output.weight[:, head * 8 : (head + 1) * 8] = 0
    expected = zeroed.encode(TEXTS, convert_to_tensor=True)

    def close(embeddings: Tensor) -> None:
        torch.testing.assert_close(embeddings, expected, rtol=0, atol=1e-5)

    small = headscope.remove_heads(headscope.load(str(embedder)), REMOVED)
    folder = headscope.save(small, tmp_path / "compact")
    model = SentenceTransformer(str(folder), device="cpu")
    close(model.encode(TEXTS, convert_to_tensor=True))
    assert model.max_seq_length == 32
    again = headscope.load(str(folder))
    assert check_embeds(again, folder)
    ids, mask = again.pad(again.tokenizer(TEXTS)["input_ids"])
    with torch.no_grad():
        close(again.pooling.embed(again.forward(ids, mask), mask))
    model.save(str(tmp_path / "again"))
    once_more = SentenceTransformer(str(tmp_path / "again"), device="cpu")
    close(once_more.encode(TEXTS, convert_to_tensor=True))

    # Other embeddings are noticed.
    path = folder / "1_Pooling" / "config.json"
    path.write_text(json.dumps({"word_embedding_dimension": 32, "pooling_mode": "mean"}))
    with pytest.raises(ArtefactError, match="otherwise than headscope"):
        check_embeds(again, folder)


@pytest.mark.parametrize(
    ("name", "words"),
    [("up", "outside of the folder"), ("root", "outside of"), ("link", "link that leads out")],
)
def test_a_hostile_list_of_modules_is_not_followed(name, words, tmp_path):
    source = tiny_bert(tmp_path / "source")
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "config.json").write_text("{}")
    (secret / "model.safetensors").write_bytes(b"of somebody else")
    path = {"up": "../secret", "root": str(secret), "link": "1_Pooling"}[name]
    kinds = (("Transformer", ""), ("Pooling", path))
    listed = [{"type": f"sentence_transformers.models.{k}", "path": p} for k, p in kinds]
    (source / "modules.json").write_text(json.dumps(listed))
    if name == "link":
        (source / "1_Pooling").symlink_to(secret)
    loaded = headscope.load(str(source))
    with pytest.raises(CheckpointError, match=words):
        headscope.save(headscope.remove_heads(loaded, REMOVED), tmp_path / "x")
    assert not (tmp_path / "x").exists()
    with pytest.raises(CheckpointError, match=words):  # and at once, before a long run
        headscope.prune(loaded, heads="L0H1", save=tmp_path / "x")


def test_code_of_the_source_is_not_taken_along(tmp_path):
    source = tiny_bert(tmp_path / "source")
    module = {"idx": 0, "name": "0", "path": "", "type": "own_code.Transformer"}
    (source / "modules.json").write_text(json.dumps([module]))
    (source / "own_code.py").write_text("raise SystemExit")
    loaded = headscope.load(str(source))
    folder = headscope.save(headscope.remove_heads(loaded, REMOVED), tmp_path / "x")
    assert json.loads((folder / "modules.json").read_text()) == [module]
    assert not (folder / "own_code.py").exists()
