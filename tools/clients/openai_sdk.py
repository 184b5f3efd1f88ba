"""Every OpenAI route through the official Python SDK."""

import base64
import json
import pathlib
import sys
import time

import jsonschema
import openai

url = sys.argv[1]
root = pathlib.Path(__file__).resolve().parents[2]
scene = "data:image/png;base64," + base64.b64encode((root / "docs/scene.png").read_bytes()).decode()
client = openai.OpenAI(base_url=url + "/v1", api_key=sys.argv[2] if len(sys.argv) > 2 else "none", max_retries=0)
DESCRIPTION = "A red cross at the top left"


def ask(text, **more):
    content = [{"type": "image_url", "image_url": {"url": scene}}, {"type": "text", "text": text}]
    return client.chat.completions.create(model="builtin", messages=[{"role": "user", "content": content}], **more)


def expect(condition, what):
    if not condition:
        raise SystemExit(f"failed: {what}")
    print("ok:", what)


models = client.models.list()
expect(models.data[0].id == "builtin" and client.models.retrieve("builtin").id == "builtin", "models")

a = ask("Describe the image.")
expect(a.choices[0].message.content.startswith(DESCRIPTION) and a.choices[0].finish_reason == "stop", "chat")
expect(a.usage.prompt_tokens_details.image_tokens == 64 and a.usage.total_tokens == a.usage.prompt_tokens + a.usage.completion_tokens, "usage")
expect(a.model_extra["restore"]["visual_tokens"] == {"before": 576, "kept": 32, "merged": 32}, "restore in the reply")

with_budget = ask("Describe the image.", extra_body={"restore": {"n_vis": 32, "report": "groups"}})
groups = with_budget.model_extra["restore"]["images"][0]["groups"]
expect(sorted(m for g in groups for m in g["members"]) == list(range(576)) and len(groups) == 32, "groups")

parts, usage, last = [], None, None
for chunk in ask("Describe the image.", stream=True, stream_options={"include_usage": True}):
    if chunk.choices:
        parts.append(chunk.choices[0].delta.content or "")
        expect(chunk.usage is None, "no usage before the end") if chunk.choices[0].finish_reason else None
    else:
        usage = chunk.usage
    last = chunk
expect("".join(parts) == a.choices[0].message.content and usage.prompt_tokens == a.usage.prompt_tokens, "stream")
expect("timings" in last.model_extra and "restore" in last.model_extra, "timings in the last chunk")

with client.chat.completions.stream(model="builtin", messages=[{"role": "user", "content": "Hello"}], stop=["e"]) as s:
    for _ in s:
        pass
    expect(s.get_final_completion().choices[0].finish_reason in ("stop", "length"), "stream helper")

schema = {"type": "object", "properties": {"answer": {"type": "string", "maxLength": 10}, "sure": {"type": "boolean"}}, "required": ["answer", "sure"]}
a = ask("What number is written?", response_format={"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}})
jsonschema.validate(json.loads(a.choices[0].message.content), schema)
expect(a.choices[0].finish_reason == "stop", "structured output")

a = ask("What number is written?", logprobs=True, top_logprobs=3)
tokens = a.choices[0].logprobs.content
expect(b"".join(bytes(t.bytes) for t in tokens).decode() == a.choices[0].message.content and len(tokens[0].top_logprobs) == 3, "logprobs")

a = ask("Describe the image.", stop=["green"])
expect(a.choices[0].message.content.endswith("a ") and a.choices[0].finish_reason == "stop", "stop")
a = ask("Describe the image.", max_completion_tokens=3)
expect(a.choices[0].finish_reason == "length" and a.usage.completion_tokens == 3, "limit")

c = client.completions.create(model="builtin", prompt="Hello", max_tokens=4, logprobs=1)
expect(c.object == "text_completion" and len(c.choices[0].logprobs.tokens) == len(c.choices[0].logprobs.token_logprobs), "completions")
expect(all(p.object == "text_completion" for p in client.completions.create(model="builtin", prompt="Hello", max_tokens=4, stream=True)), "completions, streamed")

parts = [{"type": "input_image", "image_url": scene, "detail": "low"}, {"type": "input_text", "text": "Describe the image."}]
r = client.responses.create(model="builtin", input=[{"role": "user", "content": parts}])
expect(r.status == "completed" and r.output_text.startswith(DESCRIPTION) and r.usage.input_tokens_details.cached_tokens >= 0, "responses")
expect(r.model_extra["restore"]["visual_tokens"]["kept"] + r.model_extra["restore"]["visual_tokens"]["merged"] == 64, "detail is ignored")
kinds = []
with client.responses.stream(model="builtin", input=[{"role": "user", "content": parts}]) as s:
    for event in s:
        kinds.append(event.type)
    expect(s.get_final_response().output_text == r.output_text, "responses, streamed")
expect(kinds[0] == "response.created" and kinds[-1] == "response.completed", "events")
r = client.responses.create(model="builtin", input="Hello", max_output_tokens=1)
expect(r.status == "incomplete" and r.incomplete_details.reason == "max_output_tokens", "responses, cut")

for what, status, call in [
    ("unknown model", 404, lambda: client.chat.completions.create(model="gpt-9", messages=[{"role": "user", "content": "a"}])),
    ("bad temperature", 400, lambda: ask("a", temperature=3)),
    ("unknown field of restore", 400, lambda: ask("a", extra_body={"restore": {"nvis": 3}})),
    ("tools", 400, lambda: ask("a", tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}])),
    ("n", 400, lambda: ask("a", n=2)),
]:
    try:
        call()
    except openai.APIStatusError as e:
        expect(e.status_code == status and e.code and e.request_id, f"{what}: {e.code} {e.param}")
    else:
        expect(False, what)


def batch(lines):
    """The batch of a file with these lines, when it is over."""
    content = "\n".join(json.dumps(line) for line in lines).encode()
    file = client.files.create(file=("requests.jsonl", content), purpose="batch")
    expect(file.bytes == len(content) and file.status == "processed" and client.files.content(file.id).read() == content, "file")
    b = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"for": "a test"})
    while b.status not in ("completed", "failed", "cancelled", "expired"):
        time.sleep(0.1)
        b = client.batches.retrieve(b.id)
    return file, b


def line(name, text, **more):
    content = [{"type": "image_url", "image_url": {"url": scene}}, {"type": "text", "text": text}]
    body = {"model": "builtin", "messages": [{"role": "user", "content": content}], **more}
    return {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": body}


def results(file):
    return {r["custom_id"]: r for r in map(json.loads, client.files.content(file).text.splitlines())}


file, b = batch([line("good", "Describe the image."), line("hot", "a", temperature=3), line("short", "Describe the image.", max_tokens=3)])
expect(b.status == "completed" and b.metadata == {"for": "a test"}, "batch")
expect((b.request_counts.total, b.request_counts.completed, b.request_counts.failed) == (3, 2, 1), "counts")
good, bad = results(b.output_file_id), results(b.error_file_id)
answer = good["good"]["response"]["body"]["choices"][0]["message"]["content"]
expect(answer == ask("Describe the image.").choices[0].message.content, "a batch's answer is that of a call")
expect(good["short"]["response"]["body"]["usage"]["completion_tokens"] == 3, "a line's limit")
expect(set(bad) == {"hot"} and bad["hot"]["response"]["status_code"] == 400, "a line's error")
expect(b.id in [x.id for x in client.batches.list(limit=1)], "batches, page by page")
expect({file.id, b.output_file_id, b.error_file_id} <= {f.id for f in client.files.list(limit=1)}, "files, page by page")
for id in file.id, b.output_file_id, b.error_file_id:
    expect(client.files.delete(id).deleted, "file deleted")
try:
    client.files.retrieve(file.id)
    expect(False, "a deleted file")
except openai.NotFoundError:
    pass
_, b = batch([line("twice", "a"), line("twice", "b")])
expect(b.status == "failed" and b.errors.data[0].line == 2 and b.request_counts.completed == 0, "the same name twice")
content = "\n".join(json.dumps(line(str(i), f"What number is written? {i}")) for i in range(200)).encode()
file = client.files.create(file=("many.jsonl", content), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600})
b = client.batches.cancel(client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h").id)
expect(b.status in ("cancelling", "cancelled"), "cancel")
while client.batches.retrieve(b.id).status == "cancelling":
    time.sleep(0.1)
expect(client.batches.retrieve(b.id).status == "cancelled", "cancelled")
print("all is well")
