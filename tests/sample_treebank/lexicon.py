"""Words of the sample grammar that belong to no particular scene."""

from __future__ import annotations

from typing import Final


def words(text: str) -> tuple[str, ...]:
    """Return the words of a text with blanks between them."""
    return tuple(text.split())


FIRST_NAMES: Final = {
    "she": ("Clara", "Ingrid", "Amara", "Noor", "Beatrix", "Yuki", "Rosalind", "Oksana", "Maud"),
    "he": ("Idris", "Tobias", "Matteo", "Kofi", "Anselm", "Rafael", "Hugo", "Dmitri", "Ewan"),
}
SURNAMES: Final = words(
    "Lindqvist Okafor Marchetti Haddad Petrov Fairweather Nakamura Delgado Brandt Osei "
    "Kowalska Ferreira Thistlewood Novak"
)
TOWNS: Final = words("Lisbon Bergen Utrecht Tbilisi Galway Trieste Quebec Leeds Cusco Malta")
POSSESSIVE: Final = {
    "she": "her",
    "he": "his",
    "they": "their",
    "we": "our",
    "I": "my",
    "you": "your",
}

PERSON_ADJECTIVES: Final = words(
    "patient cheerful weary famous stubborn cautious curious forgetful skilful "
    "talkative grumpy tall young elderly retired Scottish Danish"
)
PERSON_FEATURES: Final = (
    "with the grey beard",
    "with the silver earrings",
    "in the striped scarf",
    "in the green jacket",
    "with the crooked smile",
    "in the felt hat",
    "with the loud voice",
)
KIN: Final = words("sister brother cousin neighbour nephew aunt friend colleague")

MATERIAL_ADJECTIVES: Final = frozenset({"wooden", "silver", "golden", "velvet"})
MATERIALS: Final = frozenset(
    words(
        "copper iron steel brass canvas amber ruby leather marble oak pine cedar glass quartz "
        "rosewood concrete silk linen diesel"
    )
)
UNGRADABLE: Final = frozenset(
    words(
        "Latin Roman French Scottish Danish retired medieval wooden velvet broken silver golden "
        "handwritten final secret empty anonymous herbal green purple grey blue red black brown "
        "crimson yellow orange white antique exquisite delighted exhausted magnificent enormous "
        "huge vast remarkable derelict modern ancient necessary pointless new pure possible"
    )
)
NO_ORIGINS: Final = frozenset(
    words("counter bench desk tank microscope hedge curtain pond stream waterfall")
)
MANNER: Final = words(
    "carefully slowly quietly gingerly deftly hastily patiently reluctantly skilfully "
    "cautiously eagerly calmly"
)
CALM: Final = words("slowly quietly hastily reluctantly eagerly calmly patiently")
FREQUENCY: Final = words("often always rarely usually sometimes seldom frequently")
ASPECTUAL: Final = words("already just finally quickly secretly recently")
OPENERS: Final = words(
    "Eventually Meanwhile Unfortunately Luckily Surprisingly Afterwards Nevertheless Finally"
)
PAST_TIMES: Final = words("yesterday again twice recently")
PRESENT_TIMES: Final = words("again today nowadays")
DEGREES: Final = words("very rather quite unusually surprisingly fairly extremely too")

TIME_PHRASES: Final = (
    "at dawn",
    "on Tuesday",
    "on Friday",
    "in November",
    "before lunch",
    "after the storm",
    "during the festival",
    "after the meeting",
    "before the holidays",
    "at midnight",
    "during the long heatwave",
    "in the afternoon",
)
YEARS: Final = words("1904 1938 1967 1986 2003 2011 2019")
BARE_TIMES: Final = ("last week", "last Thursday", "that evening", "this morning", "last winter")
HABIT_TIMES: Final = ("every morning", "every week", "each spring", "every Sunday")

NUMERALS: Final = words("two three four five seven nine eleven twelve twenty 15 36")
SAYING: Final = words("say explain claim announce insist report admit")
THINKING: Final = words("believe know think suspect hope remember realise")
CONTROL: Final = words("try want hope refuse plan promise forget manage decide hesitate")
OBJECT_CONTROL: Final = words("persuade help urge allow encourage teach invite")
GIVING: Final = words("give show sell lend offer hand send bring")
SOCIAL: Final = words("thank warn help praise visit interrupt greet avoid")
SOLITARY: Final = words(
    "sneeze laugh yawn hesitate nod shiver sigh smile whistle wait rest work doze cough kneel "
    "stumble mutter"
)
MOTION: Final = words("walk hurry wander return run march stroll")
MOTION_PREPOSITIONS: Final = words("to toward past from")
THING_VERBS: Final = words("disappear vanish arrive fall remain lie")

PERSON_PREDICATES: Final = words(
    "tired nervous hungry proud late busy confident embarrassed exhausted delighted homesick"
)
THING_PREDICATES: Final = words("valuable unusual expensive famous cheap exquisite conspicuous")
REPORTED_FACTS: Final = words("clear obvious likely strange odd unfortunate remarkable possible")
TASK_QUALITIES: Final = words("difficult easy dangerous useful tedious necessary pointless")
REACTIONS: Final = words("surprise annoy please amuse worry puzzle")
PLANS: Final = words("plan attempt decision promise")

IRREGULAR_PLURALS: Final = {
    "knife": "knives",
    "sheep": "sheep",
    "trout": "trout",
    "crayfish": "crayfish",
    "nebula": "nebulae",
    "hypothesis": "hypotheses",
    "sarcophagus": "sarcophagi",
    "fisherman": "fishermen",
    "helmsman": "helmsmen",
    "foreman": "foremen",
    "lynx": "lynxes",
    "soprano": "sopranos",
}
IRREGULAR_VERBS: Final = {
    "be": ("was", "been"),
    "have": ("had", "had"),
    "do": ("did", "done"),
    "sell": ("sold", "sold"),
    "buy": ("bought", "bought"),
    "lose": ("lost", "lost"),
    "wind": ("wound", "wound"),
    "steal": ("stole", "stolen"),
    "hide": ("hid", "hidden"),
    "feed": ("fed", "fed"),
    "break": ("broke", "broken"),
    "write": ("wrote", "written"),
    "rewrite": ("rewrote", "rewritten"),
    "read": ("read", "read"),
    "find": ("found", "found"),
    "shear": ("sheared", "shorn"),
    "saw": ("sawed", "sawn"),
    "sew": ("sewed", "sewn"),
    "forget": ("forgot", "forgotten"),
    "lend": ("lent", "lent"),
    "give": ("gave", "given"),
    "show": ("showed", "shown"),
    "send": ("sent", "sent"),
    "bring": ("brought", "brought"),
    "teach": ("taught", "taught"),
    "say": ("said", "said"),
    "know": ("knew", "known"),
    "think": ("thought", "thought"),
    "run": ("ran", "run"),
    "fall": ("fell", "fallen"),
    "lie": ("lay", "lain"),
    "kneel": ("knelt", "knelt"),
    "become": ("became", "become"),
}
UNWILLED: Final = frozenset(words("spot lose drop forget misplace notice damage break doubt"))
DOUBLING: Final = frozenset(
    words("wrap nod plan chop scrub spot drop map run forget admit cancel label")
)
