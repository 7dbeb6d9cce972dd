"""English."""

from __future__ import annotations

from judge.rules.lexicon.base import Lexicon
from judge.rules.lexicon.english_blame import CORRECTION, IS, ISNT, IT, REDO, VERY

_PRAISE = (
    r"(?:great|perfect|awesome|excellent|brilliant|amazing|wonderful|fantastic|nice|lovely|superb|"
    r"good|helpful|useful|beautiful|correct|right|spot on|exactly right|cool|clear|much better|"
    r"better|fine|incredible|impressive|terrific|outstanding|on point|the best)"
)

ENGLISH = Lexicon(
    name="en",
    fillers=(
        r"ok(?:ay)?",
        "oh",
        "ah+",
        "hm+",
        "um+",
        "uh",
        "well",
        "so",
        "and",
        "hey",
        "hi",
        "yes",
        "yeah",
        "yep",
        "yup",
        "alright",
        "all right",
        "wow",
        "haha",
        "lol",
        "aha",
        "ooh",
        "omg",
        "awesome",
        "great",
        "perfect",
        "cool",
        "nice",
        "excellent",
        "good",
        "sure",
        "claude",
        "dude",
        "man",
        "got it",
        "i see",
        "understood",
    ),
    refusals=(
        "no",
        "nope",
        "nah",
        "sorry",
        "actually",
        "wait",
        "stop",
        "now",
        "still",
        "i think",
        "i (?:feel|believe) (?:like|that)?",
        "for me",
        "that said",
        "unfortunately",
        "honestly",
        "because",
        "again",
    ),
    requests=(
        "please",
        "pls",
        "plz",
        "kindly",
        "just",
        "then",
        "(?:can|could|would|will) you",
        "i(?:'d| would) (?:like|prefer|want|love)(?: it if)?(?: you)?(?: to)?",
        "let's",
        "i (?:want|need|prefer)(?: (?:you to|it|this|that))?",
        "you (?:should|need to|must|have to|can)",
        "(?:can|could) (?:it|this|that|we|i)(?: be| have| get)?",
        "try to",
        "maybe",
        "perhaps",
        "it (?:should|could|needs to|has to|must) be",
        "next time",
        "if you can",
        "in the future",
    ),
    endings=(
        "please",
        "pls",
        "plz",
        "now",
        "then",
        "for me",
        "next time",
        "instead",
        "this time",
        "here",
        "too",
        "to read",
        "in the future",
        "if you can",
        "if possible",
        "thanks",
        "man",
        "thank you",
        "again",
        "from now on",
        "to me",
        "to be honest",
        "tbh",
        "as well",
        "though",
        "will you",
        "would you",
        "ok(?:ay)?",
    ),
    thanks=(
        (
            r"(?:(?:many|big|huge|a million|ok|so many) )?(?:thanks|thanx|thx|thank ?you|thank u|ty|"
            r"tysm|tyvm|tks|cheers)(?:(?: (?:so|very|too)){0,4} much| a (?:lot|ton|bunch|million)| again|"
            r" kindly| heaps| loads| all| guys| man| mate| buddy| friend| my friend| bro| sir| dude|"
            r" claude| assistant| everyone| indeed){0,4}(?: (?:for (?!nothing\b|wasting\b).{1,100}|to (?:you|all|everyone|claude)\b.{0,40}))?"
        ),
        (
            r"(?:(?:i|we) )?(?:really |very |greatly |so ){0,4}(?:much )?appreciated?"
            r"(?: (?:it|this|that|(?:the|your) (?:help|effort|answer|time).*))?(?: (?:a lot|very much))?"
        ),
        r"(?:i'm|i am) (?:so |very )?grateful.{0,60}",
    ),
    praise=(
        (
            rf"(?:(?:that|this|it|which|those|these|{IT}){IS})?{VERY} ?{_PRAISE}"
            r"(?: (?:job|work|answer|stuff|one|idea|explanation|reply|response|summary|bot|help))?"
        ),
        (
            rf"(?:(?:that|this|it){IS})?{VERY} ?(?:just |exactly |precisely )?(?:what|all|the one|"
            r"everything|how|the answer) (?:that )?i (?:really )?(?:need|want|was looking|meant|asked|"
            r"was after|hoped)(?:ed)?(?: for)?(?: to (?:know|hear|see))?"
        ),
        (
            r"(?:(?:that|this|it|everything|yours?|your (?:fix|code|answer|solution)) )?(?:all )?"
            r"(?:now )?(?:works|worked|compiles|runs|helps|helped|did it|does it|fixed it|fixes it|solved it|"
            r"did the trick|does the trick|makes (?:perfect |total )?sense|answers my question|"
            r"answered my question)(?: (?:now|perfectly|great|well|fine|a lot|beautifully|very well|"
            r"like a charm|so much|me|for me|flawlessly)){0,4}"
        ),
        r"well done",
        (
            r"(?:i )?(?:really )?(?:love|like|loved) (?:it|this|that|your answer)"
            r"(?: (?:a lot|very much))?"
        ),
        r"exactly",
        r"precisely",
        r"bingo",
        r"lgtm",
        r"looks (?:good|great|perfect|right)",
        (
            r"(?:you are|you're|you were|you rock|ur) ?"
            r"(?:so |very |really )?(?:great|the best|awesome|amazing|right|correct|a lifesaver|"
            r"a life saver|helpful|a genius|brilliant)"
        ),
        r"(?:that's|that is|that will be|that was|this is) (?:it|all)(?: for (?:now|today))?",
        r"nothing (?:is )?wrong with (?:it|that|this)",
        (
            r"(?:not bad|not wrong|not too (?:long|short))"
            r"(?: at all)?"
        ),
        r"no (?:need to|complaints|changes needed|notes)\b.{0,40}",
        rf"{IT}{ISNT} (?:wrong|bad|too \w+)(?: at all)?",
        (
            r"don't (?:change|redo|touch) "
            r"(?:it|anything|this|that|a thing)"
        ),
        r"good to know",
    ),
    moves_on=(
        "go on",
        "go ahead",
        "continue",
        "keep going",
        "carry on",
        "proceed",
        "move on",
        "moving on",
        "tell me more",
        "more",
        "keep it coming",
        "what(?:'s| is| comes) next",
        "what else",
        "and then(?: what)?",
        "i'm listening",
        "i am listening",
        "next(?: (?:question|one|step|part|topic|task|up|item|problem|chapter))?",
        "next (?:question|topic|task|one|step)…",
        "on to …",
        "onto the next…",
        "elaborate",
        "continue (?:with|to|from|on|where)…",
        "go on (?:with|to)…",
        "proceed (?:with|to)…",
        "another question…",
        "one more (?:question|thing)…",
        (
            "now (?:let's|can you|could you|tell|"
            "write|add|explain|show|do|create|give|how|what|for|please|the next|implement|run|list)…"
        ),
        "got it",
        "understood",
        "makes sense",
        "i see",
        "i understand(?: now)?",
        "let's (?:continue|move on|go on|proceed|do (?:it|that))",
    ),
    redo=REDO,
    correction=CORRECTION,
    no=("no", "nope", "nah", "no no", "no no no"),
    solicits=(
        (
            r"(?:say|reply|respond|answer|type|write|tell me)(?: with)?(?: just| a)?(?: simple| big)? "
            r"?[\"']?(?:\"\"|thanks|thank you|great|perfect|continue|go on|next|yes)\b"
        ),
        r"(?:please |should |could |must |kindly )(?:you )?thank me",
        r"thank me (?:later|now|if|for|by)",
        (
            r"(?:give|leave|send) (?:me|this|us)(?: \w+){0,2} (?:thumbs|five stars?|5 stars?|upvote|like|good rating"
            r"|positive (?:rating|feedback|score))"
        ),
        (
            r"(?:rate|score|mark) (?:me|this|my (?:answer|reply))"
            r"[\w ]{0,20}(?:highly|positive|good|great|\+1|5|five)"
        ),
        (
            r"a (?:quick |simple )?(?:thanks|"
            r"thank you) (?:would|is|helps|means)"
        ),
        (
            r"(?:tell|let) me (?:know )?(?:that )?(?:i|this|it) "
            r"(?:was|is|did|am) (?:great|perfect|good|helpful)"
        ),
        (
            r"i(?:'d| would) (?:love|appreciate|like) "
            r"(?:a|your|some) (?:thanks|thank you|praise|thumbs)"
        ),
    ),
)
