"""The server of ``headscope serve``, asked as browsers, other sites and other programs would."""

import asyncio
import base64
import json
import threading

import numpy as np
import pytest
import torch
from families import tiny
from tiny_models import VOCABULARY, tiny_bert, tiny_tokenizer
from torch.nn import functional as F

import headscope
from headscope.core.errors import InputError
from headscope.live.answers import LONGEST, RANDOM, Answers
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
    app = server.application("<p>page</p>", ask, token=TOKEN, port=PORT)
    return starlette.TestClient(app, base_url=PAGE)


def test_similarity_and_patterns_are_those_of_transformers_without_the_heads(answers, demo):
    """Without them: zeros in the columns of a plain copy's output projection."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(demo.folder)
    off = [(2, head) for head in range(8)] + [(0, 5), (5, 11)]
    answer = answers([A, B], [f"L{layer}H{head}" for layer, head in off])
    said = answer["answers"][0]
    shown = answer["texts"][0]
    assert said["name"] == "similarity of the two sentences"
    for removed, which in (([], "full"), (off, "off")):
        model = AutoModel.from_pretrained(demo.folder, attn_implementation="eager")
        for layer, head in removed:
            weight = model.encoder.layer[layer].attention.output.dense.weight
            weight.data[:, 32 * head : 32 * (head + 1)] = 0
        with torch.no_grad():
            runs = [
                model(**tokenizer(text, return_tensors="pt"), output_attentions=True)
                for text in (A, B)
            ]
        embedded = [run.last_hidden_state[0].mean(0) for run in runs]
        similarity = float(F.cosine_similarity(*embedded, dim=0))
        assert float(said[which]) == pytest.approx(similarity, abs=6e-4)
    low, high = map(float, said["random"].split(" to "))
    assert low < high
    # The patterns shown are those with the heads off.
    n = len(shown["tokens"])
    assert len(shown["patterns"]) == 72
    for name in ("L0H0", "L3H7", "L5H11"):
        layer, head = map(int, name[1:].split("H"))
        ours = np.frombuffer(base64.b64decode(shown["patterns"][name]), dtype=np.uint8)
        pattern = 100 * runs[0].attentions[layer][0, head].numpy()
        assert np.abs(ours.reshape(n, n) - pattern).max() <= 0.51


def test_a_masked_token_is_guessed_with_a_second_text_beside_it(shared):
    said = Answers(open_for_tasks(str(shared / "models/minilm-mlm")))(
        ["Paris is the [MASK] of France.", "Nobody knew."], ["L0H0"]
    )
    assert [len(text["tokens"]) for text in said["texts"]] == [9, 5]
    assert all(0 < float(answer["full"]) < 1 for answer in said["answers"])


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
    said = {answer["name"]: float(answer["full"]) for answer in ask(["the cat sat"], [])["answers"]}
    expected = logits("the cat sat").sigmoid().tolist()
    assert said == pytest.approx(dict(zip(ids, expected, strict=True)), abs=6e-4)


def test_a_score_is_shown_as_it_is_of_a_pair_too(tmp_path):
    ask, logits = classifier(tmp_path / "m", num_labels=1)
    for texts in (["the cat sat"], ["the cat sat", "a dog ran"]):
        (answer,) = ask(texts, ["L0H0"])["answers"]
        assert answer["name"] == "score"
        assert float(answer["full"]) == pytest.approx(float(logits(*texts)), abs=6e-4)
        assert answer["off"] != answer["full"]


def test_as_many_random_heads_of_the_same_layers_are_off_as_were_switched_off(answers):
    gates = answers._gates(["L0H0", "L0H1", "L5H3"])
    assert RANDOM >= 19
    assert gates.shape == (2 + RANDOM, 6, 12)
    off_by_layer = (gates == 0).sum(2).tolist()
    assert off_by_layer == [[0] * 6] + [[2, 0, 0, 0, 0, 1]] * (1 + RANDOM)
    assert len({tuple(one.flatten().tolist()) for one in gates}) == 2 + RANDOM  # all different
    more = answers._gates(["L0H0", "L0H1", "L0H2", "L5H3"])
    nested = [(a <= b).all() for a, b in zip(more[2:, 0], gates[2:, 0], strict=True)]
    assert sum(nested) < RANDOM / 2  # another size draws other heads
    said = answers([A], [])  # with every head on nothing is random
    assert (said["off"], [item["random"] for item in said["answers"]]) == (0, [""])
    assert said["answers"][0]["off"] == "1.000"
    assert (said["sets"], said["note"]) == (0, "")


def test_one_head_is_compared_with_all_others_of_its_layer(answers):
    gates = answers._gates(["L2H3"])[1:]
    assert {tuple(off) for off in (gates == 0).nonzero()[:, 1:].tolist()} == {
        (2, head) for head in range(12)
    }
    assert answers([A], ["L2H3"])["sets"] == 11


@pytest.mark.parametrize("heads", [range(12), range(11)])
def test_no_random_sets_are_shown_where_there_are_hardly_others(answers, heads):
    """A whole layer has no other set, most of one nearly the same heads."""
    said = answers([A], [f"L2H{head}" for head in heads])
    assert (said["sets"], said["answers"][0]["random"]) == (0, "")
    assert said["note"].startswith("No random sets to compare with")


@pytest.fixture(scope="module")
def transliteration(shared):
    return Answers(open_for_tasks(str(shared / "models/ar-en-transliteration")))


def without_heads(folder, removed):
    """Remove heads of an encoder-decoder by zeros in the output projections."""
    from transformers import AutoModelForSeq2SeqLM

    options = {"attn_implementation": "eager", "dtype": torch.float32}
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, **options).eval()
    for stack, layer, head in removed:
        stack_layers = model.model.encoder if stack == "encoder" else model.model.decoder
        module = "encoder_attn" if stack == "cross" else "self_attn"
        out = getattr(stack_layers.layers[layer], module).out_proj
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
    names = [f"{'' if s == 'encoder' else s + ':'}L{layer}H{head}" for s, layer, head in off]
    said = transliteration([text, text + text], names)
    written, likely = (answer for answer in said["answers"] if answer["name"].startswith("first"))
    assert len(transliteration.heads) == said["heads"] == 3 * 48
    tokenizer = AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(text, return_tensors="pt")
    greedy = {"num_beams": 1, "do_sample": False, "max_new_tokens": 60}
    models = {"full": without_heads(folder, []), "off": without_heads(folder, off)}
    ids = {which: model.generate(**inputs, **greedy)[0] for which, model in models.items()}
    for which, model in models.items():
        assert written[which] == tokenizer.decode(ids[which], skip_special_tokens=True)
        full_ids = ids["full"]
        logs = model(**inputs, decoder_input_ids=full_ids[None, :-1]).logits[0].log_softmax(-1)
        logs = logs.gather(1, full_ids[1:, None])
        assert float(likely[which]) == pytest.approx(float(logs.mean().exp()), abs=6e-4)
    assert written["full"] != written["off"]
    # Patterns of the decoder are those of what the model without the heads wrote.
    out = models["off"](**inputs, decoder_input_ids=ids["off"][None, :-1], output_attentions=True)
    shown = said["texts"][0]
    source = len(shown["tokens"])
    target = len(shown["target"]["tokens"])
    for name, expected, shape in (
        ("L3H1", out.encoder_attentions[3][0, 1], (source, source)),
        ("decoder:L1H4", out.decoder_attentions[1][0, 4], (target, target)),
        ("cross:L4H7", out.cross_attentions[4][0, 7], (target, source)),
    ):
        ours = np.frombuffer(base64.b64decode(shown["patterns"][name]), dtype=np.uint8)
        assert np.abs(ours.reshape(shape) - 100 * expected.numpy()).max() <= 0.51


def test_an_encoder_decoder_that_writes_nothing_is_asked_for_its_encoders_embeddings():
    bart = headscope.wrap(tiny("bart", vocab_size=len(VOCABULARY)), tiny_tokenizer(38))
    said = Answers(bart)(["the cat sat", "a dog ran"], ["L0H0"])
    assert said["answers"][0]["name"] == "similarity of the two sentences"
    assert len(said["texts"]) == 2


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


def asked(*texts, off=()):
    return json.dumps({"texts": texts, "off": off}).encode()


@pytest.mark.parametrize(
    ("body", "code", "says"),
    [
        (b"[]", 400, "A request is"),
        (b"\xff\xfe", 400, "A request is"),
        (b"[" * 5000, 400, "A request is"),
        (b'{"texts": "abc", "off": []}', 400, "A request is"),
        (asked("a", "b", "c"), 400, "A request is"),
        (asked("a", off=[None]), 400, "A request is"),
        (b"x" * 1_000_000, 413, "more text"),
        # What is wrong with a text is no error in the browser's console.
        (asked(" "), 200, "at least one word"),
        (asked(A, "\ud800"), 200, "half of a character"),
        (asked("word " * 200), 200, f"more than the {LONGEST} tokens"),
        (asked(A, off=["<img src=x onerror=alert(1)>"]), 200, "has no head"),
    ],
)
def test_wrong_requests_get_one_sentence(answers, body, code, says):
    response = client(answers).post("/answer", content=body, headers=GOOD)
    assert response.status_code == code
    error = response.json()["error"]
    assert says in error
    assert error.endswith(".")


def test_a_request_that_never_ends_is_given_up(monkeypatch):
    monkeypatch.setattr(server, "SLOWEST", 0.05)
    app = server.application("<p>page</p>", lambda texts, off: {}, token=TOKEN, port=PORT)
    scope = {
        **{"type": "http", "method": "POST", "path": "/answer", "query_string": b""},
        "headers": [
            *((name.encode(), value.encode()) for name, value in GOOD.items()),
            (b"host", f"127.0.0.1:{PORT}".encode()),
        ],
    }
    messages = []
    requests = [{"type": "http.request", "body": b"{", "more_body": True}]

    async def receive():
        if not requests:
            await asyncio.sleep(60)
        return requests.pop()

    async def send(message):
        messages.append(message)

    asyncio.run(asyncio.wait_for(app(scope, receive, send), 10))
    assert messages[0]["status"] == 408
    assert json.loads(messages[1]["body"])["error"].endswith(".")


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
        replies = [worker.answer(["a"], [])]
        while not now[0]:  # the first one is taken off the queue
            await asyncio.sleep(0.01)
        replies += [worker.answer(["a"], []) for _ in range(server.WAITING)]
        with pytest.raises(server.queue.Full):
            worker.answer(["a"], [])
        replies[1].cancel()  # its browser was closed
        going.set()
        return await asyncio.gather(*replies, return_exceptions=True)

    results = asyncio.run(many())
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


def test_a_port_that_is_taken_or_that_there_is_not_is_said():
    with server.bound(0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        for wrong, says in ((port, f"Port {port} cannot be used"), (70_000, "are 0 to 65535")):
            with pytest.raises(InputError, match=says):
                server.bound(wrong)


def test_ctrl_c_is_an_interruption_where_a_shell_ignores_it_too(monkeypatch):
    monkeypatch.setattr(server.uvicorn.Server, "run", lambda self, sockets: None)
    with server.bound(0) as listening, pytest.raises(KeyboardInterrupt):
        server.run("<p>page</p>", lambda texts, off: {}, listening, TOKEN)
