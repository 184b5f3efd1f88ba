"""Ollama's routes through its Python client."""

import json
import pathlib
import sys

import jsonschema
import ollama

root = pathlib.Path(__file__).resolve().parents[2]
scene = (root / "docs/scene.png").read_bytes()
client = ollama.Client(host=sys.argv[1])
DESCRIPTION = "A red cross at the top left"


def expect(condition, what):
    if not condition:
        raise SystemExit(f"failed: {what}")
    print("ok:", what)


expect(client.list().models[0].model == "builtin:latest", "list")
shown = client.show("builtin")
expect("vision" in shown.capabilities and shown.details.family == "llava" and shown.template, "show")
expect(client.ps().models[0].model == "builtin:latest", "ps")

question = [{"role": "user", "content": "Describe the image.", "images": [scene]}]
a = client.chat("builtin", messages=question)
expect(a.message.content.startswith(DESCRIPTION) and a.done and a.done_reason == "stop" and a.eval_count > 0, "chat")
parts = list(client.chat("builtin", messages=question, stream=True))
expect("".join(p.message.content for p in parts) == a.message.content and parts[-1].done and parts[-1].total_duration > 0, "chat, streamed")
g = client.generate("builtin", prompt="Describe the image.", images=[scene], options={"num_predict": 3, "temperature": 0})
expect(g.done_reason == "length" and g.eval_count == 3, "generate")
expect("".join(p.response for p in client.generate("builtin", prompt="Describe the image.", images=[scene], stream=True)) == a.message.content, "generate, streamed")
schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
f = client.chat("builtin", messages=[{"role": "user", "content": "What number is written?", "images": [scene]}], format=schema)
jsonschema.validate(json.loads(f.message.content), schema)
expect(True, "format")
expect(client.generate("builtin").done_reason == "load", "load")
for what, status, call in [
    ("unknown model", 404, lambda: client.chat("nothing", messages=question)),
    ("thinking", 400, lambda: client.chat("builtin", messages=question, think=True)),
    ("context", 400, lambda: client.chat("builtin", messages=question, options={"num_ctx": 1 << 20})),
    ("pull", 404, lambda: client.pull("llava")),
]:
    try:
        call()
    except ollama.ResponseError as e:
        expect(e.status_code == status and e.error, f"{what}: {e.error}")
    else:
        expect(False, what)
print("all is well")
