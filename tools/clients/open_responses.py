"""The cases of Open Responses' compliance suite that need no tools, against /v1/responses: what is asked and what must come back
is as its specification says; the code is our own."""

import base64
import json
import pathlib
import sys
import urllib.request

url = sys.argv[1]
root = pathlib.Path(__file__).resolve().parents[2]
scene = "data:image/png;base64," + base64.b64encode((root / "docs/scene.png").read_bytes()).decode()
REQUIRED = set(
    "id object created_at completed_at status incomplete_details model previous_response_id instructions output error tools tool_choice "
    "truncation parallel_tool_calls text top_p presence_penalty frequency_penalty top_logprobs temperature reasoning user usage "
    "max_output_tokens max_tool_calls store background service_tier metadata safety_identifier prompt_cache_key".split()
)
EVENTS = [
    "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added", "response.output_text.delta",
    "response.output_text.done", "response.content_part.done", "response.output_item.done", "response.completed",
]


def post(body):
    data = json.dumps({"model": "builtin", **body}).encode()
    with urllib.request.urlopen(urllib.request.Request(url + "/v1/responses", data, {"Content-Type": "application/json"})) as reply:
        return reply.read().decode()


def check(name, r):
    missing = REQUIRED - set(r)
    item = r["output"][0]
    part = item["content"][0]
    good = (
        not missing and r["object"] == "response" and r["status"] == "completed" and isinstance(r["completed_at"], int) and r["error"] is None
        and set(item) == {"type", "id", "status", "role", "content"} and item["status"] == "completed" and item["role"] == "assistant"
        and set(part) == {"type", "text", "annotations", "logprobs"} and part["text"]
        and {"input_tokens", "output_tokens", "total_tokens", "input_tokens_details", "output_tokens_details"} <= set(r["usage"])
    )
    if not good:
        raise SystemExit(f"failed: {name}: missing {missing}: {json.dumps(r)[:2000]}")
    print("ok:", name)


def user(text):
    return {"type": "message", "role": "user", "content": text}


check("basic response", json.loads(post({"input": [user("Say hello in exactly 3 words.")], "stream": False})))
check("system prompt", json.loads(post({"input": [{"type": "message", "role": "system", "content": "You are a pirate."}, user("Say hello.")]})))
check("image input", json.loads(post({"input": [user([{"type": "input_text", "text": "What do you see?"}, {"type": "input_image", "image_url": scene}])]})))
check("multi-turn", json.loads(post({"input": [user("My name is Alice."), {"type": "message", "role": "assistant", "content": "Hello Alice!"}, user("What is my name?")]})))

events = [e for e in post({"input": [user("Count from 1 to 5.")], "stream": True}).split("\n\n") if e]
if events.pop() != "data: [DONE]":
    raise SystemExit("failed: the stream does not end with [DONE]")
kinds = []
for i, e in enumerate(events):
    head, data = e.split("\n")
    body = json.loads(data.removeprefix("data: "))
    if head != "event: " + body["type"] or body["sequence_number"] != i:
        raise SystemExit(f"failed: event {i}: {e}")
    if not kinds or kinds[-1] != body["type"]:
        kinds.append(body["type"])
if kinds != EVENTS:
    raise SystemExit(f"failed: events {kinds}")
check("streaming response", body["response"])
print("all is well")
