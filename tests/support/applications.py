"""Small web applications as their authors would keep them: a Dockerfile, the lists of their packages, and their source."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

FLASK: Final[Mapping[str, str]] = {
    "Dockerfile": """\
FROM python:3.12-slim
ENV PYTHONDONTWRITEBYTECODE=1 \\
    PYTHONUNBUFFERED=1
WORKDIR /srv/shop
COPY requirements.txt .
RUN pip install --no-cache-dir -r requirements.txt
COPY . .
RUN useradd --create-home --uid 1500 shop && chown shop: /srv/shop
USER shop
ENV SHOP_NAME="The corner shop"
EXPOSE 8000
CMD ["gunicorn", "--bind", "0.0.0.0:8000", "--workers", "2", "--access-logfile", "-", "shop:app"]
""",
    ".dockerignore": "__pycache__\n.env\n",
    ".env": "SECRET=of the author\n",
    "requirements.txt": "flask>=3,<4\ngunicorn>=23\n",
    "shop.py": """\
import getpass
import os
import sqlite3

from flask import Flask, g, render_template, request

app = Flask(__name__)


def goods():
    if "goods" not in g:
        g.goods = sqlite3.connect("goods.db")
        g.goods.execute("create table if not exists goods (name text, price int)")
    return g.goods


@app.get("/")
def index():
    found = goods().execute("select name, price from goods order by name").fetchall()
    return render_template("index.html", name=os.environ["SHOP_NAME"], goods=found, user=getpass.getuser())


@app.post("/goods")
def add():
    with goods() as transaction:
        transaction.execute("insert into goods values (?, ?)", (request.json["name"], request.json["price"]))
    return {"added": request.json["name"]}, 201
""",
    "templates/index.html": """\
<h1>{{ name }}</h1>{% for name, price in goods %}<li>{{ name }}: {{ price }}</li>{% endfor %}<p>served by {{ user }}</p>
""",
}
"""Application for Python: Flask behind gunicorn, with a database in a file."""

NODE: Final[Mapping[str, str]] = {
    "Dockerfile": """\
# syntax=docker/dockerfile:1
FROM node:22 AS build
WORKDIR /build
COPY package.json package-lock.json ./
RUN --mount=type=cache,target=/root/.npm npm ci
COPY . .
RUN npm run build

FROM node:22-slim
ENV NODE_ENV=production
WORKDIR /srv/notes
COPY --from=build /build/dist ./
COPY --from=build --chown=node:node /build/public ./public
USER node
EXPOSE 3000
ENTRYPOINT ["node"]
CMD ["server.cjs"]
""",
    ".dockerignore": "node_modules\ndist\n",
    "package.json": json.dumps(
        {
            "name": "notes",
            "version": "1.0.0",
            "private": True,
            "type": "module",
            "scripts": {"build": "esbuild src/server.ts --bundle --platform=node --format=cjs --outfile=dist/server.cjs"},
            "dependencies": {"express": "^5.1.0"},
            "devDependencies": {"esbuild": "^0.25.0"},
        }
    ),
    "src/server.ts": """\
import express, { Request, Response } from "express";

const notes: string[] = [];
const app = express();
app.use(express.json());
app.use(express.static("public"));
app.get("/notes", (_: Request, response: Response) => { response.json({ notes, mode: process.env.NODE_ENV, uid: process.getuid!() }); });
app.post("/notes", (request: Request, response: Response) => { notes.push(request.body.text); response.status(201).json({ count: notes.length }); });
app.listen(3000, () => console.log("listening"));
""",
    "public/index.html": "<title>Notes</title><p>Write a note.</p>\n",
}
"""Application for Node.js: Express, bundled by esbuild in a first stage. ``package-lock.json`` is made by npm: see ``LOCK``."""

GO: Final[Mapping[str, str]] = {
    "Dockerfile": """\
# syntax=docker/dockerfile:1
FROM golang:1.24 AS build
WORKDIR /src
COPY go.mod ./
RUN go mod download
COPY . .
RUN --mount=type=cache,target=/root/.cache/go-build CGO_ENABLED=0 go build -trimpath -ldflags="-s -w" -o /out/web ./cmd/web

FROM scratch
COPY --from=build /out/web /web
COPY static /static
USER 65532:65532
EXPOSE 8080
ENTRYPOINT ["/web"]
""",
    ".dockerignore": ".env\n**/*.md\n!static/terms.md\n",
    ".env": "SECRET=of the author\n",
    "go.mod": "module example.com/web\n\ngo 1.22\n",
    "internal/greeting/greeting.go": """\
package greeting

func Of(name string) string { return "hello " + name }
""",
    "cmd/web/main.go": """\
package main

import (
	"fmt"
	"log"
	"net/http"
	"os"

	"example.com/web/internal/greeting"
)

func main() {
	http.Handle("/static/", http.StripPrefix("/static/", http.FileServer(http.Dir("/static"))))
	http.HandleFunc("/", func(response http.ResponseWriter, request *http.Request) {
		fmt.Fprintf(response, "%s from %d\\n", greeting.Of(request.URL.Query().Get("name")), os.Getuid())
	})
	log.Print("listening on :8080")
	log.Fatal(http.ListenAndServe(":8080", nil))
}
""",
    "static/notes.md": "Not for the image.\n",
    "static/terms.md": "Be kind.\n",
}
"""Application in Go: a static program from a first stage, alone in its image."""

BROWSER: Final[Mapping[str, str]] = {
    "Dockerfile": """\
FROM python:3.12-slim
RUN apt-get update \\
 && apt-get install -y --no-install-recommends chromium fonts-liberation \\
 && rm -rf /var/lib/apt/lists/*
WORKDIR /srv/prices
COPY requirements.txt .
RUN pip install --no-cache-dir -r requirements.txt
COPY . .
USER user
CMD ["python3", "-m", "http.server", "--directory", "site", "8000"]
""",
    "requirements.txt": "playwright\n",
    "site/index.html": """\
<!doctype html>
<title>Prices</title>
<body style="margin: 0; background: #12ab34">
<h1>loading</h1>
<script>fetch("price.txt").then(found => found.text()).then(text => { document.querySelector("h1").textContent = "tea: " + text })</script>
""",
    "site/price.txt": "42\n",
    "visit.py": """\
from playwright.sync_api import sync_playwright

with sync_playwright() as playwright:
    browser = playwright.chromium.launch(executable_path="/usr/bin/chromium")
    page = browser.new_page(viewport={"width": 800, "height": 600})
    page.goto("http://localhost:8000/")
    page.wait_for_selector("text=tea: 42")
    print(page.title(), page.inner_text("h1"))
    page.screenshot(path="/tmp/playwright.png")
    browser.close()
""",
}
"""Page with a script, and a browser in the same sandbox that visits the page, also by Playwright. The browser comes from Debian."""

LOCK: Final = "npm install --package-lock-only --no-audit --no-fund"
"""Command that writes ``package-lock.json`` for ``package.json`` in the working directory."""


def write_files(folder: Path, files: Mapping[str, str]) -> Path:
    """Write the files of an application, and return the folder."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder
