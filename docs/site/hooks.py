"""Pages of the site that are made from other files: home, the reference of Python and C, examples, root pages."""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
ROOT_PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}


def on_config(config: MkDocsConfig) -> None:
    """Fill the part of the navigation that lists the reference."""
    names = [*_sections(), "C"]
    reference = [{name: f"reference/{name}.md"} for name in names]
    for entry in config.nav or ():
        if "Reference" in entry:
            entry["Reference"] = reference


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the generated pages."""
    pages = {target: _inside((ROOT / source).read_text(), "docs/") for source, target in ROOT_PAGES.items()}
    pages["examples/index.md"] = _gallery()
    pages["reference/C.md"] = _c_reference((ROOT / "kernels/c/gradientflow.h").read_text())
    pages |= {f"reference/{module}.md": _reference(module, names) for module, names in _sections().items()}
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Begin the home page with README, and keep links inside of the site."""
    if page.file.src_uri == "README.md":
        index = markdown.partition("\n")[2]
        markdown = f"{_inside((ROOT / 'README.md').read_text(), 'docs/')}\n## All pages\n{index}"
    for source, target in ROOT_PAGES.items():
        markdown = markdown.replace(f"](../{source}", f"]({target}")
    is_at_the_top = "/" not in page.file.src_uri  # there, a link upward leaves the folder of the pages
    return re.sub(r"\[([^]]*)\]\(\.\./[^)]*\)", r"\1", markdown) if is_at_the_top else markdown


def _inside(text: str, prefix: str) -> str:
    """Rewrite the links of a page of the root folder."""
    text = re.sub(rf"\]\({prefix}", "](", text).replace(f'src="{prefix}', 'src="')
    for source, target in ROOT_PAGES.items():
        text = text.replace(f"]({source}", f"]({target}")
    return re.sub(r"\[([^]]*)\]\((?:LICENSE|(?:tests|bench|kernels|\.ci)/)[^)]*\)", r"\1", text)


def _sections() -> dict[str, list[str]]:
    """Return the public names of each module, from the list that a test keeps."""
    found: dict[str, list[str]] = {}
    for line in (ROOT / "docs/api.txt").read_text().splitlines():
        if module := re.fullmatch(r"\[(.*)\]", line):
            names = found.setdefault(module[1], [])
        elif name := re.match(r"(?:class )?(\w+)\b(?!:)", line):
            names.append(name[1])
    return found


def _reference(module: str, names: list[str]) -> str:
    folder = ROOT / module.replace(".", "/")
    own = (name for name in names if not (folder / name).is_dir() and not (folder / f"{name}.py").is_file())
    entries = (f"::: {module}.{name}\n" for name in own)
    return f"# {module}\n\n" + "\n".join(entries)


def _c_reference(header: str) -> str:
    """Return the header as a page: a section for each of its own, comments above declarations as they are."""
    title, *sections = re.split(r"^// ---- (.*?) -+$", header, flags=re.MULTILINE)
    top = "\n".join(line.removeprefix("//").removeprefix(" ") for line in title.splitlines() if line.startswith("//"))
    parts = [f"# gradientflow.h\n\n```text\n{top.strip()}\n```\n\nHow to build and use it: [C API](../c-api.md).\n"]
    for name, body in zip(sections[::2], sections[1::2], strict=True):
        parts.append(f"## {name.capitalize()}\n\n```c\n{body.strip()}\n```\n")
    return "\n".join(parts)


def _gallery() -> str:
    """Return a table of the examples, with the sentence that each begins with."""
    rows = []
    for path in sorted((ROOT / "docs/examples").glob("*.*")):
        text = path.read_text()
        words = re.match(r'"""(.*?)(?:"""|\n\n)|// (.*?)(?:\n//\n|\n[^/])', text, re.DOTALL)
        sentence = " ".join((words[1] or words[2]).replace("\n// ", " ").split()) if words else ""
        if path.suffix in (".py", ".c", ".cpp"):
            rows.append(f"| [{path.name}]({path.name}) | {sentence.partition('. ')[0].rstrip('.')} |")
    head = "# Examples\n\nEach is run by a test. Start one with `gradientflow run -n 2 -- python train_torch.py`.\n"
    return "\n".join([head, "| Program | Subject |", "|---|---|", *rows, ""])
