"""Checks that restore and Python's huggingface_hub share one cache, against a hub on this machine.

    python -m venv /tmp/venv && /tmp/venv/bin/pip install huggingface_hub
    go build -o /tmp/restore ./cmd/restore
    /tmp/venv/bin/python tools/hub/check.py /tmp/restore

Each reads what the other has downloaded, without a request; each waits for the other's locks; the report of one agrees with
that of the other.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

restore = sys.argv[1]
top = pathlib.Path(__file__).parents[2]
source = top / "internal/builtin/checkpoint"
server = subprocess.Popen(
    ["go", "run", "./tools/hub", f"me/scenes={source}", f"me/other={source}"],
    cwd=top, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
url = server.stdout.readline().strip()
home = tempfile.mkdtemp()
os.environ.update(HF_HOME=home, HF_ENDPOINT=url, HF_HUB_DISABLE_TELEMETRY="1", HF_HUB_DISABLE_XET="1")

import huggingface_hub as hub  # noqa: E402  (reads the environment)
from filelock import FileLock  # noqa: E402

offline = dict(os.environ, HF_HUB_OFFLINE="1")


def run(*args, env=os.environ, code=0):
    r = subprocess.run([restore, *args], env=env, text=True, capture_output=True)
    assert r.returncode == code, (args, r)
    return r.stdout.strip()


def check(name, ok, *why):
    print("ok  " if ok else "FAIL", name, *(() if ok else why))
    if not ok:
        sys.exit(1)


try:
    # restore writes, Python reads.
    ours = run("pull", "me/scenes")
    theirs = hub.snapshot_download("me/scenes", local_files_only=True)
    check("Python finds what restore has pulled", ours == theirs, ours, theirs)
    for f in pathlib.Path(ours).iterdir():
        got = hub.hf_hub_download("me/scenes", f.name, local_files_only=True)
        check(f"  {f.name}", pathlib.Path(got).read_bytes() == (source / f.name).read_bytes())
    before = {p: p.stat().st_mtime_ns for p in pathlib.Path(home).rglob("blobs/*")}
    hub.snapshot_download("me/scenes")
    after = {p: p.stat().st_mtime_ns for p in pathlib.Path(home).rglob("blobs/*")}
    check("Python downloads no blob again", all(after[p] == t for p, t in before.items()), before, after)
    info = hub.scan_cache_dir()
    check("Python's scan finds no fault", not info.warnings and len(info.repos) == 1, info.warnings)
    listed = run("list")
    size = next(iter(info.repos)).size_on_disk
    check("both report the same size", f"{size / 1e6:.1f} MB" in listed, size, listed)

    # Python writes, restore reads.
    theirs = hub.snapshot_download("me/other", revision="refs/pr/1")
    ours = run("pull", "me/other@refs/pr/1", env=offline)
    check("restore finds what Python has pulled", ours == theirs, ours, theirs)
    shown = run("show", "-m", "me/other@refs/pr/1", env=offline)
    check("restore opens it", "me/other" in shown, shown)
    run("rm", "me/other")
    check("Python misses what restore has deleted", {r.repo_id for r in hub.scan_cache_dir().repos} == {"me/scenes"})

    # Locks.
    run("rm", "me/scenes")
    blob = next(p.name for p in before if len(p.name) == 64)
    lock = pathlib.Path(home) / "hub/.locks/models--me--scenes" / f"{blob}.lock"
    lock.parent.mkdir(parents=True)
    with FileLock(lock):
        done = []
        t = threading.Thread(target=lambda: done.append(run("pull", "me/scenes")))
        t.start()
        time.sleep(2)
        check("restore waits for Python's lock", not done)
    t.join()
    check("and goes on when it is free", len(done) == 1)
finally:
    server.stdin.close()
    server.wait()
print("all is well")
