"""Fills cases.json: renders every template of cases.json with Jinja2.

    pip install jinja2==3.1.6
    python render.py

The environment has the settings with which chat templates are rendered by the
reference implementation; the templates and conversations are ours.
"""
import datetime
import json

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("same"), [], [], body).set_lineno(line)

    def same(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
env.filters["tojson"] = tojson
env.globals["raise_exception"] = raise_exception
env.globals["strftime_now"] = lambda f: datetime.datetime(2024, 7, 5, 9, 3, 7).strftime(f)

with open("cases.json", encoding="utf-8") as f:
    d = json.load(f)
for case in d["cases"]:
    case.pop("text", None)
    case.pop("error", None)
    v = {"add_generation_prompt": case.get("add_generation_prompt", False), "tools": case.get("tools"), "documents": None}
    if case.get("add_vision_id"):
        v["add_vision_id"] = True
    v.update(d["special_tokens"])
    template = case["template"] if "template" in case else d["templates"][case["uses"]]
    try:
        case["text"] = env.from_string(template).render(messages=d["conversations"][case["conversation"]], **v)
    except Exception as e:
        case["error"] = f"{type(e).__name__}: {e}"
with open("cases.json", "w", encoding="utf-8") as f:
    json.dump(d, f, ensure_ascii=False, indent=1)
    f.write("\n")
