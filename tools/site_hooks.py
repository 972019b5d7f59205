"""Hooks of mkdocs: pages of the repository outside docs, links that lead there, and no loading from elsewhere.

A link from a page to a file or folder of the repository, such as `../examples/deployment`, works on a code host. On the
site it leads to a page that shows the file, or all files of the folder.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
PROJECT = ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "CODE_OF_CONDUCT.md")
LINK = re.compile(r"(\]\()((?!https?:|mailto:|#)[^)#\s]+)(#[^)]*)?\)")
LANGUAGES = {".py": "python", ".toml": "toml", ".yml": "yaml", ".yaml": "yaml", ".service": "ini", ".csv": "text"}
FOREIGN = re.compile(r"""<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)=["']?(?:https?:)?//[^>]*>""")
LONGEST = 12_000
"""Characters of a file that its page shows at most."""


def on_files(files: Any, config: Any) -> Any:
    """Add the project's own pages, and a page for each linked file or folder outside docs."""
    pages = {f"project/{name}": (ROOT / name).read_text("utf-8") for name in PROJECT if (ROOT / name).exists()}
    texts = {
        ROOT / "docs" / file.src_uri: Path(file.abs_src_path).read_text("utf-8") for file in files if is_page(file)
    }
    texts |= {ROOT / uri.removeprefix("project/"): text for uri, text in pages.items()}
    for page, text in texts.items():
        for _, link, _ in LINK.findall(text):
            target = (page.parent / link).resolve()
            if is_outside(target) and target.name not in PROJECT and target.exists():
                pages[page_uri(target)] = show_files(target)
    for uri, text in pages.items():
        files.append(File.generated(config, uri, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite links that lead out of docs."""
    uri = page.file.src_uri
    if uri.startswith("repository/"):
        return markdown
    home = ROOT if uri.startswith("project/") else (ROOT / "docs" / uri).parent

    def rewrite(found: re.Match[str]) -> str:
        target = (home / found[2]).resolve()
        own = page_uri(target) if is_outside(target) else target.relative_to(ROOT / "docs").as_posix()
        return f"{found[1]}{posixpath.relpath(own, posixpath.dirname(uri) or '.')}{found[3] or ''})"

    return LINK.sub(rewrite, markdown)


def on_post_build(config: Any) -> None:
    """Refuse a site that loads a script, a style, a font or a picture from elsewhere."""
    for path in sorted(Path(config["site_dir"]).rglob("*.html")):
        loaded = [tag for tag in FOREIGN.findall(path.read_text("utf-8")) if 'rel="canonical"' not in tag]
        if loaded:
            raise PluginError(f"{path.name} loads from elsewhere: {loaded[0]}")


def is_page(file: Any) -> bool:
    """Tell whether a file of the site is a page of docs."""
    return bool(file.is_documentation_page() and file.abs_src_path)


def is_outside(target: Path) -> bool:
    """Tell whether a path of the repository is outside docs."""
    return target.is_relative_to(ROOT) and not target.is_relative_to(ROOT / "docs")


def page_uri(target: Path) -> str:
    """Return the page of the site for a path outside docs."""
    if target.name in PROJECT:
        return f"project/{target.name}"
    return f"repository/{target.relative_to(ROOT).as_posix().replace('.', '_')}.md"


def show_files(target: Path) -> str:
    """Return a page that shows a file, or all files of a folder."""
    inner = [path for path in sorted(target.rglob("*")) if path.is_file() and "__pycache__" not in path.parts]
    title = f"# {target.relative_to(ROOT).as_posix()}\n\nA part of the repository.\n"
    if target.is_file():
        return f"{title}\n{show_file(target)}"
    return title + "".join(f"\n## {path.relative_to(target).as_posix()}\n\n{show_file(path)}" for path in inner)


def show_file(path: Path) -> str:
    """Return the contents of a text file as a block, shortened if it is long."""
    text = path.read_text("utf-8", errors="replace")
    if len(text) > LONGEST:
        text = text[:LONGEST] + "\n...\n"
    return f"````{LANGUAGES.get(path.suffix, 'text')}\n{text.rstrip()}\n````\n"
