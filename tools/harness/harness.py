"""Drives lmms-eval and VLMEvalKit against `restore serve`, and compares with `restore-lab eval`.

Draws scenes as a task of lmms-eval and as a list of questions, serves the embedded model with a
preset for each budget, lets lmms-eval (the program) and VLMEvalKit (its class for OpenAI's API, which
sends JPEG and detail "low") ask all questions of each preset, and asks the same questions of the
pictures as they were sent with `restore-lab eval scenes`. All accuracies must be equal. At the end
lmms-eval replays the last answers by its model from_log. Prints a table; exit code 1 on a difference.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install lmms-eval 'filelock<3.20'
    go build -o /tmp/bin/ ./cmd/...
    /tmp/venv/bin/python tools/harness/harness.py --bin /tmp/bin [--vlmevalkit CLONE] [--record DIR]
"""

import argparse
import base64
import http.server
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import types
import urllib.request

from PIL import Image

PRESETS = {576: {"base": "none"}, 64: {"n_vis": 64}, 32: {"n_vis": 32}}
LONGEST = 200  # tokens of an answer, as many as `restore-lab eval scenes` reads at most
TASK = """task: restore_scenes
dataset_path: json
dataset_kwargs:
  data_files:
    test: %s
test_split: test
output_type: generate_until
doc_to_visual: !function utils.visual
doc_to_text: !function utils.text
doc_to_target: answer
generation_kwargs:
  max_new_tokens: %d
  temperature: 0
  do_sample: false
process_results: !function utils.results
metric_list:
  - metric: accuracy
    aggregation: mean
    higher_is_better: true
metadata:
  version: 0.0
"""
UTILS = """from PIL import Image


def visual(doc):
    return [Image.open(doc["picture"]).convert("RGB")]


def text(doc, lmms_eval_specific_kwargs=None):
    return doc["question"]


def results(doc, answers):
    return {"accuracy": float(answers[0].strip() == doc["answer"])}
"""


class Proxy(http.server.BaseHTTPRequestHandler):
    """Passes requests on and keeps their bodies."""

    target, bodies = "", []
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.bodies.append(json.loads(body))
        try:
            reply = urllib.request.urlopen(urllib.request.Request(self.target + self.path, body))
        except urllib.error.HTTPError as e:
            reply = e
        data = reply.read()
        self.send_response(reply.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


def draw(lab, folder, pictures):
    """Returns (picture, question, answer) of drawn scenes; questions.json is for restore-lab."""
    rows, docs = [], []
    (folder / "pictures").mkdir(parents=True)
    for i in range(pictures):
        path = folder / "pictures" / f"{i}.png"
        seed = str(5_000_000 + i)
        out = subprocess.run([lab, "scene", "--seed", seed, "-o", path], check=True,
                             capture_output=True, text=True).stdout
        asked = [dict(zip(("task", "question", "answer"), line.split("\t")))
                 for line in out.splitlines()]
        rows.append({"picture": path.name, "questions": asked})
        docs += [{"picture": str(path), **q} for q in asked]
    (folder / "questions.json").write_text(json.dumps(rows))
    return docs


def expected(lab, folder, budget):
    """The accuracy of restore-lab in percent."""
    out = subprocess.run([lab, "eval", "scenes", "--data", folder, "--n-vis", str(min(budget, 64)),
                          "--json"], check=True, capture_output=True, text=True).stdout
    r = json.loads(out)
    return (r["full"] if budget == 576 else r["reduced"])["all"]


def picture(body):
    for part in body["messages"][-1]["content"]:
        if part["type"] == "image_url":
            return base64.b64decode(part["image_url"]["url"].split(",", 1)[1])


def lmms(work, model_args, name, model="openai"):
    """Runs lmms-eval; returns its accuracy in percent and the lines of its samples."""
    out = work / f"out-{name}"
    subprocess.run([sys.executable, "-m", "lmms_eval", "eval", "--model", model, "--model_args",
                    model_args, "--tasks", "restore_scenes", "--include_path", work / "task",
                    "--output_path", out, "--log_samples", "--batch_size", "1"], check=True,
                   capture_output=True, cwd=work,
                   env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(work / "hf")})
    results = json.loads(next(out.rglob("*_results.json")).read_text())["results"]
    samples = [json.loads(line) for line in
               next(out.rglob("*_samples_*.jsonl")).read_text().splitlines()]
    return 100 * results["restore_scenes"]["accuracy,none"], samples


def vlmevalkit(clone):
    """VLMEvalKit's class, without the packages that only its other models import."""
    sys.path.insert(0, str(clone))
    for name in ("vlmeval", "vlmeval.api"):
        module = types.ModuleType(name)
        module.__path__ = [str(clone / name.replace(".", "/"))]
        sys.modules[name] = module
    from vlmeval.api.gpt import GPT4V

    return GPT4V


def ask_kit(kit, url, budget, docs):
    """Asks all questions; returns the answers and the pictures as they were sent."""
    model = kit(model=f"t{budget}", key="sk-none", api_base=url + "/v1/chat/completions", retry=1,
                max_tokens=LONGEST)
    answers, sent = [], {}
    for d in docs:
        answers.append(model.generate([{"type": "image", "value": d["picture"]},
                                       {"type": "text", "value": d["question"]}]))
        sent[pathlib.Path(d["picture"]).stem] = picture(Proxy.bodies[-1])
    return answers, sent


def replay(work, samples, docs):
    """Writes the answers as a log of lmms-eval, lets from_log replay them, returns the accuracy."""
    log = work / "log"
    log.mkdir()
    (log / "1123_0000_scenes.json").write_text(json.dumps({
        "args": {"model": "restore", "model_args": "", "limit": None},
        "model_configs": {"task": "restore_scenes"}, "time": "1123_0000",
        "logs": [{"doc_id": s["doc_id"], "resps": [[s["filtered_resps"]]]} for s in samples]}))
    return lmms(work, f"logs={log}", "log", "from_log")[0]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--bin", type=pathlib.Path, required=True)
    p.add_argument("--vlmevalkit", type=pathlib.Path)
    p.add_argument("--pictures", type=int, default=8)
    p.add_argument("--record", type=pathlib.Path, help="folder for one request of each harness")
    o = p.parse_args()
    lab, work = str(o.bin / "restore-lab"), pathlib.Path(tempfile.mkdtemp())
    docs = draw(lab, work / "scenes", o.pictures)
    (work / "task").mkdir()
    (work / "docs.jsonl").write_text("".join(json.dumps(d) + "\n" for d in docs))
    (work / "task" / "scenes.yaml").write_text(TASK % (work / "docs.jsonl", LONGEST))
    (work / "task" / "utils.py").write_text(UTILS)
    command = [o.bin / "restore", "serve", "--port", "0"]
    for n, fields in PRESETS.items():
        command += ["--preset", f"t{n}={json.dumps(fields)}"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        Proxy.target = server.stdout.readline().split()[-1]
        proxy = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{proxy.server_port}"
        sys.exit(compare(o, lab, work, docs, url))
    finally:
        server.terminate()
        server.wait()


def compare(o, lab, work, docs, url):
    wrong = 0
    kit = vlmevalkit(o.vlmevalkit) if o.vlmevalkit else None
    print(f"{len(docs)} questions about {o.pictures} pictures\n")
    print("| harness | visual tokens | its accuracy | `restore-lab eval scenes` |\n|---|---|---|---|")

    def row(name, n, got, want):
        nonlocal wrong
        wrong += not abs(got - want) <= 0.05 + 1e-9  # restore-lab prints one digit
        print(f"| {name} | {n} | {got:.1f} | {want:.1f} |", flush=True)

    def record(name):
        if o.record:
            (o.record / f"{name}.json").write_text(json.dumps(Proxy.bodies[0]))
        Proxy.bodies.clear()

    for n in PRESETS:
        args = f"model=t{n},base_url={url}/v1,api_key=none,num_concurrent=4"
        got, samples = lmms(work, args, n)
        drawn = {Image.open(d["picture"]).convert("RGB").tobytes() for d in docs}
        for body in Proxy.bodies:  # PNG again, with the same pixels
            assert Image.open(io.BytesIO(picture(body))).convert("RGB").tobytes() in drawn
        record("lmms-eval")
        row("lmms-eval", n, got, expected(lab, work / "scenes", n))
    row("lmms-eval, from_log", n, replay(work, samples, docs), got)
    for n in PRESETS if kit else ():
        answers, sent = ask_kit(kit, url, n, docs)
        record("vlmevalkit")
        folder = work / f"kit-{n}"
        (folder / "pictures").mkdir(parents=True)
        for name, data in sent.items():
            (folder / "pictures" / f"{name}.png").write_bytes(data)  # a JPEG; its content decides
        (folder / "questions.json").write_bytes((work / "scenes" / "questions.json").read_bytes())
        right = sum(a.strip() == d["answer"] for a, d in zip(answers, docs))
        row("VLMEvalKit", n, 100 * right / len(docs), expected(lab, folder, n))
    return 1 if wrong else 0


if __name__ == "__main__":
    main()
