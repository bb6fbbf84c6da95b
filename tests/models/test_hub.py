"""Hub ids against a small hub on this machine: what is fetched, what is cached, what is said."""

import http.server
import json
import os
import pathlib
import shutil
import subprocess
import sys
import threading

import pytest
from hf_folders import ROOT

from gradejax.models.hub import commit_of, resolve

COMMIT, OLDER = "a" * 40, "b" * 40
FILES = {
    name: (ROOT / "qwen2" / name).read_bytes()
    for name in ("config.json", "generation_config.json", "model.safetensors")
}
REPO = FILES | {
    "tokenizer.json": b"{}", "pytorch_model.bin": b"pickle", "model.pt": b"pickle",
    "flax_model.msgpack": b"flax", "README.md": b"#", "onnx/model.onnx": b"onnx",
}  # fmt: skip
REPOS = {
    "owner/small": REPO,
    "owner/flax": {"config.json": b"{}", "flax_model.msgpack": b"flax", "pytorch_model.bin": b"p"},
    "owner/pickled": {"config.json": b"{}", "pytorch_model.bin": b"pickle"},
}
GATED = "owner/gated"


class Hub(http.server.BaseHTTPRequestHandler):
    """Model info and files, as the hub answers them."""

    asked: list[str] = []

    def log_message(self, *_):
        pass

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def refuse(self, status, code):
        self.answer(status, b"{}", X_Error_Code=code, X_Error_Message=code)

    def do_GET(self):
        path = self.path.split("?")[0].strip("/")
        if path.startswith("api/models/"):
            return self.info(path.removeprefix("api/models/"))
        if path.count("/") < 4:  # what the library asks for besides
            return self.refuse(404, "EntryNotFound")
        owner, name, _, revision, *file = path.split("/")
        body = REPOS.get(f"{owner}/{name}", {}).get("/".join(file))
        if body is None:
            return self.refuse(404, "EntryNotFound")
        self.asked.append(f"{self.command} {revision} {'/'.join(file)}")
        self.answer(200, body, ETag=f'"{hash(body) & 0xFFFFFFFF:x}"', X_Repo_Commit=revision)

    do_HEAD = do_GET

    def info(self, path):
        listed = "/tree/" in path
        model, _, revision = path.partition("/tree/" if listed else "/revision/")
        if model == GATED:
            return self.refuse(403, "GatedRepo")
        if model not in REPOS:
            return self.refuse(401, "RepoNotFound")
        commit = {"": COMMIT, "main": COMMIT, "v1": OLDER, COMMIT: COMMIT, OLDER: OLDER}.get(
            revision
        )
        if commit is None:
            return self.refuse(404, "RevisionNotFound")
        if listed:
            tree = [{"type": "file", "path": n, "size": len(b), "oid": f"{hash(b) & 0xFFFFFFFF:x}"}
                    for n, b in REPOS[model].items()]  # fmt: skip
            return self.answer(200, json.dumps(tree).encode(), Content_Type="application/json")
        body = {"id": model, "sha": commit, "private": False, "gated": False, "tags": [],
                "siblings": [{"rfilename": name} for name in REPOS[model]]}  # fmt: skip
        self.answer(200, json.dumps(body).encode(), Content_Type="application/json")


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """(address, cache folder) of a running hub."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", tmp_path_factory.mktemp("cache")
    server.shutdown()
    server.server_close()


SCRIPT = """
import json, sys
from gradejax.models.hub import resolve
for model, revision in json.loads(sys.argv[1]):
    try:
        print(json.dumps(["path", str(resolve(model, revision))]))
    except Exception as error:
        print(json.dumps([type(error).__name__, str(error)]))
"""


def ask(hub, *models, **environment):
    """Resolve in a process of its own: huggingface_hub reads its settings when imported."""
    address, cache = hub
    settings = {"HF_ENDPOINT": address, "HF_HOME": str(cache), "HF_HUB_DISABLE_XET": "1",
                "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_ETAG_TIMEOUT": "2"}  # fmt: skip
    keep = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
    found = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps([(*m, None)[:2] for m in models])],
        env=keep | settings | environment, capture_output=True, text=True, timeout=300,
        cwd=pathlib.Path(__file__).parents[2], check=True,
    )  # fmt: skip
    return [json.loads(line) for line in found.stdout.splitlines()]


def test_a_snapshot_holds_what_is_needed_and_is_cached(hub):
    Hub.asked.clear()
    (kind, path), (_, old), (_, flax) = ask(
        hub, ("owner/small",), ("owner/small", "v1"), ("owner/flax",)
    )
    assert kind == "path", path
    found = {str(p.relative_to(path)) for p in pathlib.Path(path).rglob("*") if p.is_file()}
    assert found == {"config.json", "generation_config.json", "model.safetensors",
                     "tokenizer.json"}  # fmt: skip
    assert commit_of(path) == COMMIT and commit_of(old) == OLDER
    assert {p.name for p in pathlib.Path(flax).iterdir()} == {"config.json", "flax_model.msgpack"}
    assert not any("pytorch" in a or ".pt" in a or "onnx" in a for a in Hub.asked)
    # The same again without a network: the cached copy, by branch and by commit.
    again = ask(hub, ("owner/small",), ("owner/small", OLDER), HF_HUB_OFFLINE="1")
    assert again == [["path", path], ["path", old]]
    dead = ask(hub, ("owner/small",), HF_ENDPOINT="http://127.0.0.1:9")
    assert dead == [["path", path]]
    offline, unreachable = (
        ask(hub, ("owner/never",), **setting)[0]
        for setting in ({"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"})
    )
    for kind, said in (offline, unreachable):
        assert kind == "FileNotFoundError" and "'owner/never'" in said
        assert "local cache holds no complete copy" in said and "give a local folder" in said
    assert "HF_HUB_OFFLINE is set" in offline[1]


def test_what_the_hub_refuses_is_said(hub):
    gated, missing, revision, pickled = ask(
        hub, (GATED,), ("owner/misspelt",), ("owner/small", "v9"), ("owner/pickled",)
    )
    assert {kind for kind, _ in (gated, missing, revision, pickled)} == {"FileNotFoundError"}
    assert "'owner/gated'" in gated[1] and "gated: accept its terms" in gated[1]
    assert "knows no model of that id" in missing[1] and "check the spelling" in missing[1]
    assert "at revision 'v9'" in revision[1] and "no such revision" in revision[1]
    assert "expected model.safetensors" in pickled[1] and "pytorch_model.bin" in pickled[1]
    for _, said in (gated, missing, revision):
        assert "give a local folder with config.json" in said


def test_an_existing_folder_wins(tmp_path, monkeypatch):
    folder = tmp_path / "owner" / "small"
    shutil.copytree(ROOT / "qwen2", folder)
    monkeypatch.chdir(tmp_path)
    assert resolve("owner/small") == pathlib.Path("owner/small")
    assert resolve(folder) == folder and commit_of(folder) is None
    with pytest.raises(ValueError, match="local path, which has no revisions, yet revision='v1'"):
        resolve("owner/small", "v1")


def test_a_mistyped_folder_is_said_beside_the_hubs_answer(tmp_path, monkeypatch):
    """``models/smol`` reads as a hub id, yet a folder ``models`` is here."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("gradejax.models.hub._offline", lambda: True)
    monkeypatch.setattr("gradejax.models.hub._cached", lambda *_: None)
    for name in ("smol2", "other"):
        (tmp_path / "models" / name).mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match=r"'models/smol': there is no folder of that name "
                       r"\(the folder 'models' is here and holds other, smol2\), the hub"):
        resolve("models/smol")
    with pytest.raises(FileNotFoundError, match="'smol': there is no folder of that name, the hub"):
        resolve("smol")


@pytest.mark.parametrize("what", [None, 5, ["a"]])
def test_what_is_no_name(what):
    with pytest.raises(ValueError, match="expected a folder, a .gguf file or a hub id owner/name"):
        resolve(what)


@pytest.mark.parametrize("text", ["/no/where", "./nowhere", "a/b/c", "~/none", "model.gguf"])
def test_what_looks_like_a_path_is_not_asked_for(text):
    with pytest.raises(FileNotFoundError, match="model folder or file .* does not exist"):
        resolve(text)


@pytest.mark.parametrize("text", ["", "ow ner/x", "owner/", "-x/y", "a--b/c", "a..b", "ümlaut/x"])
def test_malformed_ids(text):
    with pytest.raises(ValueError, match="neither an existing folder nor a hub id"):
        resolve(text)
