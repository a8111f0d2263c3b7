"""Commands on families and on models of unusual sizes; docs/families.md has the outcome.

The suite runs what hangs on how a layer is built on one family of every row of the table, and most
other commands on one family of each kind of attention; ``--recompute-oracles`` (CI does once a
week) and whoever writes the table anew run every command on every family.
"""

import frozen
import pytest
from every_command import COMMANDS, Command, Files, opened, outcome
from families import BY_NAME, COVERED, Family
from family_table import COMMAND, shown, standing_cells

#: What makes a command go another way: shared modules or keys, windows, a bias by position, heads
#: beside a convolution, channels first, maps that lie across, a soft cap, norms of all heads
#: together, several stacks.
KINDS = (
    "albert",
    "eurobert, shared keys",
    "modernbert",
    "deberta-v2, as v3",
    "convbert",
    "squeezebert",
    "gpt2",
    "gemma2",
    "olmo2",
    "t5",
)


def _families() -> tuple[Family, ...]:
    """Return those of :data:`KINDS`, and the first of every other row of the table; or all."""
    if frozen.recompute:
        return COVERED
    rows = standing_cells()

    def row(family: Family) -> object:
        return family.layout, family.stacks, tuple(rows[shown(family)].items())

    chosen = {row(BY_NAME[name]): BY_NAME[name] for name in KINDS}
    for family in COVERED:
        chosen.setdefault(row(family), family)
    return tuple(chosen.values())


def _commands(family: Family) -> list[Command]:
    """Choose the commands that this run calls on a family."""
    here = family.name in KINDS
    return [c for c in COMMANDS if c.everywhere or (here and not c.weekly) or frozen.recompute]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("read"))


@pytest.mark.parametrize("family", _families(), ids=lambda family: family.name)
def test_a_command_does_what_the_table_says(family, files):
    standing = standing_cells()[shown(family)]
    loaded = opened(family)
    assert list(standing) == [command.name for command in COMMANDS]
    for command in _commands(family):
        found = outcome(loaded, command, files)
        assert found == standing[command.name], f"{command.name}; write it anew with: {COMMAND}"


def _sized(base: str, heads: int, d_head: int, layers: int = 1, **more: int) -> Family:
    """Configure a covered family with heads of another width."""
    family = BY_NAME[base]
    width = heads * d_head
    sizes = {"hidden_size": width, "num_attention_heads": heads, "intermediate_size": 2 * width}
    if family.layout == "t5":
        sizes = {"num_heads": heads, "d_kv": d_head, "d_model": 36, "d_ff": 72}
    changes = {**family.changes, **sizes, **more, "initializer_range": 0.1}
    return Family(family.kind, family.layout, family.stacks, changes, f"{heads} x {d_head}")


@pytest.mark.parametrize(
    ("base", "heads", "d_head", "more"),
    [
        ("bert", 3, 80, {"num_hidden_layers": 1}),  # 240 is no multiple of 64
        ("bert", 1, 36, {"num_hidden_layers": 2}),
        ("t5", 1, 32, {"num_decoder_layers": 1, "decoder_layers": 1}),
    ],
)
def test_unusual_sizes(base, heads, d_head, more, files):
    """Every command ends as on the family's usual size, but where the only head would go."""
    loaded = opened(_sized(base, heads, d_head), **more)
    assert {(site.n_heads, site.d_head) for site in loaded.sites} == {(heads, d_head)}
    first = [site for site in loaded.sites if site.stack == loaded.stacks[0]]
    standing = standing_cells()[base]
    only = heads * len(first) == 1
    for command in COMMANDS:
        search = only and command.name == "prune --max-drop"  # refuses, at once
        if command.weekly and not (search or frozen.recompute):
            continue
        works, note = outcome(loaded, command, files)
        if only and command.name in ("prune --max-drop", "prune --save"):
            assert (works, "has one head only, and it must stay" in note) == (False, True)
        else:
            assert (works, note) == standing[command.name], command.name


def test_a_cosine_asks_for_no_logits_of_a_large_vocabulary(files):
    """The head of a language model sees one position, whatever the texts."""
    loaded = opened(BY_NAME["bert"])
    seen: list[int] = []
    output = loaded.network.get_output_embeddings()
    output.register_forward_hook(lambda _, args, out: seen.append(out.shape[-2]))
    (attribute,) = (command for command in COMMANDS if command.name == "attribute")
    exact = "headscope.analyses.attribute.run._in_float64"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact, lambda own: own)  # the copy would have no hook
        patch.setattr("headscope.analyses.attribute.parts.TOLERANCE", 1e-3)
        assert outcome(loaded, attribute, files) == (True, "")
    assert set(seen) == {1}
