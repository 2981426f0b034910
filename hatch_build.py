"""What a package index shows: the README, whose links lead somewhere outside of the repository too."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([\w./-]+\.\w+(?:#[\w-]+)?)\)")
PICTURE = re.compile(LINK.pattern.replace("(?<!!)", "!"))


class Readme(MetadataHookInterface):
    """The README as `readme`, its links absolute."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """Put it beside what pyproject.toml says."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        address = metadata.get("urls", {}).get("Source")
        metadata["readme"] = {"content-type": "text/markdown", "text": shown(text, address)}


def shown(text: str, address: str | None) -> str:
    """Relative links under the address of the source; where it has none yet, the name of the file or the picture."""
    text = PICTURE.sub(rf"![\1]({address.rstrip('/')}/raw/main/\2)" if address else r"\1", text)
    if address:
        return LINK.sub(rf"[\1]({address.rstrip('/')}/blob/main/\2)", text)
    return LINK.sub(r"\1 (\2 in the source)", text)
