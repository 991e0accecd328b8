"""Writes configurations as a person would write them: `document` turns what was found into the text of a workspace file.

Where the configurations come from (a server, another tool's files) is left to the callers, and so is writing the file.
"""

from __future__ import annotations

from jsplan.generating.document import document
from jsplan.generating.model import Found, Surroundings, Written, bucket

__all__ = ["Found", "Surroundings", "Written", "bucket", "document"]
