"""Put the pages of the lint rules into the navigation: a new rule's page needs no line in mkdocs.yml."""

from pathlib import Path
from typing import Any

from tpuport.lint.rules.rule_registry import families


def on_config(config: Any) -> Any:
    pages = sorted(path.name for path in (Path(config["docs_dir"]) / "rules").glob("TPU*.md"))
    sections: list[Any] = ["rules/index.md"]
    for family, title in families().items():
        found = [f"rules/{name}" for name in pages if name.startswith(family)]
        if found:
            sections.append({f"{family}xx {title}": found})
    for entry in config["nav"]:
        if "Lint rules" in entry:
            entry["Lint rules"] = sections
    return config
