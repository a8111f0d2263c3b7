"""Scenes of the sample grammar: who does what to which things, where and with what.

Words are grouped so that every combination inside one group reads as sensible English: any
person of a scene may do any verb of a frame to any object of the same frame. A trailing ``~``
marks a mass noun, which takes no plural, numeral or indefinite article.
"""

from __future__ import annotations

from sample_treebank.frames import Scene
from sample_treebank.frames import frame as _frame
from sample_treebank.frames import scene as _scene

SCENES: tuple[Scene, ...] = (
    _scene(
        "baker cook confectioner waiter grocer",
        "in kitchen, in bakery, in pantry, at counter",
        _frame("knead roll chill weigh", "dough~ marzipan~ pastry~ fondant~", "soft sticky sweet"),
        _frame(
            "peel slice wash chop",
            "quince parsnip shallot fig radish",
            "fragrant small ripe bitter",
            "market winter",
            "cleaver knife",
        ),
        _frame(
            "scrub borrow polish buy",
            "ladle skillet kettle colander tureen",
            "heavy dented antique",
            "copper iron steel",
            portable=True,
        ),
    ),
    _scene(
        "sailor navigator captain fisherman helmsman",
        "on deck, in harbour, in cabin, on pier",
        _frame(
            "check clean repair stow",
            "sextant compass lantern barometer telescope",
            "delicate small old rusty",
            "brass ship",
            portable=True,
        ),
        _frame("raise lower tighten mend", "sail hawser net flag", "torn wet heavy", "canvas"),
        _frame(
            "spot follow watch photograph",
            "schooner porpoise gannet tugboat trawler",
            "distant lonely slow grey",
            "coast",
            "telescope",
        ),
    ),
    _scene(
        "gardener botanist orchardist florist beekeeper",
        "in orchard, in greenhouse, by pond, behind hedge",
        _frame(
            "water prune plant admire",
            "hydrangea fuchsia magnolia rosebush juniper",
            "splendid tall young purple",
            "garden",
        ),
        _frame(
            "sharpen rinse lose fetch",
            "trowel sickle secateur hoe rake",
            "handy blunt wooden",
            "garden steel",
            portable=True,
        ),
        _frame(
            "gather sort wrap sell",
            "medlar apricot plum gooseberry walnut",
            "delicious ripe green",
            "autumn",
            portable=True,
        ),
    ),
    _scene(
        "clockmaker jeweller collector engraver apprentice",
        "in workshop, at bench, behind counter, in attic",
        _frame(
            "wind repair adjust examine",
            "pendulum chronometer metronome watch clock",
            "elegant tiny broken silver",
            "pocket brass",
            "loupe screwdriver",
        ),
        _frame(
            "polish appraise steal hide",
            "brooch amulet locket goblet signet",
            "precious heavy ancient golden",
            "ruby amber",
            portable=True,
        ),
    ),
    _scene(
        "librarian archivist curator historian scholar",
        "in archive, in museum, in library, in vault",
        _frame(
            "copy translate decipher publish",
            "manuscript parchment chronicle psalter diary",
            "obscure long medieval Latin",
            "monastery family",
            portable=True,
        ),
        _frame(
            "catalogue restore display insure",
            "tapestry fresco mosaic figurine sarcophagus",
            "remarkable fragile faded Roman",
            "marble museum",
        ),
        _frame(
            "open sign correct misplace",
            "ledger catalogue inventory register folder",
            "dusty thick yellow",
            "leather parish",
            portable=True,
        ),
    ),
    _scene(
        "biologist chemist technician researcher student",
        "in laboratory, beside tank, at microscope, in basement",
        _frame(
            "feed measure study sketch",
            "axolotl newt tadpole gecko crayfish",
            "shy small rare pale",
            "laboratory",
        ),
        _frame(
            "heat dilute filter label",
            "solution reagent enzyme sample extract",
            "unstable pure acidic blue",
            "protein plant",
            "pipette centrifuge",
        ),
        _frame(
            "break rinse replace order",
            "beaker flask pipette centrifuge microscope",
            "expensive large empty",
            "glass quartz",
            portable=True,
        ),
    ),
    _scene(
        "carpenter joiner cooper roofer builder",
        "in shed, in yard, on scaffold, near sawmill",
        _frame(
            "saw sand varnish measure",
            "plank rafter banister lintel beam",
            "rough long narrow",
            "oak cedar",
            "chisel ruler",
        ),
        _frame(
            "build paint repair design",
            "pergola gazebo staircase bookcase cupboard",
            "handsome wide rickety white",
            "oak pine",
        ),
        _frame(
            "sharpen borrow drop oil",
            "chisel mallet hacksaw adze wrench",
            "reliable heavy blunt",
            "steel",
            portable=True,
        ),
    ),
    _scene(
        "editor translator poet novelist printer",
        "in office, at desk, in café, in cellar",
        _frame(
            "write revise print criticise",
            "sonnet editorial preface novella limerick",
            "witty short anonymous",
            "newspaper",
            portable=True,
        ),
        _frame(
            "answer ignore read forward",
            "letter telegram memo petition invitation",
            "urgent brief handwritten",
            "business",
            portable=True,
        ),
    ),
    _scene(
        "veterinarian surgeon nurse midwife pharmacist",
        "in clinic, in ward, in corridor, at pharmacy",
        _frame(
            "examine treat vaccinate weigh",
            "ferret tortoise donkey alpaca spaniel",
            "nervous little old brown",
            "farm",
        ),
        _frame(
            "prescribe prepare store recommend",
            "ointment antibiotic syrup tincture tonic",
            "mild effective herbal",
            "cough hospital",
            portable=True,
        ),
        _frame(
            "sterilise buy unpack inspect",
            "scalpel syringe stethoscope tourniquet bandage",
            "clean small sterile",
            "hospital",
        ),
    ),
    _scene(
        "cellist composer conductor violinist soprano",
        "on stage, in auditorium, in chapel, in studio",
        _frame(
            "tune play restore damage",
            "bassoon harpsichord mandolin cello zither",
            "magnificent old French",
            "concert rosewood",
            portable=True,
        ),
        _frame(
            "rehearse record perform applaud",
            "sonata fugue overture cantata nocturne",
            "gloomy difficult lengthy",
            "piano organ",
        ),
    ),
    _scene(
        "surveyor engineer geologist architect foreman",
        "at quarry, near viaduct, in valley, on ridge",
        _frame(
            "calibrate carry unpack test",
            "theodolite altimeter drill winch generator",
            "accurate bulky new",
            "field diesel",
            portable=True,
        ),
        _frame(
            "map photograph describe survey",
            "moraine canyon glacier ravine estuary",
            "beautiful vast remote",
            "mountain",
            "drone theodolite",
        ),
        _frame(
            "design inspect reinforce demolish",
            "aqueduct culvert bridge turbine chimney",
            "impressive high derelict",
            "railway concrete",
        ),
    ),
    _scene(
        "farmer shepherd cheesemaker milkmaid blacksmith",
        "in barn, in meadow, by stream, at market",
        _frame(
            "shear brush herd find",
            "goat sheep llama heifer ram",
            "stubborn thin young black",
            "mountain",
        ),
        _frame(
            "load push tow damage",
            "wagon plough tractor wheelbarrow cart",
            "clumsy huge red",
            "hay farm",
        ),
        _frame(
            "taste smoke slice pack",
            "cheese sausage ham trout",
            "tasty salty",
            "village",
            portable=True,
        ),
    ),
    _scene(
        "actor director seamstress playwright puppeteer",
        "in theatre, behind curtain, in wardrobe, at entrance",
        _frame(
            "sew iron dye mend",
            "tunic cape petticoat waistcoat doublet",
            "shabby long velvet crimson",
            "silk linen",
            portable=True,
        ),
        _frame(
            "praise rewrite stage cancel",
            "comedy tragedy pantomime monologue operetta",
            "silly popular modern",
            "school summer",
        ),
    ),
    _scene(
        "astronomer physicist professor lecturer scientist",
        "in observatory, on roof, at institute, in dome",
        _frame(
            "observe track photograph describe",
            "comet nebula pulsar asteroid galaxy",
            "faint bright distant",
            "",
            "telescope spectrograph",
        ),
        _frame(
            "calibrate borrow clean buy",
            "lens prism almanac planisphere spectrograph",
            "precise small worn",
            "quartz desk",
            portable=True,
        ),
        _frame(
            "doubt check discuss reject",
            "hypothesis equation theorem forecast argument",
            "elegant bold complicated",
            "research",
        ),
    ),
    _scene(
        "lawyer judge detective clerk senator",
        "in courtroom, at station, in lobby, at embassy",
        _frame(
            "read sign forge destroy",
            "affidavit warrant contract treaty verdict",
            "lengthy secret final",
            "court government",
            portable=True,
        ),
        _frame(
            "question arrest release follow",
            "smuggler burglar swindler witness forger",
            "notorious clever young",
            "jewel bank",
        ),
    ),
    _scene(
        "ranger naturalist ornithologist hiker guide",
        "in marsh, near waterfall, on cliff, in thicket",
        _frame(
            "notice photograph track startle",
            "kestrel badger heron lynx otter",
            "magnificent large wild",
            "forest river",
            "drone camera",
        ),
        _frame(
            "pack forget dry lend",
            "rucksack tent raincoat thermos hammock",
            "comfortable light muddy orange",
            "camping army",
            portable=True,
        ),
    ),
)
