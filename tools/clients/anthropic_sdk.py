"""Anthropic's routes through the official Python SDK."""

import base64
import json
import pathlib
import sys

import anthropic
import pydantic

root = pathlib.Path(__file__).resolve().parents[2]
scene = base64.b64encode((root / "docs/scene.png").read_bytes()).decode()
client = anthropic.Anthropic(base_url=sys.argv[1], api_key=sys.argv[2] if len(sys.argv) > 2 else "none", max_retries=0)
DESCRIPTION = "A red cross at the top left"


def expect(condition, what):
    if not condition:
        raise SystemExit(f"failed: {what}")
    print("ok:", what)


def question(text, **more):
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": scene}, **more}
    return [{"role": "user", "content": [picture, {"type": "text", "text": text}]}]


describe = {"model": "builtin", "max_tokens": 100, "messages": question("Describe the image.")}
a = client.messages.create(**describe)
expect(a.content[0].text.startswith(DESCRIPTION) and a.stop_reason == "end_turn" and a.role == "assistant", "message")
expect(a.usage.input_tokens > 64 and a.usage.output_tokens > 0 and a._request_id, "usage")
expect(a.restore["visual_tokens"] == {"before": 576, "kept": 32, "merged": 32}, "restore in the reply")

with client.messages.stream(**describe) as s:
    text = "".join(s.text_stream)
    last = s.get_final_message()
expect(text == a.content[0].text == last.content[0].text and last.stop_reason == "end_turn", "stream")
total = lambda u: u.input_tokens + (u.cache_read_input_tokens or 0)
expect(total(last.usage) == total(a.usage) and last.usage.cache_read_input_tokens > 0, "usage of a stream")

n = client.messages.count_tokens(model="builtin", messages=describe["messages"])
expect(n.input_tokens == total(a.usage), "count_tokens")
cut = client.messages.create(**{**describe, "max_tokens": 3})
expect(cut.stop_reason == "max_tokens" and cut.usage.output_tokens == 3, "max_tokens")
stopped = client.messages.create(**describe, stop_sequences=["nothing", "cross"])
expect(stopped.stop_reason == "stop_sequence" and stopped.stop_sequence == "cross" and stopped.content[0].text == "A red ", "stop_sequences")
few = client.messages.create(**{**describe, "messages": question("Describe the image.", restore={"n_vis": 32})}, extra_body={"restore": {"base": "divprune"}})
expect(few.restore["visual_tokens"]["kept"] + few.restore["visual_tokens"]["merged"] == 32, "a picture's budget")
turns = describe["messages"] + [{"role": "assistant", "content": a.content}, {"role": "user", "content": "What number is written?"}]
expect(client.messages.create(model="builtin", max_tokens=20, messages=turns, system="Be brief.").content[0].text, "turns")


class Answer(pydantic.BaseModel):
    n: int


parsed = client.messages.parse(model="builtin", max_tokens=50, messages=question("What number is written?"), output_format=Answer)
expect(isinstance(parsed.parsed_output.n, int) and json.loads(parsed.content[0].text), "structured output")
expect(client.models.list().data[0].id == "builtin" and client.models.retrieve("builtin").type == "model", "models")

for what, kind, call in [
    ("unknown model", anthropic.NotFoundError, lambda: client.messages.create(**{**describe, "model": "nothing"})),
    ("tools", anthropic.BadRequestError, lambda: client.messages.create(**describe, tools=[{"name": "f", "input_schema": {"type": "object"}}])),
    ("thinking", anthropic.BadRequestError, lambda: client.messages.create(**describe, thinking={"type": "enabled", "budget_tokens": 1024})),
    ("budget", anthropic.BadRequestError, lambda: client.messages.create(**describe, extra_body={"restore": {"n_vis": 577}})),
]:
    try:
        call()
    except kind as e:
        expect(e.body["type"] == "error" and e.body["error"]["message"] and e.request_id, f"{what}: {e.body['error']['message']}")
    else:
        expect(False, what)
print("all is well")
