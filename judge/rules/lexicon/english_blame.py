"""English phrases that find fault: asking for it again, and saying that it is wrong."""

from __future__ import annotations

NOUN = (
    r"(?:answer|reply|response|text|output|result|message|summary|explanation|paragraph|e-?mail|"
    r"story|poem|list|code|version|one|solution|draft|description|translation|last one|function)"
)
IT = rf"(?:it|this|that|these|those|they|(?:the|your|this|that) (?:(?:last|whole|first) )?{NOUN})"
IS = r"(?:'s|s| is| was| are| were|'re| looks?| seems?| sounds?| feels?| got)"
ISNT = r" ?(?:is not|isn'?t|was not|wasn'?t|are not|aren'?t|ain'?t|'s not|s not)"
_NOT = r"(?:does not|doesn'?t|did not|didn'?t|do not|don'?t|won'?t|cannot|can'?t|never)"
VERY = (
    r"(?: ?(?:a bit|a little|a lot|bit|little|slightly|still|just|way+|far|much|really|so|very|"
    r"quite|completely|totally|absolutely|simply|kind of|kinda|rather|clearly|obviously|all|"
    r"even|yet|plain|exactly|pretty|also|entirely|definitely|super|actually)(?= )){0,4}"
)
_WRONG = (
    r"(?:wrong|incorrect|false|inaccurate|untrue|bad|terrible|awful|horrible|useless|nonsense|"
    r"rubbish|garbage|broken|mistaken|off topic|off|a mistake|made up|unhelpful|confusing|unclear|"
    r"failing|ridiculous)"
)
_RIGHT = (
    r"(?:right|correct|true|accurate|good|good enough|helpful|useful|it|working|relevant|"
    r"what i .*|what we .*|how .*|the (?:right|correct|question|answer|point|one i|same) ?.*|"
    r"enough)"
)
_STYLE = (
    r"(?:short|brief|concise|simple|long|wordy|verbose|formal|informal|casual|complicated|complex|"
    r"technical|vague|general|dense|detailed|much|many words|much text|much detail|many details|"
    r"slow|fast|hard|difficult|big|small|boring|dry|abstract|basic|advanced|lengthy|repetitive|"
    r"generic|cheesy|harsh|blunt|pushy|chatty|flowery)"
)
_MORE = (
    r"(?:shorter|longer|briefer|simpler|clearer|tighter|friendlier|nicer|easier|softer|punchier|"
    r"less (?:\w+ )?\w+|(?:more|extra) (?:concise|brief|detail|details|detailed|information|info|"
    r"formal|informal|casual|simple|simply|precise|specific|depth|in depth|examples?|succinct|"
    r"compact|direct|context|friendly|polite|accurate|briefly|concisely|to the point|clearly|"
    r"readable|words|creative|natural)|(?:fewer|less) (?:words|details?|text|lines|sentences))"
)

#: Asks for the same again, in another form.
REDO = (
    rf"(?:{IT}{IS}|is)?{VERY} ?too {_STYLE}(?: for (?:me|my .{{1,30}}|us|a .{{1,30}}))?",
    (
        rf"{IT}{IS}{VERY} ?too (?!kind|good|funny|cute|sweet|nice|generous)\w+"
        r"(?: for (?:me|us))?"
    ),
    rf"(?:{IT}{IS})?{VERY} ?not {_MORE} ?enough",
    (
        r"not (?:\w+ )?(?:short|brief|detailed|"
        r"long|clear|specific|concise|simple) enough"
    ),
    rf"{IT}{ISNT} (?:\w+ )?(?:short|brief|detailed|long|clear|specific|concise|simple) enough",
    rf"(?:a |an |something |anything )?{VERY} ?{_MORE}(?: (?:{NOUN}|sentences?|words?|and .{{1,30}}))?",
    (
        rf"(?:give|get|have|write|send|show|provide)(?: me| us)?(?: an?| the)?{VERY} ?{_MORE}"
        rf"(?: {NOUN})?"
    ),
    (
        rf"(?:(?:how|what) about |can i (?:have|get) )?(?:an? |the )?{VERY} ?"
        rf"(?:{_MORE}|short|brief|concise|simple|different|better) {NOUN}"
    ),
    rf"(?:make|keep|get|have) (?:{IT}|them|things|your (?:answers|replies|responses))…",
    (
        rf"(?:be|answer|reply|respond|write|explain|say it|put it|say that|explain it)"
        rf"{VERY} ?(?:{_MORE}|brief|concise|briefly|concisely|simply|short|in (?:one|two|a few|fewer|"
        rf"\d+) (?:short )?(?:words?|sentences?|lines?))"
    ),
    (
        rf"(?:shorten|trim|cut|condense|simplify|tighten|lengthen|compress|reduce|expand|redo|"
        rf"rewrite|rephrase|reword|regenerate|rework|retry|summari[sz]e|revise|undo|"
        rf"revert)(?: (?:{IT}|them))?(?: down| up| over| again| a bit| a little| a lot| further| "
        rf"more| properly){{0,4}}"
    ),
    (
        rf"(?:rewrite|redo|rephrase|shorten|summari[sz]e|condense|cut|trim|"
        rf"reword|regenerate|change|revert|undo) (?:{IT}|them) (?:in|to|with|so|as|by|down|using|"
        rf"without|for|from)…"
    ),
    rf"(?:fix|correct) (?:{IT}|them)(?: again| properly)?",
    rf"you(?:'re| are)(?: \w+)? too {_STYLE}",
    r"(?:way |far )?too much (?:information|info)(?: for me)?",
    r"half as long",
    r"go back to (?:the|your|what)…",
    r"try (?:it |that |this )?(?:again|once more|harder|another)…",
    (
        r"(?:do|write|say|explain|answer|run|start|go) (?:it |that |this |the same )?(?:all )?"
        r"(?:over|again)…"
    ),
    r"(?:once|one time) (?:more|again)",
    r"one more time",
    r"again",
    (
        r"give (?:me|us) (?:another|a different|a better|a new) (?:answer|version|try|attempt|"
        r"solution|explanation)…"
    ),
    (
        r"(?:use|in|with) (?:fewer|less|one|two|three|a few|\d+) "
        r"(?:short )?(?:words?|sentences?|lines?|paragraphs?)(?: (?:or less|max|only|or fewer|"
        r"at most))?"
    ),
    r"(?:only |just )?(?:one|two|three|a few) (?:short )?sentences?(?: only| max)?",
    r"(?:that|this|it)(?:'s| is) a (?:lot|wall) of (?:text|words)",
    r"why so \w+",
    r"you (?:talk|write|say|wrote|said) (?:way )?too much",
    r"too many words",
    r"tldr",
    (
        r"(?:i )?(?:still )?(?:don'?t|do not|didn'?t|can'?t|cannot) (?:understand|follow|get it|"
        r"get that|read (?:all )?(?:of )?(?:that|this|it))…"
    ),
    r"you lost me",
    r"huh",
    rf"(?:{IT} )?(?:makes? no|{_NOT} make(?: any)?) sense.{{0,30}}",
    r"shorter (?:and|but|with|than|next)…",
)

#: Says that the reply is wrong, or what was meant instead.
CORRECTION = (
    rf"(?:{IT}{IS})?{VERY} ?{_WRONG}(?: (?:answer|again|file|one|way|place))?",
    rf"(?:{IT}{IS}|it)?{VERY} ?not{VERY} ?{_RIGHT}",
    rf"{IT}{ISNT}{VERY} ?{_RIGHT}",
    rf"{IT}{IS}{VERY} ?{_WRONG} (?:because|since|as|,)…",
    (
        r"i(?:'d| had)? (?:meant|asked (?:for|you|about|to|only)|said|told you|specifically|"
        r"never (?:asked|said|wanted)|didn'?t (?:ask|say|mean|want)|did not (?:ask|say|mean|want)|"
        r"already (?:told|said|tried|did))…"
    ),
    r"i (?:wanted|needed) (?!to (?:ask|know|thank|say|check|see|learn|let))…",
    r"i (?:only|just|really|simply) (?:wanted|needed|asked)…",
    r"you (?:already|just) said (?:that|this|it)…",
    r"what i (?:meant|asked|wanted|said)…",
    (
        r"you (?:misunderstood|misread|misheard|forgot|missed|ignored|"
        r"got (?:it|that|this) wrong|made (?:a|an|the|that) (?:mistake|error)|(?:didn'?t|did not|"
        r"don'?t|haven'?t|still haven'?t|keep|failed to|left out|skipped|broke|deleted|removed|"
        r"invented|made (?:that|this|it) up|hallucinated|changed|repeated|contradict))…"
    ),
    (
        r"you(?:'re| are|r|'ve| were) (?:still |just |completely ){0,4}(?:wrong|mistaken|incorrect|"
        r"confused|repeating|missing|not (?:listening|answering|reading|helping))…"
    ),
    (
        rf"(?:(?:{IT}|the (?:build|tests?|script|app|program|page)|your (?:fix|change)) )?(?:still |just ){{0,4}}(?:{_NOT}) (?:even )?(?:work|help|compile|run|answer|"
        r"look right|seem right|do what|match|exist|pass|fix|solve|build|make any difference)…"
    ),
    rf"(?:{IT} )?(?:still |just ){{0,4}}(?:fails?|failed|crashes|crashed|errors? out|broke|breaks)…",
    r"(?:the |that's the |it's the )?same (?:error|problem|issue|mistake|thing again)…",
    (
        r"(?:i(?:'m| am)?|it|this|that) ?(?:still |now ){0,4}(?:get|getting|got|gives?(?: me)?|gave me|"
        r"see|seeing|throws|raises) (?:an?|the same|this|another|some|now)? ?(?:\w+ )?(?:error|exception)s?…"
    ),
    (
        r"(?:it|that|this|the (?:answer|result|correct answer|capital|date|number|name)) should "
        r"(?:be|have been|say|return|read|use)…"
    ),
    (
        r"(?:the )?(?:correct|right) (?:answer|one|"
        r"spelling|name|date|number) (?:is|was|would be)…"
    ),
    (
        r"there (?:is|are|'s) (?:still )?(?:an? "
        r"|some |\w+ )?(?:errors?|mistakes?|bugs?|typos?|problems?) in your…"
    ),
    r"there'?s (?:still )?(?:an? |some )?(?:errors?|mistakes?|bugs?|typos?) in (?:your|it|that|this)…",
    r"stop (?:doing|using|adding|apologi[sz]ing|repeating|saying|making|writing|changing)…",
    r"thanks? (?:you )?for (?:nothing|wasting)…",
    r"not (?:that|this|like that|like this) ?(?:one)?",
    r"(?:answer|read) (?:the|my) (?:actual |original )?(?:question|message|instructions)…",
    r"that (?:was not|wasn'?t|is not|isn'?t|'s not) (?:my|the) question…",
    r"my question was…",
    r"nonsense",
    r"i disagree…",
)
