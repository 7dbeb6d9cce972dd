"""Spanish, without accents."""

from __future__ import annotations

from judge.rules.lexicon.base import Lexicon

_IT = (
    r"(?:eso|esto|ello|(?:la|tu|esa|esta|su) (?:respuesta|explicacion|version|solucion|historia)|"
    r"(?:el|tu|ese|este) (?:texto|codigo|resumen|mensaje|resultado))"
)
_BIT = r"(?:un poco |mucho |bastante |algo )?"
_STYLE = (
    r"(?:larg[oa]|cort[oa]|complicad[oa]|extens[oa]|formal|informal|breve|vag[oa]|tecnic[oa]|"
    r"general|detallad[oa]|simple|dificil|complej[oa]|pesad[oa]|lent[oa])"
)
_MORE = (
    r"(?:mas (?:cort[oa]|breve|larg[oa]|detallad[oa]|simple|sencill[oa]|concis[oa]|clar[oa]|"
    r"resumid[oa]|detalles?|formal|informal|especific[oa]|direct[oa]|natural|corto y simple)|"
    r"menos (?:formal|texto|palabras|detalles?|larg[oa]|tecnic[oa]|complicad[oa]))"
)

SPANISH = Lexicon(
    name="es",
    fillers=(
        "ok",
        "vale",
        "bueno",
        "bien",
        "si",
        "ah",
        "oh",
        "claro",
        "ya",
        "genial",
        "perfecto",
        "entendido",
        "muy bien",
        "excelente",
        "uf",
        "oye",
        "hola",
    ),
    refusals=(
        "perdon",
        "creo que",
        "me parece que",
        "lo siento",
        "todavia",
        "aun",
        "sigue siendo",
        "para mi",
        "es que",
    ),
    requests=(
        "por favor",
        "puedes",
        "podrias",
        "puede",
        "podria",
        "quiero",
        "quisiera",
        "me gustaria",
        "necesito",
        "ahora",
        "solo",
        "que sea",
        "dame",
        "hazme",
        "prefiero",
        "algo",
        "una version",
        "una respuesta",
        "y",
    ),
    endings=(
        "por favor",
        "porfa",
        "porfavor",
        "ahora",
        "para mi",
        "gracias",
        "esta vez",
        "la proxima vez",
        "otra vez",
        "de nuevo",
        "mejor",
    ),
    thanks=(
        (
            r"(?:muchas |mil |muchisimas |ok )?gracias(?: (?:por (?!nada).{1,80}|de nuevo|otra vez|a ti|"
            r"amig[oa]|de verdad|de corazon)){0,4}"
        ),
        r"(?:te|se) lo agradezco(?: mucho)?",
        r"(?:muy |estoy (?:muy )?)?agradecid[oa]",
        r"me (?:has|ha) ayudado(?: mucho)?",
    ),
    praise=(
        (
            rf"(?:(?:{_IT}|asi) )?(?:(?:es|era|esta|fue) )?(?:muy |mucho |justo |exactamente )?(?:perfect[oa]|genial|"
            r"excelente|estupend[oa]|fantastic[oa]|correct[oa]|buen[oa]|bien|util|mejor|increible|"
            r"clar[oa])(?: (?:trabajo|respuesta|asi))?"
        ),
        r"buen(?: trabajo|a respuesta)",
        (
            rf"(?:{_IT} )?(?:es |era )?(?:justo |exactamente )?lo que (?:necesitaba|queria|buscaba|"
            r"pedi)"
        ),
        r"(?:ya |ahora |eso )?(?:si )?funciona(?: (?:bien|perfecto|perfectamente|ahora))?",
        r"me (?:sirve|encanta|gusta|sirvio|ayudo|funciono)(?: mucho)?",
        r"(?:eso )?no esta (?:nada )?mal",
        r"eso es todo",
    ),
    moves_on=(
        "continua",
        "continue",
        "sigue",
        "siga",
        "adelante",
        "prosigue",
        r"(?:la )?siguiente(?: (?:pregunta|paso|tema))?",
        r"siguiente pregunta…",
        "cuentame mas",
        "dime mas",
        "que mas",
        "y luego",
        "y despues",
        "sigamos",
        "continuemos",
        r"(?:continua|sigue) (?:con|desde|escribiendo|asi)…",
        r"otra pregunta…",
    ),
    redo=(
        rf"(?:{_IT} )?(?:(?:es|esta|fue|sigue siendo|me parece|me resulta|suena) )?(?:muy|demasiado|tan) {_STYLE}…",
        rf"(?:{_IT} )?{_BIT}{_MORE}…",
        (
            rf"(?:hazlo|hacerlo|hazla|hacerla|que sea|escribelo|escribirlo|dilo|explicalo|explicarlo|"
            rf"hacer (?:eso|esto)|ponlo|dejalo) {_BIT}(?:mas|menos|de nuevo|otra vez|en|sin|con)…"
        ),
        r"(?:intenta(?:lo)?|prueba|repite(?:lo)?|vuelve a .{1,30}|empieza)(?: (?:de nuevo|otra vez))…",
        r"vuelve a (?:intentar|hacer|escribir|explicar)…",
        r"(?:otra vez|de nuevo|una vez mas)",
        (
            r"(?:reescribe|reescribir|acorta|acortar|resume|resumir|simplifica|simplificar|abrevia|"
            r"corrige|rehaz|rehacer|reformula|reformular|cambia)(?:l[oa])?(?: (?:eso|esto|la respuesta|el texto))?"
        ),
        r"(?:reescribelo|acortalo|resumelo|simplificalo|corrigelo|rehazlo|reformulalo|cambialo)…",
        r"no (?:lo |te )?(?:entiendo|entendi)…",
        r"en menos palabras",
        r"(?:en )?menos palabras",
        r"me perdi",
    ),
    correction=(
        (
            rf"(?:{_IT} )?(?:aun |todavia )?no (?:es|era|esta) (?:correct[oa]|ciert[oa]|verdad|asi|bien|lo que|eso|"
            r"lo mismo|exact[oa])…"
        ),
        (
            rf"(?:{_IT} )?(?:esta|es|sigue|sigue estando) (?:completamente |totalmente |muy |todo )?(?:mal|"
            r"equivocad[oa]|incorrect[oa]|fals[oa]|erroneo|erronea|un error)…"
        ),
        r"incorrect[oa]",
        r"mal",
        r"falso",
        r"te (?:equivocas|equivocaste|has equivocado|confundes|confundiste)…",
        rf"(?:(?:{_IT}|aun|todavia|sigue|sigue sin) ){{0,4}}(?:no )?(?:funciona(?:r)? (?:aun|todavia)|no funciona|no funciono|sin funcionar|no sirve|no compila|no me sirve)…",
        r"(?:yo |te |lo que )?(?:te )?(?:pedi|dije|queria decir|me referia a|quise decir|pregunte)…",
        r"no (?:te )?(?:pedi|pregunte|dije|quise decir|entendiste|has entendido|respondiste|me refiero)…",
        r"(?:has|lo has|me has) (?:entendido mal|malinterpretado|olvidado|ignorado)…",
        r"olvidaste…",
        r"(?:eso )?deberia (?:ser|decir)…",
        r"la respuesta correcta es…",
        r"hay un error…",
        r"el mismo error…",
    ),
    no=("no", "no no", "nop"),
    solicits=(
        r"(?:di|dime|escribe|responde)(?: (?:con|solo))? ?[\"'«]?(?:gracias|continua|perfecto)\b",
        r"(?:dame|dale|deja) (?:un |una )?(?:me gusta|like|buena (?:nota|valoracion)|cinco estrellas)",
    ),
)
