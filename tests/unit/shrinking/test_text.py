"""How much text is read, in which order, and by whom it is not needed."""

from types import SimpleNamespace

from headscope.shrinking import text


def read(data, training, other, **options):
    usual = {"limit": None, "seed": 0, "trains": False}
    return text.read_all("fidelity", data, training, other, **(usual | options))


def test_more_text_than_training_gets_through_is_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "MOST_TRAINING", 50)
    lines = tmp_path / "lines.txt"
    lines.write_text("".join(f"sentence {i}\n" for i in range(80)))
    texts = read(None, [lines], None, limit=10, trains=True)
    assert len(set(texts.training.texts)) == 50
    assert texts.training.texts != tuple(f"sentence {i}" for i in range(50))
    assert "Only 50 of the 80 texts of" in texts.warnings[0]


def test_neighbours_are_asked_by_random_texts_of_all_of_the_file(tmp_path, monkeypatch):
    """A file that is sorted would else be asked by its first kind of text alone."""
    monkeypatch.setattr(text, "MOST", 30)
    paths = {name: tmp_path / f"{name}.txt" for name in ("data", "training", "other")}
    for name, path in paths.items():
        path.write_text("".join(f"the cat sat {name} {i}\n" for i in range(90)))
    texts = read(paths["data"], [paths["training"]], paths["other"])
    tokenised = []

    def record(model, lines):
        tokenised.extend(lines)
        return [], ()

    monkeypatch.setattr(text, "tokenised", record)
    texts.other_rows(SimpleNamespace(task_head="classification"))
    numbers = [int(line.split()[-1]) for line in tokenised]
    assert len(set(numbers)) == 30
    assert max(numbers) > 60
    assert numbers != sorted(numbers)


def test_a_folder_that_is_only_checked_needs_no_text_to_train_on():
    texts = read(None, [], None, limit=10, calibrates=False)
    assert (len(texts.training), texts.names, texts.warnings) == (0, (), [])
    assert texts.training_rows(None) == []
