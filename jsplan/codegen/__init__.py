"""Writes configurations as a person would write them: `generate_document` turns what was found into the text of a workspace file.

Where the configurations come from (a server, another tool's files) is left to the callers, and so is writing the file.
"""

from __future__ import annotations

from jsplan.codegen.document import generate_document
from jsplan.codegen.model import CodegenContext, GeneratedFile, ResourceToWrite, bucket_resource

__all__ = [
    "CodegenContext",
    "GeneratedFile",
    "ResourceToWrite",
    "bucket_resource",
    "generate_document",
]
