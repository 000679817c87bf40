"""The official Python client against the quickstart.

    pip install -r examples/clients/requirements.txt
    python3 examples/clients/chat.py

Each conversation has two turns. The second begins as the first did, so the
engine that served the first answers it from its cache, and says so in the usage.
"""

import os

from openai import OpenAI

client = OpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8080/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "none"),
)

model = client.models.list().data[0].id


def chat(messages):
    """Returns the answer and its usage."""
    answer = client.chat.completions.create(model=model, messages=messages, max_tokens=16)
    return answer.choices[0].message.content, answer.usage


def chat_stream(messages):
    """Does the same piece by piece."""
    stream = client.chat.completions.create(
        model=model, messages=messages, max_tokens=16, stream=True, stream_options={"include_usage": True}
    )
    text, usage = "", None
    for chunk in stream:
        if chunk.choices:
            text += chunk.choices[0].delta.content or ""
        usage = chunk.usage or usage
    return text, usage


for number in range(4):
    ask = chat_stream if number % 2 else chat
    document = f"Document {number} for Python. " + "".join(f"Line {i} says {i * i}. " for i in range(100))
    messages = [{"role": "user", "content": document + "What is it about?"}]
    text, first = ask(messages)
    assert text, "an empty answer"
    messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "And in one word?"}]
    text, second = ask(messages)
    assert text, "an empty answer"
    cached = second.prompt_tokens_details.cached_tokens
    print(f"conversation {number}: {second.prompt_tokens} prompt tokens in turn 2, {cached} from the cache")
    assert 0 < cached < second.prompt_tokens, second
    assert cached > first.prompt_tokens / 2, (first, second)

completion = client.completions.create(model=model, prompt="Once upon a time", max_tokens=16)
assert completion.choices[0].text and completion.usage.completion_tokens == 16, completion
print("completion:", completion.choices[0].text.strip())
