"""Promise: a web application in a sandbox works in a browser, in the host form and, without cookies and absolute paths, in the path form."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from sandlot import Sandbox
from tests.support.chromium import Profile, ScriptError
from tests.support.localservice import LocalService

pytestmark = pytest.mark.soak

PORT = 8000
APP = """
from flask import Flask, redirect, request, session, url_for

app = Flask(__name__)
app.secret_key = "not a secret"

@app.get("/")
def page():
    name = session.get("name", "nobody")
    return f'''<!doctype html>
<link rel="stylesheet" href="/static/style.css"><script src="/static/script.js"></script>
<p id="name">{name}</p>
<form method="post" action="/name"><input name="name" value="Ada"><button>Send</button></form>'''

@app.post("/name")
def save():
    session["name"] = request.form["name"]
    return redirect(url_for("page", _external=True))

@app.get("/plain/")
def plain():
    return '''<!doctype html>
<script type="module" src="../static/module.js"></script>
<p id="data"></p>
<form method="post" action="greet"><input name="name" value="Ada"><button>Send</button></form>'''

@app.get("/plain/data")
def data():
    return {"words": "own data", "host": request.host}

@app.post("/plain/greet")
def greet():
    return redirect("/plain/hello?name=" + request.form["name"])

@app.get("/plain/hello")
def hello():
    return "<p>Hello " + request.args["name"] + "</p>"
"""
STATIC = {
    "style.css": "p { color: rgb(1, 2, 3) }",
    "script.js": "window.scripted = true",
    "module.js": "import {show} from './show.js'\nshow(await (await fetch('data')).json())",
    "show.js": "export function show(data) { document.getElementById('data').textContent = data.words + ' of ' + data.host }",
    "worker.js": "onfetch = () => {}",
}


@pytest.fixture(scope="module")
def sandbox(service: LocalService) -> Iterator[Sandbox]:
    with service.create(timeout=1200) as made:
        made.install("flask==3.1.2").check()
        made.files.write("/workspace/app.py", APP)
        for name, content in STATIC.items():
            made.files.write(f"/workspace/static/{name}", content)
        made.commands.run(f"python3 -m flask run --port {PORT} > /tmp/log 2>&1", background=True)
        while not any(each.port == PORT for each in made.ports()):
            time.sleep(0.1)
        yield made


def test_flask_application_has_sessions_forms_and_static_files_in_the_host_form(sandbox: Sandbox, profile: Profile) -> None:
    page = profile.open(sandbox.get_url(PORT))
    assert page.evaluate("location.pathname + location.search") == "/"
    assert page.evaluate("getComputedStyle(document.getElementById('name')).color + window.scripted") == "rgb(1, 2, 3)true"
    assert page.evaluate("document.getElementById('name').textContent") == "nobody"
    origin = page.evaluate("location.origin")
    page.evaluate("document.querySelector('button').click()")
    page.wait_for("document.getElementById('name').textContent === 'Ada'")
    assert page.evaluate("location.href") == f"{origin}/"  # redirected by an absolute URL of the program's own
    again = profile.open(f"{origin}/")
    assert again.evaluate("document.getElementById('name').textContent") == "Ada"


def test_flask_application_has_own_data_modules_and_forms_in_the_path_form(sandbox: Sandbox, profile: Profile) -> None:
    page = profile.open(sandbox.get_url(PORT, path_form=True) + "plain/")
    page.wait_for(f"document.getElementById('data').textContent === 'own data of localhost:{PORT}'")
    page.evaluate("document.querySelector('button').click()")
    page.wait_for("document.body.innerText.includes('Hello Ada')")
    assert page.evaluate("location.pathname").endswith("/plain/hello")


@pytest.mark.parametrize("script", ["document.cookie", "localStorage.length", "navigator.serviceWorker.register('../static/worker.js')"])
def test_page_of_the_path_form_has_no_cookies_storage_and_workers(sandbox: Sandbox, profile: Profile, script: str) -> None:
    page = profile.open(sandbox.get_url(PORT, path_form=True) + "plain/")
    with pytest.raises(ScriptError):
        page.evaluate(script)


@pytest.mark.parametrize("path_form", [False, True])
def test_page_that_was_opened_too_early_follows_once_the_program_listens(sandbox: Sandbox, profile: Profile, *, path_form: bool) -> None:
    port = PORT + 1 + path_form
    page = profile.open(sandbox.get_url(port, path_form=path_form))
    assert "Nothing is running here yet" in page.text
    sandbox.commands.run(f"python3 -m flask run --port {port} > /tmp/log-{port} 2>&1", background=True)
    page.wait_for("document.getElementById('name').textContent === 'nobody'")
