"""French, without accents."""

from __future__ import annotations

from judge.rules.lexicon.base import Lexicon

_IT = (
    r"(?:ca|cela|ceci|ce|(?:la|ta|votre|cette) (?:reponse|explication|version|solution)|"
    r"(?:le|ton|votre|ce) (?:texte|code|resume|message|resultat))"
)
_IS = r"(?:c'est|c'etait|ca (?:reste|semble|parait)|est|etait|reste|semble|me semble|me parait)"
_BIT = r"(?:un peu |beaucoup |bien |encore |nettement )?"
_VERY = r"(?:(?:tres|vraiment|tout a fait|exactement|juste|completement|totalement|tout|encore|toujours|bien|deja|un peu|beaucoup) ){0,4}"
_STYLE = (
    r"(?:long(?:ue)?|courte?|compliquee?|complexe|formelle?|formel|vague|technique|verbeuse?|verbeux|"
    r"generale?|detaillee?|simple|difficile|bavarde?|lourde?|dense)"
)
_MORE = (
    r"(?:plus (?:courte?|brefs?|breve|long(?:ue)?|detaillee?|simple|concise?|concis|claire?|court|long|"
    r"de details?|formel(?:le)?|precise?|precis|direct|simplement|brievement)|"
    r"moins (?:formel(?:le)?|longue?|long|de texte|de mots|de details|technique|complique))"
)

FRENCH = Lexicon(
    name="fr",
    fillers=(
        "ok",
        "d'accord",
        "bien",
        "bon",
        "oui",
        "ah",
        "oh",
        "parfait",
        "super",
        "genial",
        "tres bien",
        "alors",
        "eh bien",
        "euh",
        "excellent",
        "cool",
        "compris",
        "salut",
    ),
    refusals=(
        "non",
        "desole",
        "je trouve que",
        "je pense que",
        "en fait",
        "pour moi",
        "toujours",
        "mais non",
    ),
    requests=(
        "s'il te plait",
        "s'il vous plait",
        "stp",
        "svp",
        "peux-tu",
        "pourrais-tu",
        "pouvez-vous",
        "pourriez-vous",
        "tu peux",
        "vous pouvez",
        "tu pourrais",
        "je veux",
        "je voudrais",
        "j'aimerais",
        "il faut",
        "maintenant",
        "juste",
        "quelque chose de",
        "et",
        "une version",
        "une reponse",
        "je prefere",
        "donne-moi",
        "quelque chose",
    ),
    endings=(
        "s'il te plait",
        "s'il vous plait",
        "stp",
        "svp",
        "maintenant",
        "pour moi",
        "merci",
        "cette fois",
        "la prochaine fois",
        "plutot",
    ),
    thanks=(
        (
            r"(?:un grand |mille |grand |ok )?merci(?: (?:beaucoup|bien|infiniment|mille fois|encore|a toi|"
            r"a vous|l'ami)){0,4}(?: (?:pour (?!rien)|de (?:ton|votre) |d'avoir ).{1,100})?"
        ),
        r"je (?:te|vous) remercie(?: .{1,60})?",
        r"c'est (?:tres )?gentil",
    ),
    praise=(
        (
            rf"(?:{_IT} )?(?:{_IS} )?{_VERY}(?:parfaite?|parfait|super|genial|geniale|excellente?|excellent|"
            r"correcte?|correct|bonne?|bon|bien|utile|mieux|formidable|impeccable|top|nickel|clair)(?: comme ca)?"
        ),
        r"(?:bon|beau) travail|bravo|bien joue",
        (
            rf"(?:{_IS} )?{_VERY}ce (?:que je (?:voulais|"
            r"cherchais)|dont j'avais besoin|qu'il me fallait)"
        ),
        (
            r"(?:ca |maintenant ca )?(?:marche|fonctionne)"
            r"(?: (?:bien|tres bien|parfaitement|maintenant|nickel))?"
        ),
        r"(?:j'adore|ca me va|ca m'aide(?: beaucoup)?|j'ai compris)",
        r"(?:ce |c')?n'?est pas (?:faux|mal|trop long)|pas mal",
        r"c'est tout",
    ),
    moves_on=(
        "continue",
        "continuez",
        "vas-y",
        "allez-y",
        "poursuis",
        "poursuivez",
        "la suite",
        r"(?:la )?suite",
        r"(?:question |etape )?suivante",
        "(?:la )?question suivante…",
        "(?:la )?prochaine question…",
        "dis-m'en plus",
        "dites-m'en plus",
        "et ensuite",
        "et apres",
        "quoi d'autre",
        "continuons",
        "passons a…",
        r"continue[z]? (?:avec|sur|a|comme)…",
        "autre question…",
    ),
    redo=(
        rf"(?:{_IT} )?(?:{_IS} )?(?:(?:encore|toujours|beaucoup|bien|vraiment) ){{0,4}}trop {_STYLE}…",
        rf"(?:{_IT} )?{_BIT}{_MORE}…",
        (
            rf"(?:fais|faire|faites|rends|rendre|ecris|ecrire|mets|garde|reponds|explique|expliquer|dis)"
            rf"(?:-le|-la|-moi (?:ca|cela)| (?:ca|cela|le|la))? {_BIT}(?:plus|moins)…"
        ),
        rf"(?:le |la )?(?:faire|rendre|dire) {_BIT}(?:plus|moins)…",
        (
            r"(?:recommence|recommencez|reessaie|reessayez|essaie encore|refais|refaites|reecris|reecrivez|"
            r"reformule|reformulez|raccourcis|raccourcissez|resume|resumez|simplifie|simplifiez|corrige|"
            r"raccourcir|reformuler|resumer|simplifier|recommencer|reecrire)(?:-le|-la|-moi ca| (?:ca|cela|tout|ta reponse|le texte|s'il))?"
        ),
        r"(?:refais|reecris|reformule)(?:-le|-la)?…",
        r"encore une fois",
        r"une fois de plus",
        r"(?:en )?moins de mots",
        r"je (?:ne |n')?(?:comprends|ai) (?:pas|rien) ?(?:compris)?…",
        r"pas clair",
    ),
    correction=(
        (
            rf"(?:{_IT} )?(?:{_IS} )?{_VERY}(?:fausse?|faux|incorrecte?|incorrect|errone|erronee|inexacte?|nul|"
            r"une erreur|n'importe quoi)"
        ),
        (
            r"(?:ce |c'|ca |cela |ceci )?n?'?(?: |e )?(?:est|etait) pas (?:du tout |tout a fait |vraiment )?(?:correcte?|"
            r"vrai|exact|ca|cela|bon|juste|ce que|ma question|la bonne|bien|la question)…"
        ),
        r"pas (?:du tout )?(?:correct|exact|vrai|ca|ce que)…",
        (
            r"(?:tu te trompes|vous vous trompez|tu t'es trompe|vous vous etes trompe|tu as (?:tort|oublie|mal compris|ignore|"
            r"fait une erreur)|vous avez (?:tort|oublie|mal compris|ignore))…"
        ),
        (
            r"(?:ca|cela) (?:ne )?(?:marche|fonctionne) "
            r"(?:toujours )?pas…"
        ),
        r"ne (?:marche|fonctionne) pas…",
        r"j'(?:ai (?:dit|demande)|avais (?:dit|demande))…",
        r"je (?:voulais|parlais|demandais|voulais dire|veux dire)(?! (?:te |vous )?(?:demander|savoir|remercier))…",
        r"je n'ai pas (?:demande|dit)…",
        r"(?:ca|cela|la reponse) devrait etre…",
        r"la bonne reponse (?:est|etait)…",
        r"il y a (?:encore )?une erreur…",
        r"la meme erreur…",
        r"tu n'as pas (?:compris|repondu|lu)…",
        r"vous n'avez pas (?:compris|repondu|lu)…",
    ),
    no=("non", "non non", "mais non"),
    solicits=(
        r"(?:dis|dites|reponds|repondez|ecris|ecrivez|tape|tapez)(?:-moi)?(?: (?:par|simplement))? ?[\"'«]? ?(?:merci|continue|parfait)\b",
        r"(?:mets|mettez|donne|donnez|laisse|laissez)(?:-moi)? (?:un |une )?(?:pouce|like|bonne note|cinq etoiles)",
    ),
)
