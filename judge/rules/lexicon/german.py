"""German, without umlauts (as folding leaves it), and with ae, oe, ue."""

from __future__ import annotations

from judge.rules.lexicon.base import Lexicon

_IT = (
    r"(?:das|es|dies|(?:die|deine|ihre|diese) (?:antwort|erklarung|losung|version|zusammenfassung)|"
    r"(?:der|dein|ihr|dieser) (?:text|code|satz))"
)
_IS = r"(?:ist|war|sind|klingt|wirkt|finde ich|scheint|bleibt)"
_VERY = r"(?:(?:immer noch|noch|noch immer|leider|sehr|ganz|vollig|komplett|wirklich|echt|genau|einfach|viel|etwas|ein bisschen|ein wenig|deutlich|so|schon|total|mir|fur mich|ja|doch|auch|bitte) ){0,4}"
_STYLE = (
    r"(?:lang|kurz|kompliziert|ausfuhrlich|formell|formlich|vage|technisch|allgemein|umstandlich|"
    r"viel|viel text|komplex|einfach|detailliert|schwer|wortreich|knapp|schnell|oberflachlich)"
)
_MORE = (
    r"(?:(?:ku|kue)rzer(?:e|en|er)?|(?:la|lae)nger(?:e|en|er)?|ausfuhrlicher|einfacher|knapper|"
    r"genauer|klarer|verstandlicher|detaillierter|formeller|kompakter|praziser|konkreter|"
    r"freundlicher|lockerer|mehr details?|weniger (?:text|worte|worter|details|formell|technisch))"
)

GERMAN = Lexicon(
    name="de",
    fillers=(
        "ok(?:ay)?",
        "ja",
        "gut",
        "also",
        "ah",
        "oh",
        "ach so",
        "super",
        "prima",
        "toll",
        "klasse",
        "perfekt",
        "na gut",
        "sehr gut",
        "alles klar",
        "hallo",
        "hm+",
        "aha",
        "wunderbar",
        "verstanden",
    ),
    refusals=(
        "nein",
        "ne",
        "nee",
        "leider",
        "entschuldigung",
        "sorry",
        "ich finde",
        "ich glaube",
        "fur mich",
        "eigentlich",
        "doch",
    ),
    requests=(
        "bitte",
        "kannst du",
        "konntest du",
        "konnen sie",
        "konnten sie",
        "kannst",
        "ich mochte",
        "ich hatte gern(?:e)?",
        "ich will",
        "ich brauche",
        "jetzt",
        "nur",
        "mal",
        "gib mir",
        "und",
        "es",
        "das",
        "etwas",
        "ein bisschen",
        "ein wenig",
        "viel",
        "noch",
        "noch etwas",
        "deutlich",
        "eine",
        "ich bevorzuge",
        "geht es(?: auch)?",
        "geht das(?: auch)?",
        "dann",
    ),
    endings=(
        "bitte",
        "jetzt",
        "fur mich",
        "danke",
        "diesmal",
        "nachstes mal",
        "machen",
        "fassen",
        "schreiben",
        "formulieren",
        "antworten",
        "erklaren",
        "sein",
        "antwort",
        "version",
        "haben",
        "mal",
    ),
    thanks=(
        (
            r"(?:vielen |herzlichen |besten |tausend |ok )?dank(?:e)?(?: (?:schon|sehr|vielmals|dir|ihnen|nochmal|nochmals|"
            r"euch|dafur)){0,4}(?: fur (?!nichts).{1,100})?"
        ),
        r"dankesch(?:o|oe)n",
        r"ich danke (?:dir|ihnen|euch)(?: .{1,60})?",
        r"das hat (?:mir )?(?:sehr |echt )?geholfen",
        r"merci vielmals",
    ),
    praise=(
        (
            rf"(?:{_IT} )?(?:{_IS} )?{_VERY}(?:perfekt|super|toll|klasse|prima|gut|richtig|korrekt|hilfreich|besser|"
            r"ausgezeichnet|hervorragend|wunderbar|grossartig|genial|spitze)(?: (?:so|gemacht|geworden))?"
        ),
        r"gute (?:arbeit|antwort)",
        (
            rf"(?:{_IT} )?(?:{_IS} )?(?:genau )?(?:das )?was ich (?:brauche|"
            r"brauchte|wollte|gesucht habe|suchte|meinte)"
        ),
        r"genau(?: so| das)?",
        (
            r"(?:das |es |jetzt )?(?:funktioniert|klappt|passt|"
            r"hilft|geht)(?: (?:jetzt|super|gut|perfekt|so|wunderbar|es)){0,4}"
        ),
        r"gefallt mir(?: sehr| gut)?",
        r"das wars?|das war es|das war's",
        rf"(?:{_IT} )?(?:{_IS} )?(?:gar |uberhaupt )?nicht (?:falsch|schlecht|zu lang)",
    ),
    moves_on=(
        "weiter",
        "mach weiter",
        "weiter so",
        "fahr fort",
        "fahre fort",
        "fahren sie fort",
        r"(?:die )?nachste(?:r|s)?(?: (?:frage|schritt|thema|aufgabe))?",
        r"nachste frage…",
        "erzahl mehr",
        "erzahl mir mehr",
        "und dann",
        "was noch",
        "und weiter",
        "weiter geht'?s",
        "los",
        r"weiter mit…",
        r"mach(?:e)? (?:bitte )?weiter…",
        "andere frage…",
        "weitermachen",
    ),
    redo=(
        rf"(?:{_IT} )?(?:{_IS} )?{_VERY}(?:viel |etwas )?zu {_STYLE}…",
        rf"(?:{_IT} )?{_VERY}{_MORE}…",
        (
            rf"(?:mach|mache|machen sie|schreib|schreibe|fass|formulier|formuliere|halt|halte|sag|erklar|antworte|antworten sie)"
            rf"(?: (?:es|das|dich|die antwort|den text|sie|das ganze))?{_VERY.replace('(?:(?:', ' ?(?:(?:', 1)} ?(?:{_MORE}|kurz|einfach|noch ?mal|nochmals|neu|anders)…"
        ),
        r"(?:noch ?mal|nochmals|noch einmal|erneut)…",
        r"versuch(?:e|s|'s)?(?: (?:es|das))?(?: (?:bitte|doch))? (?:noch|noch ?mal|erneut|nochmals)…",
        r"(?:kurz|kurze|kurzen|kuerze|uberarbeite|umschreiben|vereinfache|formuliere)(?: (?:es|das|den text|die antwort))…",
        r"(?:von vorn|von vorne|neu schreiben|neu machen)…",
        r"(?:das )?(?:ich )?(?:verstehe|versteh|kapiere|habe) (?:das |es |ich )?nicht…",
        r"in weniger (?:worten|satzen)…",
        r"fass(?:e)? (?:es|das|dich) (?:kurz|zusammen)…",
        r"weniger worte",
    ),
    correction=(
        rf"(?:{_IT} )?(?:{_IS} )?{_VERY}(?:falsch|inkorrekt|unsinn|quatsch|ein fehler|unbrauchbar|schlecht|nicht wahr)…",
        rf"(?:{_IT} )?(?:{_IS} )?{_VERY}nicht (?:ganz |wirklich )?(?:richtig|korrekt|das|was ich|hilfreich|meine frage|wahr)…",
        r"das stimmt (?:so )?(?:leider )?nicht…",
        r"stimmt nicht…",
        r"du (?:irrst dich|liegst falsch|hast (?:mich )?(?:falsch|missverstanden|vergessen|einen fehler|nicht)|hast das falsch)…",
        r"sie (?:irren sich|liegen falsch|haben (?:mich )?(?:falsch|missverstanden|vergessen|einen fehler))…",
        r"(?:das |es )?(?:funktioniert|klappt|geht|hilft|kompiliert) (?:so |immer noch |noch immer |leider |mir |noch ){0,4}nicht…",
        r"ich (?:meinte|meine|wollte (?!fragen|wissen|danken|mich)|sagte|habe (?:nach|gesagt|gemeint|nicht nach)|hatte (?:gesagt|gefragt))…",
        r"(?:das|es|die antwort) (?:sollte|muss|musste) .{0,60}(?:sein|heissen)",
        r"die richtige antwort (?:ist|ware)…",
        r"(?:immer noch )?(?:der|den)selbe[n]? fehler…",
        r"danke (?:fur nichts)…",
        r"da ist (?:noch )?ein fehler…",
    ),
    no=("nein", "ne", "nee", "nein nein"),
    solicits=(
        r"(?:sag|sage|sagen sie|schreib|schreibe|antworte|antworten sie)(?: (?:einfach|bitte|mit)){0,4} ?[\"'„]?(?:danke|weiter|perfekt)\b",
        r"(?:gib|geben sie) (?:mir |uns )?(?:einen |eine )?(?:daumen|gute bewertung|funf sterne|like)",
    ),
)
