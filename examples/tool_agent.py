"""An agent with a tool. A failing tool result judges the turn that called it.

export OPENAI_BASE_URL=http://127.0.0.1:8100/v1 OPENAI_API_KEY=…
python examples/tool_agent.py "What is 17 * 23?"

The model has to know how to call tools; SmolLM2-135M, which the local stack serves by default,
does not, and answers in words.
"""

from __future__ import annotations

import ast
import json
import operator
import os
import sys

from openai import OpenAI

OPERATIONS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "calculate",
            "description": "Work out an arithmetic expression.",
            "parameters": {
                "type": "object",
                "properties": {"expression": {"type": "string"}},
                "required": ["expression"],
            },
        },
    }
]


def value(node: ast.expr) -> float:
    match node:
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATIONS:
            return OPERATIONS[type(op)](value(left), value(right))
    raise ValueError("only numbers, +, -, * and / are understood")


def calculate(arguments: str) -> str:
    try:
        return str(value(ast.parse(json.loads(arguments)["expression"], mode="eval").body))
    except (ValueError, KeyError, TypeError, SyntaxError, ZeroDivisionError) as error:
        return f"Error: {error}"


client = OpenAI()
model = os.environ.get("OPENAI_MODEL", "nextstate")
messages = [
    {"role": "system", "content": "Use the tool for arithmetic, then answer in one sentence."},
    {"role": "user", "content": " ".join(sys.argv[1:]) or "What is 17 * 23?"},
]
for _ in range(8):
    reply = (
        client.chat.completions.create(model=model, messages=messages, tools=TOOLS, max_tokens=200)
        .choices[0]
        .message
    )
    messages.append(reply.model_dump(exclude_none=True))
    if not reply.tool_calls:
        print(reply.content)
        break
    for call in reply.tool_calls:
        result = calculate(call.function.arguments)
        print(f"{call.function.name}({call.function.arguments}) = {result}")
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
else:
    sys.exit("no answer after 8 calls")
