"""The server of ``headscope serve``, asked as browsers, other sites and other programs would."""

import asyncio
import base64
import json
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from families import tiny
from tiny_models import VOCABULARY, tiny_bert, tiny_tokenizer, write_tiny
from torch.nn import functional as F

import headscope
from headscope.core.errors import InputError
from headscope.live.answers import Answers
from headscope.live.random_sets import RANDOM
from headscope.live.texts import LONGEST, fields_of
from headscope.session.opening import open_for_tasks

starlette = pytest.importorskip("starlette.testclient", reason="needs the extra serve")
server = pytest.importorskip("headscope.live.server", reason="needs the extra serve")

PORT = 8000
TOKEN = "secret"
PAGE = f"http://127.0.0.1:{PORT}"
GOOD = {"origin": PAGE, "token": TOKEN}
A = "The cat that chased the mice was tired."
B = "A dog slept on the old red sofa."


@pytest.fixture(scope="module")
def answers(demo):
    return Answers(demo)


def client(ask):
    app = server.application("<p>page</p>", server.Worker(ask), token=TOKEN, port=PORT)
    return starlette.TestClient(app, base_url=PAGE)


def test_similarity_and_patterns_are_those_of_transformers_without_the_heads(answers, demo):
    """Without them: zeros in the columns of a plain copy's output projection."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(demo.folder)
    off = [(2, head) for head in range(8)] + [(0, 5), (5, 11)]
    answered = answers([A, B], [f"L{layer}H{head}" for layer, head in off])
    similarity = answered["answers"][0]
    assert similarity["name"] == "similarity of the two sentences"
    for removed, key in (([], "full"), (off, "off")):
        model = AutoModel.from_pretrained(demo.folder, attn_implementation="eager")
        for layer, head in removed:
            weight = model.encoder.layer[layer].attention.output.dense.weight
            weight.data[:, 32 * head : 32 * (head + 1)] = 0
        with torch.no_grad():
            runs = [
                model(**tokenizer(text, return_tensors="pt"), output_attentions=True)
                for text in (A, B)
            ]
        embeddings = [run.last_hidden_state[0].mean(0) for run in runs]
        expected = float(F.cosine_similarity(*embeddings, dim=0))
        assert float(similarity[key]) == pytest.approx(expected, abs=6e-4)
    low, high = map(float, similarity["random"].split(" to "))
    assert low < high
    # The patterns shown are those with the heads off.
    shown = answered["texts"][0]
    n = len(shown["tokens"])
    assert len(shown["patterns"]) == 72
    for layer, head in ((0, 0), (3, 7), (5, 11)):
        percent = 100 * runs[0].attentions[layer][0, head].numpy()
        shown_percent = decoded(shown["patterns"][f"L{layer}H{head}"], (n, n))
        assert np.abs(shown_percent - percent).max() <= 0.51


def decoded(pattern: str, shape: tuple[int, int]) -> np.ndarray:
    """Read a pattern in per cent as the page does."""
    return np.frombuffer(base64.b64decode(pattern), dtype=np.uint8).reshape(shape)


def test_a_masked_token_is_guessed_with_a_second_text_beside_it(shared):
    ask = Answers(open_for_tasks(str(shared / "models/minilm-mlm")))
    answered = ask(["Paris is the [MASK] of France.", "Nobody knew."], ["L0H0"])
    assert [len(text["tokens"]) for text in answered["texts"]] == [9, 5]
    assert all(0 < float(answer["full"]) < 1 for answer in answered["answers"])


def test_next_tokens_have_the_probabilities_of_the_model_without_the_head(tmp_path):
    from transformers import AutoModelForCausalLM

    folder = write_tiny(tmp_path / "m", "gpt2")  # whose tokenizer puts [SEP] behind a text
    ask = Answers(open_for_tasks(str(folder)))
    texts = ["the cat sat on", "she ran"]
    answered = ask(texts, ["decoder:L1H2"])
    network = AutoModelForCausalLM.from_pretrained(folder).eval()
    for removed, key in ((False, "full"), (True, "off")):
        if removed:
            network.transformer.h[1].attn.c_proj.weight.data[8:12] = 0
        for text, name in zip(texts, ("first", "second"), strict=True):
            ids = [VOCABULARY.index(word) for word in text.split()]
            with torch.no_grad():
                shares = network(torch.tensor([ids])).logits[0, -1].softmax(-1)
            shown = {
                answer["name"].removeprefix(f"{name}: next "): float(answer[key])
                for answer in answered["answers"]
                if answer["name"].startswith(name)
            }
            expected = {token: float(shares[VOCABULARY.index(token)]) for token in shown}
            assert shown == pytest.approx(expected, abs=6e-4)
            assert VOCABULARY[int(shares.argmax())] in shown
    assert {answer["unit"] for answer in answered["answers"]} == {"probability"}
    assert [len(text["tokens"]) for text in answered["texts"]] == [4, 2]


def classifier(folder, **config):
    """Answers of a tiny classifier, and its logits of some texts read together, by transformers."""
    from transformers import AutoModelForSequenceClassification

    tiny_bert(folder, task_head="classification", **config)
    network = AutoModelForSequenceClassification.from_pretrained(folder).eval()

    def logits(*texts):
        with torch.no_grad():
            return network(**tiny_tokenizer()(*texts, return_tensors="pt")).logits[0]

    return Answers(open_for_tasks(str(folder))), logits


def test_independent_labels_have_a_probability_each(tmp_path):
    names = {0: "joy", 1: "anger", 2: "fear"}
    ids = {name: number for number, name in names.items()}
    labels = {"num_labels": 3, "id2label": names, "label2id": ids}
    problem = {"problem_type": "multi_label_classification"}
    ask, logits = classifier(tmp_path / "m", **labels, **problem)
    answered = ask(["the cat sat"], [])["answers"]
    shares = {answer["name"]: float(answer["full"]) for answer in answered}
    expected = logits("the cat sat").sigmoid().tolist()
    assert shares == pytest.approx(dict(zip(ids, expected, strict=True)), abs=6e-4)


def test_a_score_is_shown_as_it_is_of_a_pair_too(tmp_path):
    ask, logits = classifier(tmp_path / "m", num_labels=1)
    for texts in (["the cat sat"], ["the cat sat", "a dog ran"]):
        (answer,) = ask(texts, ["L0H0"])["answers"]
        assert answer["name"] == "score"
        assert float(answer["full"]) == pytest.approx(float(logits(*texts)), abs=6e-4)
        assert answer["off"] != answer["full"]


def test_of_several_numbers_none_is_passed_over(tmp_path):
    names = {0: "clarity", 1: "tone", 2: "length"}
    ids = {name: number for number, name in names.items()}
    labels = {"num_labels": 3, "id2label": names, "label2id": ids, "problem_type": "regression"}
    ask, logits = classifier(tmp_path / "m", **labels)
    said = ask(["the cat sat"], [])["said"]["answer"]
    for name, value in zip(ids, logits("the cat sat").tolist(), strict=True):
        assert f"{name} {value:.2f}".replace("-", "\u2212") in said

    answered = ask(["the cat sat"], ["L0H0"])
    changes = {
        answer["name"]: abs(float(answer["off"]) - float(answer["full"]))
        for answer in answered["answers"]
    }
    most = max(changes, key=changes.__getitem__)
    assert answered["said"]["answer"].startswith(
        f"Without L0H0: {most} changes most of 3 numbers, by "
    )
    assert "their largest change is " in answered["said"]["control"]


def gates_of(answers, off):
    """The gates of all models: full, heads off, and the random sets."""
    return answers._gates(off, answers._random_sets(off))


def test_as_many_random_heads_of_the_same_layers_are_off_as_were_switched_off(answers):
    gates = gates_of(answers, ["L0H0", "L0H1", "L5H3"])
    assert RANDOM >= 19
    assert gates.shape == (2 + RANDOM, 6, 12)
    off_by_layer = (gates == 0).sum(2).tolist()
    assert off_by_layer == [[0] * 6] + [[2, 0, 0, 0, 0, 1]] * (1 + RANDOM)
    assert len({tuple(one.flatten().tolist()) for one in gates}) == 2 + RANDOM  # all different
    one_more = gates_of(answers, ["L0H0", "L0H1", "L0H2", "L5H3"])
    nested = [
        (larger <= smaller).all()
        for larger, smaller in zip(one_more[2:, 0], gates[2:, 0], strict=True)
    ]
    assert sum(nested) < RANDOM / 2  # another size draws other heads


def test_with_every_head_on_nothing_is_random(answers):
    answered = answers([A], [])
    (answer,) = answered["answers"]
    assert (answered["off"], answered["sets"]) == (0, 0)
    assert answered["said"] == {
        "answer": "All 72 heads are on. Click a layer\u2019s name to switch it off.",
        "control": "",
        "note": "",
    }
    assert (answer["off"], answer["random"]) == ("1.000", "")


def test_one_head_is_compared_with_all_others_of_its_layer(answers):
    gates = gates_of(answers, ["L2H3"])[1:]
    assert {tuple(off) for off in (gates == 0).nonzero()[:, 1:].tolist()} == {
        (2, head) for head in range(12)
    }
    assert answers([A], ["L2H3"])["sets"] == 11


@pytest.mark.parametrize("heads", [range(12), range(11)])
def test_a_whole_layer_is_compared_with_as_many_heads_of_all_layers(answers, heads):
    """It has no other set of its own, and most of one nearly the same heads."""
    off = [f"L2H{head}" for head in heads]
    answered = answers([A], off)
    assert (answered["sets"], answered["anywhere"]) == (RANDOM, True)
    drawn = (gates_of(answers, off)[2:] == 0).sum(2)  # [sets, layers]
    assert set(drawn.sum(1).tolist()) == {len(off)}
    assert (drawn.sum(0) > 0).all()
    start = f"{RANDOM} random sets of {len(off)} heads from all layers: "
    assert answered["said"]["control"].startswith(start)


def test_no_random_sets_are_shown_where_most_of_the_model_is_off(answers):
    off = [name for name in answers.heads if not name.startswith("L5")]
    answered = answers([A], off)
    assert (answered["sets"], answered["answers"][0]["random"]) == (0, "")
    assert answered["said"]["control"].startswith("There are no random sets to compare with")


@pytest.fixture(scope="module")
def transliteration(shared):
    return Answers(open_for_tasks(str(shared / "models/ar-en-transliteration")))


def without_heads(folder, removed):
    """Remove heads of an encoder-decoder by zeros in the output projections."""
    from transformers import AutoModelForSeq2SeqLM

    model = AutoModelForSeq2SeqLM.from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float32
    )
    model = model.eval()
    for stack, layer, head in removed:
        coder = model.model.encoder if stack == "encoder" else model.model.decoder
        module = "encoder_attn" if stack == "cross" else "self_attn"
        out = getattr(coder.layers[layer], module).out_proj
        out.weight.data[:, 4 * head : 4 * (head + 1)] = 0
    return model


@torch.no_grad()
def test_an_encoder_decoder_writes_and_attends_as_transformers_does_without_the_heads(
    transliteration, shared
):
    from transformers import AutoTokenizer

    folder = shared / "models/ar-en-transliteration"
    text = "\u0645\u062d\u0645\u062f"
    off = [("cross", 5, head) for head in range(8)] + [("decoder", 0, 3), ("encoder", 2, 1)]
    names = []
    for stack, layer, head in off:
        prefix = "" if stack == "encoder" else f"{stack}:"
        names.append(f"{prefix}L{layer}H{head}")
    answered = transliteration([text, text + text], names)
    assert len(transliteration.heads) == answered["heads"] == 3 * 48

    # What the two models write, and how likely each finds what the full one wrote
    tokenizer = AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(text, return_tensors="pt")
    models = {"full": without_heads(folder, []), "off": without_heads(folder, off)}
    ids = {}
    for key, model in models.items():
        ids[key] = model.generate(**inputs, num_beams=1, do_sample=False, max_new_tokens=60)[0]
    by_name = {answer["name"]: answer for answer in answered["answers"]}
    written = by_name["first: written"]
    likely = by_name["first: the whole model's text, probability of a token"]
    for key, model in models.items():
        assert written[key] == tokenizer.decode(ids[key], skip_special_tokens=True)
        full = ids["full"]
        log_shares = model(**inputs, decoder_input_ids=full[None, :-1]).logits[0].log_softmax(-1)
        of_tokens = log_shares.gather(1, full[1:, None])
        assert float(likely[key]) == pytest.approx(float(of_tokens.mean().exp()), abs=6e-4)
    assert written["full"] != written["off"]

    # Patterns of the decoder are those of what the model without the heads wrote.
    run = models["off"](**inputs, decoder_input_ids=ids["off"][None, :-1], output_attentions=True)
    shown = answered["texts"][0]
    n_source = len(shown["tokens"])
    n_target = len(shown["target"]["tokens"])
    for name, expected, shape in (
        ("L3H1", run.encoder_attentions[3][0, 1], (n_source, n_source)),
        ("decoder:L1H4", run.decoder_attentions[1][0, 4], (n_target, n_target)),
        ("cross:L4H7", run.cross_attentions[4][0, 7], (n_target, n_source)),
    ):
        percent = decoded(shown["patterns"][name], shape)
        assert np.abs(percent - 100 * expected.numpy()).max() <= 0.51


def test_an_encoder_decoder_that_writes_nothing_is_asked_for_its_encoders_embeddings():
    bart = headscope.wrap(tiny("bart", vocab_size=len(VOCABULARY)), tiny_tokenizer(38))
    answered = Answers(bart)(["the cat sat", "a dog ran"], ["L0H0"])
    assert answered["answers"][0]["name"] == "similarity of the two sentences"
    assert len(answered["texts"]) == 2


@pytest.mark.parametrize(
    ("path", "headers", "code"),
    [
        (f"/?token={TOKEN}", {}, 200),
        ("/", {}, 403),
        ("/?token=guess", {}, 403),
        (f"/?token={TOKEN}", {"host": f"evil.example:{PORT}"}, 400),
        (f"/?token={TOKEN}", {"host": ""}, 400),
        ("/answer", GOOD, 200),
        ("/answer", {"token": TOKEN}, 403),
        ("/answer", {"origin": f"http://127.0.0.1:{PORT + 1}", "token": TOKEN}, 403),
        ("/answer", {"origin": PAGE}, 403),
        ("/answer", {"origin": PAGE, "token": "guess"}, 403),
    ],
)
def test_only_who_knows_the_token_and_only_the_page_is_answered(answers, path, headers, code):
    ask = client(answers)
    if path == "/answer":
        response = ask.post(path, json={"texts": [A], "off": ["L2H1"]}, headers=headers)
        assert code != 200 or response.json()["off"] == 1
    else:
        response = ask.get(path, headers=headers)
        shown = response.text, response.headers.get("cache-control")
        assert (shown == ("<p>page</p>", "no-store")) == (code == 200)
    assert response.status_code == code


def request(*texts, off=()):
    return json.dumps({"texts": texts, "off": off}).encode()


@pytest.mark.parametrize(
    ("body", "code", "says"),
    [
        (b"[]", 400, "A request is"),
        (b"\xff\xfe", 400, "A request is"),
        (b"[" * 5000, 400, "A request is"),
        (b'{"texts": "abc", "off": []}', 400, "A request is"),
        (request("a", "b", "c"), 400, "A request is"),
        (request("a", off=[None]), 400, "A request is"),
        (b"x" * 1_000_000, 413, "more text"),
        # What is wrong with a text is no error in the browser's console.
        (request(" "), 200, "at least one word"),
        (request(A, "\ud800"), 200, "half of a character"),
        (request("word " * 200), 200, f"The text has 202 tokens; {LONGEST} fit, which are 309 of"),
        (request(A, off=["<img src=x onerror=alert(1)>"]), 200, "has no head"),
    ],
)
def test_wrong_requests_get_one_sentence(answers, body, code, says):
    response = client(answers).post("/answer", content=body, headers=GOOD)
    assert response.status_code == code
    error = response.json()["error"]
    assert says in error
    assert error.endswith(".")


def run_in_a_thread(coroutine: Any) -> Any:
    """Run a coroutine where no loop runs: a browser test keeps one going in the main thread."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


def test_a_request_that_never_ends_is_given_up(monkeypatch):
    monkeypatch.setattr(server, "SLOWEST", 0.05)
    worker = server.Worker(lambda texts, off: {})
    app = server.application("<p>page</p>", worker, token=TOKEN, port=PORT)
    headers = [(name.encode(), value.encode()) for name, value in GOOD.items()]
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/answer",
        "query_string": b"",
        "headers": [*headers, (b"host", f"127.0.0.1:{PORT}".encode())],
    }
    to_receive = [{"type": "http.request", "body": b"{", "more_body": True}]
    sent = []

    async def receive():
        if not to_receive:
            await asyncio.sleep(60)
        return to_receive.pop()

    async def send(message):
        sent.append(message)

    run_in_a_thread(asyncio.wait_for(app(scope, receive, send), 10))
    assert sent[0]["status"] == 408
    assert json.loads(sent[1]["body"])["error"].endswith(".")


def test_too_many_waiting_requests_are_refused_and_one_is_answered_at_a_time():
    going = threading.Event()
    most = [0]
    now = [0]

    def slow(texts, off):
        now[0] += 1
        most[0] = max(most[0], now[0])
        going.wait(10)
        now[0] -= 1
        return {"off": len(off)}

    worker = server.Worker(slow)

    async def many():
        question = server.Question(["a"], [])
        answers = [worker.answer(question)]
        while not now[0]:  # the first one is taken off the queue
            await asyncio.sleep(0.01)
        answers += [worker.answer(question) for _ in range(server.WAITING)]
        with pytest.raises(server.queue.Full):
            worker.answer(question)
        answers[1].cancel()  # its browser was closed
        going.set()
        return await asyncio.gather(*answers, return_exceptions=True)

    results = run_in_a_thread(many())
    assert most[0] == 1
    assert sum(result == {"off": 0} for result in results) == server.WAITING


def test_what_a_model_raises_is_said_and_the_next_question_is_answered():
    def broken(texts, off):
        if off:
            raise RuntimeError("shapes \x1b[31m do not fit")
        return {"off": 0}

    ask = client(broken)
    failed = ask.post("/answer", json={"texts": [A], "off": ["L0H0"]}, headers=GOOD)
    assert "shapes \\x1b[31m do not fit" in failed.json()["error"]
    assert ask.post("/answer", json={"texts": [A], "off": []}, headers=GOOD).json() == {"off": 0}


def tagger(folder):
    """Answers of a tiny tagger, and its tags of a text by transformers, without a layer's heads."""
    from transformers import AutoModelForTokenClassification

    names = {0: "O", 1: "LOC", 2: "PER"}
    ids = {name: number for number, name in names.items()}
    tiny_bert(folder, task_head="token-classification", id2label=names, label2id=ids)

    def tags(text, removed=None):
        network = AutoModelForTokenClassification.from_pretrained(folder).eval()
        if removed is not None:
            network.bert.encoder.layer[removed].attention.output.dense.weight.data[:] = 0
        with torch.no_grad():
            logits = network(**tiny_tokenizer()(text, return_tensors="pt")).logits[0]
        return [names[tag] for tag in logits.argmax(-1).tolist()]

    return Answers(open_for_tasks(str(folder))), tags


def test_tags_that_change_are_counted_and_named(tmp_path):
    ask, tags = tagger(tmp_path / "m")
    text = "the cat sat on the mat"
    layer = [name for name in ask.heads if name.startswith("L0")]
    answered = ask([text], layer)
    special = answered["texts"][0]["special"]
    assert special.count(False) == 6
    pairs = zip(tags(text), tags(text, removed=0), special, strict=True)
    changed = sum(before != after and not outside for before, after, outside in pairs)
    assert answered["answers"][0]["off"] == str(changed)
    assert f": {changed} of 6 tags change" in answered["said"]["answer"]
    assert answered["answers"][1]["name"] == "probability of the whole model's tags, mean"


def test_the_likeliest_answer_to_a_question_is_a_stretch_of_the_context(tmp_path):
    """Against all stretches, one by one, of what transformers gives."""
    from transformers import AutoModelForQuestionAnswering

    tiny_bert(tmp_path / "m", task_head="question-answering")
    ask = Answers(open_for_tasks(str(tmp_path / "m")))
    texts = ["the cat sat", "She ran on the Mat"]
    answered = ask(texts, ["L0H1"])

    network = AutoModelForQuestionAnswering.from_pretrained(tmp_path / "m").eval()
    encoded = tiny_tokenizer()(*texts, return_tensors="pt")
    places = [0, 5, 6, 7, 8, 9]  # [CLS] the cat sat [SEP] she ran on the mat [SEP]
    with torch.no_grad():
        outputs = network(**encoded)
    begins = outputs.start_logits[0, places].softmax(-1)
    ends = outputs.end_logits[0, places].softmax(-1)
    words = texts[1].split()
    shares = {"no answer": float(begins[0] * ends[0])}
    for begin in range(5):
        for end in range(begin, 5):
            stretch = " ".join(words[begin : end + 1])
            shares[stretch] = float(begins[begin + 1] * ends[end + 1])
    likeliest = sorted(shares, key=shares.__getitem__, reverse=True)[:3]
    shown = {answer["name"]: float(answer["full"]) for answer in answered["answers"]}
    assert list(shown)[:3] == likeliest  # as it was typed: the tokenizer knows no capitals
    assert shown == pytest.approx({name: shares[name] for name in shown}, abs=6e-4)
    assert ask(texts, [])["said"]["answer"].startswith("The model answers: ")
    assert [field.label for field in fields_of(ask.model, [])] == [
        "Question",
        "Text with the answer",
    ]
    with pytest.raises(InputError, match="a text that has the answer"):
        ask(texts[:1], [])


def test_what_models_say_is_put_into_words(shared, transliteration):
    masked = Answers(open_for_tasks(str(shared / "models/minilm-mlm")))
    said = masked(["Paris is the [MASK] of France."], [])["said"]["answer"]
    assert said.startswith("Likeliest at [MASK]: \u201c")
    written = transliteration(["\u0645\u062d\u0645\u062f"], [])
    assert written["said"]["answer"].startswith("It writes \u201c")
    off = transliteration(["\u0645\u062d\u0645\u062f"], [f"L0H{head}" for head in range(4)])
    assert off["said"]["answer"].startswith("Without these 4 heads: it ")
    assert "\u201d, whose tokens\u2019 mean probability " in off["said"]["answer"]
    two = transliteration(["\u0645\u062d\u0645\u062f", "\u0633\u0644\u0627\u0645"], [])
    assert re.match(
        "For the first text it writes \u201c.*; for the second \u201c", two["said"]["answer"]
    )
    # It reads no English: its field begins with a word that its tokenizer knows.
    text = fields_of(transliteration.model, ["The cat sat."])[0].text
    assert "<unk>" not in transliteration([text], [])["texts"][0]["tokens"]


def test_only_embeddings_begin_with_two_sentences(demo, shared, tmp_path):
    samples = ["One.", "Two."]
    first, second = fields_of(demo, samples)
    assert (first.text, second.text) == ("One.", "Two.")
    ask, _ = classifier(tmp_path / "m", num_labels=2)
    first, second = fields_of(ask.model, samples)
    assert (first.text, second.text) == ("One.", "")
    assert "as one pair" in second.label
    ask, _ = classifier(tmp_path / "score", num_labels=1)  # a cross-encoder begins with a pair
    first, second = fields_of(ask.model, samples)
    assert (first.text[-1:], second.text[-1:]) == ("?", ".")
    ask, _ = tagger(tmp_path / "tagger")
    assert "Paris" in fields_of(ask.model, samples)[0].text
    first, second = fields_of(open_for_tasks(str(shared / "models/minilm-mlm")), samples)
    assert "[MASK]" in first.text
    assert second.text == ""


def test_a_text_that_is_too_long_is_told_what_fits(answers):
    text = "The old lighthouse blinked twice. " * 20
    with pytest.raises(InputError, match=r"tokens; 64 fit") as raised:
        answers([text], [])
    fits = int(re.search(r"which are (\d+) of its", str(raised.value))[1])
    assert len(answers([text[:fits]], [])["texts"][0]["tokens"]) == LONGEST
    with pytest.raises(InputError):
        answers([text[: fits + 8]], [])
    quoted = re.search("\u201c\u2026(.*)\u201d", str(raised.value))[1]
    assert text[:fits].endswith(quoted)


def test_a_page_learns_whether_its_question_is_still_asked():
    going = threading.Event()
    worker = server.Worker(lambda texts, off: going.wait(10) and {})

    async def ask():
        reply = worker.answer(server.Question(["a"], [], "mine"))
        assert worker.is_asked("mine")
        assert not worker.is_asked("other")
        going.set()
        await reply
        assert not worker.is_asked("mine")

    run_in_a_thread(ask())
    page = client(lambda texts, off: {})
    assert page.get("/asked?name=mine", headers={"token": TOKEN}).json() == {"asked": False}
    assert page.get("/asked?name=mine").status_code == 403
    named = {"texts": [A], "off": [], "name": 3}
    assert page.post("/answer", json=named, headers=GOOD).status_code == 400


def test_the_address_is_told_once_the_server_answers(monkeypatch):
    order = []

    async def startup(self, sockets=None):
        order.append("answers")
        self.started = len(order) == 1

    monkeypatch.setattr(server.uvicorn.Server, "startup", startup)
    app = server.application("", server.Worker(lambda texts, off: {}), token=TOKEN, port=PORT)
    for _ in range(2):  # the second time it cannot start
        begun = server._Server(app, lambda: order.append("told"))
        run_in_a_thread(begun.startup())
    assert order == ["answers", "told", "answers"]


_COMPUTES = """
import threading, torch
from headscope.live import server
server.LAST = 1.0
stopped = threading.Event()
def ask(texts, off):
    x = torch.ones(400, 400)
    while not ({listens} and stopped.is_set()):
        x = (x @ x).tanh()
    raise RuntimeError
def ready():
    print(listening.getsockname()[1], flush=True)
with server.open_port(0) as listening:
    server.run("", ask, listening, "secret", ready=ready, stop=stopped.set)
"""


@pytest.mark.parametrize(("listens", "code"), [(True, -signal.SIGINT), (False, 130)])
def test_ctrl_c_while_an_answer_is_computed_aborts_nothing(listens, code):
    """Whether the computation can be stopped, or goes on whatever happens."""
    program = subprocess.Popen(
        [sys.executable, "-c", _COMPUTES.format(listens=listens)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    address = f"http://127.0.0.1:{int(program.stdout.readline())}"
    headers = {"origin": address, "token": "secret"}
    question = urllib.request.Request(f"{address}/answer", request(A), headers)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(urllib.request.urlopen, question)
        time.sleep(0.5)
        program.send_signal(signal.SIGINT)
        _, errors = program.communicate(timeout=30)
        assert asked.exception(30) is not None
    assert program.returncode == code
    assert "terminate called" not in errors


def test_a_port_that_is_taken_or_that_there_is_not_is_said():
    with server.open_port(0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        for wrong, says in ((port, f"Port {port} cannot be used"), (70_000, "are 0 to 65535")):
            with pytest.raises(InputError, match=says):
                server.open_port(wrong)


def test_ctrl_c_is_an_interruption_where_a_shell_ignores_it_too(monkeypatch):
    monkeypatch.setattr(server.uvicorn.Server, "run", lambda self, sockets: None)
    stopped = []
    with server.open_port(0) as listening, pytest.raises(KeyboardInterrupt):
        server.run(
            "<p>page</p>",
            lambda texts, off: {},
            listening,
            TOKEN,
            ready=lambda: None,
            stop=lambda: stopped.append(True),
        )
    assert stopped == [True]
