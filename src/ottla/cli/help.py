"""The words below a command's options."""

from __future__ import annotations


def examples(*lines: str) -> str:
    """An epilog that shows command lines; brackets would be markup to rich."""
    return "\n".join(["Examples:", *(f"  {line}".replace("[", "\\[") for line in lines)])
