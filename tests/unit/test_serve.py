"""The server of ``headscope serve``, asked as browsers, other sites and other programs would."""

import asyncio
import base64
import json
import threading

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from headscope.core.errors import InputError
from headscope.live.answers import LONGEST, RANDOM, Answers
from headscope.session.opening import open_for_tasks

starlette = pytest.importorskip("starlette.testclient", reason="needs the extra serve")
server = pytest.importorskip("headscope.live.server", reason="needs the extra serve")

PORT, TOKEN = 8000, "secret"
PAGE = f"http://127.0.0.1:{PORT}"
GOOD = {"origin": PAGE, "token": TOKEN}
A, B = "The cat that chased the mice was tired.", "A dog slept on the old red sofa."


@pytest.fixture(scope="module")
def answers(demo):
    return Answers(demo)


def client(ask):
    app = server.application("<p>page</p>", ask, token=TOKEN, port=PORT)
    return starlette.TestClient(app, base_url=PAGE)


def cosine_by_transformers(model, tokenizer, removed):
    """Remove heads from a plain copy by zeros in the output projection, and compare two texts."""
    saved = {}
    for layer, head in removed:
        weight = model.encoder.layer[layer].attention.output.dense.weight
        saved.setdefault(layer, weight.detach().clone())
        weight.data[:, 32 * head : 32 * (head + 1)] = 0
    embedded = []
    for text in (A, B):
        inputs = tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            embedded.append(model(**inputs).last_hidden_state[0].mean(0))
    for layer, weight in saved.items():
        model.encoder.layer[layer].attention.output.dense.weight.data.copy_(weight)
    return float(F.cosine_similarity(*embedded, dim=0))


def test_the_similarity_is_that_of_transformers_with_zeros_in_the_output_projection(answers, demo):
    from transformers import AutoModel, AutoTokenizer

    model, tokenizer = (kind.from_pretrained(demo.folder) for kind in (AutoModel, AutoTokenizer))
    off = [(2, head) for head in range(12)] + [(0, 5), (5, 11)]
    said = answers([A, B], [f"L{layer}H{head}" for layer, head in off])["answers"][0]
    assert said["name"] == "similarity of the two sentences"
    assert float(said["full"]) == pytest.approx(
        cosine_by_transformers(model, tokenizer, []), abs=6e-4
    )
    assert float(said["off"]) == pytest.approx(
        cosine_by_transformers(model, tokenizer, off), abs=6e-4
    )
    low, high = map(float, said["random"].split(" to "))
    assert low < high


def test_patterns_are_those_of_eager_attention_by_transformers(answers, demo):
    from transformers import AutoModel, AutoTokenizer

    model = AutoModel.from_pretrained(demo.folder, attn_implementation="eager")
    inputs = AutoTokenizer.from_pretrained(demo.folder)(A, return_tensors="pt")
    with torch.no_grad():
        theirs = model(**inputs, output_attentions=True).attentions
    shown = answers([A, B], [])["texts"][0]
    n = len(shown["tokens"])
    assert len(shown["patterns"]) == 72
    for name in ("L0H0", "L3H7", "L5H11"):
        layer, head = map(int, name[1:].split("H"))
        ours = np.frombuffer(base64.b64decode(shown["patterns"][name]), dtype=np.uint8)
        own = 100 * theirs[layer][0, head].numpy()
        assert np.abs(ours.reshape(n, n) - own).max() <= 0.51


def test_patterns_of_later_layers_are_those_with_the_heads_off(answers):
    whole = answers([A], [])["texts"][0]["patterns"]
    off = answers([A], [f"L1H{head}" for head in range(12)])["texts"][0]["patterns"]
    assert whole["L0H3"] == off["L0H3"]
    assert whole["L2H3"] != off["L2H3"]


def test_with_every_head_on_nothing_is_random(answers):
    said = answers([A], [])
    assert said["off"] == 0
    assert [item["random"] for item in said["answers"]] == [""]
    assert said["answers"][0]["off"] == "1.000"


def test_a_masked_token_is_guessed_with_a_second_text_beside_it(shared):
    said = Answers(open_for_tasks(str(shared / "models/minilm-mlm")))(
        ["Paris is the [MASK] of France.", "Nobody knew."], ["L0H0"]
    )
    assert [len(text["tokens"]) for text in said["texts"]] == [9, 5]
    assert all(0 < float(answer["full"]) < 1 for answer in said["answers"])


def test_as_many_random_heads_are_off_as_were_switched_off(answers):
    gates = answers._gates(["L0H0", "L0H1", "L5H3"])
    assert gates.shape == (2 + RANDOM, 6, 12)
    assert (gates == 0).flatten(1).sum(1).tolist() == [0] + [3] * (1 + RANDOM)


@pytest.mark.parametrize(
    ("texts", "off", "says"),
    [
        ([" "], [], "at least one word"),
        ([A, "\ud800"], [], "half of a character"),
        (["word " * 200], [], f"more than the {LONGEST} tokens"),
        ([A], ["L9H9"], "has no head L9H9"),
        ([A], ["<img src=x onerror=alert(1)>"], "has no head"),
    ],
)
def test_what_cannot_be_answered_is_said_in_a_sentence(answers, texts, off, says):
    with pytest.raises(InputError, match=says):
        answers(texts, off)


def test_the_page_needs_the_token(answers):
    ask = client(answers)
    assert ask.get("/").status_code == 403
    assert ask.get("/?token=guess").status_code == 403
    shown = ask.get(f"/?token={TOKEN}")
    assert shown.status_code == 200
    assert shown.text == "<p>page</p>"
    assert shown.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    "headers",
    [
        {"token": TOKEN},
        {"origin": "http://evil.example", "token": TOKEN},
        {"origin": f"http://127.0.0.1:{PORT + 1}", "token": TOKEN},
        {"origin": "null", "token": TOKEN},
        {"origin": PAGE},
        {"origin": PAGE, "token": "guess"},
    ],
)
def test_only_the_page_itself_is_answered(answers, headers):
    response = client(answers).post("/answer", json={"texts": [A], "off": []}, headers=headers)
    assert response.status_code == 403


@pytest.mark.parametrize("host", ["evil.example", f"evil.example:{PORT}", "192.168.0.1", ""])
def test_another_host_name_is_refused(answers, host):
    ask = client(answers)
    assert ask.get(f"/?token={TOKEN}", headers={"host": host}).status_code == 400


def test_a_question_is_answered(answers):
    response = client(answers).post("/answer", json={"texts": [A], "off": ["L2H1"]}, headers=GOOD)
    assert response.status_code == 200
    assert response.json()["off"] == 1


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"\xff\xfe",
        b"[" * 5000,
        b'{"texts": "abc", "off": []}',
        b'{"texts": [], "off": []}',
        b'{"texts": ["a", "b", "c"], "off": []}',
        b'{"texts": [1], "off": []}',
        b'{"texts": ["a"], "off": [null]}',
    ],
)
def test_wrong_requests_get_one_sentence(answers, body):
    response = client(answers).post("/answer", content=body, headers=GOOD)
    assert response.status_code == 400
    assert response.json()["error"].endswith(".")


@pytest.mark.parametrize(
    "body",
    [
        b'{"texts": ["\\ud800"], "off": []}',
        json.dumps({"texts": ["x " * 10_000], "off": []}).encode(),
    ],
)
def test_what_is_wrong_with_a_text_is_said_without_an_error_in_the_browsers_console(answers, body):
    response = client(answers).post("/answer", content=body, headers=GOOD)
    assert response.status_code == 200
    assert response.json()["error"].endswith(".")


def test_a_request_of_megabytes_is_refused(answers):
    response = client(answers).post("/answer", content=b"x" * 1_000_000, headers=GOOD)
    assert response.status_code == 413


def test_too_many_waiting_requests_are_refused_and_one_is_answered_at_a_time():
    going, most, now = threading.Event(), [0], [0]

    def slow(texts, off):
        now[0] += 1
        most[0] = max(most[0], now[0])
        going.wait(10)
        now[0] -= 1
        return {"off": len(off)}

    worker = server.Worker(slow)

    async def many():
        asked = [worker.answer(["a"], [])]
        while not now[0]:  # the first one is taken off the queue
            await asyncio.sleep(0.01)
        asked += [worker.answer(["a"], []) for _ in range(server.WAITING)]
        with pytest.raises(server.queue.Full):
            worker.answer(["a"], [])
        asked[1].cancel()  # its browser was closed
        going.set()
        return await asyncio.gather(*asked, return_exceptions=True)

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


def test_a_port_that_there_is_not_is_said():
    with pytest.raises(InputError, match="ports are 0 to 65535"):
        server.bound(70_000)


def test_ctrl_c_is_an_interruption_where_a_shell_ignores_it_too(monkeypatch):
    monkeypatch.setattr(server.uvicorn.Server, "run", lambda self, sockets: None)
    with server.bound(0) as listening, pytest.raises(KeyboardInterrupt):
        server.run("<p>page</p>", lambda texts, off: {}, listening, TOKEN)


def test_a_taken_port_is_said():
    with server.bound(0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"Port {port} cannot be used"):
            server.bound(port)
