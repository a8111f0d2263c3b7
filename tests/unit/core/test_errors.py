"""What another program's error is shortened to."""

import pytest

from headscope.core.errors import reason

NAMES = ", ".join(f"Family{i}Config" for i in range(60))
CLASS = "Unrecognized configuration class <class 'models.bert.BertConfig'> for this: AutoModel."


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("", "ValueError"),
        (
            "A dot in models.bert ends nothing.\n  Two  lines",
            "A dot in models.bert ends nothing. Two lines",
        ),
        # A later sentence that is too long goes as a whole, and what comes after it.
        (f"{CLASS}\nModel type should be one of {NAMES}. Good bye.", CLASS),
        (f"Model type should be one of {NAMES}", "Model type should be one of ..."),
        (f"Unknown keys: {NAMES}. Good bye.", "Unknown keys: ... Good bye."),
        (f"{'word ' * 50}end", f"{('word ' * 40).strip()} ..."),
        ("x" * 300, f"{'x' * 200} ..."),
        (f"{'a' * 150}. {'b' * 40}. {'c' * 40}. d", f"{'a' * 150}. {'b' * 40}."),
    ],
)
def test_an_error_is_cut_between_its_sentences_and_never_in_a_list(said, shown):
    assert reason(ValueError(said)) == shown
    assert len(shown) <= 204
