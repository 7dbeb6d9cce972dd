"""The smallest agent: nothing in it knows of Nextstate; only the environment does.

export OPENAI_BASE_URL=http://127.0.0.1:8100/v1 OPENAI_API_KEY=…
python examples/first_agent.py "Why do cats purr?"
"""

from __future__ import annotations

import os
import sys

from openai import OpenAI

client = OpenAI()
model = os.environ.get("OPENAI_MODEL", "nextstate")
messages = [{"role": "system", "content": "You are a helpful assistant. Answer briefly."}]
question = " ".join(sys.argv[1:]) or input("you: ")
while question:
    messages.append({"role": "user", "content": question})
    stream = client.chat.completions.create(
        model=model, messages=messages, max_tokens=200, stream=True
    )
    answer = ""
    for event in stream:
        text = event.choices[0].delta.content or "" if event.choices else ""
        answer += text
        print(text, end="", flush=True)
    print()
    messages.append({"role": "assistant", "content": answer})
    # What is said next is what the reply is judged by.
    question = input("you: ") if sys.stdin.isatty() else ""
